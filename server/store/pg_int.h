/*
 * Inside server/store: how a statement is run. Parameters and results are binary, so that times and ids are exact.
 * A function here takes one named statement; texts are constants.
 */
#ifndef KV_STORE_PG_INT_H
#define KV_STORE_PG_INT_H

#include "server/store/labels.h"
#include "server/store/page.h"
#include "server/store/pg.h"
#include "server/store/use.h"

#include <libpq-fe.h>

struct kv_pg_query {
    const char *name; /* of the prepared statement; unique in the program */
    const char *sql;
};

/* ---- parameters, in the order $1, $2, … ---- */

#define KV_PG_ARGS_MAX 24

struct kv_pg_args {
    int count;
    bool failed; /* too many: our mistake */
    Oid types[KV_PG_ARGS_MAX];
    const char *values[KV_PG_ARGS_MAX]; /* borrowed until the statement has run */
    int lengths[KV_PG_ARGS_MAX];
    int formats[KV_PG_ARGS_MAX];
    uint8_t scratch[KV_PG_ARGS_MAX][8];
};

void kv_pg_arg_i64(struct kv_pg_args *args, int64_t value);
void kv_pg_arg_u64(struct kv_pg_args *args, uint64_t value); /* over INT64_MAX: failed */
void kv_pg_arg_i32(struct kv_pg_args *args, int64_t value);  /* out of range: failed */
void kv_pg_arg_bool(struct kv_pg_args *args, bool value);
void kv_pg_arg_text(struct kv_pg_args *args, const char *text);
void kv_pg_arg_text_or_null(struct kv_pg_args *args, const char *text); /* "" is null */
void kv_pg_arg_raw(struct kv_pg_args *args, const void *data, size_t len);
void kv_pg_arg_raw_or_null(struct kv_pg_args *args, const void *data, size_t len); /* length 0 is null */
void kv_pg_arg_id(struct kv_pg_args *args, const struct kv_id *id);
void kv_pg_arg_id_or_null(struct kv_pg_args *args, const struct kv_id *id); /* zero is null */
void kv_pg_arg_time(struct kv_pg_args *args, uint64_t us);
void kv_pg_arg_time_or_null(struct kv_pg_args *args, uint64_t us); /* 0 is null */
/* Arrays in PostgreSQL's binary form, built in the caller's buffer, which outlives the statement. */
struct kv_pg_array {
    struct kv_buf buf;
    uint32_t count;
};
enum kv_pg_array_type { KV_PG_ARRAY_BYTEA, KV_PG_ARRAY_I64, KV_PG_ARRAY_TEXT };
void kv_pg_array_init(struct kv_pg_array *array, enum kv_pg_array_type type, size_t count, size_t bytes_max);
void kv_pg_array_raw(struct kv_pg_array *array, const void *data, size_t len, bool null);
void kv_pg_array_i64(struct kv_pg_array *array, int64_t value);
void kv_pg_array_done(struct kv_pg_array *array);
void kv_pg_arg_array(struct kv_pg_args *args, const struct kv_pg_array *array, enum kv_pg_array_type type);

/* Labels: two parameters, $names and $values, for jsonb_object($names, $values); and KV_PG_LABELS(column) selects two
 * columns. */
#define KV_PG_LABELS(column)                                                         \
    "ARRAY(SELECT key FROM jsonb_each_text(" column ") ORDER BY key COLLATE \"C\")," \
    " ARRAY(SELECT value FROM jsonb_each_text(" column ") ORDER BY key COLLATE \"C\")"
struct kv_pg_labels {
    struct kv_pg_array names, values;
};
void kv_pg_labels_init(struct kv_pg_labels *arrays, const struct kv_labels *labels);
void kv_pg_labels_done(struct kv_pg_labels *arrays);
void kv_pg_arg_labels(struct kv_pg_args *args, const struct kv_pg_labels *arrays);
/* When what was used last: two parameters, for unnest($ids, $microseconds). */
struct kv_pg_uses {
    struct kv_pg_array ids, at;
};
void kv_pg_uses_init(struct kv_pg_uses *arrays, const struct kv_store_use *uses, size_t count);
void kv_pg_uses_done(struct kv_pg_uses *arrays);
void kv_pg_arg_uses(struct kv_pg_args *args, const struct kv_pg_uses *arrays);

/* ---- results, column after column; a misfit sets `failed` and yields zeroes, so that a reader checks once ---- */

struct kv_pg_row {
    const PGresult *result;
    int row, column;
    bool failed;
};

struct kv_pg_row kv_pg_row_of(const PGresult *result, int row);
bool kv_pg_get_null(const struct kv_pg_row *row); /* the next column is null; does not move */
int64_t kv_pg_get_i64(struct kv_pg_row *row);
uint64_t kv_pg_get_u64(struct kv_pg_row *row);
int32_t kv_pg_get_i32(struct kv_pg_row *row);
uint32_t kv_pg_get_u32(struct kv_pg_row *row);
bool kv_pg_get_bool(struct kv_pg_row *row);
uint64_t kv_pg_get_time(struct kv_pg_row *row);                          /* null: 0 */
void kv_pg_get_text(struct kv_pg_row *row, char *ret_text, size_t size); /* null: "" */
void kv_pg_get_raw(struct kv_pg_row *row, void *ret_data, size_t len);   /* exactly this long; null: zeroes */
struct kv_bytes kv_pg_get_bytes(struct kv_pg_row *row);                  /* borrowed from the result; null: empty */
void kv_pg_get_id(struct kv_pg_row *row, struct kv_id *ret_id);          /* null: zero */
/* The index of the column's text among `names`; not there: failed. */
int kv_pg_get_word(struct kv_pg_row *row, const char *const *names, int count);
/* An array of texts, item after item. */
struct kv_pg_items {
    struct kv_reader reader; /* borrowed from the result */
    unsigned count;
};
struct kv_pg_items kv_pg_get_array(struct kv_pg_row *row);
void kv_pg_item_text(struct kv_pg_items *items, struct kv_pg_row *row, char *ret_text, size_t size);
void kv_pg_get_labels(struct kv_pg_row *row, struct kv_labels *ret_labels);
KV_RC kv_pg_row_check(const struct kv_pg_row *row,
                      struct kv_errinfo *info); /* KV_E_CORRUPT when something did not fit */

/* ---- statements ---- */

/* Runs it; the result is owned (kv_pg_result_free) and is always one of rows or of a command that succeeded. Outside of
 * a transaction a statement whose connection turns out lost runs again on a new one, once: so only reads go there. */
KV_RC kv_pg_read(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                 struct kv_errinfo *info, PGresult **ret_result);
/* The same, in a transaction only. */
KV_RC kv_pg_write(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                  struct kv_errinfo *info, PGresult **ret_result);
/* The same for a command whose result is only how many rows it hit. */
KV_RC kv_pg_change(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                   struct kv_errinfo *info, uint64_t *ret_rows);
/* KV_E_STALE with `stale` as text unless exactly one row was hit. */
KV_RC kv_pg_change_one(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                       struct kv_errinfo *info, const char *stale);
/* Reads one row or `none`. `fill` takes every column; whether they fitted is checked after it. */
typedef KV_RC (*kv_pg_fill_fn)(struct kv_pg_row *row, void *ret);
KV_RC kv_pg_fill_u64(struct kv_pg_row *row, void *ret); /* of the one column, into a uint64_t */
KV_RC kv_pg_fill_id(struct kv_pg_row *row, void *ret);  /* into a struct kv_id */
struct kv_pg_one {
    const struct kv_pg_query *query;
    const struct kv_pg_args *args;
    bool write;
    enum kv_err none; /* the code when there is no row */
    const char *none_text;
};
KV_RC kv_pg_fetch_one(struct kv_pg *pg, const struct kv_pg_one *one, kv_pg_fill_fn fill, void *ret,
                      struct kv_errinfo *info);
/* Reads rows into an array of `size` bytes each. The statement has a limit of `max`. */
struct kv_pg_many {
    const struct kv_pg_query *query;
    const struct kv_pg_args *args;
    size_t max, size;
};
KV_RC kv_pg_fetch_many(struct kv_pg *pg, const struct kv_pg_many *many, kv_pg_fill_fn fill, void *ret_list,
                       size_t *ret_count, struct kv_errinfo *info);
/* A page of a list, see page.h: the texts that end its two statements, newest or oldest first, with the columns that
 * are its order and the numbers of three parameters that kv_pg_fetch_page adds. */
#define KV_PG_PAGE(time, key, at, id, limit, than, way)                                                      \
    " AND ($" at "::timestamptz IS NULL OR (" time ", " key ") " than " ($" at ", $" id "::bytea)) ORDER BY" \
    " " time way ", " key way " LIMIT $" limit
#define KV_PG_PAGE_DESC(time, key, at, id, limit) KV_PG_PAGE(time, key, at, id, limit, "<", " DESC")
#define KV_PG_PAGE_ASC(time, key, at, id, limit) KV_PG_PAGE(time, key, at, id, limit, ">", "")
struct kv_pg_paged {
    kv_pg_fill_fn fill;
    size_t size;
    void *ret_list; /* page->limit + 1 of them */
    size_t *ret_count;
};
KV_RC kv_pg_fetch_page(struct kv_pg *pg, const struct kv_pg_query *query, struct kv_pg_args *args, struct kv_page *page,
                       const struct kv_pg_paged *paged, struct kv_errinfo *info);
/* One bytea of one row, appended to the caller's buffer; null or no row is KV_E_MISSING. */
KV_RC kv_pg_fetch_blob(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                       const char *missing, struct kv_errinfo *info, struct kv_buf *ret_blob);

/* Ends other backends of the same database user whose transaction holds a lock on rows of `table` and is older than
 * $1 milliseconds: ours, the lock timeout. Not in a transaction. */
#define KV_PG_EVICT(table)                                                                             \
    "SELECT count(pg_terminate_backend(a.pid)) FROM pg_stat_activity a"                                \
    " WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()" \
    " AND a.xact_start < clock_timestamp() - make_interval(secs => $1::bigint / 1000.0)"               \
    " AND a.pid IN (SELECT pid FROM pg_locks WHERE relation = '" table "'::regclass"                   \
    " AND mode IN ('RowShareLock', 'RowExclusiveLock') AND granted)"
KV_RC kv_pg_evict(struct kv_pg *pg, const struct kv_pg_query *query, struct kv_errinfo *info, uint32_t *ret_count);

void kv_pg_result_free(PGresult **result); /* for KV_CLEANUP */

/* Text without parameters, several statements allowed: BEGIN and migrations, nothing else. */
KV_RC kv_pg_script(struct kv_pg *pg, const char *sql, uint32_t timeout_ms, struct kv_errinfo *info,
                   PGresult **ret_result);

/* ---- the connection itself (pg.c, pg_wire.c, pg_tx.c) ---- */

#define KV_PG_PREPARED_MAX 256 /* a statement past it runs unprepared */
#define KV_PG_SETTINGS_SIZE 1024
#define KV_PG_CONNECT_MS 2000
#define KV_PG_GRACE_MS 2000 /* past the server's own timeout the connection counts as lost */
#define KV_PG_BACKOFF_MIN_NS (100 * KV_MS_NS)
#define KV_PG_BACKOFF_MAX_NS (1600 * KV_MS_NS)

/* What a connection is counted as. */
enum kv_pg_counted { KV_PG_NONE, KV_PG_DOWN, KV_PG_IDLE, KV_PG_BUSY, KV_PG_STATES };
enum kv_pg_outcome { KV_PG_COMMIT, KV_PG_RETRY, KV_PG_CONFLICT, KV_PG_ERROR, KV_PG_OUTCOMES };

struct kv_pg {
    struct kv_env env;
    char *url, *application_name;
    uint32_t statement_timeout_ms, lock_timeout_ms, idle_timeout_ms;
    const struct kv_pg_token *token; /* borrowed */
    enum kv_pg_prepare prepare;
    bool pooled;  /* nothing may outlive a transaction: settings are its own, statements are not prepared */
    PGconn *conn; /* NULL: not connected */
    const struct kv_pg_query *prepared[KV_PG_PREPARED_MAX];
    size_t prepared_count;
    bool in_tx;
    bool again; /* PostgreSQL asked to run the transaction again */
    bool told;  /* the loss was logged; the return will be, too */
    uint64_t backoff_ns, next_attempt_ns;
    enum kv_pg_counted counted;
    struct kv_pg_stats stats;
};

KV_RC kv_pg_connect(struct kv_pg *pg, struct kv_errinfo *info); /* does nothing when there is a connection */
void kv_pg_drop(struct kv_pg *pg, const char *why);             /* the connection is lost */
/* The settings that results depend on, as one SELECT; `local`: for this transaction only. */
void kv_pg_settings(const struct kv_pg *pg, bool local, char ret_sql[KV_PG_SETTINGS_SIZE]);
/* BEGIN, with the settings where they are the transaction's own. */
KV_RC kv_pg_begin(struct kv_pg *pg, struct kv_errinfo *info);
/* Sends what libpq has queued, waits for the command's end. NULL: the connection was lost and dropped. Owned. */
PGresult *kv_pg_wait(struct kv_pg *pg, uint32_t timeout_ms, const char *why);
/* What a failed result means; may drop the connection. Never KV_OK. */
KV_RC kv_pg_explain(struct kv_pg *pg, const PGresult *result, struct kv_errinfo *info);
KV_RC kv_pg_unavailable(struct kv_errinfo *info);

/* pg_metrics.c */
void kv_pg_count_state(struct kv_pg *pg, enum kv_pg_counted state);
void kv_pg_count_loss(const char *why);
void kv_pg_count_tx(enum kv_tx what, enum kv_pg_outcome outcome, uint64_t n);
void kv_pg_time_tx(uint64_t took_ns);

#endif

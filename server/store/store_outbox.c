/*
 * The outbox: entries that are durable with the change they tell of and wait for their place in a log.
 */
#include "server/store/pg_int.h"
#include "server/store/store_audit.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

KV_RC kv_store_outbox_insert(struct kv_pg *pg, const struct kv_id *log, struct kv_bytes entry, struct kv_bytes ref,
                             uint64_t at_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "outbox_insert", "INSERT INTO audit_outbox (log_id, entry, ref, created_at) VALUES ($1, $2, $3, $4)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, log);
    kv_pg_arg_raw(&args, entry.data, entry.len);
    kv_pg_arg_raw_or_null(&args, ref.data, ref.len);
    kv_pg_arg_time(&args, at_us);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

KV_RC kv_store_outbox_insert_many(struct kv_pg *pg, const struct kv_store_outbox_new *rows, size_t count,
                                  struct kv_errinfo *info)
{
    /* Their numbers are drawn in the order of the places. */
    static const struct kv_pg_query query = {
        "outbox_insert_many",
        "INSERT INTO audit_outbox (log_id, entry, ref, created_at)"
        " SELECT log_id, entry, ref, timestamptz 'epoch' + at * interval '1 us'"
        " FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS fresh (log_id, entry, ref, at, place) ORDER BY place"};
    struct kv_pg_array logs, entries, refs, times;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += rows[i].entry.len;
    }
    kv_pg_array_init(&logs, KV_PG_ARRAY_BYTEA, count, count * sizeof rows->log.b);
    kv_pg_array_init(&entries, KV_PG_ARRAY_BYTEA, count, bytes);
    kv_pg_array_init(&refs, KV_PG_ARRAY_BYTEA, count, count * KV_LOG_REF_BYTES_MAX);
    kv_pg_array_init(&times, KV_PG_ARRAY_I64, count, count * 8);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(&logs, rows[i].log.b, sizeof rows[i].log.b, false);
        kv_pg_array_raw(&entries, rows[i].entry.data, rows[i].entry.len, false);
        kv_pg_array_raw(&refs, rows[i].ref.data, rows[i].ref.len, rows[i].ref.len == 0);
        kv_pg_array_i64(&times, (int64_t)rows[i].at_us);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_array(&args, &logs, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &entries, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &refs, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(&args, &times, KV_PG_ARRAY_I64);
    uint64_t inserted = 0;
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &inserted);
    kv_pg_array_done(&logs);
    kv_pg_array_done(&entries);
    kv_pg_array_done(&refs);
    kv_pg_array_done(&times);
    return rc;
}

void kv_store_outbox_done(struct kv_store_outbox *outbox)
{
    kv_free(outbox->rows);
    kv_buf_done(&outbox->bytes);
    *outbox = (struct kv_store_outbox){0};
}

static void read_row(const PGresult *result, int index, struct kv_store_outbox_row *ret_row, bool *failed)
{
    struct kv_pg_row row = kv_pg_row_of(result, index);
    ret_row->id = kv_pg_get_i64(&row);
    kv_pg_get_id(&row, &ret_row->log);
    ret_row->entry = kv_pg_get_bytes(&row);
    ret_row->ref = kv_pg_get_bytes(&row);
    ret_row->created_us = kv_pg_get_time(&row);
    *failed = *failed || kv_pg_row_check(&row, NULL) != KV_OK;
}

/* Entries lie in the result until now; afterwards in one buffer that the list owns. */
static KV_RC keep_bytes(struct kv_store_outbox *outbox)
{
    size_t total = 0;
    for (size_t i = 0; i < outbox->count; i++) {
        total += outbox->rows[i].entry.len + outbox->rows[i].ref.len;
    }
    kv_buf_init(&outbox->bytes, total + 1);
    for (size_t i = 0; i < outbox->count; i++) {
        kv_buf_append(&outbox->bytes, outbox->rows[i].entry.data, outbox->rows[i].entry.len);
        kv_buf_append(&outbox->bytes, outbox->rows[i].ref.data, outbox->rows[i].ref.len);
    }
    KV_TRY(kv_buf_check(&outbox->bytes));
    const uint8_t *at = outbox->bytes.data;
    for (size_t i = 0; i < outbox->count; i++) {
        outbox->rows[i].entry.data = at;
        at += outbox->rows[i].entry.len;
        outbox->rows[i].ref.data = at;
        at += outbox->rows[i].ref.len;
    }
    return KV_OK;
}

static KV_RC read_rows(const PGresult *result, struct kv_store_outbox *ret_outbox)
{
    struct kv_store_outbox outbox = {.count = (size_t)PQntuples(result)};
    if (outbox.count == 0) {
        *ret_outbox = outbox;
        return KV_OK;
    }
    outbox.rows = kv_alloc_array(outbox.count, sizeof outbox.rows[0]);
    if (outbox.rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    bool failed = false;
    for (size_t i = 0; i < outbox.count; i++) {
        read_row(result, (int)i, &outbox.rows[i], &failed);
    }
    enum kv_err rc = failed ? KV_E_CORRUPT : keep_bytes(&outbox);
    if (rc != KV_OK) {
        kv_store_outbox_done(&outbox);
        return rc;
    }
    *ret_outbox = outbox;
    return KV_OK;
}

KV_RC kv_store_outbox_fetch(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_outbox *ret_outbox)
{
    /* Numbers are drawn before commit, so a lower one may show up later: what is fetched is deleted by its number,
     * never by `up to`. */
    static const struct kv_pg_query query = {
        "outbox_fetch", "WITH oldest AS (SELECT id, log_id, entry, ref, created_at FROM audit_outbox"
                        " ORDER BY id LIMIT $1 FOR UPDATE)"
                        " SELECT id, log_id, entry, ref, created_at FROM oldest ORDER BY log_id, id"};
    KV_ASSERT(max > 0 && max <= KV_OUTBOX_BATCH_MAX);
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, max);
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_write(pg, &query, &args, info, &result));
    enum kv_err rc = read_rows(result, ret_outbox);
    return rc == KV_OK ? KV_OK : kv_fail(info, rc, "the audit outbox cannot be read");
}

KV_RC kv_store_outbox_delete(struct kv_pg *pg, const struct kv_store_outbox *outbox, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"outbox_delete", "DELETE FROM audit_outbox WHERE id = ANY ($1)"};
    struct kv_pg_array array;
    kv_pg_array_init(&array, KV_PG_ARRAY_I64, outbox->count, outbox->count * 8);
    for (size_t i = 0; i < outbox->count; i++) {
        kv_pg_array_i64(&array, outbox->rows[i].id);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_I64);
    uint64_t rows = 0;
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_array_done(&array);
    if (rc == KV_OK && rows != outbox->count) {
        return kv_fail(info, KV_E_STALE, "another sequencer took entries from the outbox");
    }
    return rc;
}

struct stats {
    uint64_t count, oldest_us;
};

static KV_RC fill_stats(struct kv_pg_row *row, void *ret)
{
    struct stats *stats = ret;
    stats->count = kv_pg_get_u64(row);
    stats->oldest_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_outbox_stats(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count, uint64_t *ret_oldest_us)
{
    static const struct kv_pg_query query = {"outbox_stats", "SELECT count(*), min(created_at) FROM audit_outbox"};
    struct kv_pg_args args = {0};
    struct stats stats = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    KV_TRY(kv_pg_fetch_one(pg, &one, fill_stats, &stats, info));
    *ret_count = stats.count;
    *ret_oldest_us = stats.oldest_us;
    return KV_OK;
}

/*
 * Heads of the audit logs, their signed notes, and how far instances' journals are shipped.
 */
#include "server/store/pg_int.h"
#include "server/store/store_audit.h"

#include <string.h>

#define COLUMNS "id, origin, size, root, frontier, last_signed_size"

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_log *log = ret;
    kv_pg_get_id(row, &log->id);
    kv_pg_get_text(row, log->origin, sizeof log->origin);
    log->size = kv_pg_get_u64(row);
    kv_pg_get_raw(row, log->root, sizeof log->root);
    struct kv_bytes frontier = kv_pg_get_bytes(row);
    if (frontier.len > sizeof log->frontier) {
        return KV_E_CORRUPT;
    }
    if (frontier.len > 0) {
        memcpy(log->frontier, frontier.data, frontier.len);
    }
    log->frontier_len = frontier.len;
    log->signed_size = kv_pg_get_u64(row);
    return KV_OK;
}

static const char *const no_log = "there is no such audit log";

KV_RC kv_store_log_ensure(struct kv_pg *pg, const struct kv_id *id, const char *origin, const uint8_t empty_root[32],
                          struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "log_ensure", "INSERT INTO audit_log (id, origin, root) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_text(&args, origin);
    kv_pg_arg_raw(&args, empty_root, 32);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    struct kv_store_log log;
    KV_TRY(kv_store_log_get(pg, id, info, &log));
    if (strcmp(log.origin, origin) != 0) {
        return kv_fail(info, KV_E_INVALID_STATE,
                       "the audit log has another origin; a log keeps its name: put audit.origin back");
    }
    return KV_OK;
}

KV_RC kv_store_log_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info, struct kv_store_log *ret_log)
{
    static const struct kv_pg_query query = {"log_get", "SELECT " COLUMNS " FROM audit_log WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_log};
    return kv_pg_fetch_one(pg, &one, fill, ret_log, info);
}

KV_RC kv_store_log_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info, struct kv_store_log *ret_log)
{
    static const struct kv_pg_query query = {"log_lock", "SELECT " COLUMNS " FROM audit_log WHERE id = $1 FOR UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_log};
    return kv_pg_fetch_one(pg, &one, fill, ret_log, info);
}

KV_RC kv_store_log_set_head(struct kv_pg *pg, const struct kv_store_log *log, uint64_t seen_size,
                            struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"log_set_head", "UPDATE audit_log SET size = $3, root = $4, frontier = $5"
                                                             " WHERE id = $1 AND size = $2 AND $3 > size"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &log->id);
    kv_pg_arg_u64(&args, seen_size);
    kv_pg_arg_u64(&args, log->size);
    kv_pg_arg_raw(&args, log->root, sizeof log->root);
    kv_pg_arg_raw(&args, log->frontier, log->frontier_len);
    return kv_pg_change_one(pg, &query, &args, info, "the audit log has grown meanwhile");
}

KV_RC kv_store_log_set_note(struct kv_pg *pg, const struct kv_id *id, uint64_t size, struct kv_bytes note,
                            uint64_t at_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"log_set_note",
                                             "UPDATE audit_log SET last_signed_size = $2, note = $3, noted_at = $4"
                                             " WHERE id = $1 AND last_signed_size <= $2 AND size >= $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_u64(&args, size);
    kv_pg_arg_raw(&args, note.data, note.len);
    kv_pg_arg_time(&args, at_us);
    return kv_pg_change_one(pg, &query, &args, info, "a later head is signed already, or the log is not that long");
}

struct note {
    struct kv_buf *buf;
    uint64_t size;
    bool missing;
};

static KV_RC fill_note(struct kv_pg_row *row, void *ret)
{
    struct note *note = ret;
    note->size = kv_pg_get_u64(row);
    note->missing = kv_pg_get_null(row);
    struct kv_bytes bytes = kv_pg_get_bytes(row);
    kv_buf_append(note->buf, bytes.data, bytes.len);
    return kv_buf_check(note->buf);
}

KV_RC kv_store_log_note(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info, struct kv_buf *ret_note,
                        uint64_t *ret_size)
{
    static const struct kv_pg_query query = {"log_note", "SELECT last_signed_size, note FROM audit_log WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct note note = {.buf = ret_note};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_MISSING, .none_text = no_log};
    KV_TRY(kv_pg_fetch_one(pg, &one, fill_note, &note, info));
    if (note.missing) {
        return kv_fail(info, KV_E_MISSING, "the audit log has no signed head yet");
    }
    *ret_size = note.size;
    return KV_OK;
}

KV_RC kv_store_log_list_unsigned(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_id *ret_ids,
                                 size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "log_list_unsigned", "SELECT id FROM audit_log WHERE size > last_signed_size ORDER BY id LIMIT $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_ids[0]};
    return kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_ids, ret_count, info);
}

/* ---- journals ---- */

KV_RC kv_store_journal_lock(struct kv_pg *pg, const struct kv_id *instance, struct kv_errinfo *info, uint64_t *ret_seq)
{
    /* The update that changes nothing makes a row and its lock in one statement, whether it was there or not. */
    static const struct kv_pg_query query = {
        "journal_lock", "INSERT INTO journal_ship (instance, seq) VALUES ($1, 0)"
                        " ON CONFLICT (instance) DO UPDATE SET seq = journal_ship.seq RETURNING seq"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, instance);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_CORRUPT, .none_text = "no row came back"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_seq, info);
}

KV_RC kv_store_journal_seq(struct kv_pg *pg, const struct kv_id *instance, struct kv_errinfo *info, uint64_t *ret_seq)
{
    static const struct kv_pg_query query = {"journal_seq",
                                             "SELECT coalesce((SELECT seq FROM journal_ship WHERE instance = $1), 0)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, instance);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no row came back"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_seq, info);
}

KV_RC kv_store_journal_advance(struct kv_pg *pg, const struct kv_id *instance, uint64_t seen, uint64_t seq,
                               struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "journal_advance", "UPDATE journal_ship SET seq = $3 WHERE instance = $1 AND seq = $2 AND $3 > seq"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, instance);
    kv_pg_arg_u64(&args, seen);
    kv_pg_arg_u64(&args, seq);
    return kv_pg_change_one(pg, &query, &args, info, "the journal was shipped further by another process");
}

/*
 * What changes on a session while it lives: its client's own id, labels, lifetimes, when it was used last.
 */
#include "server/store/pg_int.h"
#include "server/store/store_hold.h"

KV_RC kv_store_session_set_external(struct kv_pg *pg, const struct kv_id *id, const struct kv_store_external *external,
                                    struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"session_set_external",
                                             "UPDATE session SET external_hmac = $2, external_sealed = $3"
                                             " WHERE id = $1 AND state = 'active'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_raw(&args, external->hmac, sizeof external->hmac);
    kv_pg_arg_raw(&args, external->sealed, external->sealed_len);
    return kv_pg_change_one(pg, &query, &args, info, "the session is not active");
}

KV_RC kv_store_session_update(struct kv_pg *pg, struct kv_store_session *session, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "session_update", "UPDATE session SET expires_at = $3, idle_seconds = nullif($4, 0), idle_at = $5,"
                          " pinned_until = $6, last_used_at = $7, updated_at = $8, labels = jsonb_object($9, $10),"
                          " rev = rev + 1 WHERE id = $1 AND rev = $2 AND state = 'active'"};
    struct kv_pg_labels labels;
    kv_pg_labels_init(&labels, &session->labels);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &session->id);
    kv_pg_arg_u64(&args, session->rev);
    kv_pg_arg_time_or_null(&args, session->expires_us);
    kv_pg_arg_u64(&args, session->idle_seconds);
    kv_pg_arg_time_or_null(&args, session->idle_us);
    kv_pg_arg_time_or_null(&args, session->pinned_until_us);
    kv_pg_arg_time_or_null(&args, session->last_used_us);
    kv_pg_arg_time_or_null(&args, session->updated_us);
    kv_pg_arg_labels(&args, &labels);
    enum kv_err rc = kv_pg_change_one(pg, &query, &args, info, "the session changed meanwhile");
    kv_pg_labels_done(&labels);
    session->rev += rc == KV_OK;
    return rc;
}

KV_RC kv_store_session_used(struct kv_pg *pg, const struct kv_store_use *uses, size_t count, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "session_used", "UPDATE session s SET last_used_at = u.at,"
                        " idle_at = CASE WHEN s.idle_seconds IS NULL THEN NULL"
                        " ELSE u.at + s.idle_seconds * interval '1 second' END"
                        " FROM (SELECT id, timestamptz 'epoch' + at * interval '1 microsecond' AS at"
                        " FROM unnest($1, $2) AS raw (id, at)) AS u"
                        " WHERE s.id = u.id AND s.state = 'active'"
                        " AND (s.last_used_at IS NULL OR s.last_used_at < u.at)"};
    struct kv_pg_uses arrays;
    kv_pg_uses_init(&arrays, uses, count);
    struct kv_pg_args args = {0};
    kv_pg_arg_uses(&args, &arrays);
    uint64_t rows = 0;
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_uses_done(&arrays);
    return rc;
}

static KV_RC fill_overdue(struct kv_pg_row *row, void *ret)
{
    struct kv_store_overdue *overdue = ret;
    kv_pg_get_id(row, &overdue->id);
    kv_pg_get_id(row, &overdue->tenant);
    overdue->expires_us = kv_pg_get_time(row);
    overdue->idle_seconds = kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_store_session_list_overdue(struct kv_pg *pg, uint64_t now_us, uint64_t grace_us, size_t max,
                                    struct kv_errinfo *info, struct kv_store_overdue *ret_list, size_t *ret_count)
{
    /* A transfer's entry in the log is durable before the transfer is answered, so it tells of uses that a crash took
     * from memory before they came to the row. */
    static const struct kv_pg_query query = {
        "session_list_overdue",
        "SELECT s.id, s.tenant_id, s.expires_at, coalesce(s.idle_seconds, 0) FROM session s"
        " JOIN tenant t ON t.id = s.tenant_id AND s.slot >= t.first_slot"
        " WHERE s.state = 'active' AND (s.expires_at IS NOT NULL OR s.idle_at IS NOT NULL)"
        " AND least(s.expires_at, s.idle_at) <= $1 AND (s.pinned_until IS NULL OR s.pinned_until <= $1)"
        " AND NOT EXISTS (SELECT FROM hold h WHERE " KV_HOLD_COVERS(
            "1") ")"
                 " AND (s.expires_at <= $1 OR (s.idle_at <= $2 AND NOT EXISTS (SELECT 1 FROM audit_leaf l"
                 " WHERE l.session_id = s.id AND l.at > $2 - s.idle_seconds * interval '1 second')))"
                 " ORDER BY least(s.expires_at, s.idle_at) LIMIT $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_time(&args, now_us - grace_us);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill_overdue, ret_list, ret_count, info);
}

KV_RC kv_store_session_ids(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *after, size_t max,
                           struct kv_errinfo *info, struct kv_id *ret_ids, size_t *ret_count)
{
    static const struct kv_pg_query query = {"session_ids", "SELECT id FROM session WHERE tenant_id = $1 AND id > $2"
                                                            " AND state = 'active' AND slot >= (SELECT first_slot"
                                                            " FROM tenant WHERE id = $1) ORDER BY id LIMIT $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_id(&args, after);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_ids[0]};
    return kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_ids, ret_count, info);
}

static KV_RC fill_entry(struct kv_pg_row *row, void *ret)
{
    struct kv_store_session_entry *entry = ret;
    entry->at_us = kv_pg_get_time(row);
    kv_pg_get_text(row, entry->op, sizeof entry->op);
    kv_pg_get_text(row, entry->outcome, sizeof entry->outcome);
    kv_pg_get_id(row, &entry->actor);
    return KV_OK;
}

KV_RC kv_store_session_entries(struct kv_pg *pg, const struct kv_id *id, size_t max, struct kv_errinfo *info,
                               struct kv_store_session_entry *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"session_entries",
                                             "SELECT at, op, outcome, actor FROM audit_leaf WHERE session_id = $1"
                                             " ORDER BY idx DESC LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill_entry, ret_list, ret_count, info);
}

static KV_RC fill_counts(struct kv_pg_row *row, void *ret)
{
    uint64_t *counts = ret;
    for (int i = 0; i < KV_SESSION_UNKNOWN; i++) {
        counts[i] = kv_pg_get_u64(row);
    }
    return KV_OK;
}

KV_RC kv_store_session_count(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                             uint64_t ret_counts[KV_SESSION_UNKNOWN])
{
    static const struct kv_pg_query query = {
        "session_count", "SELECT count(*) FILTER (WHERE state = 'active'), count(*) FILTER (WHERE state = 'erasing'),"
                         " count(*) FILTER (WHERE state = 'erased'), count(*) FILTER (WHERE state = 'lost')"
                         " FROM (SELECT " KV_SESSION_STATE " AS state FROM session s" KV_SESSION_CUT
                         "WHERE s.tenant_id = $1 AND s.kind = 'session') AS now"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_counts, ret_counts, info);
}

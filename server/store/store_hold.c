/* See store_hold.h. Must never let an erasure go while a hold that is active covers its session. */
#include "server/store/store_hold.h"

#include "server/store/pg_int.h"

/* Of `erasure e`. The first two conditions are those of the index erasure_blocked. */
#define BLOCKED "e.blocked_hold_at IS NOT NULL AND e.unblocked_at IS NULL AND e.state = 'blocked_hold'"

static const char *const scope_names[] = {"session", "label", "tenant"};

/* --- a hold ------------------------------------------------------------------------------------------------------ */

KV_RC kv_store_hold_insert(struct kv_pg *pg, const struct kv_store_hold *hold, uint64_t open_max,
                           struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "hold_insert", "INSERT INTO hold (id, tenant_id, scope, session_id, label, ground, reason_sha256,"
                       " reference_sha256, created_at, created_by, created_role, expires_at)"
                       " SELECT $1, $2, $3, $4, $5::text::jsonb, $6, $7, $8, $9, $10, $11, $12"
                       " WHERE (SELECT count(*) FROM hold WHERE tenant_id = $2 AND ended_at IS NULL) < $13::bigint"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &hold->id);
    kv_pg_arg_id(&args, &hold->tenant);
    kv_pg_arg_text(&args, scope_names[hold->scope]);
    kv_pg_arg_id_or_null(&args, &hold->session);
    kv_pg_arg_text_or_null(&args, hold->label);
    kv_pg_arg_text_or_null(&args, hold->ground);
    kv_pg_arg_text(&args, hold->reason_sha256);
    kv_pg_arg_text_or_null(&args, hold->reference_sha256);
    kv_pg_arg_time(&args, hold->created_us);
    kv_pg_arg_id_or_null(&args, &hold->created_by);
    kv_pg_arg_text(&args, hold->created_role);
    kv_pg_arg_time(&args, hold->expires_us);
    kv_pg_arg_u64(&args, open_max);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    return rows == 1 ? KV_OK
                     : kv_fail(info, KV_E_LIMIT, "the tenant has %llu holds; release one that is not needed any more",
                               (unsigned long long)open_max);
}

#define SELECT_HOLD                                                                                       \
    "SELECT id, tenant_id, scope, session_id, label::text, ground, reason_sha256, reference_sha256, rev," \
    " created_by, released_by, created_role, created_at, expires_at, released_at, ended_at,"              \
    " (SELECT count(*) FROM erasure e WHERE e.hold_id = hold.id AND " BLOCKED ") FROM hold "

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_hold *hold = ret;
    kv_pg_get_id(row, &hold->id);
    kv_pg_get_id(row, &hold->tenant);
    hold->scope = (enum kv_hold_scope)kv_pg_get_word(row, scope_names, 3);
    kv_pg_get_id(row, &hold->session);
    kv_pg_get_text(row, hold->label, sizeof hold->label);
    kv_pg_get_text(row, hold->ground, sizeof hold->ground);
    kv_pg_get_text(row, hold->reason_sha256, sizeof hold->reason_sha256);
    kv_pg_get_text(row, hold->reference_sha256, sizeof hold->reference_sha256);
    hold->rev = kv_pg_get_u64(row);
    kv_pg_get_id(row, &hold->created_by);
    kv_pg_get_id(row, &hold->released_by);
    kv_pg_get_text(row, hold->created_role, sizeof hold->created_role);
    hold->created_us = kv_pg_get_time(row);
    hold->expires_us = kv_pg_get_time(row);
    hold->released_us = kv_pg_get_time(row);
    hold->ended_us = kv_pg_get_time(row);
    hold->blocked = kv_pg_get_u64(row);
    return KV_OK;
}

static const char *const no_hold = "there is no such hold";

KV_RC kv_store_hold_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                        struct kv_store_hold *ret_hold)
{
    static const struct kv_pg_query query = {"hold_get", SELECT_HOLD "WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_hold};
    return kv_pg_fetch_one(pg, &one, fill, ret_hold, info);
}

KV_RC kv_store_hold_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                         struct kv_store_hold *ret_hold)
{
    static const struct kv_pg_query query = {"hold_lock", SELECT_HOLD "WHERE id = $1 FOR NO KEY UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_hold};
    return kv_pg_fetch_one(pg, &one, fill, ret_hold, info);
}

#define LIST_HOLDS                                                                                          \
    SELECT_HOLD "WHERE tenant_id = $1 AND ($2::text IS NULL OR $2 = CASE WHEN released_at IS NOT NULL THEN" \
                " 'released' WHEN ended_at IS NOT NULL OR expires_at <= $3 THEN 'expired' ELSE 'active' END)"

KV_RC kv_store_hold_page(struct kv_pg *pg, const struct kv_store_hold_filter *filter, struct kv_page *page,
                         struct kv_errinfo *info, struct kv_store_hold *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"hold_page", LIST_HOLDS KV_PG_PAGE_DESC("created_at", "id", "4", "5", "6")},
        {"hold_page_up", LIST_HOLDS KV_PG_PAGE_ASC("created_at", "id", "4", "5", "6")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &filter->tenant);
    kv_pg_arg_text_or_null(&args, filter->state);
    kv_pg_arg_time(&args, filter->now_us);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

KV_RC kv_store_hold_end(struct kv_pg *pg, struct kv_store_hold *hold, struct kv_errinfo *info)
{
    /* A label's value says of whom the sessions were, and nothing needs it any more. */
    static const struct kv_pg_query query = {
        "hold_end", "UPDATE hold SET released_at = $2, released_by = $3, ended_at = $4, rev = rev + 1, label ="
                    " (SELECT jsonb_object_agg(name, NULL::text) FROM jsonb_object_keys(label) AS name)"
                    " WHERE id = $1 AND ended_at IS NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &hold->id);
    kv_pg_arg_time_or_null(&args, hold->released_us);
    kv_pg_arg_id_or_null(&args, &hold->released_by);
    kv_pg_arg_time(&args, hold->ended_us);
    KV_TRY(kv_pg_change_one(pg, &query, &args, info, "the hold has ended already"));
    hold->rev++;
    return KV_OK;
}

KV_RC kv_store_hold_list_expired(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                                 struct kv_id *ret_ids, size_t *ret_count)
{
    static const struct kv_pg_query query = {"hold_list_expired",
                                             "SELECT id FROM hold WHERE ended_at IS NULL AND expires_at <= $1"
                                             " ORDER BY expires_at LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_ids[0]};
    return kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_ids, ret_count, info);
}

/* --- what is covered --------------------------------------------------------------------------------------------- */

#define LONGEST(at) "(SELECT h.id FROM hold h WHERE " KV_HOLD_COVERS(at) " ORDER BY h.expires_at DESC, h.id LIMIT 1)"

static void ids_init(struct kv_pg_array *array, const struct kv_store_ids *sessions)
{
    kv_pg_array_init(array, KV_PG_ARRAY_BYTEA, sessions->count, sessions->count * sizeof sessions->ids[0]);
    for (size_t i = 0; i < sessions->count; i++) {
        kv_pg_array_raw(array, sessions->ids[i].b, sizeof sessions->ids[i].b, false);
    }
}

static KV_RC fill_held(struct kv_pg_row *row, void *ret)
{
    struct kv_store_held *held = ret;
    kv_pg_get_id(row, &held->session);
    kv_pg_get_id(row, &held->hold);
    return KV_OK;
}

KV_RC kv_store_held_of(struct kv_pg *pg, const struct kv_store_ids *sessions, uint64_t now_us, struct kv_errinfo *info,
                       struct kv_store_held *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"held_of", "SELECT s.id, n.id FROM session s JOIN LATERAL " LONGEST(
                                                            "2") " n ON true WHERE s.id = ANY ($1) LIMIT $3"};
    struct kv_pg_array array;
    struct kv_pg_args args = {0};
    ids_init(&array, sessions);
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_u64(&args, sessions->count);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = sessions->count, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_held, ret_list, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

KV_RC kv_store_holds_over(struct kv_pg *pg, const struct kv_store_ids *sessions, uint64_t now_us,
                          struct kv_errinfo *info, uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"holds_over", "SELECT count(DISTINCT h.id) FROM session s JOIN hold h"
                                                           " ON " KV_HOLD_COVERS("2") " WHERE s.id = ANY ($1)"};
    struct kv_pg_array array;
    struct kv_pg_args args = {0};
    ids_init(&array, sessions);
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    enum kv_err rc = kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

KV_RC kv_store_hold_any(struct kv_pg *pg, const struct kv_id *tenant, uint64_t now_us, struct kv_errinfo *info,
                        struct kv_id *ret_hold)
{
    static const struct kv_pg_query query = {"hold_any", "SELECT id FROM hold WHERE tenant_id = $1 AND ended_at IS NULL"
                                                         " AND expires_at > $2 ORDER BY expires_at DESC, id LIMIT 1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "the tenant has no hold"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_id, ret_hold, info);
}

KV_RC kv_store_hold_sessions(struct kv_pg *pg, const struct kv_id *hold, uint64_t now_us, struct kv_errinfo *info,
                             uint64_t *ret_count)
{
    static const struct kv_pg_query query = {
        "hold_sessions", "SELECT count(*) FROM hold h JOIN tenant t ON t.id = h.tenant_id JOIN session s"
                         " ON " KV_HOLD_COVERS("2") " LEFT JOIN erasure e ON e.id = s.erasure_id WHERE h.id = $1"
                                                    " AND s.kind = 'session' AND s.slot >= t.first_slot AND (s.state = "
                                                    "'active' OR e.state = 'blocked_hold')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, hold);
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

/* --- erasures that wait ------------------------------------------------------------------------------------------ */

/* `erasure e` waits for `hold o`, which is over. */
#define OVER(at) BLOCKED " AND (o.ended_at IS NOT NULL OR o.expires_at <= $" at "::timestamptz)"

KV_RC kv_store_holds_over_for(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, bool *ret_any)
{
    static const struct kv_pg_query query = {"holds_over_for",
                                             "SELECT count(*) FROM (SELECT 1 FROM erasure e JOIN hold o"
                                             " ON o.id = e.hold_id WHERE " OVER("1") " LIMIT 1) f"};
    struct kv_pg_args args = {0};
    uint64_t count = 0;
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    KV_TRY(kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, &count, info));
    *ret_any = count > 0;
    return KV_OK;
}

static KV_RC fill_let_go(struct kv_pg_row *row, void *ret)
{
    struct kv_store_erasure *erasure = ret;
    *erasure = (struct kv_store_erasure){.state = KV_ERASURE_REQUESTED};
    kv_pg_get_id(row, &erasure->id);
    kv_pg_get_id(row, &erasure->tenant);
    kv_pg_get_id(row, &erasure->session);
    kv_pg_get_id(row, &erasure->group);
    return KV_OK;
}

KV_RC kv_store_holds_let_go(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                            struct kv_store_erasure *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "holds_let_go",
        "WITH free AS MATERIALIZED (SELECT e.id, e.session_id FROM erasure e JOIN session s ON s.id = e.session_id"
        " JOIN hold o ON o.id = e.hold_id WHERE " OVER("1") " AND NOT EXISTS (SELECT FROM hold h WHERE " KV_HOLD_COVERS(
            "1") ")"
                 " ORDER BY e.revocation_seq LIMIT $2 FOR UPDATE OF s, e),"
                 " emptied AS (UPDATE session SET labels = '{}', rev = session.rev + 1 FROM free"
                 " WHERE session.id = free.session_id)"
                 " UPDATE erasure SET state = 'requested', unblocked_at = $1 FROM free WHERE erasure.id = free.id"
                 " RETURNING erasure.id, erasure.tenant_id, erasure.session_id, erasure.group_id"};
    struct kv_pg_args args = {0};
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_u64(&args, max);
    KV_TRY(kv_pg_write(pg, &query, &args, info, &result));
    size_t count = (size_t)PQntuples(result);
    for (size_t i = 0; i < count && i < max; i++) {
        struct kv_pg_row row = kv_pg_row_of(result, (int)i);
        KV_TRY(fill_let_go(&row, &ret_list[i]));
        KV_TRY(kv_pg_row_check(&row, info));
    }
    *ret_count = count;
    return KV_OK;
}

KV_RC kv_store_holds_hand_over(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "holds_hand_over",
        "UPDATE erasure SET hold_id = f.next FROM (SELECT e.id, " LONGEST(
            "1") " AS next FROM erasure e"
                 " JOIN session s ON s.id = e.session_id JOIN hold o ON o.id = e.hold_id WHERE " OVER(
                     "1") " LIMIT $2) f"
                          " WHERE erasure.id = f.id AND f.next IS NOT NULL AND erasure.state = 'blocked_hold'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_u64(&args, max);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

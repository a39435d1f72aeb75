/*
 * See store_shared.h. Who refers to a scope holds its row FOR SHARE, who erases it holds it FOR UPDATE, so that one of
 * the two waits and then sees what the other did.
 */
#include "server/store/store_shared.h"

#include "server/store/pg_int.h"

#include <string.h>

static const char *const no_scope = "there is no such scope";

KV_RC kv_store_scope_refer(struct kv_pg *pg, const struct kv_id *tenant, const uint8_t hmac[32],
                           struct kv_errinfo *info, struct kv_id *ret_scope)
{
    static const struct kv_pg_query query = {
        "scope_refer", "SELECT s.id FROM session s JOIN tenant t ON t.id = s.tenant_id AND s.slot >= t.first_slot"
                       " WHERE s.tenant_id = $1 AND s.external_hmac = $2 AND s.kind = 'scope' AND s.state = 'active'"
                       " FOR SHARE OF s"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_raw(&args, hmac, 32);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_scope};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_id, ret_scope, info);
}

static void put_ids(struct kv_pg_array *array, const struct kv_store_ids *ids)
{
    kv_pg_array_init(array, KV_PG_ARRAY_BYTEA, ids->count, ids->count * sizeof ids->ids[0]);
    for (size_t i = 0; i < ids->count; i++) {
        kv_pg_array_raw(array, ids->ids[i].b, sizeof ids->ids[i].b, false);
    }
}

static KV_RC fill_shares(struct kv_pg_row *row, void *ret)
{
    struct kv_store_shares *shares = ret;
    kv_pg_get_id(row, &shares->scope);
    kv_pg_get_text(row, shares->class, sizeof shares->class);
    shares->others = kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_store_scopes_of(struct kv_pg *pg, const struct kv_store_ids *sessions, struct kv_errinfo *info,
                         struct kv_store_shares *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "scopes_of", "SELECT DISTINCT s.id, r.class, (SELECT count(*) FROM session o WHERE o.scope_id = s.id"
                     " AND o.state = 'active' AND o.id <> ALL ($1)) FROM session r"
                     " JOIN session s ON s.id = r.scope_id AND s.state = 'active' WHERE r.id = ANY ($1)"
                     " ORDER BY s.id, r.class"};
    struct kv_pg_array array;
    struct kv_pg_args args = {0};
    if (sessions->count == 0) {
        *ret_count = 0;
        return KV_OK;
    }
    put_ids(&array, sessions);
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = sessions->count, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_shares, ret_list, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

KV_RC kv_store_scope_take(struct kv_pg *pg, const struct kv_store_ids *sessions, const struct kv_store_shares *shares,
                          struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "scope_take", "UPDATE session SET takes_scope = true WHERE id = ANY ($1) AND scope_id = $2 AND class = $3"};
    struct kv_pg_array array;
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    put_ids(&array, sessions);
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_id(&args, &shares->scope);
    kv_pg_arg_text(&args, shares->class);
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_array_done(&array);
    return rc;
}

static KV_RC fill_bool(struct kv_pg_row *row, void *ret)
{
    *(bool *)ret = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_scope_lock(struct kv_pg *pg, const struct kv_id *scope, struct kv_errinfo *info, bool *ret_due)
{
    static const struct kv_pg_query lock = {"scope_lock",
                                            "SELECT id FROM session WHERE id = $1 AND kind = 'scope' FOR UPDATE"};
    /* A statement of its own: one that waited for the lock would see who shares it as of before it waited. */
    static const struct kv_pg_query due = {"scope_is_due", "SELECT coalesce(scope_is_due($1), false)"};
    struct kv_id found;
    struct kv_pg_args lock_args = {0}, due_args = {0};
    kv_pg_arg_id(&lock_args, scope);
    kv_pg_arg_id(&due_args, scope);
    struct kv_pg_one one = {
        .query = &lock, .args = &lock_args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_scope};
    KV_TRY(kv_pg_fetch_one(pg, &one, kv_pg_fill_id, &found, info));
    one = (struct kv_pg_one){.query = &due, .args = &due_args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_bool, ret_due, info);
}

static KV_RC fill_due(struct kv_pg_row *row, void *ret)
{
    struct kv_store_scope_due *due = ret;
    kv_pg_get_id(row, &due->id);
    kv_pg_get_id(row, &due->tenant);
    return KV_OK;
}

KV_RC kv_store_scopes_due(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_scope_due *ret_list,
                          size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "scopes_due", "SELECT id, tenant_id FROM session WHERE kind = 'scope' AND state = 'active' AND scope_is_due(id)"
                      " ORDER BY id LIMIT $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill_due, ret_list, ret_count, info);
}

KV_RC kv_store_scopes_left_behind(struct kv_pg *pg, const struct kv_id *batch, struct kv_errinfo *info,
                                  uint64_t *ret_count)
{
    static const struct kv_pg_query query = {
        "scopes_left_behind", "SELECT count(*) FROM erasure e JOIN session r ON r.id = e.session_id"
                              " WHERE e.batch_id = $1 AND r.scope_id IS NOT NULL AND scope_is_due(r.scope_id)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, batch);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

static KV_RC fill_shared(struct kv_pg_row *row, void *ret)
{
    struct kv_store_shared *shared = ret;
    char state[32];
    kv_pg_get_id(row, &shared->erasure);
    shared->is_scope = kv_pg_get_bool(row);
    kv_pg_get_id(row, &shared->scope);
    kv_pg_get_id(row, &shared->scope_erasure);
    kv_pg_get_text(row, state, sizeof state);
    shared->sessions = kv_pg_get_u64(row);
    unsigned at = 0;
    while (at < KV_ERASURE_STATES && strcmp(kv_erasure_state_name((enum kv_erasure_state)at), state) != 0) {
        at++;
    }
    shared->scope_state = (enum kv_erasure_state)at; /* KV_ERASURE_STATES: there is no erasure */
    return KV_OK;
}

KV_RC kv_store_erasures_shared(struct kv_pg *pg, const struct kv_store_ids *erasures, struct kv_errinfo *info,
                               struct kv_store_shared *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "erasures_shared", "SELECT e.id, r.kind = 'scope', r.scope_id, x.id, coalesce(x.state, ''),"
                           " (SELECT count(*) FROM session o WHERE o.scope_id = r.scope_id AND o.state = 'active')"
                           " FROM erasure e JOIN session r ON r.id = e.session_id"
                           " AND (r.kind = 'scope' OR r.scope_id IS NOT NULL)"
                           " LEFT JOIN session s ON s.id = r.scope_id JOIN tenant t ON t.id = e.tenant_id"
                           " LEFT JOIN erasure x ON x.id = coalesce(s.erasure_id, CASE WHEN s.slot < t.first_slot THEN"
                           " (SELECT w.id FROM erasure w WHERE w.tenant_id = s.tenant_id AND w.scope = 'tenant'"
                           " AND s.slot >= w.first_slot AND s.slot < w.slot) END) WHERE e.id = ANY ($1)"};
    struct kv_pg_array array;
    struct kv_pg_args args = {0};
    if (erasures->count == 0) {
        *ret_count = 0;
        return KV_OK;
    }
    put_ids(&array, erasures);
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = erasures->count, .size = sizeof ret_list[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_shared, ret_list, ret_count, info);
    kv_pg_array_done(&array);
    return rc;
}

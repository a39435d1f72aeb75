/*
 * Sessions and their key slots. A slot is taken by counting the tenant's row up, under its lock.
 */
#include "server/store/store_session.h"

#include "server/store/pg_int.h"

static const char *const state_names[] = {"active", "erasing", "erased", "unknown"};

const char *kv_session_state_name(enum kv_session_state state)
{
    return state_names[state];
}

#define SELECT_SESSION                                                                                     \
    "SELECT s.id, s.tenant_id, s.created_by, s.erasure_id, s.slot, t.directory_slot, s.state, s.model_id," \
    " s.model_revision, s.model_fingerprint, s.created_at, coalesce(s.revoked_seq, 0)"                     \
    " FROM session s JOIN tenant t ON t.id = s.tenant_id "

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_session *session = ret;
    kv_pg_get_id(row, &session->id);
    kv_pg_get_id(row, &session->tenant);
    kv_pg_get_id(row, &session->created_by);
    kv_pg_get_id(row, &session->erasure);
    session->slot = kv_pg_get_u32(row);
    session->directory_slot = kv_pg_get_u32(row);
    session->state = (enum kv_session_state)kv_pg_get_word(row, state_names, 3);
    kv_pg_get_text(row, session->model_id, sizeof session->model_id);
    kv_pg_get_text(row, session->model_revision, sizeof session->model_revision);
    kv_pg_get_text(row, session->model_fingerprint, sizeof session->model_fingerprint);
    session->created_us = kv_pg_get_time(row);
    session->revoked_seq = kv_pg_get_i64(row);
    return KV_OK;
}

struct slots {
    uint32_t slot, directory_slot;
};

static KV_RC fill_slots(struct kv_pg_row *row, void *ret)
{
    struct slots *slots = ret;
    slots->slot = kv_pg_get_u32(row);
    slots->directory_slot = kv_pg_get_u32(row);
    return KV_OK;
}

/* Why a tenant gives no slot. */
static KV_RC explain_no_slot(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info)
{
    struct kv_store_tenant tenant;
    KV_TRY(kv_store_tenant_get(pg, id, info, &tenant));
    if (tenant.state != KV_TENANT_ACTIVE) {
        return kv_fail(info, KV_E_INVALID_STATE, "the tenant is not active, so it gets no new sessions");
    }
    return kv_fail(info, KV_E_TENANT_FULL, "the tenant has used all of its %lld key slots",
                   (long long)KV_MAX_TENANT_SLOTS);
}

static KV_RC take_slot(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info, struct slots *ret_slots)
{
    static const struct kv_pg_query query = {"session_take_slot",
                                             "UPDATE tenant SET next_slot = next_slot + 1"
                                             " WHERE id = $1 AND state = 'active' AND next_slot < $2"
                                             " RETURNING next_slot - 1, directory_slot"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_i32(&args, KV_MAX_TENANT_SLOTS);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_STALE, .none_text = "no slot"};
    enum kv_err rc = kv_pg_fetch_one(pg, &one, fill_slots, ret_slots, info);
    return rc == KV_E_STALE ? explain_no_slot(pg, tenant, info) : rc;
}

KV_RC kv_store_session_insert(struct kv_pg *pg, const struct kv_store_session *session, struct kv_errinfo *info,
                              uint32_t *ret_slot, uint32_t *ret_directory_slot)
{
    static const struct kv_pg_query query = {
        "session_insert", "INSERT INTO session (id, tenant_id, slot, model_id, model_revision, model_fingerprint,"
                          " created_at, created_by) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"};
    struct slots slots = {0};
    KV_TRY(take_slot(pg, &session->tenant, info, &slots));
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &session->id);
    kv_pg_arg_id(&args, &session->tenant);
    kv_pg_arg_i32(&args, slots.slot);
    kv_pg_arg_text(&args, session->model_id);
    kv_pg_arg_text(&args, session->model_revision);
    kv_pg_arg_text(&args, session->model_fingerprint);
    kv_pg_arg_time(&args, session->created_us);
    kv_pg_arg_id_or_null(&args, &session->created_by);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    *ret_slot = slots.slot;
    *ret_directory_slot = slots.directory_slot;
    return KV_OK;
}

KV_RC kv_store_session_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_session *ret_session)
{
    static const struct kv_pg_query query = {"session_get", SELECT_SESSION "WHERE s.id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "there is no such session"};
    return kv_pg_fetch_one(pg, &one, fill, ret_session, info);
}

KV_RC kv_store_session_list(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *after, size_t max,
                            struct kv_errinfo *info, struct kv_store_session *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"session_list", SELECT_SESSION
                                             "WHERE s.tenant_id = $1 AND s.id > $2 ORDER BY s.id LIMIT $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_id(&args, after);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

static KV_RC fill_state(struct kv_pg_row *row, void *ret)
{
    *(enum kv_session_state *)ret = (enum kv_session_state)kv_pg_get_word(row, state_names, 4);
    return KV_OK;
}

KV_RC kv_store_session_states(struct kv_pg *pg, const struct kv_id *ids, size_t count, struct kv_errinfo *info,
                              enum kv_session_state *ret_states)
{
    static const struct kv_pg_query query = {
        "session_states", "SELECT coalesce(s.state, 'unknown') FROM unnest($1) WITH ORDINALITY AS asked (id, place)"
                          " LEFT JOIN session s ON s.id = asked.id ORDER BY asked.place"};
    if (count > KV_STORE_IDS_MAX) {
        return kv_fail(info, KV_E_LIMIT, "at most %d ids at once", KV_STORE_IDS_MAX);
    }
    if (count == 0) {
        return KV_OK;
    }
    struct kv_pg_array array;
    kv_pg_array_init(&array, KV_PG_ARRAY_BYTEA, count, count * sizeof ids[0]);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(&array, ids[i].b, sizeof ids[i].b, false);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_array(&args, &array, KV_PG_ARRAY_BYTEA);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = count, .size = sizeof ret_states[0]};
    size_t found = 0;
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_state, ret_states, &found, info);
    kv_pg_array_done(&array);
    if (rc == KV_OK && found != count) {
        return kv_fail(info, KV_E_CORRUPT, "the database answered for %zu sessions of %zu", found, count);
    }
    return rc;
}

KV_RC kv_store_session_set_erased(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "session_set_erased", "UPDATE session SET state = 'erased' WHERE id = $1 AND state IN ('erasing', 'erased')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    return kv_pg_change_one(pg, &query, &args, info, "the session is not being erased");
}

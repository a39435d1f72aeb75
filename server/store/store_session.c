/*
 * Sessions and their key slots. A slot is taken by counting the tenant's row up, under its lock.
 */
#include "server/store/store_session.h"

#include "server/store/pg_int.h"

#include <string.h>

static const char *const state_names[] = {"active", "erasing", "erased", "lost", "unknown"};

const char *kv_session_state_name(enum kv_session_state state)
{
    return state_names[state];
}

#define SELECT_SESSION                                                                                               \
    "SELECT s.id, s.tenant_id, s.created_by, coalesce(c.id, s.erasure_id), s.slot, t.directory_slot,"                \
    " coalesce(t.tree_id, t.id), " KV_SESSION_STATE ", s.model_id, s.model_revision, s.model_fingerprint,"           \
    " s.created_at, coalesce(c.revocation_seq, s.revoked_seq, 0), s.rev, s.class, s.region,"                         \
    " s.updated_at, s.last_used_at, s.expires_at, coalesce(s.idle_seconds, 0), s.idle_at, s.pinned_until,"           \
    " CASE WHEN c.id IS NULL THEN s.external_sealed END, " KV_PG_LABELS(                                             \
        "CASE WHEN c.id IS NULL THEN s.labels ELSE '{}' END") ", t.state, s.key_version, s.key_fingerprint IS NOT "  \
                                                              "NULL,"                                                \
                                                              " s.key_fingerprint, coalesce(x.destroyed_at IS NOT "  \
                                                              "NULL, false), k.compromised_at IS NOT NULL, "         \
                                                              "coalesce(x.state = 'blocked_hold', false), s.kind = " \
                                                              "'scope', s.scope_id FROM "                            \
                                                              "session s" KV_SESSION_CUT                             \
                                                              "JOIN tenant_key k ON k.tenant_id = s.tenant_id AND "  \
                                                              "k.version = s.key_version"                            \
                                                              " LEFT JOIN erasure x ON x.id = coalesce(c.id, "       \
                                                              "s.erasure_id) "

static void fill_lifetimes(struct kv_pg_row *row, struct kv_store_session *session)
{
    session->updated_us = kv_pg_get_time(row);
    session->last_used_us = kv_pg_get_time(row);
    session->expires_us = kv_pg_get_time(row);
    session->idle_seconds = kv_pg_get_u64(row);
    session->idle_us = kv_pg_get_time(row);
    session->pinned_until_us = kv_pg_get_time(row);
}

static KV_RC fill_key(struct kv_pg_row *row, struct kv_store_session_key *key)
{
    char tenant_state[16];
    kv_pg_get_text(row, tenant_state, sizeof tenant_state);
    key->version = kv_pg_get_u32(row);
    key->has_fingerprint = kv_pg_get_bool(row);
    kv_pg_get_raw(row, key->fingerprint, sizeof key->fingerprint);
    key->destroyed = kv_pg_get_bool(row);
    key->compromised = kv_pg_get_bool(row);
    row->failed = row->failed || !kv_tenant_state_parse(tenant_state, &key->tenant_state);
    return KV_OK;
}

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_session *session = ret;
    kv_pg_get_id(row, &session->id);
    kv_pg_get_id(row, &session->tenant);
    kv_pg_get_id(row, &session->created_by);
    kv_pg_get_id(row, &session->erasure);
    session->slot = kv_pg_get_u32(row);
    session->directory_slot = kv_pg_get_u32(row);
    kv_pg_get_id(row, &session->tree);
    session->state = (enum kv_session_state)kv_pg_get_word(row, state_names, KV_SESSION_UNKNOWN);
    kv_pg_get_text(row, session->model_id, sizeof session->model_id);
    kv_pg_get_text(row, session->model_revision, sizeof session->model_revision);
    kv_pg_get_text(row, session->model_fingerprint, sizeof session->model_fingerprint);
    session->created_us = kv_pg_get_time(row);
    session->revoked_seq = kv_pg_get_i64(row);
    session->rev = kv_pg_get_u64(row);
    kv_pg_get_text(row, session->class, sizeof session->class);
    kv_pg_get_text(row, session->region, sizeof session->region);
    fill_lifetimes(row, session);
    struct kv_bytes sealed = kv_pg_get_bytes(row);
    row->failed = row->failed || sealed.len > sizeof session->external_sealed;
    session->external_len = row->failed ? 0 : sealed.len;
    if (session->external_len > 0) {
        memcpy(session->external_sealed, sealed.data, session->external_len);
    }
    kv_pg_get_labels(row, &session->labels);
    KV_TRY(fill_key(row, &session->key));
    session->held = kv_pg_get_bool(row);
    session->is_scope = kv_pg_get_bool(row);
    kv_pg_get_id(row, &session->shared);
    return KV_OK;
}

struct slots {
    uint32_t slot, directory_slot, key_version;
    struct kv_id tree;
};

static KV_RC fill_slots(struct kv_pg_row *row, void *ret)
{
    struct slots *slots = ret;
    slots->slot = kv_pg_get_u32(row);
    slots->directory_slot = kv_pg_get_u32(row);
    kv_pg_get_id(row, &slots->tree);
    slots->key_version = kv_pg_get_u32(row);
    return KV_OK;
}

/* Why a tenant gives no slot. */
static KV_RC explain_no_slot(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info)
{
    struct kv_store_tenant tenant;
    KV_TRY(kv_store_tenant_get(pg, id, info, &tenant));
    if (tenant.state == KV_TENANT_SUSPENDED || tenant.state == KV_TENANT_DELETING) {
        return kv_fail(info, KV_E_TENANT_SUSPENDED, "the tenant is %s, so it gets no new sessions",
                       tenant.state == KV_TENANT_SUSPENDED ? "suspended" : "to be deleted");
    }
    if (tenant.state != KV_TENANT_ACTIVE) {
        return kv_fail(info, KV_E_INVALID_STATE, "the tenant is not active, so it gets no new sessions");
    }
    return kv_fail(info, KV_E_TENANT_FULL, "the tenant has used all of its %lld key slots",
                   (long long)KV_MAX_TENANT_SLOTS);
}

static KV_RC take_slot(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info, struct slots *ret_slots)
{
    static const struct kv_pg_query query = {
        "session_take_slot", "UPDATE tenant SET next_slot = next_slot + 1"
                             " WHERE id = $1 AND state = 'active' AND next_slot < $2"
                             " RETURNING next_slot - 1, directory_slot, coalesce(tree_id, id), key_version"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_i32(&args, KV_MAX_TENANT_SLOTS);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_STALE, .none_text = "no slot"};
    enum kv_err rc = kv_pg_fetch_one(pg, &one, fill_slots, ret_slots, info);
    return rc == KV_E_STALE ? explain_no_slot(pg, tenant, info) : rc;
}

static KV_RC insert_row(struct kv_pg *pg, const struct kv_store_session *session, const struct slots *slots,
                        struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "session_insert", "INSERT INTO session (id, tenant_id, slot, model_id, model_revision, model_fingerprint,"
                          " created_at, created_by, class, region, expires_at, idle_seconds, idle_at, labels,"
                          " key_version, kind, scope_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8,"
                          " coalesce($9, 'default'), $10, $11, nullif($12, 0), $13, jsonb_object($14, $15), $16, $17,"
                          " $18)"};
    struct kv_pg_labels labels;
    kv_pg_labels_init(&labels, &session->labels);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &session->id);
    kv_pg_arg_id(&args, &session->tenant);
    kv_pg_arg_i32(&args, slots->slot);
    kv_pg_arg_text(&args, session->model_id);
    kv_pg_arg_text(&args, session->model_revision);
    kv_pg_arg_text(&args, session->model_fingerprint);
    kv_pg_arg_time(&args, session->created_us);
    kv_pg_arg_id_or_null(&args, &session->created_by);
    kv_pg_arg_text_or_null(&args, session->class);
    kv_pg_arg_text_or_null(&args, session->region);
    kv_pg_arg_time_or_null(&args, session->expires_us);
    kv_pg_arg_u64(&args, session->idle_seconds);
    kv_pg_arg_time_or_null(&args, session->idle_us);
    kv_pg_arg_labels(&args, &labels);
    kv_pg_arg_i32(&args, slots->key_version);
    kv_pg_arg_text(&args, session->is_scope ? "scope" : "session");
    kv_pg_arg_id_or_null(&args, &session->shared);
    uint64_t rows = 0;
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_labels_done(&labels);
    return rc;
}

KV_RC kv_store_session_insert(struct kv_pg *pg, struct kv_store_session *session, struct kv_errinfo *info)
{
    struct slots slots = {0};
    KV_TRY(take_slot(pg, &session->tenant, info, &slots));
    KV_TRY(insert_row(pg, session, &slots, info));
    session->slot = slots.slot;
    session->directory_slot = slots.directory_slot;
    session->tree = slots.tree;
    return KV_OK;
}

KV_RC kv_store_session_set_fingerprint(struct kv_pg *pg, const struct kv_id *id,
                                       const uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES], struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "session_set_fingerprint", "UPDATE session SET key_fingerprint = $2 WHERE id = $1 AND key_fingerprint IS NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_raw(&args, fingerprint, KV_KEY_FINGERPRINT_BYTES);
    return kv_pg_change_one(pg, &query, &args, info, "the session's key has its fingerprint");
}

static const char *const no_session = "there is no such session";

KV_RC kv_store_session_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_session *ret_session)
{
    static const struct kv_pg_query query = {"session_get", SELECT_SESSION "WHERE s.id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_session};
    return kv_pg_fetch_one(pg, &one, fill, ret_session, info);
}

KV_RC kv_store_session_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                            struct kv_store_session *ret_session)
{
    static const struct kv_pg_query query = {"session_lock", SELECT_SESSION "WHERE s.id = $1 FOR NO KEY UPDATE OF s"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_session};
    return kv_pg_fetch_one(pg, &one, fill, ret_session, info);
}

KV_RC kv_store_session_find(struct kv_pg *pg, const struct kv_id *tenant, const uint8_t hmac[32],
                            struct kv_errinfo *info, struct kv_store_session *ret_session)
{
    static const struct kv_pg_query query = {"session_find",
                                             SELECT_SESSION "WHERE s.tenant_id = $1 AND s.external_hmac = $2"
                                                            " AND s.slot >= t.first_slot"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_raw(&args, hmac, 32);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_session};
    return kv_pg_fetch_one(pg, &one, fill, ret_session, info);
}

/* A transfer's entry is durable before the transfer is answered, so it tells of uses that a crash took from memory. */
#define LAST_MOVED                                                                                            \
    "(SELECT l.at FROM audit_leaf l WHERE l.session_id = s.id AND l.op IN ('block.offload', 'block.restore')" \
    " ORDER BY l.idx DESC LIMIT 1)"
#define LIST_SESSIONS                                                                                                \
    SELECT_SESSION "WHERE s.tenant_id = $1"                                                                          \
                   " AND ($2::bytea IS NULL OR (c.id IS NULL AND s.external_hmac = $2))"                             \
                   " AND ($3::text IS NULL OR (c.id IS NULL AND s.labels @> jsonb_build_object($3, $4::text)))"      \
                   " AND ($5::text IS NULL OR CASE WHEN x.state = 'blocked_hold' THEN 'held' ELSE " KV_SESSION_STATE \
                   " END = $5) AND ($6::text IS NULL OR s.model_id = $6)"                                            \
                   " AND ($7::timestamptz IS NULL OR (coalesce(s.last_used_at, s.created_at) < $7 AND"               \
                   " coalesce(" LAST_MOVED " < $7, true)))"                                                          \
                   " AND ($8::timestamptz IS NULL OR s.created_at > $8) AND s.kind = $9"

KV_RC kv_store_session_list(struct kv_pg *pg, const struct kv_store_session_filter *filter, struct kv_page *page,
                            struct kv_errinfo *info, struct kv_store_session *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"session_list", LIST_SESSIONS KV_PG_PAGE_DESC("s.created_at", "s.id", "10", "11", "12")},
        {"session_list_up", LIST_SESSIONS KV_PG_PAGE_ASC("s.created_at", "s.id", "10", "11", "12")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &filter->tenant);
    kv_pg_arg_raw_or_null(&args, filter->external_hmac, filter->external_hmac == NULL ? 0 : 32);
    kv_pg_arg_text_or_null(&args, filter->label == NULL ? NULL : filter->label->name);
    kv_pg_arg_text(&args, filter->label == NULL ? "" : filter->label->value);
    kv_pg_arg_text_or_null(&args, filter->state);
    kv_pg_arg_text_or_null(&args, filter->model);
    kv_pg_arg_time_or_null(&args, filter->idle_before_us);
    kv_pg_arg_time_or_null(&args, filter->created_after_us);
    kv_pg_arg_text(&args, filter->scopes ? "scope" : "session");
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

static KV_RC fill_state(struct kv_pg_row *row, void *ret)
{
    *(enum kv_session_state *)ret = (enum kv_session_state)kv_pg_get_word(row, state_names, KV_SESSION_UNKNOWN + 1);
    return KV_OK;
}

KV_RC kv_store_session_states(struct kv_pg *pg, const struct kv_id *ids, size_t count, struct kv_errinfo *info,
                              enum kv_session_state *ret_states)
{
    static const struct kv_pg_query query = {
        "session_states", "SELECT coalesce(" KV_SESSION_STATE ", 'unknown') FROM unnest($1) WITH ORDINALITY"
                          " AS asked (id, place) LEFT JOIN (session s" KV_SESSION_CUT ") ON s.id = asked.id"
                          " ORDER BY asked.place"};
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

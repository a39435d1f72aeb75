/*
 * Versions of tenants' keys. Which one is active, and that no more than one waits, the schema holds; the order of their
 * states is here.
 */
#include "server/store/store_tenant_key.h"

#include "server/store/pg_int.h"

static const char *const state_names[] = {"pre_activation", "active", "deactivated", "destroyed"};

const char *kv_tenant_key_state_name(enum kv_tenant_key_state state)
{
    return state_names[state];
}

#define COLUMNS                                                                                                  \
    "k.id, k.tenant_id, k.version, k.state, k.fingerprint IS NOT NULL, k.fingerprint, k.created_at,"             \
    " k.activated_at, k.destroyed_at, k.compromised_at, k.operation_id, coalesce(k.failed, ''), k.batch_id,"     \
    " (SELECT count(*) FROM session s WHERE s.tenant_id = k.tenant_id AND s.key_version = k.version AND s.state" \
    " <> 'erased'), (SELECT n.operation_id FROM tenant_key n WHERE n.tenant_id = k.tenant_id AND n.version ="    \
    " k.version + 1 AND n.activated_at IS NOT NULL)"

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_tenant_key *key = ret;
    kv_pg_get_id(row, &key->id);
    kv_pg_get_id(row, &key->tenant);
    key->version = kv_pg_get_u32(row);
    key->state = (enum kv_tenant_key_state)kv_pg_get_word(row, state_names, KV_TENANT_KEY_DESTROYED + 1);
    key->has_fingerprint = kv_pg_get_bool(row);
    kv_pg_get_raw(row, key->fingerprint, sizeof key->fingerprint);
    key->created_us = kv_pg_get_time(row);
    key->activated_us = kv_pg_get_time(row);
    key->destroyed_us = kv_pg_get_time(row);
    key->compromised_us = kv_pg_get_time(row);
    kv_pg_get_id(row, &key->operation);
    kv_pg_get_text(row, key->failed, sizeof key->failed);
    kv_pg_get_id(row, &key->batch);
    key->sessions = kv_pg_get_u64(row);
    kv_pg_get_id(row, &key->ended_by);
    return KV_OK;
}

KV_RC kv_store_tenant_key_first(struct kv_pg *pg, const struct kv_id *tenant, uint64_t created_us,
                                struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_key_first", "INSERT INTO tenant_key (id, tenant_id, version, created_at) VALUES ($1, $1, 1, $2)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_time(&args, created_us);
    return kv_pg_change_one(pg, &query, &args, info, "the tenant has a key");
}

KV_RC kv_store_tenant_key_activate(struct kv_pg *pg, const struct kv_store_key_use *use, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_key_activate", "UPDATE tenant_key SET state = 'active', activated_at = $3, fingerprint = $4,"
                               " failed = NULL WHERE tenant_id = $1 AND version = $2 AND state = 'pre_activation'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &use->tenant);
    kv_pg_arg_i32(&args, use->version);
    kv_pg_arg_time(&args, use->at_us);
    kv_pg_arg_raw(&args, use->fingerprint, sizeof use->fingerprint);
    return kv_pg_change_one(pg, &query, &args, info, "the tenant's key is in use already");
}

/* --- an end with all of the tenant ------------------------------------------------------------------------------- */

static KV_RC deactivate(struct kv_pg *pg, const struct kv_store_key_end *end, struct kv_errinfo *info,
                        uint64_t *ret_rows)
{
    static const struct kv_pg_query query = {"tenant_key_deactivate",
                                             "UPDATE tenant_key SET state = 'deactivated', erasure_id = $2"
                                             " WHERE tenant_id = $1 AND state = 'active'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &end->tenant);
    kv_pg_arg_id(&args, &end->erasure);
    return kv_pg_change(pg, &query, &args, info, ret_rows);
}

/* What was to be rotated is gone. */
static KV_RC fail_rotation(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_key_overtaken", "UPDATE tenant_key SET failed = 'invalid_state' WHERE tenant_id = $1"
                                " AND state = 'pre_activation' AND operation_id IS NOT NULL AND failed IS NULL"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, tenant);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

/* The erasure's id will do as the id of the version that comes after it. */
static KV_RC add_next(struct kv_pg *pg, const struct kv_store_key_end *end, struct kv_errinfo *info)
{
    static const struct kv_pg_query fresh = {"tenant_key_after",
                                             "INSERT INTO tenant_key (id, tenant_id, version, created_at)"
                                             " SELECT $2, $1, max(version) + 1, $3 FROM tenant_key WHERE tenant_id = $1"
                                             " HAVING count(*) FILTER (WHERE state = 'pre_activation') = 0"};
    static const struct kv_pg_query tenant = {
        "tenant_key_of_tenant", "UPDATE tenant SET key_version = (SELECT version FROM tenant_key WHERE tenant_id = $1"
                                " AND state = 'pre_activation') WHERE id = $1"};
    struct kv_pg_args args = {0}, self = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, &end->tenant);
    kv_pg_arg_id(&self, &end->tenant);
    kv_pg_arg_id(&args, &end->erasure);
    kv_pg_arg_time(&args, end->at_us);
    KV_TRY(kv_pg_change(pg, &fresh, &args, info, &rows));
    return kv_pg_change_one(pg, &tenant, &self, info, "there is no such tenant");
}

KV_RC kv_store_tenant_key_end(struct kv_pg *pg, const struct kv_store_key_end *end, struct kv_errinfo *info)
{
    uint64_t ended = 0;
    KV_TRY(deactivate(pg, end, info, &ended));
    KV_TRY(ended == 0 ? KV_OK : fail_rotation(pg, &end->tenant, info));
    return ended == 0 || !end->goes_on ? KV_OK : add_next(pg, end, info);
}

KV_RC kv_store_tenant_keys_erased(struct kv_pg *pg, const struct kv_id *batch, uint64_t at_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_keys_erased", "UPDATE tenant_key k SET state = 'destroyed', destroyed_at = $2, batch_id = $1"
                              " FROM erasure e WHERE e.batch_id = $1 AND e.scope = 'tenant' AND k.erasure_id = e.id"
                              " AND k.state = 'deactivated'"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, batch);
    kv_pg_arg_time(&args, at_us);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

#define LIST_KEYS "SELECT " COLUMNS " FROM tenant_key k WHERE k.tenant_id = $1"

KV_RC kv_store_tenant_key_page(struct kv_pg *pg, const struct kv_id *tenant, struct kv_page *page,
                               struct kv_errinfo *info, struct kv_store_tenant_key *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"tenant_key_page", LIST_KEYS KV_PG_PAGE_DESC("k.created_at", "k.id", "2", "3", "4")},
        {"tenant_key_page_up", LIST_KEYS KV_PG_PAGE_ASC("k.created_at", "k.id", "2", "3", "4")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

KV_RC kv_store_tenant_key_of(struct kv_pg *pg, const struct kv_id *operation, struct kv_errinfo *info,
                             struct kv_store_tenant_key *ret_key)
{
    static const struct kv_pg_query query = {"tenant_key_of",
                                             "SELECT " COLUMNS " FROM tenant_key k WHERE k.operation_id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, operation);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = "another rotation took this one's place"};
    return kv_pg_fetch_one(pg, &one, fill, ret_key, info);
}

/* --- rotation ---------------------------------------------------------------------------------------------------- */

static KV_RC begin_anew(struct kv_pg *pg, const struct kv_store_tenant_key *key, struct kv_errinfo *info,
                        uint64_t *ret_rows)
{
    static const struct kv_pg_query query = {
        "tenant_key_again", "UPDATE tenant_key k SET operation_id = $2, created_at = $3, failed = NULL"
                            " WHERE k.tenant_id = $1 AND k.state = 'pre_activation' AND k.operation_id IS NOT NULL"
                            " AND EXISTS (SELECT 1 FROM tenant_key a WHERE a.tenant_id = $1 AND a.state = 'active')"
                            " AND NOT EXISTS (SELECT 1 FROM operation o WHERE o.id = k.operation_id"
                            " AND o.ended_at IS NULL)"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &key->tenant);
    kv_pg_arg_id(&args, &key->operation);
    kv_pg_arg_time(&args, key->created_us);
    return kv_pg_change(pg, &query, &args, info, ret_rows);
}

static KV_RC begin_new(struct kv_pg *pg, const struct kv_store_tenant_key *key, struct kv_errinfo *info,
                       uint64_t *ret_rows)
{
    static const struct kv_pg_query query = {
        "tenant_key_next", "INSERT INTO tenant_key (id, tenant_id, version, created_at, operation_id)"
                           " SELECT $2, k.tenant_id, k.version + 1, $3, $4 FROM tenant_key k"
                           " WHERE k.tenant_id = $1 AND k.state = 'active' AND NOT EXISTS (SELECT 1 FROM tenant_key n"
                           " WHERE n.tenant_id = k.tenant_id AND n.state IN ('pre_activation', 'deactivated'))"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &key->tenant);
    kv_pg_arg_id(&args, &key->id);
    kv_pg_arg_time(&args, key->created_us);
    kv_pg_arg_id(&args, &key->operation);
    return kv_pg_change(pg, &query, &args, info, ret_rows);
}

static KV_RC explain_no_next(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_key_count_active",
        "SELECT count(*) FROM tenant_key WHERE tenant_id = $1 AND state IN ('active', 'deactivated')"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    uint64_t used = 0;
    kv_pg_arg_id(&args, tenant);
    KV_TRY(kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, &used, info));
    return kv_fail(info, KV_E_INVALID_STATE, "%s",
                   used == 0 ? "the tenant's key is not in use yet: there is nothing to rotate"
                             : "a rotation of the tenant's key is under way");
}

KV_RC kv_store_tenant_key_next(struct kv_pg *pg, const struct kv_store_tenant_key *key, struct kv_errinfo *info)
{
    uint64_t rows = 0;
    KV_TRY(begin_anew(pg, key, info, &rows));
    KV_TRY(rows > 0 ? KV_OK : begin_new(pg, key, info, &rows));
    return rows == 1 ? KV_OK : explain_no_next(pg, &key->tenant, info);
}

KV_RC kv_store_tenant_key_compromised(struct kv_pg *pg, const struct kv_id *tenant, uint64_t at_us,
                                      struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"tenant_key_compromised",
                                             "UPDATE tenant_key SET compromised_at = coalesce(compromised_at, $2)"
                                             " WHERE tenant_id = $1 AND state = 'active'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_time(&args, at_us);
    return kv_pg_change_one(pg, &query, &args, info, "the tenant has no active key");
}

static KV_RC fill_rotation(struct kv_pg_row *row, void *ret)
{
    struct kv_store_rotation *rotation = ret;
    kv_pg_get_id(row, &rotation->tenant);
    kv_pg_get_id(row, &rotation->tree);
    kv_pg_get_id(row, &rotation->operation);
    rotation->version = kv_pg_get_u32(row);
    rotation->directory_slot = kv_pg_get_u32(row);
    rotation->slots_used = kv_pg_get_u32(row);
    return KV_OK;
}

KV_RC kv_store_rotation_due(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_rotation *ret_rotation)
{
    static const struct kv_pg_query query = {
        "rotation_due",
        "SELECT k.tenant_id, coalesce(t.tree_id, t.id), k.operation_id, k.version, t.directory_slot, t.next_slot"
        " FROM tenant_key k JOIN tenant t ON t.id = k.tenant_id JOIN operation o"
        " ON o.id = k.operation_id WHERE k.state = 'pre_activation' AND k.failed IS NULL"
        " AND o.ended_at IS NULL ORDER BY k.created_at, k.id LIMIT 1 FOR SHARE OF o"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "no rotation waits", .write = pg->in_tx};
    return kv_pg_fetch_one(pg, &one, fill_rotation, ret_rotation, info);
}

KV_RC kv_store_rotation_rekeyed(struct kv_pg *pg, const struct kv_store_rotated *rotated, struct kv_errinfo *info)
{
    static const struct kv_pg_query old = {"rotation_deactivate",
                                           "UPDATE tenant_key SET state = 'deactivated', batch_id = $3"
                                           " WHERE tenant_id = $1 AND version = $2 - 1 AND state = 'active'"};
    static const struct kv_pg_query fresh = {
        "rotation_activate", "UPDATE tenant_key SET state = 'active', activated_at = $3, fingerprint = $4"
                             " WHERE tenant_id = $1 AND version = $2 AND state = 'pre_activation'"};
    static const struct kv_pg_query tenant = {"rotation_tenant",
                                              "UPDATE tenant SET key_version = $2 WHERE id = $1 AND key_version < $2"};
    static const char stale[] = "the tenant's key is not at the version that was to be rotated";
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &rotated->tenant);
    kv_pg_arg_i32(&args, rotated->version);
    struct kv_pg_args with_batch = args, with_time = args;
    kv_pg_arg_id(&with_batch, &rotated->batch);
    kv_pg_arg_time(&with_time, rotated->at_us);
    kv_pg_arg_raw(&with_time, rotated->fingerprint, sizeof rotated->fingerprint);
    KV_TRY(kv_pg_change_one(pg, &old, &with_batch, info, stale));
    KV_TRY(kv_pg_change_one(pg, &fresh, &with_time, info, stale));
    return kv_pg_change_one(pg, &tenant, &args, info, stale);
}

KV_RC kv_store_rotation_destroyed(struct kv_pg *pg, const struct kv_id *batch, uint64_t at_us, struct kv_errinfo *info,
                                  struct kv_store_tenant_key *ret_key)
{
    static const struct kv_pg_query query = {
        "rotation_destroyed", "UPDATE tenant_key k SET state = 'destroyed', destroyed_at = $2 WHERE k.batch_id = $1"
                              " AND k.state = 'deactivated' RETURNING " COLUMNS};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, batch);
    kv_pg_arg_time(&args, at_us);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_MISSING, .none_text = "it deactivated no key"};
    return kv_pg_fetch_one(pg, &one, fill, ret_key, info);
}

static KV_RC fill_bool(struct kv_pg_row *row, void *ret)
{
    *(bool *)ret = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_rotation_ended(struct kv_pg *pg, const struct kv_id *operation, struct kv_errinfo *info, bool *ret_ended)
{
    static const struct kv_pg_query query = {
        "rotation_ended", "SELECT EXISTS (SELECT 1 FROM tenant_key n JOIN tenant_key k ON k.tenant_id = n.tenant_id"
                          " AND k.version = n.version - 1 JOIN erase_batch b ON b.id = k.batch_id"
                          " WHERE n.operation_id = $1 AND k.state = 'destroyed' AND b.state = 'done')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, operation);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_bool, ret_ended, info);
}

KV_RC kv_store_rotation_failed(struct kv_pg *pg, const struct kv_id *operation, const char *error,
                               struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "rotation_failed", "UPDATE tenant_key SET failed = $2 WHERE operation_id = $1 AND state = 'pre_activation'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, operation);
    kv_pg_arg_text(&args, error);
    return kv_pg_change_one(pg, &query, &args, info, "the rotation is done or was begun anew");
}

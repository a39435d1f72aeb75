/*
 * Tenants: a name, a place in the directory of the erasure tree, and how many key slots are given out.
 */
#include "server/store/store_tenant.h"

#include "server/store/pg_int.h"

static const char *const state_names[] = {"active", "suspended", "erasing", "erased"};

const char *kv_tenant_state_name(enum kv_tenant_state state)
{
    return state_names[state];
}

#define COLUMNS "id, name, display_name, state, directory_slot, next_slot, created_at"

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_tenant *tenant = ret;
    kv_pg_get_id(row, &tenant->id);
    kv_pg_get_text(row, tenant->name, sizeof tenant->name);
    kv_pg_get_text(row, tenant->display_name, sizeof tenant->display_name);
    tenant->state = (enum kv_tenant_state)kv_pg_get_word(row, state_names, 4);
    tenant->directory_slot = kv_pg_get_u32(row);
    tenant->next_slot = kv_pg_get_u32(row);
    tenant->created_us = kv_pg_get_time(row);
    return KV_OK;
}

static KV_RC fill_u32(struct kv_pg_row *row, void *ret)
{
    *(uint32_t *)ret = kv_pg_get_u32(row);
    return KV_OK;
}

/* The cluster's row is locked to the commit, so that no two tenants get one slot and none is skipped by a rollback. */
static KV_RC next_directory_slot(struct kv_pg *pg, struct kv_errinfo *info, uint32_t *ret_slot)
{
    static const struct kv_pg_query query = {"tenant_directory_slot",
                                             "SELECT next_directory_slot FROM cluster FOR UPDATE"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .write = true,
                            .none = KV_E_INVALID_STATE,
                            .none_text = "the database has no cluster yet: start the server on it once"};
    return kv_pg_fetch_one(pg, &one, fill_u32, ret_slot, info);
}

static KV_RC take_directory_slot(struct kv_pg *pg, uint32_t slot, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_take_directory_slot", "UPDATE cluster SET next_directory_slot = $1 + 1 WHERE next_directory_slot = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_i32(&args, slot);
    return kv_pg_change_one(pg, &query, &args, info, "the directory changed meanwhile");
}

KV_RC kv_store_tenant_insert(struct kv_pg *pg, const struct kv_store_tenant *tenant, struct kv_errinfo *info,
                             uint32_t *ret_directory_slot)
{
    static const struct kv_pg_query query = {"tenant_insert",
                                             "INSERT INTO tenant (id, name, display_name, directory_slot, created_at)"
                                             " VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING"};
    uint32_t slot = 0;
    KV_TRY(next_directory_slot(pg, info, &slot));
    if (slot >= KV_MAX_TENANTS) {
        return kv_fail(info, KV_E_LIMIT, "the cluster has all of its %lld tenants", (long long)KV_MAX_TENANTS);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &tenant->id);
    kv_pg_arg_text(&args, tenant->name);
    kv_pg_arg_text(&args, tenant->display_name);
    kv_pg_arg_i32(&args, slot);
    kv_pg_arg_time(&args, tenant->created_us);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    if (rows == 0) {
        return kv_fail(info, KV_E_TENANT_EXISTS, "a tenant named %s exists", tenant->name);
    }
    KV_TRY(take_directory_slot(pg, slot, info));
    *ret_directory_slot = slot;
    return KV_OK;
}

static const char *const no_tenant = "there is no such tenant";

KV_RC kv_store_tenant_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                          struct kv_store_tenant *ret_tenant)
{
    static const struct kv_pg_query query = {"tenant_get", "SELECT " COLUMNS " FROM tenant WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_tenant};
    return kv_pg_fetch_one(pg, &one, fill, ret_tenant, info);
}

KV_RC kv_store_tenant_get_by_name(struct kv_pg *pg, const char *name, struct kv_errinfo *info,
                                  struct kv_store_tenant *ret_tenant)
{
    static const struct kv_pg_query query = {"tenant_get_by_name", "SELECT " COLUMNS " FROM tenant WHERE name = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_text(&args, name);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_tenant};
    return kv_pg_fetch_one(pg, &one, fill, ret_tenant, info);
}

KV_RC kv_store_tenant_list(struct kv_pg *pg, const struct kv_id *after, size_t max, struct kv_errinfo *info,
                           struct kv_store_tenant *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"tenant_list",
                                             "SELECT " COLUMNS " FROM tenant WHERE id > $1 ORDER BY id LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, after);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

static KV_RC fill_sha256(struct kv_pg_row *row, void *ret)
{
    kv_pg_get_text(row, ret, KV_SHA256_HEX_SIZE);
    return KV_OK;
}

KV_RC kv_store_tenant_certificate_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                                       char ret_previous_sha256[KV_SHA256_HEX_SIZE])
{
    static const struct kv_pg_query query = {"tenant_certificate_lock",
                                             "SELECT certificate_sha256 FROM tenant WHERE id = $1 FOR NO KEY UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_tenant};
    return kv_pg_fetch_one(pg, &one, fill_sha256, ret_previous_sha256, info);
}

/*
 * API keys. The secret itself never comes here, only its SHA-256.
 */
#include "dataplane/base/id.h"
#include "server/store/pg_int.h"
#include "server/store/store_tenant.h"

#define COLUMNS "id, tenant_id, kid, name, roles, secret_sha256, created_at, expires_at, revoked_at"

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_api_key *key = ret;
    kv_pg_get_id(row, &key->id);
    kv_pg_get_id(row, &key->tenant);
    kv_pg_get_text(row, key->kid, sizeof key->kid);
    kv_pg_get_text(row, key->name, sizeof key->name);
    key->roles = kv_pg_get_u32(row);
    kv_pg_get_raw(row, key->secret_sha256, sizeof key->secret_sha256);
    key->created_us = kv_pg_get_time(row);
    key->expires_us = kv_pg_get_time(row);
    key->revoked_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_api_key_insert(struct kv_pg *pg, const struct kv_store_api_key *key, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "api_key_insert", "INSERT INTO api_key (id, tenant_id, kid, name, roles, secret_sha256, created_at, expires_at)"
                          " VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (kid) DO NOTHING"};
    struct kv_store_tenant tenant;
    if (!kv_id_is_zero(&key->tenant)) {
        KV_TRY(kv_store_tenant_get(pg, &key->tenant, info, &tenant));
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &key->id);
    kv_pg_arg_id_or_null(&args, &key->tenant);
    kv_pg_arg_text(&args, key->kid);
    kv_pg_arg_text(&args, key->name);
    kv_pg_arg_i32(&args, key->roles);
    kv_pg_arg_raw(&args, key->secret_sha256, sizeof key->secret_sha256);
    kv_pg_arg_time(&args, key->created_us);
    kv_pg_arg_time(&args, key->expires_us);
    return kv_pg_change_one(pg, &query, &args, info, "the key id is taken, another has to be drawn");
}

static const char *const no_key = "there is no such API key";

KV_RC kv_store_api_key_get_by_kid(struct kv_pg *pg, const char *kid, struct kv_errinfo *info,
                                  struct kv_store_api_key *ret_key)
{
    static const struct kv_pg_query query = {"api_key_get_by_kid", "SELECT " COLUMNS " FROM api_key WHERE kid = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_text(&args, kid);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_key};
    return kv_pg_fetch_one(pg, &one, fill, ret_key, info);
}

KV_RC kv_store_api_key_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_api_key *ret_key)
{
    static const struct kv_pg_query query = {"api_key_get", "SELECT " COLUMNS " FROM api_key WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_key};
    return kv_pg_fetch_one(pg, &one, fill, ret_key, info);
}

KV_RC kv_store_api_key_list(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *after, size_t max,
                            struct kv_errinfo *info, struct kv_store_api_key *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "api_key_list", "SELECT " COLUMNS " FROM api_key WHERE tenant_id IS NOT DISTINCT FROM $1 AND id > $2"
                        " ORDER BY id LIMIT $3"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, tenant);
    kv_pg_arg_id(&args, after);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

KV_RC kv_store_api_key_revoke(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *id, uint64_t at_us,
                              struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"api_key_revoke",
                                             "UPDATE api_key SET revoked_at = coalesce(revoked_at, $3)"
                                             " WHERE id = $1 AND tenant_id IS NOT DISTINCT FROM $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_id_or_null(&args, tenant);
    kv_pg_arg_time(&args, at_us);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    return rows == 1 ? KV_OK : kv_fail(info, KV_E_NOT_FOUND, "%s", no_key);
}

static KV_RC fill_u64(struct kv_pg_row *row, void *ret)
{
    *(uint64_t *)ret = kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_store_api_key_count_operator(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"api_key_count_operator",
                                             "SELECT count(*) FROM api_key WHERE tenant_id IS NULL AND roles & 1 <> 0"
                                             " AND revoked_at IS NULL AND expires_at > $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_u64, ret_count, info);
}

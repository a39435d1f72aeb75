/*
 * API keys. The secret itself never comes here, only its SHA-256.
 */
#include "dataplane/base/id.h"
#include "server/store/pg_int.h"
#include "server/store/store_tenant.h"

#include <string.h>

#define COLUMNS                                                                                              \
    "id, tenant_id, kid, name, roles, secret_sha256, created_at, expires_at, revoked_at, rev, last_used_at," \
    " rotated_at, old_secret_sha256, old_secret_until, cidrs"

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
    key->rev = kv_pg_get_u64(row);
    key->last_used_us = kv_pg_get_time(row);
    key->rotated_us = kv_pg_get_time(row);
    kv_pg_get_raw(row, key->old_secret_sha256, sizeof key->old_secret_sha256);
    key->old_until_us = kv_pg_get_time(row);
    struct kv_pg_items cidrs = kv_pg_get_array(row);
    key->cidr_count = cidrs.count;
    if (cidrs.count > KV_CIDRS_MAX) {
        row->failed = true;
        return KV_OK;
    }
    for (unsigned i = 0; i < cidrs.count; i++) {
        kv_pg_item_text(&cidrs, row, key->cidrs[i], sizeof key->cidrs[i]);
    }
    return KV_OK;
}

static void cidrs_init(struct kv_pg_array *array, const struct kv_store_api_key *key)
{
    kv_pg_array_init(array, KV_PG_ARRAY_TEXT, key->cidr_count, key->cidr_count * sizeof key->cidrs[0]);
    for (unsigned i = 0; i < key->cidr_count; i++) {
        kv_pg_array_raw(array, key->cidrs[i], strlen(key->cidrs[i]), false);
    }
}

KV_RC kv_store_api_key_insert(struct kv_pg *pg, const struct kv_store_api_key *key, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "api_key_insert",
        "INSERT INTO api_key (id, tenant_id, kid, name, roles, secret_sha256, created_at, expires_at, cidrs)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (kid) DO NOTHING"};
    struct kv_pg_array cidrs;
    cidrs_init(&cidrs, key);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &key->id);
    kv_pg_arg_id_or_null(&args, &key->tenant);
    kv_pg_arg_text(&args, key->kid);
    kv_pg_arg_text(&args, key->name);
    kv_pg_arg_i32(&args, key->roles);
    kv_pg_arg_raw(&args, key->secret_sha256, sizeof key->secret_sha256);
    kv_pg_arg_time(&args, key->created_us);
    kv_pg_arg_time(&args, key->expires_us);
    kv_pg_arg_array(&args, &cidrs, KV_PG_ARRAY_TEXT);
    enum kv_err rc = kv_pg_change_one(pg, &query, &args, info, "the key id is taken, another has to be drawn");
    kv_pg_array_done(&cidrs);
    return rc;
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

KV_RC kv_store_api_key_lock(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *id,
                            struct kv_errinfo *info, struct kv_store_api_key *ret_key)
{
    static const struct kv_pg_query query = {
        "api_key_lock",
        "SELECT " COLUMNS " FROM api_key WHERE id = $1 AND tenant_id IS NOT DISTINCT FROM $2 FOR NO KEY UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_id_or_null(&args, tenant);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_key};
    return kv_pg_fetch_one(pg, &one, fill, ret_key, info);
}

#define LIST_KEYS "SELECT " COLUMNS " FROM api_key WHERE tenant_id IS NOT DISTINCT FROM $1"

KV_RC kv_store_api_key_list(struct kv_pg *pg, const struct kv_id *tenant, struct kv_page *page, struct kv_errinfo *info,
                            struct kv_store_api_key *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"api_key_list", LIST_KEYS KV_PG_PAGE_DESC("created_at", "id", "2", "3", "4")},
        {"api_key_list_up", LIST_KEYS KV_PG_PAGE_ASC("created_at", "id", "2", "3", "4")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, tenant);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

KV_RC kv_store_api_key_update(struct kv_pg *pg, struct kv_store_api_key *key, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "api_key_update", "UPDATE api_key SET name = $3, secret_sha256 = $4, expires_at = $5, revoked_at = $6,"
                          " rotated_at = $7, old_secret_sha256 = $8, old_secret_until = $9, cidrs = $10,"
                          " rev = rev + 1 WHERE id = $1 AND rev = $2"};
    struct kv_pg_array cidrs;
    cidrs_init(&cidrs, key);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &key->id);
    kv_pg_arg_u64(&args, key->rev);
    kv_pg_arg_text(&args, key->name);
    kv_pg_arg_raw(&args, key->secret_sha256, sizeof key->secret_sha256);
    kv_pg_arg_time(&args, key->expires_us);
    kv_pg_arg_time_or_null(&args, key->revoked_us);
    kv_pg_arg_time_or_null(&args, key->rotated_us);
    kv_pg_arg_raw_or_null(&args, key->old_secret_sha256, key->old_until_us == 0 ? 0 : sizeof key->old_secret_sha256);
    kv_pg_arg_time_or_null(&args, key->old_until_us);
    kv_pg_arg_array(&args, &cidrs, KV_PG_ARRAY_TEXT);
    enum kv_err rc = kv_pg_change_one(pg, &query, &args, info, "the API key changed meanwhile");
    kv_pg_array_done(&cidrs);
    key->rev += rc == KV_OK;
    return rc;
}

KV_RC kv_store_api_key_used(struct kv_pg *pg, const struct kv_store_use *uses, size_t count, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "api_key_used", "UPDATE api_key k SET last_used_at = greatest(k.last_used_at, u.at)"
                        " FROM (SELECT id, date_trunc('minute', to_timestamp(at / 1000000.0)) AS at"
                        " FROM unnest($1, $2) AS raw (id, at)) AS u WHERE k.id = u.id"};
    struct kv_pg_uses arrays;
    kv_pg_uses_init(&arrays, uses, count);
    struct kv_pg_args args = {0};
    kv_pg_arg_uses(&args, &arrays);
    uint64_t rows = 0;
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_uses_done(&arrays);
    return rc;
}

static KV_RC hold_maker(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    static const struct kv_pg_query of_platform = {"platform_lock", "SELECT 1 FROM platform FOR NO KEY UPDATE"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    if (kv_id_is_zero(tenant)) {
        return kv_pg_change(pg, &of_platform, &args, info, &rows);
    }
    struct kv_store_tenant row;
    return kv_store_tenant_lock(pg, tenant, info, &row);
}

KV_RC kv_store_api_key_count_lock(struct kv_pg *pg, const struct kv_id *tenant, uint64_t now_us,
                                  struct kv_errinfo *info, uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"api_key_count",
                                             "SELECT count(*) FROM api_key WHERE tenant_id IS NOT DISTINCT FROM $1"
                                             " AND revoked_at IS NULL AND expires_at > $2"};
    KV_TRY(hold_maker(pg, tenant, info));
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, tenant);
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

KV_RC kv_store_api_key_count_operator(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"api_key_count_operator",
                                             "SELECT count(*) FROM api_key WHERE tenant_id IS NULL AND roles & 1 <> 0"
                                             " AND revoked_at IS NULL AND expires_at > $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

KV_RC kv_store_api_key_operators(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info,
                                 struct kv_store_api_key *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"api_key_operators",
                                             "SELECT " COLUMNS " FROM api_key WHERE tenant_id IS NULL"
                                             " AND roles & 1 <> 0 AND revoked_at IS NULL AND expires_at > $1"
                                             " ORDER BY expires_at DESC LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_i32(&args, (uint32_t)KV_MAX_API_KEYS_PER_TENANT);
    struct kv_pg_many many = {
        .query = &query, .args = &args, .max = (size_t)KV_MAX_API_KEYS_PER_TENANT, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

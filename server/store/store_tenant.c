/*
 * Tenants: a name, a place in the directory of the erasure tree, and how many key slots are given out.
 */
#include "server/store/store_tenant.h"

#include "server/store/pg_int.h"
#include "server/store/store_tenant_key.h"

#include <string.h>

static const char *const state_names[] = {"active", "suspended", "deleting", "erasing", "erased"};
#define STATES ((int)(sizeof state_names / sizeof state_names[0]))

const char *kv_tenant_state_name(enum kv_tenant_state state)
{
    return state_names[state];
}

bool kv_tenant_state_parse(const char *name, enum kv_tenant_state *ret_state)
{
    for (int i = 0; i < STATES; i++) {
        if (strcmp(state_names[i], name) == 0) {
            *ret_state = (enum kv_tenant_state)i;
            return true;
        }
    }
    return false;
}

#define COLUMNS                                                                                                        \
    "id, name, display_name, state, directory_slot, next_slot, coalesce(system_slot, -1), coalesce(tree_id, id),"      \
    " first_slot, region, rev,"                                                                                        \
    " created_at, updated_at, suspended_at, suspend_reason_sha256, delete_at, deleted_by, key_version, " KV_PG_LABELS( \
        "labels")

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_tenant *tenant = ret;
    kv_pg_get_id(row, &tenant->id);
    kv_pg_get_text(row, tenant->name, sizeof tenant->name);
    kv_pg_get_text(row, tenant->display_name, sizeof tenant->display_name);
    tenant->state = (enum kv_tenant_state)kv_pg_get_word(row, state_names, STATES);
    tenant->directory_slot = kv_pg_get_u32(row);
    tenant->next_slot = kv_pg_get_u32(row);
    tenant->system_slot = kv_pg_get_i32(row);
    kv_pg_get_id(row, &tenant->tree);
    tenant->first_slot = kv_pg_get_u32(row);
    kv_pg_get_text(row, tenant->region, sizeof tenant->region);
    tenant->rev = kv_pg_get_u64(row);
    tenant->created_us = kv_pg_get_time(row);
    tenant->updated_us = kv_pg_get_time(row);
    tenant->suspended_us = kv_pg_get_time(row);
    kv_pg_get_text(row, tenant->suspend_reason_sha256, sizeof tenant->suspend_reason_sha256);
    tenant->delete_us = kv_pg_get_time(row);
    kv_pg_get_id(row, &tenant->deleted_by);
    tenant->key_version = kv_pg_get_u32(row);
    kv_pg_get_labels(row, &tenant->labels);
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

static KV_RC insert_row(struct kv_pg *pg, const struct kv_store_tenant *tenant, uint32_t slot, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_insert", "INSERT INTO tenant (id, name, display_name, directory_slot, created_at, region, labels)"
                         " VALUES ($1, $2, $3, $4, $5, $6, jsonb_object($7, $8)) ON CONFLICT (name) DO NOTHING"};
    struct kv_pg_labels labels;
    kv_pg_labels_init(&labels, &tenant->labels);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &tenant->id);
    kv_pg_arg_text(&args, tenant->name);
    kv_pg_arg_text(&args, tenant->display_name);
    kv_pg_arg_i32(&args, slot);
    kv_pg_arg_time(&args, tenant->created_us);
    kv_pg_arg_text_or_null(&args, tenant->region);
    kv_pg_arg_labels(&args, &labels);
    uint64_t rows = 0;
    enum kv_err rc = kv_pg_change(pg, &query, &args, info, &rows);
    kv_pg_labels_done(&labels);
    if (rc == KV_OK && rows == 0) {
        return kv_fail(info, KV_E_TENANT_EXISTS, "a tenant named %s exists", tenant->name);
    }
    return rc;
}

static KV_RC free_directory_slot(struct kv_pg *pg, struct kv_errinfo *info, uint32_t *ret_slot)
{
    KV_TRY(next_directory_slot(pg, info, ret_slot));
    return *ret_slot < KV_MAX_TENANTS
               ? KV_OK
               : kv_fail(info, KV_E_LIMIT, "the cluster has had all of its %lld trees of tenants",
                         (long long)KV_MAX_TENANTS);
}

KV_RC kv_store_tenant_insert(struct kv_pg *pg, const struct kv_store_tenant *tenant, struct kv_errinfo *info,
                             uint32_t *ret_directory_slot)
{
    uint32_t slot = 0;
    KV_TRY(free_directory_slot(pg, info, &slot));
    KV_TRY(insert_row(pg, tenant, slot, info));
    KV_TRY(kv_store_tenant_key_first(pg, &tenant->id, tenant->created_us, info));
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

KV_RC kv_store_tenant_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_tenant *ret_tenant)
{
    static const struct kv_pg_query query = {"tenant_lock",
                                             "SELECT " COLUMNS " FROM tenant WHERE id = $1 FOR NO KEY UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_tenant};
    return kv_pg_fetch_one(pg, &one, fill, ret_tenant, info);
}

#define LIST_TENANTS                                                        \
    "SELECT " COLUMNS " FROM tenant WHERE ($1::text IS NULL OR state = $1)" \
    " AND ($2::text IS NULL OR labels @> jsonb_build_object($2, $3::text))"

KV_RC kv_store_tenant_list(struct kv_pg *pg, const struct kv_store_tenant_filter *filter, struct kv_page *page,
                           struct kv_errinfo *info, struct kv_store_tenant *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"tenant_list", LIST_TENANTS KV_PG_PAGE_DESC("created_at", "id", "4", "5", "6")},
        {"tenant_list_up", LIST_TENANTS KV_PG_PAGE_ASC("created_at", "id", "4", "5", "6")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_text_or_null(&args, filter->state);
    kv_pg_arg_text_or_null(&args, filter->label == NULL ? NULL : filter->label->name);
    kv_pg_arg_text(&args, filter->label == NULL ? "" : filter->label->value);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

KV_RC kv_store_tenant_update(struct kv_pg *pg, struct kv_store_tenant *tenant, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_update", "UPDATE tenant SET display_name = $3, region = $4, state = $5, updated_at = $6,"
                         " suspended_at = $7, suspend_reason_sha256 = $8, delete_at = $9, deleted_by = $10,"
                         " labels = jsonb_object($11, $12), rev = rev + 1 WHERE id = $1 AND rev = $2"};
    struct kv_pg_labels labels;
    kv_pg_labels_init(&labels, &tenant->labels);
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &tenant->id);
    kv_pg_arg_u64(&args, tenant->rev);
    kv_pg_arg_text(&args, tenant->display_name);
    kv_pg_arg_text_or_null(&args, tenant->region);
    kv_pg_arg_text(&args, state_names[tenant->state]);
    kv_pg_arg_time(&args, tenant->updated_us);
    kv_pg_arg_time_or_null(&args, tenant->suspended_us);
    kv_pg_arg_text_or_null(&args, tenant->suspend_reason_sha256);
    kv_pg_arg_time_or_null(&args, tenant->delete_us);
    kv_pg_arg_id_or_null(&args, &tenant->deleted_by);
    kv_pg_arg_labels(&args, &labels);
    enum kv_err rc = kv_pg_change_one(pg, &query, &args, info, "the tenant changed meanwhile");
    kv_pg_labels_done(&labels);
    tenant->rev += rc == KV_OK;
    return rc;
}

KV_RC kv_store_tenant_system_slot(struct kv_pg *pg, struct kv_store_tenant *tenant, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_system_slot", "UPDATE tenant SET system_slot = next_slot, next_slot = next_slot + 1"
                              " WHERE id = $1 AND system_slot IS NULL AND next_slot < $2 RETURNING system_slot"};
    if (tenant->system_slot >= 0) {
        return KV_OK;
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &tenant->id);
    kv_pg_arg_i32(&args, KV_MAX_TENANT_SLOTS);
    struct kv_pg_one one = {.query = &query,
                            .args = &args,
                            .write = true,
                            .none = KV_E_TENANT_FULL,
                            .none_text = "the tenant has used all of its key slots"};
    uint32_t slot = 0;
    KV_TRY(kv_pg_fetch_one(pg, &one, fill_u32, &slot, info));
    tenant->system_slot = (int32_t)slot;
    return KV_OK;
}

static KV_RC cut_tree(struct kv_pg *pg, const struct kv_id *id, const struct kv_id *tree, int64_t directory_slot,
                      struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_cut_tree", "UPDATE tenant SET first_slot = next_slot, system_slot = NULL, tree_id = $2,"
                           " directory_slot = CASE WHEN $3 < 0 THEN directory_slot ELSE $3 END WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_id(&args, tree);
    kv_pg_arg_i64(&args, directory_slot);
    return kv_pg_change_one(pg, &query, &args, info, "there is no such tenant");
}

KV_RC kv_store_tenant_renew_tree(struct kv_pg *pg, const struct kv_store_tenant *tenant, const struct kv_id *tree,
                                 struct kv_errinfo *info)
{
    if (tenant->state == KV_TENANT_ERASING) {
        return cut_tree(pg, &tenant->id, tree, -1, info);
    }
    uint32_t slot = 0;
    KV_TRY(free_directory_slot(pg, info, &slot));
    KV_TRY(take_directory_slot(pg, slot, info));
    return cut_tree(pg, &tenant->id, tree, slot, info);
}

KV_RC kv_store_tenant_set_erased(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "tenant_set_erased", "UPDATE tenant SET state = 'erased', rev = rev + 1 WHERE id = $1 AND state = 'erasing'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    uint64_t rows = 0;
    return kv_pg_change(pg, &query, &args, info, &rows);
}

KV_RC kv_store_tenant_list_due(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                               struct kv_id *ret_ids, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "tenant_list_due", "SELECT id FROM tenant WHERE delete_at <= $1 AND NOT EXISTS (SELECT FROM hold h"
                           " WHERE h.tenant_id = tenant.id AND h.ended_at IS NULL AND h.expires_at > $1)"
                           " ORDER BY delete_at LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_ids[0]};
    return kv_pg_fetch_many(pg, &many, kv_pg_fill_id, ret_ids, ret_count, info);
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

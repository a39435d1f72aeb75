/* See store_approval.h. Must never let one be decided twice. */
#include "server/store/store_approval.h"

#include "server/store/pg_int.h"

static const char *const action_names[] = {"tenant.delete", "tenant.delete_now", "hold.release"};
static const char *const state_names[] = {"pending", "approved", "rejected"};

const char *kv_approval_action_name(enum kv_approval_action action)
{
    return action_names[action];
}

const char *kv_approval_state_name(enum kv_approval_state state)
{
    return state_names[state];
}

KV_RC kv_store_approval_insert(struct kv_pg *pg, const struct kv_store_approval *approval, uint64_t open_max,
                               struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "approval_insert",
        "INSERT INTO approval (id, tenant_id, action, target, target_rev, platform_version, tenant_version, request,"
        " request_sha256, proposed_by, proposed_role, created_at, expires_at)"
        " SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13 WHERE (SELECT count(*) FROM approval"
        " WHERE tenant_id = $2 AND state = 'pending' AND expires_at > $12) < $14::bigint"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &approval->id);
    kv_pg_arg_id(&args, &approval->tenant);
    kv_pg_arg_text(&args, action_names[approval->action]);
    kv_pg_arg_id(&args, &approval->target);
    kv_pg_arg_u64(&args, approval->target_rev);
    kv_pg_arg_u64(&args, approval->versions[0]);
    kv_pg_arg_u64(&args, approval->versions[1]);
    kv_pg_arg_text(&args, approval->request);
    kv_pg_arg_raw(&args, approval->request_sha256, sizeof approval->request_sha256);
    kv_pg_arg_id(&args, &approval->proposed_by);
    kv_pg_arg_text(&args, approval->proposed_role);
    kv_pg_arg_time(&args, approval->created_us);
    kv_pg_arg_time(&args, approval->expires_us);
    kv_pg_arg_u64(&args, open_max);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    return rows == 1 ? KV_OK
                     : kv_fail(info, KV_E_LIMIT, "%llu proposals wait for this tenant; have some decided first",
                               (unsigned long long)open_max);
}

#define SELECT_APPROVAL                                                                                            \
    "SELECT id, tenant_id, action, target, target_rev, platform_version, tenant_version, request, request_sha256," \
    " state, rev, proposed_by, decided_by, proposed_role, created_at, expires_at, decided_at FROM approval "

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_approval *approval = ret;
    kv_pg_get_id(row, &approval->id);
    kv_pg_get_id(row, &approval->tenant);
    approval->action = (enum kv_approval_action)kv_pg_get_word(row, action_names, 3);
    kv_pg_get_id(row, &approval->target);
    approval->target_rev = kv_pg_get_u64(row);
    approval->versions[0] = kv_pg_get_u64(row);
    approval->versions[1] = kv_pg_get_u64(row);
    kv_pg_get_text(row, approval->request, sizeof approval->request);
    kv_pg_get_raw(row, approval->request_sha256, sizeof approval->request_sha256);
    approval->state = (enum kv_approval_state)kv_pg_get_word(row, state_names, 3);
    approval->rev = kv_pg_get_u64(row);
    kv_pg_get_id(row, &approval->proposed_by);
    kv_pg_get_id(row, &approval->decided_by);
    kv_pg_get_text(row, approval->proposed_role, sizeof approval->proposed_role);
    approval->created_us = kv_pg_get_time(row);
    approval->expires_us = kv_pg_get_time(row);
    approval->decided_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_approval_find(struct kv_pg *pg, const struct kv_store_approval *like, struct kv_errinfo *info,
                             struct kv_store_approval *ret_approval)
{
    static const struct kv_pg_query query = {"approval_find", SELECT_APPROVAL
                                             "WHERE tenant_id = $1 AND state = 'pending' AND expires_at > $2"
                                             " AND request_sha256 = $3 AND proposed_by = $4 AND target_rev = $5"
                                             " AND platform_version = $6 AND tenant_version = $7 LIMIT 1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &like->tenant);
    kv_pg_arg_time(&args, like->created_us);
    kv_pg_arg_raw(&args, like->request_sha256, sizeof like->request_sha256);
    kv_pg_arg_id(&args, &like->proposed_by);
    kv_pg_arg_u64(&args, like->target_rev);
    kv_pg_arg_u64(&args, like->versions[0]);
    kv_pg_arg_u64(&args, like->versions[1]);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "none waits"};
    return kv_pg_fetch_one(pg, &one, fill, ret_approval, info);
}

static const char *const no_approval = "there is no such approval";

KV_RC kv_store_approval_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                            struct kv_store_approval *ret_approval)
{
    static const struct kv_pg_query query = {"approval_get", SELECT_APPROVAL "WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_approval};
    return kv_pg_fetch_one(pg, &one, fill, ret_approval, info);
}

KV_RC kv_store_approval_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                             struct kv_store_approval *ret_approval)
{
    static const struct kv_pg_query query = {"approval_lock", SELECT_APPROVAL "WHERE id = $1 FOR NO KEY UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_approval};
    return kv_pg_fetch_one(pg, &one, fill, ret_approval, info);
}

#define LIST_APPROVALS                                                                               \
    SELECT_APPROVAL "WHERE ($1::bytea IS NULL OR tenant_id = $1) AND ($2::text IS NULL OR $2 = CASE" \
                    " WHEN state = 'pending' AND expires_at <= $3::timestamptz THEN 'expired' ELSE state END)"

KV_RC kv_store_approval_page(struct kv_pg *pg, const struct kv_store_approval_filter *filter, struct kv_page *page,
                             struct kv_errinfo *info, struct kv_store_approval *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"approval_page", LIST_APPROVALS KV_PG_PAGE_DESC("created_at", "id", "4", "5", "6")},
        {"approval_page_up", LIST_APPROVALS KV_PG_PAGE_ASC("created_at", "id", "4", "5", "6")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, &filter->tenant);
    kv_pg_arg_text_or_null(&args, filter->state);
    kv_pg_arg_time(&args, filter->now_us);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

KV_RC kv_store_approval_decide(struct kv_pg *pg, struct kv_store_approval *approval, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"approval_decide",
                                             "UPDATE approval SET state = $2, decided_by = $3, decided_at = $4,"
                                             " rev = rev + 1 WHERE id = $1 AND state = 'pending'"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &approval->id);
    kv_pg_arg_text(&args, state_names[approval->state]);
    kv_pg_arg_id(&args, &approval->decided_by);
    kv_pg_arg_time(&args, approval->decided_us);
    KV_TRY(kv_pg_change_one(pg, &query, &args, info, "the approval was decided meanwhile"));
    approval->rev++;
    return KV_OK;
}

KV_RC kv_store_approvers(struct kv_pg *pg, const struct kv_id *tenant, uint64_t now_us, struct kv_errinfo *info,
                         uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"approvers",
                                             "SELECT count(*) FROM api_key WHERE (tenant_id IS NULL OR tenant_id = $1)"
                                             " AND roles & $3 <> 0 AND revoked_at IS NULL AND expires_at > $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, tenant);
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_i32(&args, KV_ROLE_SECURITY_OFFICER);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

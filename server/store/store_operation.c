/*
 * Rows of long-running operations: what an executor needs to go on after a crash, and what callers see of it. What a
 * kind of operation does is not known here.
 */
#include "server/store/store_operation.h"

#include "server/store/pg_int.h"

static const char *const state_names[] = {"queued", "running", "succeeded", "failed", "canceled"};

const char *kv_operation_state_name(enum kv_operation_state state)
{
    return state_names[state];
}

KV_RC kv_store_operation_insert(struct kv_pg *pg, const struct kv_store_operation *operation, uint64_t open_max,
                                struct kv_errinfo *info)
{
    /* Two at once may both see the last free place: the bound is on work that waits, not on memory. A tenant has an
     * eighth of the places, so that none can keep the others and the operator from theirs. */
    static const struct kv_pg_query query = {
        "operation_insert",
        "INSERT INTO operation (id, kind, tenant_id, created_by, params, created_at, instance_id)"
        " SELECT $1, $2, $3, $4, $5, $6, $8"
        " WHERE (SELECT count(*) FROM operation WHERE ended_at IS NULL) < $7::bigint AND ($3::bytea IS NULL OR"
        " (SELECT count(*) FROM operation WHERE ended_at IS NULL AND tenant_id = $3) < greatest($7 / 8, 1))"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &operation->id);
    kv_pg_arg_text(&args, operation->kind);
    kv_pg_arg_id_or_null(&args, &operation->tenant);
    kv_pg_arg_id_or_null(&args, &operation->created_by);
    kv_pg_arg_text(&args, operation->params);
    kv_pg_arg_time(&args, operation->created_us);
    kv_pg_arg_u64(&args, open_max);
    kv_pg_arg_id_or_null(&args, &operation->instance);
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, &query, &args, info, &rows));
    return rows == 1
               ? KV_OK
               : kv_fail(info, KV_E_BUSY,
                         "as many operations as may be are open; cancel one of them, or try again when one ended");
}

#define SELECT_OPERATION                                                                                        \
    "SELECT id, kind, tenant_id, created_by, state, phase, unit, done_units, coalesce(total_units, 0),"         \
    " total_units IS NOT NULL, params, response, error_code, error_text, cancel_requested_at, rev, created_at," \
    " started_at, ended_at, expires_at, instance_id FROM operation "

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_operation *operation = ret;
    kv_pg_get_id(row, &operation->id);
    kv_pg_get_text(row, operation->kind, sizeof operation->kind);
    kv_pg_get_id(row, &operation->tenant);
    kv_pg_get_id(row, &operation->created_by);
    operation->state = (enum kv_operation_state)kv_pg_get_word(row, state_names, 5);
    kv_pg_get_text(row, operation->phase, sizeof operation->phase);
    kv_pg_get_text(row, operation->unit, sizeof operation->unit);
    operation->done_units = kv_pg_get_u64(row);
    operation->total_units = kv_pg_get_u64(row);
    operation->has_total = kv_pg_get_bool(row);
    kv_pg_get_text(row, operation->params, sizeof operation->params);
    kv_pg_get_text(row, operation->response, sizeof operation->response);
    kv_pg_get_text(row, operation->error_code, sizeof operation->error_code);
    kv_pg_get_text(row, operation->error_text, sizeof operation->error_text);
    operation->cancel_requested_us = kv_pg_get_time(row);
    operation->rev = kv_pg_get_u64(row);
    operation->created_us = kv_pg_get_time(row);
    operation->started_us = kv_pg_get_time(row);
    operation->ended_us = kv_pg_get_time(row);
    operation->expires_us = kv_pg_get_time(row);
    kv_pg_get_id(row, &operation->instance);
    return KV_OK;
}

static const char *const no_operation = "there is no such operation";

KV_RC kv_store_operation_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                             struct kv_store_operation *ret_operation)
{
    static const struct kv_pg_query query = {"operation_get", SELECT_OPERATION "WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_NOT_FOUND, .none_text = no_operation};
    return kv_pg_fetch_one(pg, &one, fill, ret_operation, info);
}

KV_RC kv_store_operation_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                              struct kv_store_operation *ret_operation)
{
    static const struct kv_pg_query query = {"operation_lock", SELECT_OPERATION "WHERE id = $1 FOR UPDATE"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_NOT_FOUND, .none_text = no_operation};
    return kv_pg_fetch_one(pg, &one, fill, ret_operation, info);
}

static KV_RC list(struct kv_pg *pg, const struct kv_pg_query *query, struct kv_pg_args *args, size_t max,
                  struct kv_store_operation *ret_list, size_t *ret_count, struct kv_errinfo *info)
{
    kv_pg_arg_u64(args, max);
    struct kv_pg_many many = {.query = query, .args = args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

#define LIVE_OWNER                                                                                              \
    "EXISTS (SELECT 1 FROM instance i WHERE i.id = operation.instance_id AND i.lease_until > clock_timestamp()" \
    " AND i.expired_at IS NULL AND i.ended_at IS NULL)"

KV_RC kv_store_operation_list_open(struct kv_pg *pg, const struct kv_id *instance, size_t max, struct kv_errinfo *info,
                                   struct kv_store_operation *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query query = {"operation_list_open", SELECT_OPERATION
                                             "WHERE ended_at IS NULL AND (instance_id = $1 OR NOT " LIVE_OWNER
                                             ") ORDER BY created_at, id LIMIT $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, instance);
    return list(pg, &query, &args, max, ret_list, ret_count, info);
}

KV_RC kv_store_operation_take(struct kv_pg *pg, const struct kv_id *id, const struct kv_id *instance,
                              struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "operation_take", "UPDATE operation SET instance_id = $2, rev = rev + 1 WHERE id = $1 AND ended_at IS NULL"
                          " AND (instance_id = $2 OR NOT " LIVE_OWNER ")"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_id(&args, instance);
    return kv_pg_change_one(pg, &query, &args, info, "another instance runs this operation");
}

#define LIST_OPERATIONS                                                                             \
    SELECT_OPERATION "WHERE tenant_id IS NOT DISTINCT FROM $1 AND ($2::text IS NULL OR state = $2)" \
                     " AND ($3::text IS NULL OR kind = $3)"

KV_RC kv_store_operation_page(struct kv_pg *pg, const struct kv_store_operation_filter *filter, struct kv_page *page,
                              struct kv_errinfo *info, struct kv_store_operation *ret_list, size_t *ret_count)
{
    static const struct kv_pg_query queries[] = {
        {"operation_page", LIST_OPERATIONS KV_PG_PAGE_DESC("created_at", "id", "4", "5", "6")},
        {"operation_page_up", LIST_OPERATIONS KV_PG_PAGE_ASC("created_at", "id", "4", "5", "6")}};
    struct kv_pg_args args = {0};
    kv_pg_arg_id_or_null(&args, &filter->tenant);
    kv_pg_arg_text_or_null(&args, filter->state);
    kv_pg_arg_text_or_null(&args, filter->kind);
    return kv_pg_fetch_page(pg, &queries[page->ascending ? 1 : 0], &args, page,
                            &(struct kv_pg_paged){fill, sizeof ret_list[0], ret_list, ret_count}, info);
}

static const char *const ended = "the operation has ended, or another instance runs it";

KV_RC kv_store_operation_progress(struct kv_pg *pg, const struct kv_store_operation *operation,
                                  struct kv_bytes position, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "operation_progress",
        "UPDATE operation SET state = $2, phase = $3, unit = $4, done_units = $5, total_units = nullif($6, 0),"
        " started_at = $7, position = coalesce(convert_from($8, 'UTF8'), position), rev = rev + 1"
        " WHERE id = $1 AND instance_id IS NOT DISTINCT FROM $9 AND state IN ('queued', 'running')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &operation->id);
    kv_pg_arg_text(&args, state_names[operation->state]);
    kv_pg_arg_text(&args, operation->phase);
    kv_pg_arg_text(&args, operation->unit);
    kv_pg_arg_u64(&args, operation->done_units);
    kv_pg_arg_u64(&args, operation->total_units);
    kv_pg_arg_time_or_null(&args, operation->started_us);
    kv_pg_arg_raw_or_null(&args, position.data, position.len);
    kv_pg_arg_id_or_null(&args, &operation->instance);
    return kv_pg_change_one(pg, &query, &args, info, ended);
}

KV_RC kv_store_operation_position(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                                  struct kv_buf *ret_position)
{
    static const struct kv_pg_query query = {"operation_position",
                                             "SELECT convert_to(position, 'UTF8') FROM operation WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    return kv_pg_fetch_blob(pg, &query, &args, "the operation has no position yet", info, ret_position);
}

KV_RC kv_store_operation_end(struct kv_pg *pg, const struct kv_store_operation *operation, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "operation_end", "UPDATE operation SET state = $2, phase = $3, done_units = $4, response = $5, error_code = $6,"
                         " error_text = $7, ended_at = $8, expires_at = $9, position = NULL, rev = rev + 1"
                         " WHERE id = $1 AND instance_id IS NOT DISTINCT FROM $10 AND state IN ('queued', 'running')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &operation->id);
    kv_pg_arg_text(&args, state_names[operation->state]);
    kv_pg_arg_text(&args, operation->phase);
    kv_pg_arg_u64(&args, operation->done_units);
    kv_pg_arg_text_or_null(&args, operation->response);
    kv_pg_arg_text_or_null(&args, operation->error_code);
    kv_pg_arg_text_or_null(&args, operation->error_text);
    kv_pg_arg_time(&args, operation->ended_us);
    kv_pg_arg_time(&args, operation->expires_us);
    kv_pg_arg_id_or_null(&args, &operation->instance);
    return kv_pg_change_one(pg, &query, &args, info, ended);
}

KV_RC kv_store_operation_cancel(struct kv_pg *pg, const struct kv_id *id, uint64_t at_us, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "operation_cancel",
        "UPDATE operation SET cancel_requested_at = coalesce(cancel_requested_at, $2), rev = rev + 1"
        " WHERE id = $1 AND state IN ('queued', 'running')"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_time(&args, at_us);
    return kv_pg_change_one(pg, &query, &args, info, ended);
}

KV_RC kv_store_operation_expire(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                                uint64_t *ret_count)
{
    static const struct kv_pg_query query = {
        "operation_expire", "DELETE FROM operation WHERE ctid = ANY (ARRAY(SELECT ctid FROM operation"
                            " WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED))"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_u64(&args, max);
    return kv_pg_change(pg, &query, &args, info, ret_count);
}

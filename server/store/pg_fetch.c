/*
 * The few shapes that statements of this folder have: one row, many rows, a blob, a change that must hit one row.
 */
#include "dataplane/base/check.h"
#include "server/store/pg_int.h"

#include <stdlib.h>
#include <string.h>

KV_RC kv_pg_change(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                   struct kv_errinfo *info, uint64_t *ret_rows)
{
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_write(pg, query, args, info, &result));
    *ret_rows = strtoull(PQcmdTuples(result), NULL, 10);
    return KV_OK;
}

KV_RC kv_pg_change_one(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                       struct kv_errinfo *info, const char *stale)
{
    uint64_t rows = 0;
    KV_TRY(kv_pg_change(pg, query, args, info, &rows));
    return rows == 1 ? KV_OK : kv_fail(info, KV_E_STALE, "%s", stale);
}

KV_RC kv_pg_fetch_one(struct kv_pg *pg, const struct kv_pg_one *one, kv_pg_fill_fn fill, void *ret,
                      struct kv_errinfo *info)
{
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY((one->write ? kv_pg_write : kv_pg_read)(pg, one->query, one->args, info, &result));
    if (PQntuples(result) == 0) {
        return kv_fail(info, one->none, "%s", one->none_text);
    }
    struct kv_pg_row row = kv_pg_row_of(result, 0);
    KV_TRY(fill(&row, ret));
    return kv_pg_row_check(&row, info);
}

KV_RC kv_pg_fill_u64(struct kv_pg_row *row, void *ret)
{
    *(uint64_t *)ret = kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_pg_fill_id(struct kv_pg_row *row, void *ret)
{
    kv_pg_get_id(row, ret);
    return KV_OK;
}

KV_RC kv_pg_fetch_many(struct kv_pg *pg, const struct kv_pg_many *many, kv_pg_fill_fn fill, void *ret_list,
                       size_t *ret_count, struct kv_errinfo *info)
{
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_read(pg, many->query, many->args, info, &result));
    int rows = PQntuples(result);
    KV_ASSERT(rows >= 0 && (size_t)rows <= many->max);
    for (int i = 0; i < rows; i++) {
        struct kv_pg_row row = kv_pg_row_of(result, i);
        KV_TRY(fill(&row, (uint8_t *)ret_list + (size_t)i * many->size));
        KV_TRY(kv_pg_row_check(&row, info));
    }
    *ret_count = (size_t)rows;
    return KV_OK;
}

KV_RC kv_pg_fetch_page(struct kv_pg *pg, const struct kv_pg_query *query, struct kv_pg_args *args, struct kv_page *page,
                       const struct kv_pg_paged *paged, struct kv_errinfo *info)
{
    size_t asked = (size_t)page->limit + 1, found = 0;
    kv_pg_arg_time_or_null(args, page->has_after ? page->after_us : 0);
    kv_pg_arg_id(args, &page->after);
    kv_pg_arg_u64(args, asked);
    struct kv_pg_many many = {.query = query, .args = args, .max = asked, .size = paged->size};
    KV_TRY(kv_pg_fetch_many(pg, &many, paged->fill, paged->ret_list, &found, info));
    page->more = found == asked;
    *paged->ret_count = page->more ? page->limit : found;
    return KV_OK;
}

void kv_pg_uses_init(struct kv_pg_uses *arrays, const struct kv_store_use *uses, size_t count)
{
    kv_pg_array_init(&arrays->ids, KV_PG_ARRAY_BYTEA, count, count * sizeof uses[0].id);
    kv_pg_array_init(&arrays->at, KV_PG_ARRAY_I64, count, count * sizeof uses[0].at_us);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(&arrays->ids, uses[i].id.b, sizeof uses[i].id.b, false);
        kv_pg_array_i64(&arrays->at, (int64_t)uses[i].at_us);
    }
}

void kv_pg_uses_done(struct kv_pg_uses *arrays)
{
    kv_pg_array_done(&arrays->ids);
    kv_pg_array_done(&arrays->at);
}

void kv_pg_arg_uses(struct kv_pg_args *args, const struct kv_pg_uses *arrays)
{
    kv_pg_arg_array(args, &arrays->ids, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_array(args, &arrays->at, KV_PG_ARRAY_I64);
}

KV_RC kv_pg_fetch_blob(struct kv_pg *pg, const struct kv_pg_query *query, const struct kv_pg_args *args,
                       const char *missing, struct kv_errinfo *info, struct kv_buf *ret_blob)
{
    PGresult *result KV_CLEANUP(kv_pg_result_free) = NULL;
    KV_TRY(kv_pg_read(pg, query, args, info, &result));
    struct kv_pg_row row = kv_pg_row_of(result, 0);
    if (PQntuples(result) == 0 || kv_pg_get_null(&row)) {
        return kv_fail(info, KV_E_MISSING, "%s", missing);
    }
    struct kv_bytes blob = kv_pg_get_bytes(&row);
    KV_TRY(kv_pg_row_check(&row, info));
    kv_buf_append(ret_blob, blob.data, blob.len);
    return kv_buf_check(ret_blob);
}

static KV_RC fill_count(struct kv_pg_row *row, void *ret)
{
    *(uint32_t *)ret = (uint32_t)kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_pg_evict(struct kv_pg *pg, const struct kv_pg_query *query, struct kv_errinfo *info, uint32_t *ret_count)
{
    if (KV_BUG(kv_pg_in_tx(pg))) {
        return kv_fail(info, KV_E_INTERNAL, "%s inside a transaction", query->name);
    }
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, pg->lock_timeout_ms);
    struct kv_pg_one one = {.query = query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no answer"};
    return kv_pg_fetch_one(pg, &one, fill_count, ret_count, info);
}

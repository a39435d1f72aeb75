/*
 * See store_usage.h. Must lock rows in one order: several instances add to the same ones.
 */
#include "server/store/store_usage.h"

#include "server/store/pg_int.h"

enum { TENANTS, HOURS, OFFLOADED_BLOCKS, OFFLOADED_BYTES, RESTORED_BLOCKS, RESTORED_BYTES, COLUMN_COUNT };

static enum kv_pg_array_type type_of(int column)
{
    return column == TENANTS ? KV_PG_ARRAY_BYTEA : KV_PG_ARRAY_I64;
}

static void put(struct kv_pg_array columns[COLUMN_COUNT], const struct kv_store_usage_hour *hour)
{
    kv_pg_array_raw(&columns[TENANTS], hour->tenant.b, sizeof hour->tenant.b, false);
    kv_pg_array_i64(&columns[HOURS], (int64_t)hour->hour_us);
    kv_pg_array_i64(&columns[OFFLOADED_BLOCKS], (int64_t)hour->moved.offloaded_blocks);
    kv_pg_array_i64(&columns[OFFLOADED_BYTES], (int64_t)hour->moved.offloaded_bytes);
    kv_pg_array_i64(&columns[RESTORED_BLOCKS], (int64_t)hour->moved.restored_blocks);
    kv_pg_array_i64(&columns[RESTORED_BYTES], (int64_t)hour->moved.restored_bytes);
}

KV_RC kv_store_usage_add(struct kv_pg *pg, const struct kv_store_usage_hour *hours, size_t count,
                         struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "usage_add",
        "INSERT INTO tenant_usage_hour AS old"
        " SELECT tenant, timestamptz 'epoch' + hour * interval '1 us', o_blocks, o_bytes, r_blocks, r_bytes"
        " FROM unnest($1, $2, $3, $4, $5, $6) AS fresh (tenant, hour, o_blocks, o_bytes, r_blocks, r_bytes)"
        " ORDER BY tenant, hour"
        " ON CONFLICT (tenant_id, hour) DO UPDATE SET"
        " offloaded_blocks = old.offloaded_blocks + excluded.offloaded_blocks,"
        " offloaded_bytes = old.offloaded_bytes + excluded.offloaded_bytes,"
        " restored_blocks = old.restored_blocks + excluded.restored_blocks,"
        " restored_bytes = old.restored_bytes + excluded.restored_bytes"};
    struct kv_pg_array columns[COLUMN_COUNT];
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    for (int i = 0; i < COLUMN_COUNT; i++) {
        kv_pg_array_init(&columns[i], type_of(i), count, count * 16);
    }
    for (size_t i = 0; i < count; i++) {
        put(columns, &hours[i]);
    }
    for (int i = 0; i < COLUMN_COUNT; i++) {
        kv_pg_arg_array(&args, &columns[i], type_of(i));
    }
    enum kv_err rc = count == 0 ? KV_OK : kv_pg_change(pg, &query, &args, info, &rows);
    for (int i = 0; i < COLUMN_COUNT; i++) {
        kv_pg_array_done(&columns[i]);
    }
    return rc;
}

static KV_RC fill_moved(struct kv_pg_row *row, void *ret)
{
    struct kv_store_moved *moved = ret;
    moved->offloaded_blocks = kv_pg_get_u64(row);
    moved->offloaded_bytes = kv_pg_get_u64(row);
    moved->restored_blocks = kv_pg_get_u64(row);
    moved->restored_bytes = kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_store_usage_sum(struct kv_pg *pg, const struct kv_id *tenant, uint64_t from_us, struct kv_errinfo *info,
                         struct kv_store_moved *ret_moved)
{
    static const struct kv_pg_query query = {
        "usage_sum", "SELECT coalesce(sum(offloaded_blocks), 0)::bigint, coalesce(sum(offloaded_bytes), 0)::bigint,"
                     " coalesce(sum(restored_blocks), 0)::bigint, coalesce(sum(restored_bytes), 0)::bigint"
                     " FROM tenant_usage_hour WHERE tenant_id = $1 AND hour >= $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, tenant);
    kv_pg_arg_time(&args, from_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no row came back"};
    return kv_pg_fetch_one(pg, &one, fill_moved, ret_moved, info);
}

static KV_RC fill_time(struct kv_pg_row *row, void *ret)
{
    *(uint64_t *)ret = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_usage_since(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_since_us)
{
    static const struct kv_pg_query query = {"usage_since", "SELECT usage_since FROM cluster"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "the database has no cluster"};
    return kv_pg_fetch_one(pg, &one, fill_time, ret_since_us, info);
}

KV_RC kv_store_usage_expire(struct kv_pg *pg, uint64_t before_us, size_t max, struct kv_errinfo *info,
                            uint64_t *ret_count)
{
    static const struct kv_pg_query query = {
        "usage_expire", "DELETE FROM tenant_usage_hour WHERE ctid = ANY (ARRAY(SELECT ctid FROM tenant_usage_hour"
                        " WHERE hour < $1 ORDER BY hour LIMIT $2 FOR UPDATE SKIP LOCKED))"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, before_us);
    kv_pg_arg_u64(&args, max);
    return kv_pg_change(pg, &query, &args, info, ret_count);
}

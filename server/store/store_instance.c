/*
 * Instances and their leases. The database's clock says until when a lease runs for the others; the instance itself
 * counts on its own clock, from before it asked.
 */
#include "server/store/pg_int.h"
#include "server/store/store_cluster.h"

#define COLUMNS "id, incarnation, lease_ctr, lease_until, acked_seq, acked_root, started_at"
#define LEASE(n) "clock_timestamp() + make_interval(secs => " n "::bigint / 1000.0)"

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_instance *instance = ret;
    kv_pg_get_id(row, &instance->id);
    instance->incarnation = kv_pg_get_i64(row);
    instance->lease_ctr = kv_pg_get_i64(row);
    instance->lease_until_us = kv_pg_get_time(row);
    instance->acked_seq = kv_pg_get_i64(row);
    kv_pg_get_id(row, &instance->acked_root);
    instance->started_us = kv_pg_get_time(row);
    return KV_OK;
}

KV_RC kv_store_instance_join(struct kv_pg *pg, const struct kv_id *id, uint32_t lease_ms, struct kv_errinfo *info,
                             struct kv_store_instance *ret_instance)
{
    static const struct kv_pg_query query = {
        "instance_join",
        "INSERT INTO instance (id, incarnation, lease_ctr, lease_until, started_at)"
        " VALUES ($1, 1, 1, " LEASE("$2") ", now()) ON CONFLICT (id) DO UPDATE SET"
                                          " incarnation = instance.incarnation + 1, lease_ctr = instance.lease_ctr + 1,"
                                          " lease_until = excluded.lease_until, acked_seq = 0, acked_root = NULL, "
                                          "started_at = now() RETURNING " COLUMNS};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_i64(&args, lease_ms);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_CORRUPT, .none_text = "no row came back"};
    return kv_pg_fetch_one(pg, &one, fill, ret_instance, info);
}

static const char *const cloned = "another process renewed the lease of this instance";

KV_RC kv_store_instance_renew(struct kv_pg *pg, const struct kv_store_instance *seen, uint32_t lease_ms,
                              struct kv_errinfo *info, struct kv_store_instance *ret_instance)
{
    static const struct kv_pg_query query = {
        "instance_renew", "UPDATE instance SET lease_ctr = lease_ctr + 1, lease_until = " LEASE(
                              "$4") ","
                                    " acked_seq = $5, acked_root = $6"
                                    " WHERE id = $1 AND incarnation = $2 AND lease_ctr = $3 RETURNING " COLUMNS};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &seen->id);
    kv_pg_arg_i64(&args, seen->incarnation);
    kv_pg_arg_i64(&args, seen->lease_ctr);
    kv_pg_arg_i64(&args, lease_ms);
    kv_pg_arg_i64(&args, seen->acked_seq);
    kv_pg_arg_id_or_null(&args, &seen->acked_root);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_STALE, .none_text = cloned};
    return kv_pg_fetch_one(pg, &one, fill, ret_instance, info);
}

KV_RC kv_store_instance_leave(struct kv_pg *pg, const struct kv_id *id, int64_t incarnation, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "instance_leave", "UPDATE instance SET lease_ctr = lease_ctr + 1, lease_until = clock_timestamp()"
                          " WHERE id = $1 AND incarnation = $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_i64(&args, incarnation);
    return kv_pg_change_one(pg, &query, &args, info, cloned);
}

KV_RC kv_store_instances_live(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_instance *ret_list,
                              size_t *ret_count)
{
    static const struct kv_pg_query query = {"instances_live",
                                             "SELECT " COLUMNS " FROM instance WHERE lease_until > clock_timestamp()"
                                             " ORDER BY id LIMIT $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

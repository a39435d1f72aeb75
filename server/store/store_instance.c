/*
 * Instances and their leases. The database's clock says until when a lease runs where only a choice depends on it; the
 * instance itself counts on its own clock, from before it asked, and whoever has to be sure that a lease is over counts
 * on its own, from when it last saw the counter move.
 */
#include "server/store/pg_int.h"
#include "server/store/store_cluster.h"

#define COLUMNS                                                                                         \
    "id, incarnation, lease_ctr, lease_ms, lease_until, acked_seq, acked_root, started_at, expired_at," \
    " keys_sha256"
#define LEASE(n) "clock_timestamp() + make_interval(secs => " n "::bigint / 1000.0)"

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_instance *instance = ret;
    kv_pg_get_id(row, &instance->id);
    instance->incarnation = kv_pg_get_i64(row);
    instance->lease_ctr = kv_pg_get_i64(row);
    instance->lease_ms = (uint32_t)kv_pg_get_u64(row);
    instance->lease_until_us = kv_pg_get_time(row);
    instance->acked_seq = kv_pg_get_i64(row);
    kv_pg_get_id(row, &instance->acked_root);
    instance->started_us = kv_pg_get_time(row);
    instance->expired_us = kv_pg_get_time(row);
    kv_pg_get_raw(row, instance->keys_sha256, sizeof instance->keys_sha256);
    return KV_OK;
}

KV_RC kv_store_instance_join(struct kv_pg *pg, const struct kv_store_join *join, struct kv_errinfo *info,
                             struct kv_store_instance *ret_instance)
{
    static const struct kv_pg_query query = {
        "instance_join",
        "INSERT INTO instance (id, incarnation, lease_ctr, lease_ms, lease_until, acked_seq, keys_sha256, started_at)"
        " VALUES ($1, 1, 1, $2, " LEASE(
            "$2") ", $3, $4, now()) ON CONFLICT (id) DO UPDATE SET"
                  " incarnation = instance.incarnation + 1, lease_ctr = instance.lease_ctr + 1, lease_ms = "
                  "excluded.lease_ms,"
                  " lease_until = excluded.lease_until, acked_seq = excluded.acked_seq, acked_root = NULL,"
                  " keys_sha256 = excluded.keys_sha256, started_at = now(), expired_at = NULL, ended_at = NULL, cloned "
                  "= false"
                  " RETURNING " COLUMNS};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &join->id);
    kv_pg_arg_i64(&args, join->lease_ms);
    kv_pg_arg_i64(&args, join->acked_seq);
    kv_pg_arg_raw(&args, join->keys_sha256, sizeof join->keys_sha256);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .write = true, .none = KV_E_CORRUPT, .none_text = "no row came back"};
    return kv_pg_fetch_one(pg, &one, fill, ret_instance, info);
}

static const char *const cloned = "another process renewed the lease of this instance";

KV_RC kv_store_instance_renew(struct kv_pg *pg, const struct kv_store_instance *seen, struct kv_errinfo *info,
                              struct kv_store_instance *ret_instance)
{
    static const struct kv_pg_query query = {
        "instance_renew",
        "UPDATE instance SET lease_ctr = lease_ctr + 1, lease_ms = $4, lease_until = " LEASE(
            "$4") ", acked_seq = $5,"
                  " acked_root = $6, incarnation = incarnation + cloned::integer, cloned = false"
                  " WHERE id = $1 AND incarnation = $2 AND lease_ctr = $3 AND expired_at IS NULL AND ended_at IS NULL"
                  " RETURNING " COLUMNS};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &seen->id);
    kv_pg_arg_i64(&args, seen->incarnation);
    kv_pg_arg_i64(&args, seen->lease_ctr);
    kv_pg_arg_i64(&args, seen->lease_ms);
    kv_pg_arg_i64(&args, seen->acked_seq);
    kv_pg_arg_id_or_null(&args, &seen->acked_root);
    struct kv_pg_one one = {.query = &query, .args = &args, .write = true, .none = KV_E_STALE, .none_text = cloned};
    return kv_pg_fetch_one(pg, &one, fill, ret_instance, info);
}

KV_RC kv_store_instance_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                            struct kv_store_instance *ret_instance)
{
    static const struct kv_pg_query query = {"instance_get", "SELECT " COLUMNS " FROM instance WHERE id = $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    struct kv_pg_one one = {
        .query = &query, .args = &args, .none = KV_E_MISSING, .none_text = "the database knows no such instance"};
    return kv_pg_fetch_one(pg, &one, fill, ret_instance, info);
}

KV_RC kv_store_instance_mark_cloned(struct kv_pg *pg, const struct kv_id *id, int64_t incarnation,
                                    struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {"instance_mark_cloned",
                                             "UPDATE instance SET cloned = true WHERE id = $1 AND incarnation = $2"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, id);
    kv_pg_arg_i64(&args, incarnation);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

KV_RC kv_store_instance_expire(struct kv_pg *pg, const struct kv_store_instance *seen, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "instance_expire", "UPDATE instance SET lease_ctr = lease_ctr + 1, expired_at = clock_timestamp()"
                           " WHERE id = $1 AND incarnation = $2 AND lease_ctr = $3 AND expired_at IS NULL"
                           " AND ended_at IS NULL"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, &seen->id);
    kv_pg_arg_i64(&args, seen->incarnation);
    kv_pg_arg_i64(&args, seen->lease_ctr);
    return kv_pg_change_one(pg, &query, &args, info, "the instance renewed its lease meanwhile");
}

KV_RC kv_store_instance_leave(struct kv_pg *pg, const struct kv_id *id, int64_t incarnation, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "instance_leave", "UPDATE instance SET lease_ctr = lease_ctr + 1, lease_until = clock_timestamp(),"
                          " ended_at = now() WHERE id = $1 AND incarnation = $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_id(&args, id);
    kv_pg_arg_i64(&args, incarnation);
    return kv_pg_change_one(pg, &query, &args, info, cloned);
}

KV_RC kv_store_instances_end_others(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info)
{
    static const struct kv_pg_query query = {
        "instances_end_others", "UPDATE instance SET ended_at = now() WHERE id <> $1 AND ended_at IS NULL"};
    struct kv_pg_args args = {0};
    uint64_t rows = 0;
    kv_pg_arg_id(&args, id);
    return kv_pg_change(pg, &query, &args, info, &rows);
}

static KV_RC list(struct kv_pg *pg, const struct kv_pg_query *query, size_t max, struct kv_errinfo *info,
                  struct kv_store_instance *ret_list, size_t *ret_count)
{
    struct kv_pg_args args = {0};
    kv_pg_arg_u64(&args, max);
    struct kv_pg_many many = {.query = query, .args = &args, .max = max, .size = sizeof ret_list[0]};
    return kv_pg_fetch_many(pg, &many, fill, ret_list, ret_count, info);
}

KV_RC kv_store_instances_live(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_instance *ret_list,
                              size_t *ret_count)
{
    static const struct kv_pg_query query = {"instances_live",
                                             "SELECT " COLUMNS " FROM instance WHERE lease_until > clock_timestamp()"
                                             " AND expired_at IS NULL AND ended_at IS NULL ORDER BY id LIMIT $1"};
    return list(pg, &query, max, info, ret_list, ret_count);
}

KV_RC kv_store_instances_list(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_instance *ret_list,
                              size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "instances_list", "SELECT " COLUMNS " FROM instance WHERE ended_at IS NULL ORDER BY id LIMIT $1"};
    return list(pg, &query, max, info, ret_list, ret_count);
}

KV_RC kv_store_instance_evict(struct kv_pg *pg, struct kv_errinfo *info, uint32_t *ret_count)
{
    static const struct kv_pg_query query = {"instance_evict", KV_PG_EVICT("instance")};
    return kv_pg_evict(pg, &query, info, ret_count);
}

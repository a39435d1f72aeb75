/* The one question about standbys. Without the right to see them all columns but the process are null. */
#include "server/store/store_standby.h"

#include "server/store/pg_int.h"

static KV_RC fill_standbys(struct kv_pg_row *row, void *ret)
{
    struct kv_store_standbys *standbys = ret;
    standbys->position = kv_pg_get_i64(row);
    standbys->attached = kv_pg_get_u64(row);
    standbys->behind = kv_pg_get_u64(row);
    standbys->unseen = kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_store_standbys(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_standbys *standbys)
{
    static const struct kv_pg_query query = {
        "standbys",
        "WITH here AS (SELECT CASE WHEN $1::bigint > 0 THEN $1::bigint"
        " ELSE pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint END AS at)"
        " SELECT at, count(pid), count(pid) FILTER (WHERE state IS NOT NULL AND"
        " coalesce(pg_wal_lsn_diff(flush_lsn, '0/0'), 0) < at), count(pid) FILTER (WHERE state IS NULL)"
        " FROM here LEFT JOIN pg_stat_replication r ON state IS DISTINCT FROM 'backup'"
        " AND coalesce(application_name, '') NOT IN ('pg_basebackup', 'pg_receivewal', 'pg_recvlogical')"
        " AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE active_pid = r.pid AND slot_type = 'logical')"
        " GROUP BY at"};
    struct kv_pg_args args = {0};
    kv_pg_arg_i64(&args, standbys->position);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no row came back"};
    return kv_pg_fetch_one(pg, &one, fill_standbys, standbys, info);
}

/*
 * What the database server says of itself: settings that the promises of this server rest on. Reads, writes nothing.
 */
#include "server/store/store_facts.h"

#include "server/store/pg_int.h"

static KV_RC fill(struct kv_pg_row *row, void *ret)
{
    struct kv_store_facts *facts = ret;
    facts->version = (uint32_t)kv_pg_get_i64(row);
    kv_pg_get_text(row, facts->synchronous_commit, sizeof facts->synchronous_commit);
    kv_pg_get_text(row, facts->fsync, sizeof facts->fsync);
    kv_pg_get_text(row, facts->data_directory, sizeof facts->data_directory);
    facts->max_connections = kv_pg_get_i64(row);
    facts->connections = kv_pg_get_i64(row);
    facts->standby = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_facts(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_facts *ret_facts)
{
    /* pg_settings leaves out what this user may not see, where SHOW would fail. reset_val is what holds where nobody
     * sets it for a transaction, as this server does. */
    static const struct kv_pg_query query = {
        "facts", "SELECT current_setting('server_version_num')::bigint,"
                 " coalesce((SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), ''),"
                 " coalesce((SELECT setting FROM pg_settings WHERE name = 'fsync'), ''),"
                 " coalesce((SELECT setting FROM pg_settings WHERE name = 'data_directory'), ''),"
                 " current_setting('max_connections')::bigint,"
                 " (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),"
                 " pg_is_in_recovery()"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no row came back"};
    return kv_pg_fetch_one(pg, &one, fill, ret_facts, info);
}

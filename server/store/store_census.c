/* See store_census.h. Must never lock a row. */
#include "server/store/store_census.h"

#include "server/store/pg_int.h"
#include "server/store/store_session.h"

#include <string.h>

const char *const kv_census_tenant_states[] = {"active", "suspended", "deleting", "erasing", "erased"};
const char *const kv_census_session_states[] = {"active", "erasing", "erased", "lost"};
const char *const kv_census_erasure_states[] = {"requested", "fenced",   "staged",       "rekeyed",       "destroyed",
                                                "purged",    "verified", "blocked_hold", "needs_approval"};

struct tally {
    char state[32];
    uint64_t count, oldest_us;
};
#define TALLY_MAX 24

static KV_RC fill_tally(struct kv_pg_row *row, void *ret)
{
    struct tally *tally = ret;
    kv_pg_get_text(row, tally->state, sizeof tally->state);
    tally->count = kv_pg_get_u64(row);
    tally->oldest_us = kv_pg_get_time(row);
    return KV_OK;
}

/* A state that is not among the names is counted nowhere: a newer schema may have more. */
static KV_RC tally(struct kv_pg *pg, const struct kv_pg_query *query, const char *const *names, size_t name_count,
                   struct kv_errinfo *info, uint64_t *ret_counts, uint64_t *ret_oldest_us)
{
    struct kv_pg_args args = {0};
    struct tally rows[TALLY_MAX];
    size_t count = 0;
    struct kv_pg_many many = {.query = query, .args = &args, .max = TALLY_MAX, .size = sizeof rows[0]};
    KV_TRY(kv_pg_fetch_many(pg, &many, fill_tally, rows, &count, info));
    for (size_t i = 0; i < count; i++) {
        for (size_t n = 0; n < name_count; n++) {
            if (strcmp(rows[i].state, names[n]) == 0) {
                ret_counts[n] = rows[i].count;
                *ret_oldest_us = rows[i].oldest_us != 0 && (*ret_oldest_us == 0 || rows[i].oldest_us < *ret_oldest_us)
                                     ? rows[i].oldest_us
                                     : *ret_oldest_us;
            }
        }
    }
    return KV_OK;
}

static KV_RC keys_expiring(struct kv_pg *pg, uint64_t now_us, uint64_t soon_us, struct kv_errinfo *info,
                           uint64_t *ret_count)
{
    static const struct kv_pg_query query = {"census_keys",
                                             "SELECT count(*) FROM api_key"
                                             " WHERE revoked_at IS NULL AND expires_at > $1 AND expires_at <= $2"};
    struct kv_pg_args args = {0};
    kv_pg_arg_time(&args, now_us);
    kv_pg_arg_time(&args, soon_us);
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no count"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_count, info);
}

/* Of keys that are over, too: that the last one is, is the worst. */
static KV_RC operators_end(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_us)
{
    static const struct kv_pg_query query = {
        "census_operators", "SELECT coalesce(floor(extract(epoch FROM max(expires_at)) * 1000000), 0)::bigint"
                            " FROM api_key WHERE tenant_id IS NULL AND roles & 1 <> 0 AND revoked_at IS NULL"};
    struct kv_pg_args args = {0};
    struct kv_pg_one one = {.query = &query, .args = &args, .none = KV_E_CORRUPT, .none_text = "no time"};
    return kv_pg_fetch_one(pg, &one, kv_pg_fill_u64, ret_us, info);
}

KV_RC kv_store_census(struct kv_pg *pg, uint64_t now_us, uint64_t soon_us, struct kv_errinfo *info,
                      struct kv_store_census *ret_census)
{
    static const struct kv_pg_query tenants = {
        "census_tenant_states", "SELECT state, count(*), null::timestamptz FROM tenant GROUP BY state LIMIT 24"};
    static const struct kv_pg_query sessions = {"census_session_states",
                                                "SELECT " KV_SESSION_STATE
                                                ", count(*), null::timestamptz FROM session s" KV_SESSION_CUT
                                                "WHERE s.kind = 'session' GROUP BY 1 LIMIT 24"};
    static const struct kv_pg_query erasures = {
        "census_erasure_states", "SELECT state, count(*), min(coalesce(unblocked_at, requested_at))"
                                 " FILTER (WHERE state NOT IN ('blocked_hold', 'needs_approval')) FROM erasure"
                                 " WHERE state NOT IN ('certified', 'quarantined')"
                                 " GROUP BY state LIMIT 24"};
    struct kv_store_census census = {0};
    uint64_t none = 0;
    KV_TRY(tally(pg, &tenants, kv_census_tenant_states, KV_CENSUS_TENANT_STATES, info, census.tenants, &none));
    KV_TRY(tally(pg, &sessions, kv_census_session_states, KV_CENSUS_SESSION_STATES, info, census.sessions, &none));
    KV_TRY(tally(pg, &erasures, kv_census_erasure_states, KV_CENSUS_ERASURE_STATES, info, census.erasures,
                 &census.oldest_erasure_us));
    KV_TRY(keys_expiring(pg, now_us, soon_us, info, &census.keys_expiring));
    KV_TRY(operators_end(pg, info, &census.operators_end_us));
    *ret_census = census;
    return KV_OK;
}

static KV_RC fill_tenant(struct kv_pg_row *row, void *ret)
{
    struct kv_store_census_tenant *tenant = ret;
    kv_pg_get_id(row, &tenant->id);
    kv_pg_get_text(row, tenant->name, sizeof tenant->name);
    tenant->active = kv_pg_get_bool(row);
    tenant->sessions = kv_pg_get_u64(row);
    return KV_OK;
}

KV_RC kv_store_census_tenants(struct kv_pg *pg, size_t max, struct kv_errinfo *info,
                              struct kv_store_census_tenant *ret_tenants, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "census_tenants", "SELECT t.id, t.name, t.state = 'active', coalesce(s.count, 0) FROM tenant t LEFT JOIN"
                          " (SELECT s.tenant_id, count(*) FROM session s JOIN tenant t ON t.id = s.tenant_id"
                          " WHERE s.state = 'active' AND s.slot >= t.first_slot GROUP BY s.tenant_id) s"
                          " ON s.tenant_id = t.id WHERE t.state <> 'erased' ORDER BY 4 DESC, t.id LIMIT $1"};
    struct kv_pg_args args = {0};
    kv_pg_arg_i64(&args, (int64_t)max);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = max, .size = sizeof ret_tenants[0]};
    return kv_pg_fetch_many(pg, &many, fill_tenant, ret_tenants, ret_count, info);
}

static KV_RC fill_owner(struct kv_pg_row *row, void *ret)
{
    struct kv_store_census_owner *owner = ret;
    kv_pg_get_id(row, &owner->session);
    kv_pg_get_id(row, &owner->tenant);
    owner->active = kv_pg_get_bool(row);
    return KV_OK;
}

KV_RC kv_store_census_owners(struct kv_pg *pg, const struct kv_id *sessions, size_t count, struct kv_errinfo *info,
                             struct kv_store_census_owner *ret_owners, size_t *ret_count)
{
    static const struct kv_pg_query query = {
        "census_owners", "SELECT s.id, s.tenant_id, (s.state = 'active' OR coalesce(e.state = 'blocked_hold', false))"
                         " AND s.slot >= t.first_slot FROM session s JOIN tenant t ON t.id = s.tenant_id"
                         " LEFT JOIN erasure e ON e.id = s.erasure_id WHERE s.id = ANY ($1) LIMIT $2"};
    struct kv_pg_args args = {0};
    struct kv_pg_array ids;
    kv_pg_array_init(&ids, KV_PG_ARRAY_BYTEA, count, 64 + count * 24);
    for (size_t i = 0; i < count; i++) {
        kv_pg_array_raw(&ids, sessions[i].b, sizeof sessions[i].b, false);
    }
    kv_pg_arg_array(&args, &ids, KV_PG_ARRAY_BYTEA);
    kv_pg_arg_i64(&args, (int64_t)count);
    struct kv_pg_many many = {.query = &query, .args = &args, .max = count, .size = sizeof ret_owners[0]};
    enum kv_err rc = kv_pg_fetch_many(pg, &many, fill_owner, ret_owners, ret_count, info);
    kv_pg_array_done(&ids);
    return rc;
}

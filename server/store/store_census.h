/*
 * How many there are of what: the numbers behind the metrics. Counts whole tables, so it is asked now and then by one
 * background thread, never by a request. Reads only.
 */
#ifndef KV_STORE_CENSUS_H
#define KV_STORE_CENSUS_H

#include "server/store/pg.h"

#define KV_CENSUS_TENANT_STATES 5
#define KV_CENSUS_SESSION_STATES 4
#define KV_CENSUS_ERASURE_STATES 9 /* those that are not certified, and not quarantined as their end */

extern const char *const kv_census_tenant_states[KV_CENSUS_TENANT_STATES];
extern const char *const kv_census_session_states[KV_CENSUS_SESSION_STATES];
extern const char *const kv_census_erasure_states[KV_CENSUS_ERASURE_STATES];

struct kv_store_census {
    uint64_t tenants[KV_CENSUS_TENANT_STATES], sessions[KV_CENSUS_SESSION_STATES];
    uint64_t erasures[KV_CENSUS_ERASURE_STATES];
    uint64_t oldest_erasure_us; /* requested_at of the oldest that is open; 0: none */
    uint64_t keys_expiring;     /* API keys in use that end before `soon_us` */
    uint64_t operators_end_us;  /* when the last operator key that nobody revoked ends, or did; 0: there is none */
};
KV_RC kv_store_census(struct kv_pg *pg, uint64_t now_us, uint64_t soon_us, struct kv_errinfo *info,
                      struct kv_store_census *ret_census);

/* Tenants that are not erased, those with most active sessions first. */
struct kv_store_census_tenant {
    struct kv_id id;
    char name[64];
    bool active;
    uint64_t sessions; /* active ones */
};
KV_RC kv_store_census_tenants(struct kv_pg *pg, size_t max, struct kv_errinfo *info,
                              struct kv_store_census_tenant *ret_tenants, size_t *ret_count);

/* Whose each session is. Answers may be fewer than asked for: an id that is unknown is left out. One that a hold keeps
 * counts as active: its blocks are not on their way out. */
struct kv_store_census_owner {
    struct kv_id session, tenant;
    bool active;
};
KV_RC kv_store_census_owners(struct kv_pg *pg, const struct kv_id *sessions, size_t count, struct kv_errinfo *info,
                             struct kv_store_census_owner *ret_owners, size_t *ret_count);

#endif

/*
 * What an operator sees of the instance that answers: how it stands, its engines, its log. From memory, but for the
 * change of a log level, which is recorded. Thread: a service thread.
 */
#ifndef KV_SVC_STATUS_H
#define KV_SVC_STATUS_H

#include "dataplane/base/log.h"
#include "server/service/svc.h"

/* An instance of this database: this one, or another as it was seen last. */
struct kv_instance_item {
    struct kv_id id;
    const char *state; /* "live", "expired": its lease ran out and it has not joined since */
    bool self;
    uint64_t started_us;
};

struct kv_status_view {
    struct kv_about about;
    struct kv_id incarnation;
    uint64_t started_us, uptime_seconds;
    bool ready, lease_valid, db_ok, db_pooled, retiring;
    struct kv_ready_check checks[KV_READY_CHECKS];
    const char *quarantine; /* static; NULL: not quarantined */
    uint32_t lease_seconds, schema_version;
    struct kv_engine_stats engine;
    size_t engines, pools, sessions_known;
    uint64_t erasures_open; /* of the cluster, as the eraser saw last */
    bool audit_ok;
    uint64_t audit_pending_bytes, audit_lag_us;
    struct kv_instance_item instances[65]; /* by id */
    size_t instance_count;
};
void kv_svc_status(struct kv_call *call, struct kv_status_view *ret_status);

/* A tier that drains takes no new block: those that are there stay, are read, and go as others do. It lasts until
 * somebody ends it or the server does. */
struct kv_tier_view {
    const char *name; /* "dram", "nvme" */
    enum kv_tier_id id;
    struct kv_tier_stats stats;
    bool draining;
    uint64_t rev;
};
/* False: there is no such tier here. */
bool kv_svc_tier(struct kv_svc *svc, enum kv_tier_id id, struct kv_tier_view *ret_tier);
/* Recorded; call->match is held against the tier's revision. KV_E_NOT_FOUND. */
KV_RC kv_svc_tier_update(struct kv_call *call, enum kv_tier_id id, bool draining, struct kv_tier_view *ret_tier);

struct kv_engine_item {
    struct kv_id id, tenant;
    struct kv_engine_new facts;
    uint64_t registered_us, lease_expires_us;
    unsigned pools;
};
/* Of the caller's tenant; of all for callers without one. Those whose lease runs. */
KV_RC kv_svc_engine_list(struct kv_call *call, struct kv_page *page,
                         struct kv_engine_item *ret_items /* KV_MAX_ENGINES */, size_t *ret_count);
KV_RC kv_svc_engine_get(struct kv_call *call, const struct kv_id *engine, struct kv_engine_item *ret_item);

/* Another level for a module ("": all) for a while; recorded in the operator's log, reverts by itself. */
KV_RC kv_svc_log_level(struct kv_call *call, const char *module, enum kv_log_level level, uint32_t seconds);

#endif

/*
 * What the service counts. Series are registered here, calls stand where something happened, after its commit. A scrape
 * shows what is in memory and never asks the database: what only the database knows is counted now and then by
 * svc_sample, a step of the janitor. Thread: any, never a lane.
 */
#ifndef KV_SVC_METRICS_H
#define KV_SVC_METRICS_H

#include "server/service/janitor.h"
#include "server/store/store_erasure.h"

KV_RC svc_metrics_start(struct kv_svc *svc); /* once the journal and the keyring are there */
void svc_metrics_stop(struct kv_svc *svc);   /* no print looks at `svc` any more */
void svc_metrics_free(struct kv_svc *svc);   /* nobody counts any more */

/* One session's erasure reached its end; `job` with its times and scope. */
void svc_metrics_certified(struct kv_svc *svc, const struct kv_store_erasure *job, uint64_t now_us);
void svc_metrics_quarantined(const struct kv_store_erasure *job);
/* The deletion of a tenant was called back within its grace time: nothing else can be. */
void svc_metrics_canceled(void);
/* A root was destroyed before every standby of the database was known to have the re-key. */
void svc_metrics_standby_late(void);

enum svc_auth_failure {
    SVC_AUTH_MISSING,
    SVC_AUTH_MALFORMED,
    SVC_AUTH_UNKNOWN, /* no such key, or another secret: not told apart here either */
    SVC_AUTH_REVOKED,
    SVC_AUTH_EXPIRED,
    SVC_AUTH_ADDRESS,
    SVC_AUTH_ROLE,
    SVC_AUTH_FAILURES,
};
void svc_metrics_auth_failure(enum svc_auth_failure reason);

enum svc_once_outcome { SVC_ONCE_REPLAY, SVC_ONCE_CONFLICT, SVC_ONCE_MISMATCH, SVC_ONCE_OUTCOMES };
void svc_metrics_once(enum svc_once_outcome outcome);

/* Blocks asked for and the leading ones that are here, by tier; `tokens` of one block. */
void svc_metrics_lookup(struct kv_svc *svc, const struct kv_id *tenant, uint64_t tokens, const struct kv_blocks_in *in,
                        const struct kv_blocks_out *out);
void svc_metrics_transfer(struct kv_svc *svc, const struct kv_id *tenant, uint64_t tokens,
                          const struct kv_transfer *transfer);
/* A mask of enum kv_policy_reason, of which the lowest counts; 0: allowed. */
void svc_metrics_decision(enum kv_policy_action action, uint32_t reasons);

void svc_metrics_engine_lost(const char *kind);
void svc_metrics_audit(uint64_t entries, bool signed_head, uint64_t now_us);

/* Counts what the database and the engine have; bounded, and less often where counting takes long. */
svc_janitor_fn svc_sample;

/* What svc_sample hands over. */
struct kv_store_census;
void svc_metrics_census(const struct kv_store_census *census, uint64_t now_us);
void svc_metrics_backlog(uint64_t dram_bytes, uint64_t nvme_bytes);
enum svc_tenant_column {
    SVC_TENANT_DRAM_BYTES,
    SVC_TENANT_NVME_BYTES,
    SVC_TENANT_SESSIONS,
    SVC_TENANT_LOOKUPS,
    SVC_TENANT_LOOKUP_TOKENS,
    SVC_TENANT_HIT_TOKENS_DRAM,
    SVC_TENANT_HIT_TOKENS_NVME,
    SVC_TENANT_SAVED_TOKENS,
    SVC_TENANT_OFFLOAD_BYTES,
    SVC_TENANT_RESTORE_BYTES,
    SVC_TENANT_ERASURES,
    SVC_TENANT_COLUMNS,
};

#endif

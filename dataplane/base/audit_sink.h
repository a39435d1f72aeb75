/*
 * Where the data plane's transfer records go. The contract is here, the filling is audit/journal.h, so that the engine
 * knows neither files nor databases of the audit side.
 */
#ifndef KV_BASE_AUDIT_SINK_H
#define KV_BASE_AUDIT_SINK_H

#include "dataplane/base/err.h"

enum kv_record_kind { KV_RECORD_OFFLOAD = 1, KV_RECORD_RESTORE = 2, KV_RECORD_INTEGRITY = 3, KV_RECORD_DROP = 4 };

/* One record a transfer, not one a block. */
struct kv_transfer_record {
    enum kv_record_kind kind;
    struct kv_id op, tenant, scope;
    enum kv_tier_id tier; /* where the blocks were put or came from (the lowest of them) */
    uint32_t blocks;
    uint64_t bytes; /* plaintext */
    uint64_t realtime_us;
    uint32_t duration_us;
    enum kv_err outcome;
    bool has_policy;                     /* it was decided by these versions of policies: */
    uint64_t policy_versions[2];         /* the platform's and the tenant's; 0: the built-in one */
    const struct kv_block_id *block_ids; /* borrowed for the call: hashed into one Merkle root */
};

struct kv_audit_sink {
    void *ctx;
    /* Takes the record, never blocks. *ret_seq counts up by one from 1 in this process. KV_E_AUDIT_UNAVAILABLE when
     * records cannot be written (full, failing, or too far behind): then no transfer goes on. Thread: lane. */
    KV_RC (*append)(void *ctx, const struct kv_transfer_record *record, uint64_t *ret_seq);
    /* The highest sequence number that is on stable storage. Thread: any. */
    uint64_t (*durable)(void *ctx);
    /* `wake` is called, from the journal's thread, whenever durable() has grown. Set before the first
     * append. When it returns no call of the earlier `wake` is running, so what its `arg` points to may be freed. */
    void (*set_wake)(void *ctx, void (*wake)(void *arg), void *arg);
};

#endif

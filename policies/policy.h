/*
 * The rules for a transfer, as a pure function: facts in, decision with reasons out. Default deny: an action is allowed
 * only when no reason forbids it, and a fact that is not known forbids. This version has one built-in policy for every
 * tenant; the evaluation on each transfer, the reasons and their names are final. Thread: any; a policy is immutable.
 */
#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "dataplane/base/err.h"

enum kv_policy_action { KV_POLICY_OFFLOAD, KV_POLICY_RESTORE, KV_POLICY_LOOKUP };

struct kv_policy {
    uint32_t version;
    uint32_t tiers_allowed; /* mask of 1 << kv_tier_id */
    uint64_t block_bytes_max;
};

struct kv_policy_facts {
    enum kv_policy_action action;
    bool tenant_active, session_active, same_tenant;
    bool durable_asked; /* the caller asks for a tier that survives a restart */
    uint64_t block_bytes;
};

enum kv_policy_reason {
    KV_POLICY_TENANT_INACTIVE = 1 << 0,
    KV_POLICY_SESSION_INACTIVE = 1 << 1,
    KV_POLICY_OTHER_TENANT = 1 << 2,
    KV_POLICY_TIER_FORBIDDEN = 1 << 3,
    KV_POLICY_BLOCK_TOO_LARGE = 1 << 4,
};

struct kv_policy_decision {
    bool allowed;
    uint32_t reasons;       /* mask of kv_policy_reason; 0 when allowed */
    uint32_t tiers_allowed; /* where blocks may lie; 0 when not allowed */
};

extern const struct kv_policy kv_policy_standard;

void kv_policy_eval(const struct kv_policy *policy, const struct kv_policy_facts *facts,
                    struct kv_policy_decision *ret_decision);
/* The name of the lowest reason in the mask, "" for none. */
const char *kv_policy_reason_name(uint32_t reasons);

#endif

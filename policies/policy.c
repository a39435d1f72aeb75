/*
 * See policy.h. No state, no clock, no allocation: what it decides depends on its arguments alone.
 */
#include "policies/policy.h"

const struct kv_policy kv_policy_standard = {
    .version = 1,
    .tiers_allowed = 1u << KV_TIER_DRAM | 1u << KV_TIER_NVME,
    .block_bytes_max = 67108864,
};

void kv_policy_eval(const struct kv_policy *policy, const struct kv_policy_facts *facts,
                    struct kv_policy_decision *ret_decision)
{
    uint32_t reasons = 0;
    reasons |= facts->tenant_active ? 0 : (uint32_t)KV_POLICY_TENANT_INACTIVE;
    reasons |= facts->session_active ? 0 : (uint32_t)KV_POLICY_SESSION_INACTIVE;
    reasons |= facts->same_tenant ? 0 : (uint32_t)KV_POLICY_OTHER_TENANT;
    reasons |= facts->block_bytes <= policy->block_bytes_max ? 0 : (uint32_t)KV_POLICY_BLOCK_TOO_LARGE;
    uint32_t lasting = 1u << KV_TIER_NVME | 1u << KV_TIER_OBJECT;
    bool tier_there = facts->durable_asked ? (policy->tiers_allowed & lasting) != 0 : policy->tiers_allowed != 0;
    reasons |= tier_there ? 0 : (uint32_t)KV_POLICY_TIER_FORBIDDEN;
    *ret_decision = (struct kv_policy_decision){
        .allowed = reasons == 0,
        .reasons = reasons,
        .tiers_allowed = reasons == 0 ? policy->tiers_allowed : 0,
    };
}

const char *kv_policy_reason_name(uint32_t reasons)
{
    static const char *const names[] = {"tenant_inactive", "session_inactive", "other_tenant", "tier_forbidden",
                                        "block_too_large"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        if ((reasons & 1u << i) != 0) {
            return names[i];
        }
    }
    return "";
}

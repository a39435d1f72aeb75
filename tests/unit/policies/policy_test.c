/* Every combination of facts against a slow reading of the rules. */
#include "policies/policy.h"

#include <criterion/criterion.h>
#include <string.h>

/* The rules in words: each false fact forbids, a block over the limit forbids, asking for a lasting tier needs one that
 * is allowed. */
static bool expected(const struct kv_policy *policy, const struct kv_policy_facts *facts)
{
    if (!facts->tenant_active || !facts->session_active || !facts->same_tenant) {
        return false;
    }
    if (facts->block_bytes > policy->block_bytes_max) {
        return false;
    }
    if (facts->durable_asked && (policy->tiers_allowed & (1u << KV_TIER_NVME)) == 0 &&
        (policy->tiers_allowed & (1u << KV_TIER_OBJECT)) == 0) {
        return false;
    }
    return policy->tiers_allowed != 0;
}

Test(policy, every_combination_of_facts_is_decided_as_the_rules_say)
{
    unsigned allowed = 0;
    for (uint32_t tiers = 0; tiers < 16; tiers += 2) {
        struct kv_policy policy = {.version = 1, .tiers_allowed = tiers, .block_bytes_max = 100};
        for (unsigned bits = 0; bits < 32; bits++) {
            for (unsigned size = 99; size <= 101; size++) {
                struct kv_policy_facts facts = {.action = KV_POLICY_OFFLOAD,
                                                .tenant_active = (bits & 1) != 0,
                                                .session_active = (bits & 2) != 0,
                                                .same_tenant = (bits & 4) != 0,
                                                .durable_asked = (bits & 8) != 0,
                                                .block_bytes = size};
                struct kv_policy_decision decision;
                kv_policy_eval(&policy, &facts, &decision);
                cr_assert_eq(decision.allowed, expected(&policy, &facts));
                cr_assert_eq(decision.allowed, decision.reasons == 0);
                cr_assert_eq(decision.tiers_allowed, decision.allowed ? tiers : 0);
                allowed += decision.allowed;
            }
        }
    }
    cr_assert_gt(allowed, 0); /* the control: some are allowed */
}

Test(policy, a_reason_has_a_name_and_none_is_empty)
{
    cr_assert_str_eq(kv_policy_reason_name(0), "");
    cr_assert_str_eq(kv_policy_reason_name(KV_POLICY_TENANT_INACTIVE), "tenant_inactive");
    cr_assert_str_eq(kv_policy_reason_name(KV_POLICY_BLOCK_TOO_LARGE), "block_too_large");
    cr_assert_str_eq(kv_policy_reason_name(KV_POLICY_OTHER_TENANT | KV_POLICY_BLOCK_TOO_LARGE), "other_tenant");
}

Test(policy, a_block_of_the_limit_is_allowed_and_one_byte_more_is_not)
{
    struct kv_policy_facts facts = {.tenant_active = true, .session_active = true, .same_tenant = true};
    struct kv_policy_decision decision;
    facts.block_bytes = (uint64_t)KV_MAX_BLOCK_BYTES;
    kv_policy_eval(&kv_policy_standard, &facts, &decision);
    cr_assert(decision.allowed);
    facts.block_bytes++;
    kv_policy_eval(&kv_policy_standard, &facts, &decision);
    cr_assert_eq(decision.reasons, KV_POLICY_BLOCK_TOO_LARGE);
}

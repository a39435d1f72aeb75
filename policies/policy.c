/*
 * See policy.h. No state, no clock, no allocation: what it decides depends on its arguments alone.
 */
#include "policies/policy.h"

#include <string.h>

#define LASTING (1u << KV_TIER_NVME | 1u << KV_TIER_OBJECT)
#define TRANSFERS (1u << KV_POLICY_OFFLOAD | 1u << KV_POLICY_RESTORE | 1u << KV_POLICY_LOOKUP)

struct kv_policy_text kv_policy_text(const char *text)
{
    if (text == NULL || text[0] == '\0') {
        return (struct kv_policy_text){0};
    }
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a: quick, and equal hashes are compared as text */
    for (const char *p = text; *p != '\0'; p++) {
        hash = (hash ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
    }
    return (struct kv_policy_text){.text = text, .hash = hash};
}

/* The name's bit among `names`, 0 when it is not there. */
static uint64_t bit_of(const struct kv_policy_names *names, const struct kv_policy_text *name)
{
    for (uint32_t i = 0; name->text != NULL && i < names->count; i++) {
        if (names->list[i].hash == name->hash && strcmp(names->list[i].text, name->text) == 0) {
            return UINT64_C(1) << i;
        }
    }
    return 0;
}

struct named {
    uint64_t bits[2][KV_POLICY_KINDS];
};

static void resolve(const struct kv_policy *policy, const struct kv_policy_facts *facts, struct named *ret_named)
{
    for (unsigned level = 0; level < 2; level++) {
        for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
            ret_named->bits[level][kind] = bit_of(&policy->names[level][kind], &facts->names[kind]);
        }
    }
}

/* A list that is given holds the whole of what is allowed; a name that is not known is not on it. */
static bool on_list(const struct kv_policy *policy, const struct kv_policy_text *name, enum kv_policy_kind kind)
{
    if ((policy->given & 1u << kind) == 0) {
        return true;
    }
    const struct kv_policy_entry *entry = name->text == NULL ? NULL : policy->lists[kind];
    while (entry != NULL) {
        if (entry->hash == name->hash && strcmp(entry->text, name->text) == 0) {
            return true;
        }
        entry = entry->next == 0 ? NULL : (const void *)((const char *)entry + entry->next);
    }
    return false;
}

static uint32_t name_reasons(const struct kv_policy *policy, const struct kv_policy_facts *facts)
{
    const struct kv_policy_text *names = facts->names;
    uint32_t reasons = 0;
    reasons |= on_list(policy, &names[KV_POLICY_MODEL], KV_POLICY_MODEL) ? 0 : (uint32_t)KV_POLICY_MODEL_FORBIDDEN;
    reasons |= on_list(policy, &names[KV_POLICY_REGION], KV_POLICY_REGION) ? 0 : (uint32_t)KV_POLICY_REGION_FORBIDDEN;
    if (facts->action != KV_POLICY_SESSION) { /* whose pages are not known yet */
        reasons |=
            on_list(policy, &names[KV_POLICY_LAYOUT], KV_POLICY_LAYOUT) ? 0 : (uint32_t)KV_POLICY_LAYOUT_FORBIDDEN;
    }
    return reasons;
}

static bool applies(const struct kv_policy_rule *rule, const struct named *named, enum kv_policy_action action)
{
    if ((rule->actions & 1u << action) == 0) {
        return false;
    }
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        if (rule->given[kind] && (rule->names[kind] & named->bits[rule->level][kind]) == 0) {
            return false;
        }
    }
    return true;
}

static uint32_t transfer_reasons(const struct kv_policy *policy, const struct kv_policy_facts *facts, uint32_t tiers)
{
    uint32_t reasons = 0;
    bool tier_there = facts->durable_asked ? (tiers & LASTING) != 0 : tiers != 0;
    bool never = facts->action == KV_POLICY_RESTORE && policy->restore == KV_RESTORE_NEVER;
    reasons |= facts->session_active ? 0 : (uint32_t)KV_POLICY_SESSION_INACTIVE;
    reasons |= facts->block_bytes <= policy->block_bytes ? 0 : (uint32_t)KV_POLICY_BLOCK_TOO_LARGE;
    reasons |= facts->session_age_s <= policy->age_s ? 0 : (uint32_t)KV_POLICY_SESSION_EXPIRED;
    reasons |= tier_there ? 0 : (uint32_t)KV_POLICY_TIER_FORBIDDEN;
    reasons |= never ? (uint32_t)KV_POLICY_RESTORE_NEVER : 0;
    return reasons;
}

static uint32_t erase_reasons(const struct kv_policy *policy, const struct kv_policy_facts *facts)
{
    uint32_t reasons = facts->same_tenant ? 0 : (uint32_t)KV_POLICY_OTHER_TENANT;
    bool known = (unsigned)facts->basis < KV_BASES && (policy->bases_allowed & 1u << facts->basis) != 0;
    reasons |= known ? 0 : (uint32_t)KV_POLICY_BASIS_FORBIDDEN;
    reasons |= facts->reason_given || !policy->reason_required ? 0 : (uint32_t)KV_POLICY_REASON_REQUIRED;
    return reasons;
}

static uint32_t rule_reasons(const struct kv_policy *policy, const struct kv_policy_facts *facts, uint32_t *tiers)
{
    struct named named;
    uint32_t reasons = 0;
    resolve(policy, facts, &named);
    for (uint32_t i = 0; i < policy->rule_count; i++) {
        const struct kv_policy_rule *rule = &policy->rules[i];
        if (applies(rule, &named, facts->action)) {
            *tiers &= ~rule->tiers;
            reasons |= rule->tiers == 0 ? (uint32_t)KV_POLICY_RULE_FORBIDS : 0;
        }
    }
    return reasons;
}

static uint32_t work_reasons(const struct kv_policy *policy, const struct kv_policy_facts *facts, uint32_t *tiers)
{
    uint32_t reasons = facts->tenant_active ? 0 : (uint32_t)KV_POLICY_TENANT_INACTIVE;
    reasons |= facts->same_tenant ? 0 : (uint32_t)KV_POLICY_OTHER_TENANT;
    reasons |= (policy->actions_forbidden & 1u << facts->action) == 0 ? 0 : (uint32_t)KV_POLICY_RULE_FORBIDS;
    reasons |= name_reasons(policy, facts);
    reasons |= policy->rule_count == 0 ? 0 : rule_reasons(policy, facts, tiers);
    return (1u << facts->action & TRANSFERS) != 0 ? reasons | transfer_reasons(policy, facts, *tiers) : reasons;
}

static uint32_t obligations_of(const struct kv_policy_facts *facts, uint32_t tiers)
{
    uint32_t obligations = 0;
    if (facts->action == KV_POLICY_OFFLOAD || facts->action == KV_POLICY_RESTORE) {
        obligations |= KV_POLICY_RECORD_STRICT;
    }
    if (facts->action == KV_POLICY_OFFLOAD && (tiers & 1u << KV_TIER_DRAM) == 0) {
        obligations |= KV_POLICY_PASS_DRAM;
    }
    return obligations;
}

static uint32_t reasons_of(const struct kv_policy *policy, const struct kv_policy_facts *facts, uint32_t *tiers)
{
    if ((unsigned)facts->action >= KV_POLICY_ACTIONS) {
        return KV_POLICY_ACTION_UNKNOWN;
    }
    if (policy == NULL) {
        return KV_POLICY_CLASS_UNKNOWN;
    }
    *tiers = policy->tiers_allowed;
    return facts->action == KV_POLICY_ERASE ? erase_reasons(policy, facts) : work_reasons(policy, facts, tiers);
}

void kv_policy_eval(const struct kv_policy *policy, const struct kv_policy_facts *facts,
                    struct kv_policy_decision *ret_decision)
{
    uint32_t tiers = 0, obligations = 0;
    uint32_t reasons = reasons_of(policy, facts, &tiers);
    if (reasons == 0) {
        obligations = obligations_of(facts, tiers);
        reasons = (obligations & ~facts->obligations_known) != 0 ? (uint32_t)KV_POLICY_OBLIGATION_UNKNOWN : 0;
    }
    bool allowed = reasons == 0;
    *ret_decision = (struct kv_policy_decision){
        .allowed = allowed,
        .reasons = reasons,
        .tiers_allowed = allowed ? tiers : 0,
        .obligations = allowed ? obligations : 0,
        .lifetime_s = allowed ? policy->age_s : 0,
    };
}

const char *kv_policy_reason_name(uint32_t reasons)
{
    static const char *const names[KV_POLICY_REASONS] = {
        "tenant_inactive",  "session_inactive", "other_tenant",       "tier_forbidden",
        "block_too_large",  "class_unknown",    "model_forbidden",    "layout_forbidden",
        "region_forbidden", "rule_forbids",     "session_expired",    "restore_never",
        "basis_forbidden",  "reason_required",  "obligation_unknown", "action_unknown"};
    for (unsigned i = 0; i < KV_POLICY_REASONS; i++) {
        if ((reasons & 1u << i) != 0) {
            return names[i];
        }
    }
    return "";
}

const char *kv_policy_obligation_name(uint32_t obligations)
{
    return (obligations & KV_POLICY_RECORD_STRICT) != 0 ? "record_strict"
           : (obligations & KV_POLICY_PASS_DRAM) != 0   ? "pass_dram"
                                                        : "";
}

const char *kv_policy_action_name(enum kv_policy_action action)
{
    static const char *const names[KV_POLICY_ACTIONS] = {"offload", "restore", "lookup", "session", "erase"};
    return (unsigned)action < KV_POLICY_ACTIONS ? names[action] : "unknown";
}

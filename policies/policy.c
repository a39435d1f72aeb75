/*
 * See policy.h. No state, no clock, no allocation: what it decides depends on its arguments alone.
 */
#include "policies/policy_int.h"

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

struct bits {
    uint64_t of[2][KV_POLICY_KINDS];
};

static void resolve(const struct kv_policy *policy, const struct kv_policy_facts *facts, struct bits *ret_bits)
{
    for (unsigned level = 0; level < 2; level++) {
        for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
            ret_bits->of[level][kind] = bit_of(&policy->names[level][kind], &facts->names[kind]);
        }
    }
}

static uint32_t listed(const struct kv_policy *policy, const struct kv_policy_facts *facts)
{
    uint32_t kinds = 0;
    for (unsigned kind = 0; kind < KV_POLICY_LISTS; kind++) {
        kinds |= bit_of(&policy->lists[kind], &facts->names[kind]) != 0 ? 1u << kind : 0;
    }
    return kinds;
}

static bool applies(const struct kv_policy_rule *rule, const struct bits *bits, enum kv_policy_action action)
{
    if ((rule->actions & 1u << action) == 0) {
        return false;
    }
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        if (rule->given[kind] && (rule->names[kind] & bits->of[rule->level][kind]) == 0) {
            return false;
        }
    }
    return true;
}

static void by_rules(const struct kv_policy *policy, const struct kv_policy_facts *facts, struct kv_policy_named *named)
{
    struct bits bits;
    resolve(policy, facts, &bits);
    for (uint32_t i = 0; i < policy->rule_count; i++) {
        const struct kv_policy_rule *rule = &policy->rules[i];
        if (applies(rule, &bits, facts->action)) {
            named->tiers_forbidden |= rule->tiers;
            named->forbidden = named->forbidden || rule->tiers == 0;
        }
    }
}

/* --- what follows from the names and the rest --------------------------------------------------------------------- */

/* A list that is given holds the whole of what is allowed; a name that is not known is not on it. The name of a scope
 * is known when a session is to have it, and not to the transfers that come later. */
static uint32_t name_reasons(uint32_t kinds_missed, enum kv_policy_action action)
{
    uint32_t reasons = 0;
    reasons |= (kinds_missed & 1u << KV_POLICY_MODEL) != 0 ? (uint32_t)KV_POLICY_MODEL_FORBIDDEN : 0;
    reasons |= (kinds_missed & 1u << KV_POLICY_REGION) != 0 ? (uint32_t)KV_POLICY_REGION_FORBIDDEN : 0;
    if (action != KV_POLICY_SESSION) { /* whose pages are not known yet */
        reasons |= (kinds_missed & 1u << KV_POLICY_LAYOUT) != 0 ? (uint32_t)KV_POLICY_LAYOUT_FORBIDDEN : 0;
    }
    return reasons;
}

static uint32_t sharing_reasons(const struct kv_policy_gist *gist, uint32_t kinds_missed,
                                const struct kv_policy_facts *facts)
{
    bool unlisted = facts->action == KV_POLICY_SESSION && (kinds_missed & 1u << KV_POLICY_SCOPE) != 0;
    return facts->shared && (!gist->sharing || unlisted) ? (uint32_t)KV_POLICY_SHARING_FORBIDDEN : 0;
}

static uint32_t transfer_reasons(const struct kv_policy_gist *gist, const struct kv_policy_facts *facts, uint32_t tiers)
{
    uint32_t reasons = 0;
    bool tier_there = facts->durable_asked ? (tiers & LASTING) != 0 : tiers != 0;
    bool never = facts->action == KV_POLICY_RESTORE && gist->restore == KV_RESTORE_NEVER;
    reasons |= facts->session_active ? 0 : (uint32_t)KV_POLICY_SESSION_INACTIVE;
    reasons |= facts->block_bytes <= gist->block_bytes ? 0 : (uint32_t)KV_POLICY_BLOCK_TOO_LARGE;
    reasons |= facts->session_age_s <= gist->age_s ? 0 : (uint32_t)KV_POLICY_SESSION_EXPIRED;
    reasons |= tier_there ? 0 : (uint32_t)KV_POLICY_TIER_FORBIDDEN;
    reasons |= never ? (uint32_t)KV_POLICY_RESTORE_NEVER : 0;
    return reasons;
}

static uint32_t erase_reasons(const struct kv_policy_gist *gist, const struct kv_policy_facts *facts)
{
    uint32_t reasons = facts->same_tenant ? 0 : (uint32_t)KV_POLICY_OTHER_TENANT;
    bool known = (unsigned)facts->basis < KV_BASES && (gist->bases_allowed & 1u << facts->basis) != 0;
    reasons |= known ? 0 : (uint32_t)KV_POLICY_BASIS_FORBIDDEN;
    reasons |= facts->reason_given || !gist->reason_required ? 0 : (uint32_t)KV_POLICY_REASON_REQUIRED;
    return reasons;
}

static uint32_t work_reasons(const struct kv_policy_gist *gist, const struct kv_policy_named *named,
                             const struct kv_policy_facts *facts)
{
    uint32_t reasons = facts->tenant_active ? 0 : (uint32_t)KV_POLICY_TENANT_INACTIVE;
    bool forbidden = named->forbidden || (gist->actions_forbidden & 1u << facts->action) != 0;
    reasons |= facts->same_tenant ? 0 : (uint32_t)KV_POLICY_OTHER_TENANT;
    reasons |= forbidden ? (uint32_t)KV_POLICY_RULE_FORBIDS : 0;
    reasons |= name_reasons(gist->given & ~named->listed, facts->action);
    reasons |= sharing_reasons(gist, gist->given & ~named->listed, facts);
    return (1u << facts->action & TRANSFERS) == 0
               ? reasons
               : reasons | transfer_reasons(gist, facts, gist->tiers_allowed & ~named->tiers_forbidden);
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

void kv_policy_decide(const struct kv_policy_gist *gist, const struct kv_policy_named *named,
                      const struct kv_policy_facts *facts, struct kv_policy_decision *ret_decision)
{
    bool erase = facts->action == KV_POLICY_ERASE;
    uint32_t tiers = gist->tiers_allowed & ~named->tiers_forbidden, obligations = 0;
    uint32_t reasons = erase ? erase_reasons(gist, facts) : work_reasons(gist, named, facts);
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
        .lifetime_s = allowed ? gist->age_s : 0,
    };
}

void kv_policy_eval(const struct kv_policy *policy, const struct kv_policy_facts *facts,
                    struct kv_policy_decision *ret_decision)
{
    struct kv_policy_named named = {0};
    if ((unsigned)facts->action >= KV_POLICY_ACTIONS || policy == NULL) {
        bool no_action = (unsigned)facts->action >= KV_POLICY_ACTIONS;
        *ret_decision = (struct kv_policy_decision){.reasons = no_action ? (uint32_t)KV_POLICY_ACTION_UNKNOWN
                                                                         : (uint32_t)KV_POLICY_CLASS_UNKNOWN};
        return;
    }
    if (facts->action != KV_POLICY_ERASE) { /* no name is in the way of erasing */
        named.listed = listed(policy, facts);
        if (policy->rule_count > 0) {
            by_rules(policy, facts, &named);
        }
    }
    kv_policy_decide(&policy->gist, &named, facts, ret_decision);
}

const char *kv_policy_reason_name(uint32_t reasons)
{
    static const char *const names[KV_POLICY_REASONS] = {
        "tenant_inactive", "session_inactive", "other_tenant",     "tier_forbidden",   "block_too_large",
        "class_unknown",   "model_forbidden",  "layout_forbidden", "region_forbidden", "rule_forbids",
        "session_expired", "restore_never",    "basis_forbidden",  "reason_required",  "obligation_unknown",
        "action_unknown",  "sharing_forbidden"};
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

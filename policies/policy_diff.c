/*
 * What two sets answer differently: every action, class, and name that either of them knows, and one that neither
 * knows. Numbers are compared as numbers. Must never call a change narrower than it is: what cannot be compared within
 * the bound counts as looser.
 */
#include "policies/policy_set.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DOMAIN_NAMES_MAX (4 * 64 + 1) /* two sets of two levels, and a name that nobody knows */

struct domain {
    uint32_t count[KV_POLICY_LISTS];
    struct kv_policy_text names[KV_POLICY_LISTS][DOMAIN_NAMES_MAX]; /* the last: not known */
};

struct pair {
    const struct kv_policy *before, *after; /* NULL: there is no such class */
    struct kv_policy_diff *diff;
    const char *name;
};

static void note(struct kv_policy_diff *diff, bool allows, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void note(struct kv_policy_diff *diff, bool allows, const char *format, ...)
{
    va_list args;
    diff->newly_allowed += allows;
    diff->newly_denied += !allows;
    /* The last place is kept for the first permission, which decides who may make the change. */
    bool first = allows && diff->newly_allowed == 1;
    if (diff->change_count >= KV_POLICY_CHANGES_MAX - (first ? 0u : 1u)) {
        return;
    }
    struct kv_policy_change *change = &diff->changes[diff->change_count++];
    change->allows = allows;
    va_start(args, format);
    vsnprintf(change->text, sizeof change->text, format, args);
    va_end(args);
}

static void add_name(struct domain *domain, unsigned kind, const struct kv_policy_text *name)
{
    for (uint32_t i = 0; i < domain->count[kind]; i++) {
        if (strcmp(domain->names[kind][i].text, name->text) == 0) {
            return;
        }
    }
    domain->names[kind][domain->count[kind]++] = *name;
}

static void add_names(struct domain *domain, const struct kv_policy_set *set)
{
    for (unsigned whose = 0; whose < 2; whose++) {
        for (unsigned kind = 0; kind < KV_POLICY_LISTS; kind++) {
            const struct kv_policy_names *names = &set->classes[0].names[whose][kind];
            for (uint32_t i = 0; i < names->count; i++) {
                add_name(domain, kind, &names->list[i]);
            }
        }
    }
}

static const char *shown(const struct kv_policy_text *name)
{
    return name->text == NULL ? "any other" : name->text;
}

static void compare_case(const struct pair *pair, const struct kv_policy_facts *facts)
{
    struct kv_policy_decision before, after;
    kv_policy_eval(pair->before, facts, &before);
    kv_policy_eval(pair->after, facts, &after);
    pair->diff->cases++;
    const char *action = kv_policy_action_name(facts->action);
    const char *model = shown(&facts->names[KV_POLICY_MODEL]), *region = shown(&facts->names[KV_POLICY_REGION]);
    if (before.allowed != after.allowed) {
        note(pair->diff, after.allowed, "%s: class %s, model %.40s, layout %.8s, region %.24s: %s", action, pair->name,
             model, shown(&facts->names[KV_POLICY_LAYOUT]), region,
             after.allowed ? "allowed" : kv_policy_reason_name(after.reasons));
        return;
    }
    uint32_t differ = facts->action == KV_POLICY_OFFLOAD ? before.tiers_allowed ^ after.tiers_allowed : 0;
    for (unsigned t = KV_TIER_DRAM; t < KV_POLICY_TIERS; t++) {
        static const char *const tiers[KV_POLICY_TIERS] = {"none", "dram", "nvme", "object"};
        if ((differ & 1u << t) != 0) {
            note(pair->diff, (after.tiers_allowed & 1u << t) != 0, "offload to %s: class %s, model %.40s, region %.24s",
                 tiers[t], pair->name, model, region);
        }
    }
}

static void compare_actions(const struct pair *pair, struct kv_policy_facts *facts)
{
    static const enum kv_policy_action actions[] = {KV_POLICY_OFFLOAD, KV_POLICY_RESTORE, KV_POLICY_LOOKUP,
                                                    KV_POLICY_SESSION};
    for (unsigned i = 0; i < sizeof actions / sizeof actions[0]; i++) {
        facts->action = actions[i];
        compare_case(pair, facts);
    }
}

static void compare_names(const struct pair *pair, const struct domain *domain)
{
    struct kv_policy_facts facts = {.tenant_active = true,
                                    .session_active = true,
                                    .same_tenant = true,
                                    .obligations_known = KV_POLICY_OBLIGATIONS_ALL};
    for (uint32_t m = 0; m <= domain->count[KV_POLICY_MODEL]; m++) {
        facts.names[KV_POLICY_MODEL] = domain->names[KV_POLICY_MODEL][m];
        for (uint32_t l = 0; l <= domain->count[KV_POLICY_LAYOUT]; l++) {
            facts.names[KV_POLICY_LAYOUT] = domain->names[KV_POLICY_LAYOUT][l];
            for (uint32_t r = 0; r <= domain->count[KV_POLICY_REGION]; r++) {
                facts.names[KV_POLICY_REGION] = domain->names[KV_POLICY_REGION][r];
                compare_actions(pair, &facts);
            }
        }
    }
}

static void compare_erase(const struct pair *pair)
{
    for (unsigned i = 0; i < 2 * KV_BASES; i++) {
        struct kv_policy_facts facts = {.action = KV_POLICY_ERASE,
                                        .same_tenant = true,
                                        .basis = (enum kv_policy_basis)(i / 2),
                                        .reason_given = i % 2 != 0};
        struct kv_policy_decision before, after;
        kv_policy_eval(pair->before, &facts, &before);
        kv_policy_eval(pair->after, &facts, &after);
        pair->diff->cases++;
        if (before.allowed != after.allowed) {
            note(pair->diff, after.allowed, "erase: class %s, basis %u, %s reason: %s", pair->name, i / 2,
                 facts.reason_given ? "with a" : "without a",
                 after.allowed ? "allowed" : kv_policy_reason_name(after.reasons));
        }
    }
}

static void compare_number(const struct pair *pair, const char *what, uint64_t before, uint64_t after)
{
    char from[24] = "none", to[24] = "none";
    pair->diff->cases++;
    if (before == after) {
        return;
    }
    if (before != KV_POLICY_NO_LIMIT) {
        snprintf(from, sizeof from, "%" PRIu64, before);
    }
    if (after != KV_POLICY_NO_LIMIT) {
        snprintf(to, sizeof to, "%" PRIu64, after);
    }
    note(pair->diff, after > before, "limit %s%s%s: %s to %s", what, pair->name[0] == '\0' ? "" : " of class ",
         pair->name, from, to);
}

static void compare_limits(const struct pair *pair)
{
    const struct kv_policy_limits *a = &pair->before->limits, *b = &pair->after->limits;
    compare_number(pair, "max_block_bytes", a->block_bytes, b->block_bytes);
    compare_number(pair, "session.max_age_seconds", a->age_s, b->age_s);
    compare_number(pair, "session.max_idle_seconds", a->idle_s, b->idle_s);
    compare_number(pair, "session.max_bytes", a->session_bytes, b->session_bytes);
    compare_number(pair, "session.max_blocks", a->session_blocks, b->session_blocks);
    compare_number(pair, "tiers.dram.max_bytes", a->tier_bytes[KV_TIER_DRAM], b->tier_bytes[KV_TIER_DRAM]);
    compare_number(pair, "tiers.nvme.max_bytes", a->tier_bytes[KV_TIER_NVME], b->tier_bytes[KV_TIER_NVME]);
    compare_number(pair, "tiers.dram.ttl_seconds", a->tier_ttl_s[KV_TIER_DRAM], b->tier_ttl_s[KV_TIER_DRAM]);
    compare_number(pair, "tiers.nvme.ttl_seconds", a->tier_ttl_s[KV_TIER_NVME], b->tier_ttl_s[KV_TIER_NVME]);
    compare_number(pair, "erase.sla_seconds", pair->before->erase_sla_s, pair->after->erase_sla_s);
}

/* May a session of this class have the scope, as far as the rules for scopes go? */
static bool shares(const struct kv_policy *policy, const struct kv_policy_text *scope)
{
    if (policy == NULL || !policy->gist.sharing) {
        return false;
    }
    const struct kv_policy_names *list = &policy->lists[KV_POLICY_SCOPE];
    bool listed = (policy->gist.given & 1u << KV_POLICY_SCOPE) == 0;
    for (uint32_t i = 0; !listed && scope->text != NULL && i < list->count; i++) {
        listed = strcmp(list->list[i].text, scope->text) == 0;
    }
    return listed;
}

/* Beside the other questions: whatever these answer, what is shared is looser than what is not, and a scope that stays
 * looser than one that goes. */
static void compare_sharing(const struct pair *pair, const struct domain *domain)
{
    for (uint32_t i = 0; i <= domain->count[KV_POLICY_SCOPE]; i++) {
        const struct kv_policy_text *scope = &domain->names[KV_POLICY_SCOPE][i];
        bool before = shares(pair->before, scope), after = shares(pair->after, scope);
        pair->diff->cases++;
        if (before != after) {
            note(pair->diff, after, "sharing: class %s, scope %.40s: %s", pair->name, shown(scope),
                 after ? "allowed" : "sharing_forbidden");
        }
    }
    bool stayed = pair->before != NULL && pair->before->retain_shared;
    bool stays = pair->after != NULL && pair->after->retain_shared;
    pair->diff->cases++;
    if (stayed != stays) {
        note(pair->diff, stays, "sharing.on_erase of class %s: %s to %s", pair->name, stayed ? "retain" : "cascade",
             stays ? "retain" : "cascade");
    }
}

static void compare_class(const struct pair *pair, const struct domain *domain)
{
    compare_names(pair, domain);
    compare_erase(pair);
    compare_sharing(pair, domain);
    if (pair->before != NULL && pair->after != NULL) {
        compare_limits(pair);
    }
}

static bool within_bound(const struct domain *domain, uint64_t classes)
{
    uint64_t cases = classes * 4;
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        cases *= domain->count[kind] + UINT64_C(1);
    }
    return cases <= (uint64_t)KV_MAX_POLICY_DIFF_CASES;
}

static void compare_classes(const struct kv_policy_set *before, const struct kv_policy_set *after,
                            const struct domain *domain, struct kv_policy_diff *diff)
{
    for (uint32_t i = 0; i < before->class_count; i++) {
        const char *name = before->classes[i].name;
        struct pair pair = {
            .before = &before->classes[i], .after = kv_policy_class(after, name), .diff = diff, .name = name};
        compare_class(&pair, domain);
    }
    for (uint32_t i = 0; i < after->class_count; i++) {
        const char *name = after->classes[i].name;
        if (kv_policy_class(before, name) == NULL) {
            /* Who may make sessions could have made them in "default": a new class is looser where it is wider. */
            struct pair pair = {.before = &before->classes[0], .after = &after->classes[i], .diff = diff, .name = name};
            compare_class(&pair, domain);
        }
    }
}

/* Fewer people allow more. */
static void compare_people(const struct pair *whole, const struct kv_policy_set *before,
                           const struct kv_policy_set *after)
{
    static const char *const names[] = {"tenant_erase", "hold_release"};
    for (unsigned i = 0; i < 2; i++) {
        bool was = (before->approvals & 1u << i) != 0, is = (after->approvals & 1u << i) != 0;
        whole->diff->cases++;
        if (was != is) {
            note(whole->diff, was, "approvals.%s: %u to %u", names[i], was ? 2u : 1u, is ? 2u : 1u);
        }
    }
}

void kv_policy_compare(const struct kv_policy_set *before, const struct kv_policy_set *after,
                       struct kv_policy_diff *ret_diff)
{
    struct domain domain = {0};
    memset(ret_diff, 0, sizeof *ret_diff);
    add_names(&domain, before);
    add_names(&domain, after);
    struct pair whole = {.diff = ret_diff, .name = ""};
    compare_number(&whole, "quota.sessions", before->quota.sessions, after->quota.sessions);
    compare_number(&whole, "quota.dram_bytes", before->quota.tier_bytes[KV_TIER_DRAM],
                   after->quota.tier_bytes[KV_TIER_DRAM]);
    compare_number(&whole, "quota.nvme_bytes", before->quota.tier_bytes[KV_TIER_NVME],
                   after->quota.tier_bytes[KV_TIER_NVME]);
    compare_number(&whole, "hold.max_days", before->hold_days, after->hold_days);
    compare_people(&whole, before, after);
    ret_diff->complete = within_bound(&domain, (uint64_t)before->class_count + after->class_count);
    if (ret_diff->complete) {
        compare_classes(before, after, &domain, ret_diff);
    }
}

bool kv_policy_loosens(const struct kv_policy_diff *diff)
{
    return !diff->complete || diff->newly_allowed > 0;
}

const char *kv_policy_loosens_text(const struct kv_policy_diff *diff)
{
    for (uint32_t i = 0; i < diff->change_count; i++) {
        if (diff->changes[i].allows) {
            return diff->changes[i].text;
        }
    }
    return diff->complete ? "" : "the two policies name too much to be compared in full";
}

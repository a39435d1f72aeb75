/*
 * Intersects the ceilings into one flat allocation. Must never make a class allow what one of its ceilings does not:
 * every step here takes away.
 */
#include "policies/policy_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

#include <stdio.h>
#include <string.h>

const char kv_policy_builtin[] = "{\"tiers\":{\"dram\":{},\"nvme\":{}}}";

const char *const kv_policy_basis_names[KV_BASES] = {"gdpr_art17", "retention", "contract", "other"};
const char *const kv_policy_data_class_names[KV_DATA_CLASSES] = {"public", "internal", "personal", "special"};
const char *const kv_policy_restore_names[3] = {"never", "auto", "always"};
const char *const kv_policy_tier_names[KV_POLICY_TIERS] = {"none", "dram", "nvme", "object"};

/* One allocation, handed out from the front; sized by a first pass that counts. */
struct room {
    uint8_t *start; /* NULL: counting */
    size_t used;
};

static void *take(struct room *room, size_t size, size_t align)
{
    room->used = (room->used + align - 1) / align * align;
    void *at = room->start == NULL ? NULL : room->start + room->used;
    room->used += size;
    return at;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void lower_limits(struct kv_policy_limits *limits, const struct kv_policy_limits *other)
{
    limits->block_bytes = least(limits->block_bytes, other->block_bytes);
    limits->age_s = least(limits->age_s, other->age_s);
    limits->idle_s = least(limits->idle_s, other->idle_s);
    limits->session_bytes = least(limits->session_bytes, other->session_bytes);
    limits->session_blocks = least(limits->session_blocks, other->session_blocks);
    for (unsigned t = 0; t < KV_POLICY_TIERS; t++) {
        limits->tier_bytes[t] = least(limits->tier_bytes[t], other->tier_bytes[t]);
        limits->tier_ttl_s[t] = least(limits->tier_ttl_s[t], other->tier_ttl_s[t]);
    }
}

/* What the levels say of shared scopes. */
struct said {
    bool sharing, no_sharing, retain, cascade;
};

static void narrow(struct kv_policy *policy, const struct level *level, struct said *said)
{
    policy->gist.tiers_allowed &= level->tiers_given ? level->tiers : UINT32_MAX;
    lower_limits(&policy->limits, &level->limits);
    if (level->restore_given && level->restore < policy->gist.restore) {
        policy->gist.restore = level->restore;
    }
    if (level->sharing_given) { /* off until somebody says otherwise, and nobody says "none" */
        said->sharing = true;
        said->no_sharing = said->no_sharing || !level->sharing;
    }
    if (level->on_erase_given) {
        said->retain = true;
        said->cascade = said->cascade || !level->retain_shared;
    }
    if (level->data_class_given) {
        policy->data_class = level->data_class; /* says what the data is, and is no ceiling: the nearest one holds */
    }
}

static void lower_erase(struct kv_policy *policy, const struct kv_policy_doc *doc)
{
    policy->gist.bases_allowed = (uint8_t)(policy->gist.bases_allowed & doc->bases);
    policy->gist.reason_required = policy->gist.reason_required || doc->reason_required;
    policy->erase_sla_s = least(policy->erase_sla_s, doc->erase_sla_s);
}

static bool of_names(const struct kv_policy_rule *rule)
{
    return rule->given[KV_POLICY_MODEL] || rule->given[KV_POLICY_LAYOUT] || rule->given[KV_POLICY_REGION];
}

/* What depends on the class alone is decided here; what depends on names is kept for the evaluation. */
static void add_rules(struct kv_policy *policy, const struct kv_policy_doc *doc, unsigned class_index,
                      struct kv_policy_rule *rules)
{
    for (uint32_t i = 0; i < doc->rule_count; i++) {
        const struct doc_rule *rule = &doc->rules[i];
        if ((rule->classes & 1u << class_index) == 0 || (rule->data_classes & 1u << policy->data_class) == 0) {
            continue;
        }
        if (of_names(&rule->rule)) {
            rules[policy->rule_count++] = rule->rule;
        } else if (rule->rule.tiers != 0) {
            policy->gist.tiers_allowed &= ~rule->rule.tiers;
        } else {
            policy->gist.actions_forbidden = (uint8_t)(policy->gist.actions_forbidden | rule->rule.actions);
        }
    }
}

struct build {
    struct room room;
    const struct kv_policy_doc *platform, *tenant;
    struct kv_policy_names names[2][KV_POLICY_LISTS];
};

static void compile_class(struct kv_policy *policy, const struct build *build, unsigned class_index,
                          struct kv_policy_rule *rules)
{
    const struct kv_policy_doc *platform = build->platform, *tenant = build->tenant;
    const struct kv_policy_limits none = {.block_bytes = (uint64_t)KV_MAX_BLOCK_BYTES,
                                          .age_s = KV_POLICY_NO_LIMIT,
                                          .idle_s = KV_POLICY_NO_LIMIT,
                                          .session_bytes = KV_POLICY_NO_LIMIT,
                                          .session_blocks = KV_POLICY_NO_LIMIT};
    policy->gist.tiers_allowed = UINT32_MAX;
    policy->gist.bases_allowed = UINT8_MAX;
    policy->erase_sla_s = KV_POLICY_NO_LIMIT;
    policy->gist.restore = KV_RESTORE_ALWAYS;
    policy->data_class = KV_DATA_INTERNAL;
    policy->limits = none;
    memset(policy->limits.tier_bytes, 0xff, sizeof policy->limits.tier_bytes);
    memset(policy->limits.tier_ttl_s, 0xff, sizeof policy->limits.tier_ttl_s);
    struct said said = {0};
    narrow(policy, &platform->top, &said);
    narrow(policy, &tenant->top, &said);
    narrow(policy, &tenant->classes[class_index].level, &said);
    policy->gist.sharing = said.sharing && !said.no_sharing;
    policy->retain_shared = said.retain && !said.cascade;
    lower_erase(policy, platform);
    lower_erase(policy, tenant);
    policy->gist.block_bytes = policy->limits.block_bytes;
    policy->gist.age_s = policy->limits.age_s;
    policy->rules = rules;
    add_rules(policy, platform, 0, rules);
    add_rules(policy, tenant, class_index, rules);
    snprintf(policy->name, sizeof policy->name, "%s", tenant->classes[class_index].name);
}

static bool permits(const struct kv_policy_doc *doc, const struct level *level, unsigned kind, const char *name)
{
    const struct doc_names *names = &doc->names[kind];
    uint32_t i = 0;
    while (i < names->count && strcmp(names->list[i], name) != 0) {
        i++;
    }
    return !level->given[kind] || (i < names->count && (level->names[kind] & UINT64_C(1) << i) != 0);
}

static void place_names(struct room *room, const struct kv_policy_doc *doc,
                        struct kv_policy_names ret_names[KV_POLICY_LISTS])
{
    for (unsigned kind = 0; kind < KV_POLICY_LISTS; kind++) {
        const struct doc_names *names = &doc->names[kind];
        struct kv_policy_text *list = take(room, names->count * sizeof *list, _Alignof(struct kv_policy_text));
        ret_names[kind] = (struct kv_policy_names){.list = list, .count = names->count};
        for (uint32_t i = 0; i < names->count; i++) {
            char *text = take(room, strlen(names->list[i]) + 1, 1);
            if (text != NULL) {
                snprintf(text, NAME_SIZE, "%s", names->list[i]);
                list[i] = kv_policy_text(text);
            }
        }
    }
}

static bool all_permit(const struct build *build, unsigned class_index, unsigned kind, const char *name)
{
    const struct kv_policy_doc *platform = build->platform, *tenant = build->tenant;
    return permits(platform, &platform->top, kind, name) && permits(tenant, &tenant->top, kind, name) &&
           permits(tenant, &tenant->classes[class_index].level, kind, name);
}

/* The names that every ceiling with a list has on it; they are among those that the documents name. */
static void place_list(struct build *build, unsigned class_index, unsigned kind, struct kv_policy *policy)
{
    const struct kv_policy_doc *tenant = build->tenant;
    bool of_tenant = tenant->top.given[kind] || tenant->classes[class_index].level.given[kind];
    if (!of_tenant && !build->platform->top.given[kind]) {
        return;
    }
    const struct doc_names *source = of_tenant ? &tenant->names[kind] : &build->platform->names[kind];
    const struct kv_policy_names *placed = &build->names[of_tenant ? 1 : 0][kind];
    struct kv_policy_text *list = take(&build->room, source->count * sizeof *list, _Alignof(struct kv_policy_text));
    uint32_t count = 0;
    for (uint32_t i = 0; policy != NULL && i < source->count; i++) {
        if (all_permit(build, class_index, kind, source->list[i])) {
            list[count++] = placed->list[i];
        }
    }
    if (policy != NULL) {
        policy->lists[kind] = (struct kv_policy_names){.list = list, .count = count};
        policy->gist.given = (uint8_t)(policy->gist.given | 1u << kind);
    }
}

/* Counts, or fills, by whether the room has memory. */
static struct kv_policy_set *place(struct build *build)
{
    const struct kv_policy_doc *tenant = build->tenant;
    struct room *room = &build->room;
    uint32_t rules_max = build->platform->rule_count + tenant->rule_count;
    struct kv_policy_set *set =
        take(room, sizeof *set + tenant->class_count * sizeof set->classes[0], _Alignof(struct kv_policy_set));
    place_names(room, build->platform, build->names[0]);
    place_names(room, tenant, build->names[1]);
    for (uint32_t c = 0; c < tenant->class_count; c++) {
        struct kv_policy *policy = set == NULL ? NULL : &set->classes[c];
        struct kv_policy_rule *rules =
            take(room, rules_max * sizeof(struct kv_policy_rule), _Alignof(struct kv_policy_rule));
        for (unsigned kind = 0; kind < KV_POLICY_LISTS; kind++) {
            place_list(build, c, kind, policy);
        }
        if (policy != NULL) {
            memcpy(policy->names, build->names, sizeof policy->names);
            compile_class(policy, build, c, rules);
        }
    }
    return set;
}

KV_RC kv_policy_compile(const struct kv_policy_doc *platform, const struct kv_policy_doc *tenant,
                        struct kv_policy_set **ret_set)
{
    KV_ASSERT(platform->kind == KV_POLICY_PLATFORM && tenant->kind == KV_POLICY_TENANT);
    struct build build = {.platform = platform, .tenant = tenant};
    (void)place(&build);
    build.room = (struct room){.start = kv_alloc(build.room.used)};
    if (build.room.start == NULL) {
        return KV_E_NO_MEMORY;
    }
    struct kv_policy_set *set = place(&build);
    set->class_count = tenant->class_count;
    set->quota.sessions = least(platform->quota.sessions, tenant->quota.sessions);
    for (unsigned t = 0; t < KV_POLICY_TIERS; t++) {
        set->quota.tier_bytes[t] = least(platform->quota.tier_bytes[t], tenant->quota.tier_bytes[t]);
    }
    /* A tenant says that it has holds; the platform says no, or how long. */
    set->hold_days = platform->holds_given ? least(platform->hold_days, tenant->hold_days) : tenant->hold_days;
    set->approvals = platform->approvals | tenant->approvals;
    *ret_set = set;
    return KV_OK;
}

void kv_policy_set_free(struct kv_policy_set *set)
{
    kv_free(set);
}

void kv_policy_set_freep(struct kv_policy_set **set)
{
    kv_policy_set_free(*set);
}

void kv_policy_doc_free(struct kv_policy_doc *doc)
{
    kv_free(doc);
}

void kv_policy_doc_freep(struct kv_policy_doc **doc)
{
    kv_policy_doc_free(*doc);
}

const struct kv_policy *kv_policy_class(const struct kv_policy_set *set, const char *name)
{
    for (uint32_t i = 0; i < set->class_count; i++) {
        if (strcmp(set->classes[i].name, name) == 0) {
            return &set->classes[i];
        }
    }
    return NULL;
}

void kv_policy_bounds(const struct kv_policy_set *set, const struct kv_policy *policy,
                      struct kv_policy_bounds *ret_bounds)
{
    *ret_bounds = (struct kv_policy_bounds){.versions = {set->versions[0], set->versions[1]},
                                            .session_bytes = policy->limits.session_bytes,
                                            .session_blocks = policy->limits.session_blocks};
    for (unsigned i = 0; i < KV_POLICY_STORING_TIERS; i++) {
        ret_bounds->tenant_bytes[i] = set->quota.tier_bytes[KV_TIER_DRAM + i];
        ret_bounds->session_tier_bytes[i] = policy->limits.tier_bytes[KV_TIER_DRAM + i];
    }
}

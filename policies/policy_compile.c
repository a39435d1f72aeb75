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

static void narrow(struct kv_policy *policy, const struct level *level)
{
    policy->tiers_allowed &= level->tiers_given ? level->tiers : UINT32_MAX;
    lower_limits(&policy->limits, &level->limits);
    if (level->restore_given && level->restore < policy->restore) {
        policy->restore = level->restore;
    }
    if (level->data_class_given) {
        policy->data_class = level->data_class; /* says what the data is, and is no ceiling: the nearest one holds */
    }
}

static void lower_erase(struct kv_policy *policy, const struct kv_policy_doc *doc)
{
    policy->bases_allowed = (uint8_t)(policy->bases_allowed & doc->bases);
    policy->reason_required = policy->reason_required || doc->reason_required;
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
            policy->tiers_allowed &= ~rule->rule.tiers;
        } else {
            policy->actions_forbidden = (uint8_t)(policy->actions_forbidden | rule->rule.actions);
        }
    }
}

struct docs {
    const struct kv_policy_doc *doc[2];
};

static void compile_class(struct kv_policy *policy, const struct docs *docs, unsigned class_index,
                          struct kv_policy_rule *rules)
{
    const struct kv_policy_doc *platform = docs->doc[0], *tenant = docs->doc[1];
    const struct kv_policy_limits none = {.block_bytes = (uint64_t)KV_MAX_BLOCK_BYTES,
                                          .age_s = KV_POLICY_NO_LIMIT,
                                          .idle_s = KV_POLICY_NO_LIMIT,
                                          .session_bytes = KV_POLICY_NO_LIMIT,
                                          .session_blocks = KV_POLICY_NO_LIMIT};
    policy->tiers_allowed = UINT32_MAX;
    policy->bases_allowed = UINT8_MAX;
    policy->erase_sla_s = KV_POLICY_NO_LIMIT;
    policy->restore = KV_RESTORE_ALWAYS;
    policy->data_class = KV_DATA_INTERNAL;
    policy->limits = none;
    memset(policy->limits.tier_bytes, 0xff, sizeof policy->limits.tier_bytes);
    memset(policy->limits.tier_ttl_s, 0xff, sizeof policy->limits.tier_ttl_s);
    narrow(policy, &platform->top);
    narrow(policy, &tenant->top);
    narrow(policy, &tenant->classes[class_index].level);
    lower_erase(policy, platform);
    lower_erase(policy, tenant);
    policy->block_bytes = policy->limits.block_bytes;
    policy->age_s = policy->limits.age_s;
    policy->rules = rules;
    add_rules(policy, platform, 0, rules);
    add_rules(policy, tenant, class_index, rules);
    snprintf(policy->name, sizeof policy->name, "%s", tenant->classes[class_index].name);
    policy->name_hash = kv_policy_text(policy->name).hash;
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

/* In the class itself while there is room, where a decision has it at hand. */
static void *take_entry(struct room *room, struct room *near, size_t size)
{
    size_t end = (near->used + 7) / 8 * 8 + size;
    return take(end <= sizeof((struct kv_policy *)0)->near_names ? near : room, size, _Alignof(struct kv_policy_entry));
}

/* The names that every ceiling with a list has on it. */
static const struct kv_policy_entry *place_list(struct room *room, struct room *near, const struct docs *docs,
                                                unsigned class_index, unsigned kind)
{
    const struct kv_policy_doc *platform = docs->doc[0], *tenant = docs->doc[1];
    const struct level *class = &tenant->classes[class_index].level;
    bool of_tenant = tenant->top.given[kind] || class->given[kind];
    const struct doc_names *source = of_tenant ? &tenant->names[kind] : &platform->names[kind];
    struct kv_policy_entry *first = NULL, *last = NULL;
    for (uint32_t i = 0; (of_tenant || platform->top.given[kind]) && i < source->count; i++) {
        const char *name = source->list[i];
        if (!permits(platform, &platform->top, kind, name) || !permits(tenant, &tenant->top, kind, name) ||
            !permits(tenant, class, kind, name)) {
            continue;
        }
        size_t size = strlen(name) + 1;
        struct kv_policy_entry *entry = take_entry(room, near, sizeof *entry + size);
        if (entry != NULL) {
            entry->hash = kv_policy_text(name).hash;
            memcpy(entry->text, name, size);
            first = first == NULL ? entry : first;
            if (last != NULL) {
                last->next = (int32_t)((const char *)entry - (const char *)last);
            }
            last = entry;
        }
    }
    return first;
}

static void place_lists(struct room *room, const struct docs *docs, unsigned class_index, struct kv_policy *policy)
{
    const struct kv_policy_doc *platform = docs->doc[0], *tenant = docs->doc[1];
    struct room near = {.start = policy == NULL ? NULL : (uint8_t *)policy->near_names};
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        const struct kv_policy_entry *list = place_list(room, &near, docs, class_index, kind);
        if (policy != NULL) {
            bool given =
                platform->top.given[kind] || tenant->top.given[kind] || tenant->classes[class_index].level.given[kind];
            policy->lists[kind] = list;
            policy->given = (uint8_t)(policy->given | (given ? 1u << kind : 0));
        }
    }
}

static void place_names(struct room *room, const struct docs *docs,
                        struct kv_policy_names ret_names[2][KV_POLICY_KINDS])
{
    for (unsigned whose = 0; whose < 2; whose++) {
        for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
            const struct doc_names *names = &docs->doc[whose]->names[kind];
            struct kv_policy_text *list = take(room, names->count * sizeof *list, _Alignof(struct kv_policy_text));
            ret_names[whose][kind] = (struct kv_policy_names){.list = list, .count = names->count};
            for (uint32_t i = 0; i < names->count; i++) {
                char *text = take(room, strlen(names->list[i]) + 1, 1);
                if (text != NULL) {
                    snprintf(text, NAME_SIZE, "%s", names->list[i]);
                    list[i] = kv_policy_text(text);
                }
            }
        }
    }
}

/* Counts, or fills, by whether the room has memory. */
static struct kv_policy_set *build(struct room *room, const struct docs *docs)
{
    const struct kv_policy_doc *tenant = docs->doc[1];
    struct kv_policy_names names[2][KV_POLICY_KINDS];
    uint32_t rules_max = docs->doc[0]->rule_count + tenant->rule_count;
    struct kv_policy_set *set =
        take(room, sizeof *set + tenant->class_count * sizeof set->classes[0], _Alignof(struct kv_policy_set));
    for (uint32_t c = 0; c < tenant->class_count; c++) {
        place_lists(room, docs, c, set == NULL ? NULL : &set->classes[c]);
    }
    place_names(room, docs, names);
    for (uint32_t c = 0; c < tenant->class_count; c++) {
        struct kv_policy_rule *rules =
            take(room, rules_max * sizeof(struct kv_policy_rule), _Alignof(struct kv_policy_rule));
        if (set != NULL) {
            memcpy(set->classes[c].names, names, sizeof names);
            compile_class(&set->classes[c], docs, c, rules);
        }
    }
    return set;
}

KV_RC kv_policy_compile(const struct kv_policy_doc *platform, const struct kv_policy_doc *tenant,
                        struct kv_policy_set **ret_set)
{
    KV_ASSERT(platform->kind == KV_POLICY_PLATFORM && tenant->kind == KV_POLICY_TENANT);
    const struct docs docs = {.doc = {platform, tenant}};
    struct room room = {0};
    (void)build(&room, &docs);
    size_t size = room.used;
    room = (struct room){.start = kv_alloc_aligned(_Alignof(struct kv_policy_set), size)};
    if (room.start == NULL) {
        return KV_E_NO_MEMORY;
    }
    struct kv_policy_set *set = build(&room, &docs);
    for (uint32_t c = 0; c < tenant->class_count; c++) {
        set->class_hashes[c] = set->classes[c].name_hash;
    }
    set->class_count = tenant->class_count;
    set->quota.sessions = least(platform->quota.sessions, tenant->quota.sessions);
    for (unsigned t = 0; t < KV_POLICY_TIERS; t++) {
        set->quota.tier_bytes[t] = least(platform->quota.tier_bytes[t], tenant->quota.tier_bytes[t]);
    }
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

/* What the decision will read is on its way while the name is compared. */
static bool same_class(const struct kv_policy *policy, const char *name)
{
    __builtin_prefetch(policy);
    __builtin_prefetch(policy->near_names);
    return strcmp(policy->name, name) == 0;
}

const struct kv_policy *kv_policy_class(const struct kv_policy_set *set, const char *name)
{
    uint64_t hash = kv_policy_text(name).hash;
    for (uint32_t i = 0; i < set->class_count; i++) {
        if (set->class_hashes[i] == hash && same_class(&set->classes[i], name)) {
            return &set->classes[i];
        }
    }
    return NULL;
}

/*
 * A policy's text, strictly: what is not in the grammar (README.md) is refused with a pointer to it and, for a name of
 * ours misspelt, the nearest one; what the grammar knows and this build does not carry out is refused, too, and says
 * so. Must never let half a policy pass.
 */
#include "policies/policy_reader_int.h"

#include "dataplane/base/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* --- classes ------------------------------------------------------------------------------------------------------ */

#define LEVEL_MEMBERS                                                                                              \
    "tiers", "session", "max_block_bytes", "models", "layouts", "regions", "buckets", "key_durability", "sharing", \
        "recording", "restore", "data_class"

static struct doc_class *class_of(struct kv_policy_doc *doc, const char *name)
{
    for (uint32_t i = 0; i < doc->class_count; i++) {
        if (strcmp(doc->classes[i].name, name) == 0) {
            return &doc->classes[i];
        }
    }
    return NULL;
}

static struct doc_class *add_class(struct kv_policy_doc *doc, const char *name)
{
    struct doc_class *class = &doc->classes[doc->class_count++];
    snprintf(class->name, sizeof class->name, "%s", name);
    kv_policy_no_limits(&class->level.limits);
    return class;
}

static bool class_name_fits(const char *name)
{
    size_t len = strlen(name);
    return len >= 1 && len < CLASS_SIZE && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == len;
}

static KV_RC read_class(const struct kv_policy_at *at, const char *name, struct kv_policy_doc *doc)
{
    static const char *const known[] = {LEVEL_MEMBERS, NULL};
    struct doc_class *class = class_of(doc, name);
    if (class == NULL && doc->class_count == CLASSES_MAX) {
        return kv_policy_bad(at, NULL, "at most %d classes, with \"default\", which is always there", CLASSES_MAX);
    }
    class = class == NULL ? add_class(doc, name) : class;
    KV_TRY(kv_policy_check_members(at, known));
    KV_TRY(kv_policy_read_level(at, doc, &class->level));
    return (class->level.tiers & ~doc->top.tiers) == 0
               ? KV_OK
               : kv_policy_bad(at, "tiers",
                               "a class can only narrow: one of these tiers is not among the policy's own");
}

static KV_RC read_classes(const struct kv_policy_at *at, struct kv_policy_doc *doc)
{
    const json_t *json = json_object_get(at->json, "classes");
    (void)add_class(doc, "default");
    if (json == NULL) {
        return KV_OK;
    }
    struct kv_policy_at classes = kv_policy_below(at, "classes", json);
    if (doc->kind == KV_POLICY_PLATFORM) {
        return kv_policy_bad(&classes, NULL, "classes belong to the policies of tenants");
    }
    if (!json_is_object(json)) {
        return kv_policy_bad(&classes, NULL, "must be an object");
    }
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)json, name, value)
    {
        if (!class_name_fits(name)) {
            return kv_policy_bad(&classes, NULL, "the name of a class is 1 to %d of a-z, 0-9, _ and -", CLASS_SIZE - 1);
        }
        struct kv_policy_at one = kv_policy_below(&classes, name, value);
        KV_TRY(read_class(&one, name, doc));
    }
    return KV_OK;
}

/* A block lives as long as its session: a shorter life on one tier is not carried out, so it is not promised. */
static KV_RC check_lifetimes(const struct kv_policy_at *at, const struct level *own, const struct level *above)
{
    uint64_t age = own->limits.age_s < above->limits.age_s ? own->limits.age_s : above->limits.age_s;
    for (unsigned t = 0; t < KV_POLICY_TIERS; t++) {
        if (own->limits.tier_ttl_s[t] < age) {
            struct kv_policy_at tiers = kv_policy_below(at, "tiers", NULL),
                                tier = kv_policy_below(&tiers, kv_policy_tier_names[t], NULL);
            return kv_policy_bad(
                &tier, "ttl_seconds",
                "this build ends blocks with their session: give session.max_age_seconds, at most this long");
        }
    }
    return KV_OK;
}

/* --- rules, quota, erasing ---------------------------------------------------------------------------------------- */

static KV_RC rule_classes(const struct kv_policy_at *at, struct kv_policy_doc *doc, uint32_t *ret_mask)
{
    struct kv_policy_at array;
    uint32_t mask = 0;
    KV_TRY(kv_policy_get_array(at, "classes", &array));
    for (size_t i = 0; i < json_array_size(array.json); i++) {
        struct kv_policy_at one = kv_policy_item(&array, i);
        const char *name = json_string_value(one.json);
        const struct doc_class *class = name == NULL ? NULL : class_of(doc, name);
        if (class == NULL) {
            return kv_policy_bad(&one, NULL, "must be the name of a class of this policy");
        }
        mask |= 1u << (class - doc->classes);
    }
    *ret_mask = array.json == NULL ? UINT32_MAX : mask;
    return KV_OK;
}

static KV_RC read_rule(const struct kv_policy_at *at, struct kv_policy_doc *doc, struct doc_rule *rule)
{
    static const char *const known[] = {"actions", "tiers",   "classes", "data_classes",
                                        "models",  "layouts", "regions", NULL};
    static const char *const actions[] = {"offload", "restore", "lookup", "session"};
    static const char *const tiers[] = {"none", "dram", "nvme"};
    KV_TRY(kv_policy_check_members(at, known));
    rule->rule = (struct kv_policy_rule){.level = doc->kind == KV_POLICY_TENANT, .actions = 0xf};
    rule->data_classes = UINT32_MAX;
    KV_TRY(kv_policy_get_words(at, "tiers", (struct kv_policy_words){tiers, 3}, &rule->rule.tiers));
    rule->rule.actions = rule->rule.tiers != 0 ? 1u << KV_POLICY_OFFLOAD : 0xf;
    KV_TRY(kv_policy_get_words(at, "actions", (struct kv_policy_words){actions, 4}, &rule->rule.actions));
    KV_TRY(kv_policy_get_words(at, "data_classes",
                               (struct kv_policy_words){kv_policy_data_class_names, KV_DATA_CLASSES},
                               &rule->data_classes));
    KV_TRY(rule_classes(at, doc, &rule->classes));
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        KV_TRY(kv_policy_get_names(at, (enum kv_policy_kind)kind, &doc->names[kind], &rule->rule.names[kind],
                                   &rule->rule.given[kind]));
    }
    if ((rule->rule.tiers & 1u << KV_TIER_NONE) != 0) {
        return kv_policy_bad(at, "tiers", "must be dram or nvme");
    }
    if (rule->rule.tiers != 0 && rule->rule.actions != 1u << KV_POLICY_OFFLOAD) {
        return kv_policy_bad(at, "tiers",
                             "tiers go with the action offload alone: a block is restored from where it lies");
    }
    return KV_OK;
}

static KV_RC read_rules(const struct kv_policy_at *at, struct kv_policy_doc *doc)
{
    const json_t *json = json_object_get(at->json, "forbid");
    struct kv_policy_at rules = kv_policy_below(at, "forbid", json);
    if (json == NULL) {
        return KV_OK;
    }
    if (!json_is_array(json) || json_array_size(json) > RULES_MAX) {
        return kv_policy_bad(&rules, NULL, "must be an array of at most %d rules", RULES_MAX);
    }
    for (size_t i = 0; i < json_array_size(json); i++) {
        struct kv_policy_at rule = kv_policy_item(&rules, i);
        KV_TRY(read_rule(&rule, doc, &doc->rules[doc->rule_count]));
        doc->rule_count++;
    }
    return KV_OK;
}

static KV_RC read_quota(const struct kv_policy_at *at, struct kv_policy_quota *quota)
{
    static const char *const known[] = {"dram_bytes", "nvme_bytes", "object_bytes", "sessions", NULL};
    const json_t *json = json_object_get(at->json, "quota");
    memset(quota, 0xff, sizeof *quota);
    if (json == NULL) {
        return KV_OK;
    }
    struct kv_policy_at at_quota = kv_policy_below(at, "quota", json);
    KV_TRY(kv_policy_check_members(&at_quota, known));
    if (json_object_get(json, "object_bytes") != NULL) {
        return kv_policy_bad(&at_quota, "object_bytes", "this build has no object tier; leave it out");
    }
    KV_TRY(kv_policy_get_number(&at_quota, "dram_bytes", BYTES_TOP, &quota->tier_bytes[KV_TIER_DRAM]));
    KV_TRY(kv_policy_get_number(&at_quota, "nvme_bytes", BYTES_TOP, &quota->tier_bytes[KV_TIER_NVME]));
    return kv_policy_get_number(&at_quota, "sessions", KV_MAX_TENANT_SLOTS, &quota->sessions);
}

static KV_RC read_erase(const struct kv_policy_at *at, struct kv_policy_doc *doc)
{
    static const char *const known[] = {"sla_seconds", "require_reason", "basis", NULL};
    const json_t *json = json_object_get(at->json, "erase");
    doc->erase_sla_s = KV_POLICY_NO_LIMIT;
    doc->bases = (1u << KV_BASES) - 1;
    if (json == NULL) {
        return KV_OK;
    }
    struct kv_policy_at erase = kv_policy_below(at, "erase", json);
    KV_TRY(kv_policy_check_members(&erase, known));
    KV_TRY(kv_policy_get_number(&erase, "sla_seconds", SECONDS_TOP, &doc->erase_sla_s));
    KV_TRY(kv_policy_get_bool(&erase, "require_reason", &doc->reason_required));
    return kv_policy_get_words(&erase, "basis", (struct kv_policy_words){kv_policy_basis_names, KV_BASES}, &doc->bases);
}

/* Delaying an erasure takes somebody who says that it may be: without `allowed` no hold is. */
static KV_RC read_hold(const struct kv_policy_at *at, struct kv_policy_doc *doc)
{
    static const char *const known[] = {"allowed", "max_days", NULL};
    const json_t *json = json_object_get(at->json, "hold");
    if (json == NULL) {
        return KV_OK;
    }
    bool allowed = false;
    struct kv_policy_at hold = kv_policy_below(at, "hold", json);
    KV_TRY(kv_policy_check_members(&hold, known));
    if (json_object_get(json, "allowed") == NULL) {
        return kv_policy_bad(&hold, "allowed", "is required: true, or false");
    }
    doc->holds_given = true;
    doc->hold_days = (uint64_t)KV_MAX_HOLD_DAYS;
    KV_TRY(kv_policy_get_bool(&hold, "allowed", &allowed));
    KV_TRY(kv_policy_get_number(&hold, "max_days", KV_MAX_HOLD_DAYS, &doc->hold_days));
    doc->hold_days = allowed ? doc->hold_days : 0;
    return KV_OK;
}

static KV_RC read_approvals(const struct kv_policy_at *at, struct kv_policy_doc *doc)
{
    static const char *const known[] = {"tenant_erase", "hold_release", "policy_loosen",
                                        "roe_change",   "signing_key",  NULL};
    const json_t *json = json_object_get(at->json, "approvals");
    if (json == NULL) {
        return KV_OK;
    }
    struct kv_policy_at approvals = kv_policy_below(at, "approvals", json);
    KV_TRY(kv_policy_check_members(&approvals, known));
    for (unsigned i = 0; known[i] != NULL; i++) {
        uint64_t people = 1;
        KV_TRY(kv_policy_get_number(&approvals, known[i], 2, &people));
        if (people == 2 && i > 1) {
            return kv_policy_bad(&approvals, known[i], "this build takes one person for that; leave it out or say 1");
        }
        doc->approvals |= people == 2 ? 1u << i : 0;
    }
    return KV_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static KV_RC read_doc(const struct kv_policy_at *at, struct kv_policy_doc *doc)
{
    static const char *const known[] = {LEVEL_MEMBERS, "classes",   "quota",  "erase",
                                        "hold",        "approvals", "forbid", NULL};
    KV_TRY(kv_policy_check_members(at, known));
    if (json_object_get(at->json, "tiers") == NULL) {
        return kv_policy_bad(at, "tiers", "is required: what is not allowed is denied");
    }
    KV_TRY(kv_policy_read_level(at, doc, &doc->top));
    KV_TRY(check_lifetimes(at, &doc->top, &doc->top));
    KV_TRY(read_classes(at, doc));
    for (uint32_t i = 0; i < doc->class_count; i++) {
        struct kv_policy_at classes = kv_policy_below(at, "classes", NULL),
                            class = kv_policy_below(&classes, doc->classes[i].name, NULL);
        KV_TRY(check_lifetimes(&class, &doc->classes[i].level, &doc->top));
    }
    KV_TRY(read_quota(at, &doc->quota));
    KV_TRY(read_erase(at, doc));
    KV_TRY(read_hold(at, doc));
    KV_TRY(read_approvals(at, doc));
    return read_rules(at, doc);
}

KV_RC kv_policy_parse(struct kv_bytes text, enum kv_policy_level level, struct kv_errinfo *info,
                      struct kv_policy_doc **ret_doc)
{
    json_t *json = NULL;
    KV_TRY(kv_policy_load(text, info, &json));
    struct kv_policy_doc *doc = kv_alloc(sizeof *doc);
    struct kv_policy_at at = {.json = json, .info = info};
    enum kv_err rc = KV_E_NO_MEMORY;
    if (doc != NULL) {
        doc->kind = level;
        rc = read_doc(&at, doc);
    }
    json_decref(json);
    if (rc != KV_OK) {
        kv_policy_doc_free(doc);
        return rc;
    }
    *ret_doc = doc;
    return KV_OK;
}

/*
 * A policy's text, strictly: what is not in the grammar (README.md) is refused with a pointer to it and, for a name of
 * ours misspelt, the nearest one; what the grammar knows and this build does not carry out is refused, too, and says
 * so. Must never echo a value, and never let half a policy pass.
 */
#include "policies/policy_int.h"

#include "dataplane/base/mem.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BYTES_TOP INT64_C(9007199254740991) /* 2^53 - 1: what a number in JSON holds exactly */
#define SECONDS_TOP INT64_C(315360000)      /* ten years */
#define POINTER_SIZE 64
#define MEMBERS_MAX 24

/* Where the reader is: an object and its pointer. */
struct at {
    const json_t *json;
    char pointer[POINTER_SIZE];
    struct kv_errinfo *info;
};

static KV_RC bad(const struct at *at, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A fault at the member `name` of `at`, or at `at` itself. */
static KV_RC bad(const struct at *at, const char *name, const char *format, ...)
{
    char pointer[POINTER_SIZE + 48], text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(pointer, sizeof pointer, "%s%s%s", at->pointer, name == NULL ? "" : "/", name == NULL ? "" : name);
    return kv_fail_at(at->info, KV_E_POLICY_INVALID, pointer, "%s", text);
}

static struct at below(const struct at *at, const char *name, const json_t *json)
{
    struct at inner = {.json = json, .info = at->info};
    size_t used = strlen(at->pointer);
    memcpy(inner.pointer, at->pointer, used);
    snprintf(inner.pointer + used, sizeof inner.pointer - used, "/%s", name);
    return inner;
}

static struct at item(const struct at *at, size_t index)
{
    char name[24];
    snprintf(name, sizeof name, "%zu", index);
    return below(at, name, json_array_get(at->json, index));
}

/* --- names -------------------------------------------------------------------------------------------------------- */

/* Edit distance of two short words, by rows. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[41];
    size_t b_len = strlen(b);
    for (unsigned j = 0; j <= b_len; j++) {
        row[j] = j;
    }
    for (unsigned i = 1; a[i - 1] != '\0'; i++) {
        unsigned corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            unsigned change = corner + (a[i - 1] != b[j - 1]);
            unsigned other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            corner = row[j];
            row[j] = change < other ? change : other;
        }
    }
    return row[b_len];
}

static bool plain_name(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= 40 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == len;
}

/* Only what looks like a name of ours is shown; anything else may be what must not be shown. */
static KV_RC unknown_member(const struct at *at, const char *name, const char *const *known)
{
    unsigned best = 4;
    const char *nearest = NULL;
    if (!plain_name(name)) {
        return bad(at, NULL, "there is an unknown member");
    }
    for (size_t i = 0; known[i] != NULL; i++) {
        unsigned away = distance(name, known[i]);
        if (away < best) {
            best = away;
            nearest = known[i];
        }
    }
    return nearest == NULL ? bad(at, name, "unknown member")
                           : bad(at, name, "unknown member; did you mean \"%s\"?", nearest);
}

static KV_RC check_members(const struct at *at, const char *const *known)
{
    if (!json_is_object(at->json)) {
        return bad(at, NULL, "must be an object");
    }
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)at->json, name, value)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], name) != 0) {
            i++;
        }
        if (known[i] == NULL) {
            return unknown_member(at, name, known);
        }
    }
    return KV_OK;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* Absent: `ret` stays. */
static KV_RC get_number(const struct at *at, const char *name, int64_t most, uint64_t *ret)
{
    const json_t *value = json_object_get(at->json, name);
    if (value == NULL) {
        return KV_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > most) {
        return bad(at, name, "must be a whole number, 1 to %" PRId64, most);
    }
    *ret = (uint64_t)json_integer_value(value);
    return KV_OK;
}

static KV_RC get_bool(const struct at *at, const char *name, bool *ret)
{
    const json_t *value = json_object_get(at->json, name);
    if (value != NULL && !json_is_boolean(value)) {
        return bad(at, name, "must be true or false");
    }
    *ret = value == NULL ? *ret : json_is_true(value);
    return KV_OK;
}

/* The word's place among `words`; -1 when it is none of them. */
static int word_of(const json_t *value, const char *const *words, int count)
{
    const char *text = json_string_value(value);
    for (int i = 0; text != NULL && i < count; i++) {
        if (strcmp(words[i], text) == 0) {
            return i;
        }
    }
    return -1;
}

static void list_words(char *text, size_t size, const char *const *words, int count)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", i == 0 ? "" : "|", words[i]);
    }
}

struct words {
    const char *const *list;
    int count;
};

static KV_RC get_word(const struct at *at, const char *name, struct words words, int *ret)
{
    const json_t *value = json_object_get(at->json, name);
    if (value == NULL) {
        return KV_OK;
    }
    int word = word_of(value, words.list, words.count);
    if (word < 0) {
        char all[120];
        list_words(all, sizeof all, words.list, words.count);
        return bad(at, name, "must be one of %s", all);
    }
    *ret = word;
    return KV_OK;
}

static KV_RC get_array(const struct at *at, const char *name, struct at *ret_array)
{
    *ret_array = below(at, name, json_object_get(at->json, name));
    if (ret_array->json != NULL && (!json_is_array(ret_array->json) || json_array_size(ret_array->json) == 0)) {
        return bad(ret_array, NULL, "must be an array with at least one item; leave it out for no restriction");
    }
    return KV_OK;
}

/* A set of words as a mask of their places. Absent: `ret` stays. */
static KV_RC get_words(const struct at *at, const char *name, struct words words, uint32_t *ret_mask)
{
    struct at array;
    uint32_t mask = 0;
    KV_TRY(get_array(at, name, &array));
    for (size_t i = 0; i < json_array_size(array.json); i++) {
        struct at one = item(&array, i);
        int word = word_of(one.json, words.list, words.count);
        if (word < 0) {
            char all[120];
            list_words(all, sizeof all, words.list, words.count);
            return bad(&one, NULL, "must be one of %s", all);
        }
        if ((mask & 1u << word) != 0) {
            return bad(&one, NULL, "is named twice");
        }
        mask |= 1u << word;
    }
    *ret_mask = array.json == NULL ? *ret_mask : mask;
    return KV_OK;
}

static bool name_fits(enum kv_policy_kind kind, const char *text, size_t len)
{
    if (kind == KV_POLICY_LAYOUT) {
        return len == 64 && strspn(text, "0123456789abcdef") == len;
    }
    if (kind == KV_POLICY_REGION) {
        return len >= 1 && len <= 63 && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < 0x21 || text[i] == 0x7f) {
            return false;
        }
    }
    return len >= 1 && len < NAME_SIZE;
}

static KV_RC intern(const struct at *at, struct doc_names *names, const char *text, uint64_t *ret_bit)
{
    uint32_t i = 0;
    while (i < names->count && strcmp(names->list[i], text) != 0) {
        i++;
    }
    if (i == NAMES_MAX) {
        return bad(at, NULL, "a policy names at most %d of these", NAMES_MAX);
    }
    if (i == names->count) {
        snprintf(names->list[names->count++], NAME_SIZE, "%s", text);
    }
    *ret_bit = UINT64_C(1) << i;
    return KV_OK;
}

static const char *const kind_members[KV_POLICY_KINDS] = {"models", "layouts", "regions"};
static const char *const kind_rules[KV_POLICY_KINDS] = {"1 to 128 bytes without spaces and control characters",
                                                        "64 lower-case hex digits", "1 to 63 of a-z, 0-9 and -"};

static KV_RC get_names(const struct at *at, enum kv_policy_kind kind, struct doc_names *names, uint64_t *ret_mask,
                       bool *ret_given)
{
    struct at array;
    uint64_t mask = 0;
    KV_TRY(get_array(at, kind_members[kind], &array));
    for (size_t i = 0; i < json_array_size(array.json); i++) {
        struct at one = item(&array, i);
        const char *text = json_string_value(one.json);
        uint64_t bit = 0;
        if (text == NULL || !name_fits(kind, text, json_string_length(one.json))) {
            return bad(&one, NULL, "must be %s", kind_rules[kind]);
        }
        KV_TRY(intern(&one, names, text, &bit));
        if ((mask & bit) != 0) {
            return bad(&one, NULL, "is named twice");
        }
        mask |= bit;
    }
    *ret_mask = mask;
    *ret_given = array.json != NULL;
    return KV_OK;
}

/* A member of which this build knows one value only. */
static KV_RC get_only(const struct at *at, const char *name, struct words words, const char *why)
{
    int word = 0;
    KV_TRY(get_word(at, name, words, &word));
    return word == 0 ? KV_OK : bad(at, name, "%s", why);
}

/* --- one ceiling -------------------------------------------------------------------------------------------------- */

static KV_RC read_tiers(const struct at *at, struct level *level)
{
    static const char *const known[] = {"dram", "nvme", "object", NULL};
    static const char *const members[] = {"max_bytes", "ttl_seconds", NULL};
    const json_t *json = json_object_get(at->json, "tiers");
    if (json == NULL) {
        return KV_OK;
    }
    struct at tiers = below(at, "tiers", json);
    KV_TRY(check_members(&tiers, known));
    level->tiers_given = true;
    for (unsigned t = KV_TIER_DRAM; t < KV_POLICY_TIERS; t++) {
        const json_t *value = json_object_get(json, kv_policy_tier_names[t]);
        if (value == NULL) {
            continue;
        }
        struct at tier = below(&tiers, kv_policy_tier_names[t], value);
        if (t == KV_TIER_OBJECT) {
            return bad(&tier, NULL, "this build has no object tier; leave it out");
        }
        KV_TRY(check_members(&tier, members));
        KV_TRY(get_number(&tier, "max_bytes", BYTES_TOP, &level->limits.tier_bytes[t]));
        KV_TRY(get_number(&tier, "ttl_seconds", SECONDS_TOP, &level->limits.tier_ttl_s[t]));
        level->tiers |= 1u << t;
    }
    return KV_OK;
}

static KV_RC read_session(const struct at *at, struct kv_policy_limits *limits)
{
    static const char *const known[] = {"max_age_seconds", "max_idle_seconds", "max_bytes", "max_blocks", NULL};
    const json_t *json = json_object_get(at->json, "session");
    if (json == NULL) {
        return KV_OK;
    }
    struct at session = below(at, "session", json);
    KV_TRY(check_members(&session, known));
    KV_TRY(get_number(&session, "max_age_seconds", SECONDS_TOP, &limits->age_s));
    KV_TRY(get_number(&session, "max_idle_seconds", SECONDS_TOP, &limits->idle_s));
    KV_TRY(get_number(&session, "max_bytes", BYTES_TOP, &limits->session_bytes));
    return get_number(&session, "max_blocks", BYTES_TOP, &limits->session_blocks);
}

static KV_RC read_modes(const struct at *at, struct level *level)
{
    static const char *const durability[] = {"durable", "ephemeral"}, *const sharing[] = {"none", "scope", "tenant"},
                             *const recording[] = {"strict", "batched"};
    int restore = -1, data_class = -1;
    KV_TRY(get_only(at, "key_durability", (struct words){durability, 2},
                    "this build has durable keys only; leave it out or say \"durable\""));
    KV_TRY(get_only(at, "sharing", (struct words){sharing, 3},
                    "this build shares no blocks between sessions; leave it out or say \"none\""));
    KV_TRY(get_only(at, "recording", (struct words){recording, 2},
                    "this build makes each record durable before it answers; leave it out or say \"strict\""));
    KV_TRY(get_word(at, "restore", (struct words){kv_policy_restore_names, 3}, &restore));
    KV_TRY(get_word(at, "data_class", (struct words){kv_policy_data_class_names, KV_DATA_CLASSES}, &data_class));
    level->restore_given = restore >= 0;
    level->restore = restore >= 0 ? (uint8_t)restore : 0;
    level->data_class_given = data_class >= 0;
    level->data_class = data_class >= 0 ? (uint8_t)data_class : 0;
    return json_object_get(at->json, "buckets") == NULL
               ? KV_OK
               : bad(at, "buckets", "this build has no object tier and so no buckets; leave it out");
}

static void no_limits(struct kv_policy_limits *limits)
{
    memset(limits, 0xff, sizeof *limits); /* KV_POLICY_NO_LIMIT, all of them */
}

static KV_RC read_level(const struct at *at, struct kv_policy_doc *doc, struct level *level)
{
    no_limits(&level->limits);
    KV_TRY(read_tiers(at, level));
    KV_TRY(read_session(at, &level->limits));
    KV_TRY(get_number(at, "max_block_bytes", KV_MAX_BLOCK_BYTES, &level->limits.block_bytes));
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        KV_TRY(get_names(at, (enum kv_policy_kind)kind, &doc->names[kind], &level->names[kind], &level->given[kind]));
    }
    return read_modes(at, level);
}

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
    no_limits(&class->level.limits);
    return class;
}

static bool class_name_fits(const char *name)
{
    size_t len = strlen(name);
    return len >= 1 && len < CLASS_SIZE && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == len;
}

static KV_RC read_class(const struct at *at, const char *name, struct kv_policy_doc *doc)
{
    static const char *const known[] = {LEVEL_MEMBERS, NULL};
    struct doc_class *class = class_of(doc, name);
    if (class == NULL && doc->class_count == CLASSES_MAX) {
        return bad(at, NULL, "at most %d classes, with \"default\", which is always there", CLASSES_MAX);
    }
    class = class == NULL ? add_class(doc, name) : class;
    KV_TRY(check_members(at, known));
    KV_TRY(read_level(at, doc, &class->level));
    return (class->level.tiers & ~doc->top.tiers) == 0
               ? KV_OK
               : bad(at, "tiers", "a class can only narrow: one of these tiers is not among the policy's own");
}

static KV_RC read_classes(const struct at *at, struct kv_policy_doc *doc)
{
    const json_t *json = json_object_get(at->json, "classes");
    (void)add_class(doc, "default");
    if (json == NULL) {
        return KV_OK;
    }
    struct at classes = below(at, "classes", json);
    if (doc->kind == KV_POLICY_PLATFORM) {
        return bad(&classes, NULL, "classes belong to the policies of tenants");
    }
    if (!json_is_object(json)) {
        return bad(&classes, NULL, "must be an object");
    }
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)json, name, value)
    {
        if (!class_name_fits(name)) {
            return bad(&classes, NULL, "the name of a class is 1 to %d of a-z, 0-9, _ and -", CLASS_SIZE - 1);
        }
        struct at one = below(&classes, name, value);
        KV_TRY(read_class(&one, name, doc));
    }
    return KV_OK;
}

/* A block lives as long as its session: a shorter life on one tier is not carried out, so it is not promised. */
static KV_RC check_lifetimes(const struct at *at, const struct level *own, const struct level *above)
{
    uint64_t age = own->limits.age_s < above->limits.age_s ? own->limits.age_s : above->limits.age_s;
    for (unsigned t = 0; t < KV_POLICY_TIERS; t++) {
        if (own->limits.tier_ttl_s[t] < age) {
            struct at tiers = below(at, "tiers", NULL), tier = below(&tiers, kv_policy_tier_names[t], NULL);
            return bad(&tier, "ttl_seconds",
                       "this build ends blocks with their session: give session.max_age_seconds, at most this long");
        }
    }
    return KV_OK;
}

/* --- rules, quota, erasing ---------------------------------------------------------------------------------------- */

static KV_RC rule_classes(const struct at *at, struct kv_policy_doc *doc, uint32_t *ret_mask)
{
    struct at array;
    uint32_t mask = 0;
    KV_TRY(get_array(at, "classes", &array));
    for (size_t i = 0; i < json_array_size(array.json); i++) {
        struct at one = item(&array, i);
        const char *name = json_string_value(one.json);
        const struct doc_class *class = name == NULL ? NULL : class_of(doc, name);
        if (class == NULL) {
            return bad(&one, NULL, "must be the name of a class of this policy");
        }
        mask |= 1u << (class - doc->classes);
    }
    *ret_mask = array.json == NULL ? UINT32_MAX : mask;
    return KV_OK;
}

static KV_RC read_rule(const struct at *at, struct kv_policy_doc *doc, struct doc_rule *rule)
{
    static const char *const known[] = {"actions", "tiers",   "classes", "data_classes",
                                        "models",  "layouts", "regions", NULL};
    static const char *const actions[] = {"offload", "restore", "lookup", "session"};
    static const char *const tiers[] = {"none", "dram", "nvme"};
    KV_TRY(check_members(at, known));
    rule->rule = (struct kv_policy_rule){.level = doc->kind == KV_POLICY_TENANT, .actions = 0xf};
    rule->data_classes = UINT32_MAX;
    KV_TRY(get_words(at, "tiers", (struct words){tiers, 3}, &rule->rule.tiers));
    rule->rule.actions = rule->rule.tiers != 0 ? 1u << KV_POLICY_OFFLOAD : 0xf;
    KV_TRY(get_words(at, "actions", (struct words){actions, 4}, &rule->rule.actions));
    KV_TRY(get_words(at, "data_classes", (struct words){kv_policy_data_class_names, KV_DATA_CLASSES},
                     &rule->data_classes));
    KV_TRY(rule_classes(at, doc, &rule->classes));
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        KV_TRY(get_names(at, (enum kv_policy_kind)kind, &doc->names[kind], &rule->rule.names[kind],
                         &rule->rule.given[kind]));
    }
    if ((rule->rule.tiers & 1u << KV_TIER_NONE) != 0) {
        return bad(at, "tiers", "must be dram or nvme");
    }
    if (rule->rule.tiers != 0 && rule->rule.actions != 1u << KV_POLICY_OFFLOAD) {
        return bad(at, "tiers", "tiers go with the action offload alone: a block is restored from where it lies");
    }
    return KV_OK;
}

static KV_RC read_rules(const struct at *at, struct kv_policy_doc *doc)
{
    const json_t *json = json_object_get(at->json, "forbid");
    struct at rules = below(at, "forbid", json);
    if (json == NULL) {
        return KV_OK;
    }
    if (!json_is_array(json) || json_array_size(json) > RULES_MAX) {
        return bad(&rules, NULL, "must be an array of at most %d rules", RULES_MAX);
    }
    for (size_t i = 0; i < json_array_size(json); i++) {
        struct at rule = item(&rules, i);
        KV_TRY(read_rule(&rule, doc, &doc->rules[doc->rule_count]));
        doc->rule_count++;
    }
    return KV_OK;
}

static KV_RC read_quota(const struct at *at, struct kv_policy_quota *quota)
{
    static const char *const known[] = {"dram_bytes", "nvme_bytes", "object_bytes", "sessions", NULL};
    const json_t *json = json_object_get(at->json, "quota");
    memset(quota, 0xff, sizeof *quota);
    if (json == NULL) {
        return KV_OK;
    }
    struct at at_quota = below(at, "quota", json);
    KV_TRY(check_members(&at_quota, known));
    if (json_object_get(json, "object_bytes") != NULL) {
        return bad(&at_quota, "object_bytes", "this build has no object tier; leave it out");
    }
    KV_TRY(get_number(&at_quota, "dram_bytes", BYTES_TOP, &quota->tier_bytes[KV_TIER_DRAM]));
    KV_TRY(get_number(&at_quota, "nvme_bytes", BYTES_TOP, &quota->tier_bytes[KV_TIER_NVME]));
    return get_number(&at_quota, "sessions", KV_MAX_TENANT_SLOTS, &quota->sessions);
}

static KV_RC read_erase(const struct at *at, struct kv_policy_doc *doc)
{
    static const char *const known[] = {"sla_seconds", "require_reason", "basis", NULL};
    const json_t *json = json_object_get(at->json, "erase");
    doc->erase_sla_s = KV_POLICY_NO_LIMIT;
    doc->bases = (1u << KV_BASES) - 1;
    if (json == NULL) {
        return KV_OK;
    }
    struct at erase = below(at, "erase", json);
    KV_TRY(check_members(&erase, known));
    KV_TRY(get_number(&erase, "sla_seconds", SECONDS_TOP, &doc->erase_sla_s));
    KV_TRY(get_bool(&erase, "require_reason", &doc->reason_required));
    return get_words(&erase, "basis", (struct words){kv_policy_basis_names, KV_BASES}, &doc->bases);
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

static KV_RC read_doc(const struct at *at, struct kv_policy_doc *doc)
{
    static const char *const known[] = {LEVEL_MEMBERS, "classes", "quota", "erase", "forbid", NULL};
    KV_TRY(check_members(at, known));
    if (json_object_get(at->json, "tiers") == NULL) {
        return bad(at, "tiers", "is required: what is not allowed is denied");
    }
    KV_TRY(read_level(at, doc, &doc->top));
    KV_TRY(check_lifetimes(at, &doc->top, &doc->top));
    KV_TRY(read_classes(at, doc));
    for (uint32_t i = 0; i < doc->class_count; i++) {
        struct at classes = below(at, "classes", NULL), class = below(&classes, doc->classes[i].name, NULL);
        KV_TRY(check_lifetimes(&class, &doc->classes[i].level, &doc->top));
    }
    KV_TRY(read_quota(at, &doc->quota));
    KV_TRY(read_erase(at, doc));
    return read_rules(at, doc);
}

/* Brackets deeper than any policy has: refused before the parser goes down them. */
static bool too_deep(struct kv_bytes text)
{
    int64_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.len; i++) {
        uint8_t c = text.data[i];
        if (quoted) {
            i += c == '\\' ? 1 : 0;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else {
            depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        }
        if (depth > KV_MAX_POLICY_DEPTH) {
            return true;
        }
    }
    return false;
}

static KV_RC load(struct kv_bytes text, struct kv_errinfo *info, json_t **ret_json)
{
    json_error_t error;
    if (text.len > (size_t)KV_MAX_POLICY_BYTES) {
        return kv_fail_at(info, KV_E_POLICY_INVALID, "", "at most %d bytes", (int)KV_MAX_POLICY_BYTES);
    }
    if (too_deep(text)) {
        return kv_fail_at(info, KV_E_POLICY_INVALID, "", "at most %d levels", (int)KV_MAX_POLICY_DEPTH);
    }
    json_t *json = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        const char *what =
            json_error_code(&error) == json_error_duplicate_key ? "a member appears twice" : "this is not valid JSON";
        return kv_fail_at(info, KV_E_POLICY_INVALID, "", "%s (line %d, column %d)", what, error.line, error.column);
    }
    *ret_json = json;
    return KV_OK;
}

KV_RC kv_policy_parse(struct kv_bytes text, enum kv_policy_level level, struct kv_errinfo *info,
                      struct kv_policy_doc **ret_doc)
{
    json_t *json = NULL;
    KV_TRY(load(text, info, &json));
    struct kv_policy_doc *doc = kv_alloc(sizeof *doc);
    struct at at = {.json = json, .info = info};
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

/* --- questions ---------------------------------------------------------------------------------------------------- */

static KV_RC get_text(const struct at *at, const char *name, char *text, size_t size)
{
    const json_t *value = json_object_get(at->json, name);
    if (value == NULL) {
        return KV_OK;
    }
    const char *given = json_string_value(value);
    if (given == NULL || json_string_length(value) >= size || given[0] == '\0') {
        return bad(at, name, "must be a text of 1 to %zu bytes", size - 1);
    }
    snprintf(text, size, "%s", given);
    return KV_OK;
}

static KV_RC read_flags(const struct at *at, struct kv_policy_facts *facts)
{
    bool strict = true, pass = true;
    KV_TRY(get_bool(at, "tenant_active", &facts->tenant_active));
    KV_TRY(get_bool(at, "session_active", &facts->session_active));
    KV_TRY(get_bool(at, "same_tenant", &facts->same_tenant));
    KV_TRY(get_bool(at, "durable", &facts->durable_asked));
    KV_TRY(get_bool(at, "reason_given", &facts->reason_given));
    KV_TRY(get_bool(at, "can_record_strict", &strict));
    KV_TRY(get_bool(at, "can_pass_dram", &pass));
    facts->obligations_known =
        (strict ? (uint32_t)KV_POLICY_RECORD_STRICT : 0) | (pass ? (uint32_t)KV_POLICY_PASS_DRAM : 0);
    return KV_OK;
}

static KV_RC read_question(const struct at *at, struct kv_policy_question *q)
{
    static const char *const known[] = {"action",
                                        "class",
                                        "model",
                                        "layout",
                                        "region",
                                        "block_bytes",
                                        "session_age_seconds",
                                        "tenant_active",
                                        "same_tenant",
                                        "durable",
                                        "basis",
                                        "reason_given",
                                        "can_record_strict",
                                        "can_pass_dram",
                                        "session_active",
                                        NULL};
    static const char *const actions[] = {"offload", "restore", "lookup", "session", "erase"};
    int action = -1, basis = KV_BASIS_OTHER;
    KV_TRY(check_members(at, known));
    KV_TRY(get_word(at, "action", (struct words){actions, KV_POLICY_ACTIONS}, &action));
    if (action < 0) {
        return bad(at, "action", "is required");
    }
    q->facts = (struct kv_policy_facts){
        .action = (enum kv_policy_action)action, .tenant_active = true, .session_active = true, .same_tenant = true};
    KV_TRY(read_flags(at, &q->facts));
    KV_TRY(get_number(at, "block_bytes", BYTES_TOP, &q->facts.block_bytes));
    KV_TRY(get_number(at, "session_age_seconds", SECONDS_TOP, &q->facts.session_age_s));
    KV_TRY(get_word(at, "basis", (struct words){kv_policy_basis_names, KV_BASES}, &basis));
    q->facts.basis = (enum kv_policy_basis)basis;
    snprintf(q->class_name, sizeof q->class_name, "default");
    KV_TRY(get_text(at, "class", q->class_name, sizeof q->class_name));
    KV_TRY(get_text(at, "model", q->model, sizeof q->model));
    KV_TRY(get_text(at, "layout", q->layout, sizeof q->layout));
    KV_TRY(get_text(at, "region", q->region, sizeof q->region));
    q->facts.names[KV_POLICY_MODEL] = kv_policy_text(q->model);
    q->facts.names[KV_POLICY_LAYOUT] = kv_policy_text(q->layout);
    q->facts.names[KV_POLICY_REGION] = kv_policy_text(q->region);
    return KV_OK;
}

KV_RC kv_policy_question_parse(struct kv_bytes text, struct kv_errinfo *info, struct kv_policy_question *ret_question)
{
    json_t *json = NULL;
    KV_TRY(load(text, info, &json));
    memset(ret_question, 0, sizeof *ret_question);
    struct at at = {.json = json, .info = info};
    enum kv_err rc = read_question(&at, ret_question);
    json_decref(json);
    return rc;
}

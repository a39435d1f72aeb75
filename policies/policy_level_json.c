/*
 * One ceiling of a policy's text: the members that the policy itself and each of its classes may have. What the grammar
 * knows and this build does not carry out is refused, and the text says so.
 */
#include "policies/policy_reader_int.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

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

static KV_RC intern(const struct kv_policy_at *at, struct doc_names *names, const char *text, uint64_t *ret_bit)
{
    uint32_t i = 0;
    while (i < names->count && strcmp(names->list[i], text) != 0) {
        i++;
    }
    if (i == NAMES_MAX) {
        return kv_policy_bad(at, NULL, "a policy names at most %d of these", NAMES_MAX);
    }
    if (i == names->count) {
        snprintf(names->list[names->count++], NAME_SIZE, "%s", text);
    }
    *ret_bit = UINT64_C(1) << i;
    return KV_OK;
}

static const char *const kind_members[KV_POLICY_LISTS] = {"models", "layouts", "regions", "scopes"};
static const char *const kind_rules[KV_POLICY_LISTS] = {"1 to 128 bytes without spaces and control characters",
                                                        "64 lower-case hex digits", "1 to 63 of a-z, 0-9 and -",
                                                        "1 to 128 bytes without spaces and control characters"};

KV_RC kv_policy_get_names(const struct kv_policy_at *at, enum kv_policy_kind kind, struct doc_names *names,
                          uint64_t *ret_mask, bool *ret_given)
{
    struct kv_policy_at array;
    uint64_t mask = 0;
    KV_TRY(kv_policy_get_array(at, kind_members[kind], &array));
    for (size_t i = 0; i < json_array_size(array.json); i++) {
        struct kv_policy_at one = kv_policy_item(&array, i);
        const char *text = json_string_value(one.json);
        uint64_t bit = 0;
        if (text == NULL || !name_fits(kind, text, json_string_length(one.json))) {
            return kv_policy_bad(&one, NULL, "must be %s", kind_rules[kind]);
        }
        KV_TRY(intern(&one, names, text, &bit));
        if ((mask & bit) != 0) {
            return kv_policy_bad(&one, NULL, "is named twice");
        }
        mask |= bit;
    }
    *ret_mask = mask;
    *ret_given = array.json != NULL;
    return KV_OK;
}

/* --- one ceiling -------------------------------------------------------------------------------------------------- */

static KV_RC read_tiers(const struct kv_policy_at *at, struct level *level)
{
    static const char *const known[] = {"dram", "nvme", "object", NULL};
    static const char *const members[] = {"max_bytes", "ttl_seconds", NULL};
    const json_t *json = json_object_get(at->json, "tiers");
    if (json == NULL) {
        return KV_OK;
    }
    struct kv_policy_at tiers = kv_policy_below(at, "tiers", json);
    KV_TRY(kv_policy_check_members(&tiers, known));
    level->tiers_given = true;
    for (unsigned t = KV_TIER_DRAM; t < KV_POLICY_TIERS; t++) {
        const json_t *value = json_object_get(json, kv_policy_tier_names[t]);
        if (value == NULL) {
            continue;
        }
        struct kv_policy_at tier = kv_policy_below(&tiers, kv_policy_tier_names[t], value);
        if (t == KV_TIER_OBJECT) {
            return kv_policy_bad(&tier, NULL, "this build has no object tier; leave it out");
        }
        KV_TRY(kv_policy_check_members(&tier, members));
        KV_TRY(kv_policy_get_number(&tier, "max_bytes", BYTES_TOP, &level->limits.tier_bytes[t]));
        KV_TRY(kv_policy_get_number(&tier, "ttl_seconds", SECONDS_TOP, &level->limits.tier_ttl_s[t]));
        level->tiers |= 1u << t;
    }
    return KV_OK;
}

static KV_RC read_session(const struct kv_policy_at *at, struct kv_policy_limits *limits)
{
    static const char *const known[] = {"max_age_seconds", "max_idle_seconds", "max_bytes", "max_blocks", NULL};
    const json_t *json = json_object_get(at->json, "session");
    if (json == NULL) {
        return KV_OK;
    }
    struct kv_policy_at session = kv_policy_below(at, "session", json);
    KV_TRY(kv_policy_check_members(&session, known));
    KV_TRY(kv_policy_get_number(&session, "max_age_seconds", SECONDS_TOP, &limits->age_s));
    KV_TRY(kv_policy_get_number(&session, "max_idle_seconds", SECONDS_TOP, &limits->idle_s));
    KV_TRY(kv_policy_get_number(&session, "max_bytes", BYTES_TOP, &limits->session_bytes));
    return kv_policy_get_number(&session, "max_blocks", BYTES_TOP, &limits->session_blocks);
}

static KV_RC read_modes(const struct kv_policy_at *at, struct level *level)
{
    static const char *const durability[] = {"durable", "ephemeral"}, *const recording[] = {"strict", "batched"};
    int restore = -1, data_class = -1;
    KV_TRY(kv_policy_get_only(at, "key_durability", (struct kv_policy_words){durability, 2},
                              "this build has durable keys only; leave it out or say \"durable\""));
    KV_TRY(
        kv_policy_get_only(at, "recording", (struct kv_policy_words){recording, 2},
                           "this build makes each record durable before it answers; leave it out or say \"strict\""));
    KV_TRY(kv_policy_get_word(at, "restore", (struct kv_policy_words){kv_policy_restore_names, 3}, &restore));
    KV_TRY(kv_policy_get_word(at, "data_class", (struct kv_policy_words){kv_policy_data_class_names, KV_DATA_CLASSES},
                              &data_class));
    level->restore_given = restore >= 0;
    level->restore = restore >= 0 ? (uint8_t)restore : 0;
    level->data_class_given = data_class >= 0;
    level->data_class = data_class >= 0 ? (uint8_t)data_class : 0;
    return json_object_get(at->json, "buckets") == NULL
               ? KV_OK
               : kv_policy_bad(at, "buckets", "this build has no object tier and so no buckets; leave it out");
}

static KV_RC read_mode(const struct kv_policy_at *at, const char *name, struct level *level)
{
    static const char *const modes[] = {"none", "scope", "tenant"};
    int mode = -1;
    KV_TRY(kv_policy_get_word(at, name, (struct kv_policy_words){modes, 3}, &mode));
    level->sharing_given = mode >= 0;
    level->sharing = mode == 1;
    return mode < 2 ? KV_OK
                    : kv_policy_bad(at, name, "this build shares blocks through declared scopes only: say \"scope\"");
}

/* A word, or an object with more to say. */
static KV_RC read_sharing(const struct kv_policy_at *at, struct kv_policy_doc *doc, struct level *level)
{
    static const char *const known[] = {"mode", "scopes", "on_erase", NULL}, *const on_erase[] = {"cascade", "retain"};
    const json_t *json = json_object_get(at->json, "sharing");
    int what = -1;
    if (json == NULL || json_is_string(json)) {
        return read_mode(at, "sharing", level);
    }
    struct kv_policy_at sharing = kv_policy_below(at, "sharing", json);
    KV_TRY(kv_policy_check_members(&sharing, known));
    KV_TRY(read_mode(&sharing, "mode", level));
    KV_TRY(kv_policy_get_names(&sharing, KV_POLICY_SCOPE, &doc->names[KV_POLICY_SCOPE], &level->names[KV_POLICY_SCOPE],
                               &level->given[KV_POLICY_SCOPE]));
    KV_TRY(kv_policy_get_word(&sharing, "on_erase", (struct kv_policy_words){on_erase, 2}, &what));
    level->on_erase_given = what >= 0;
    level->retain_shared = what == 1;
    return KV_OK;
}

void kv_policy_no_limits(struct kv_policy_limits *limits)
{
    memset(limits, 0xff, sizeof *limits); /* KV_POLICY_NO_LIMIT, all of them */
}

KV_RC kv_policy_read_level(const struct kv_policy_at *at, struct kv_policy_doc *doc, struct level *level)
{
    kv_policy_no_limits(&level->limits);
    KV_TRY(read_tiers(at, level));
    KV_TRY(read_session(at, &level->limits));
    KV_TRY(kv_policy_get_number(at, "max_block_bytes", KV_MAX_BLOCK_BYTES, &level->limits.block_bytes));
    for (unsigned kind = 0; kind < KV_POLICY_KINDS; kind++) {
        KV_TRY(kv_policy_get_names(at, (enum kv_policy_kind)kind, &doc->names[kind], &level->names[kind],
                                   &level->given[kind]));
    }
    KV_TRY(read_sharing(at, doc, level));
    return read_modes(at, level);
}

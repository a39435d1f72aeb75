/*
 * See policy_reader_int.h. Must never echo a value.
 */
#include "policies/policy_reader_int.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A fault at the member `name` of `at`, or at `at` itself. */
KV_RC kv_policy_bad(const struct kv_policy_at *at, const char *name, const char *format, ...)
{
    char pointer[POINTER_SIZE + 48], text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(pointer, sizeof pointer, "%s%s%s", at->pointer, name == NULL ? "" : "/", name == NULL ? "" : name);
    return kv_fail_at(at->info, KV_E_POLICY_INVALID, pointer, "%s", text);
}

struct kv_policy_at kv_policy_below(const struct kv_policy_at *at, const char *name, const json_t *json)
{
    struct kv_policy_at inner = {.json = json, .info = at->info};
    size_t used = strlen(at->pointer);
    memcpy(inner.pointer, at->pointer, used);
    snprintf(inner.pointer + used, sizeof inner.pointer - used, "/%s", name);
    return inner;
}

struct kv_policy_at kv_policy_item(const struct kv_policy_at *at, size_t index)
{
    char name[24];
    snprintf(name, sizeof name, "%zu", index);
    return kv_policy_below(at, name, json_array_get(at->json, index));
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static bool plain_name(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= 40 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == len;
}

/* Only what looks like a name of ours is shown; anything else may be what must not be shown. */
static KV_RC unknown_member(const struct kv_policy_at *at, const char *name, const char *const *known)
{
    unsigned best = 4;
    const char *nearest = NULL;
    if (!plain_name(name)) {
        return kv_policy_bad(at, NULL, "there is an unknown member");
    }
    for (size_t i = 0; known[i] != NULL; i++) {
        unsigned away = kv_edit_distance(name, known[i]);
        if (away < best) {
            best = away;
            nearest = known[i];
        }
    }
    return nearest == NULL ? kv_policy_bad(at, name, "unknown member")
                           : kv_policy_bad(at, name, "unknown member; did you mean \"%s\"?", nearest);
}

KV_RC kv_policy_check_members(const struct kv_policy_at *at, const char *const *known)
{
    if (!json_is_object(at->json)) {
        return kv_policy_bad(at, NULL, "must be an object");
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
KV_RC kv_policy_get_number(const struct kv_policy_at *at, const char *name, int64_t most, uint64_t *ret)
{
    const json_t *value = json_object_get(at->json, name);
    if (value == NULL) {
        return KV_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > most) {
        return kv_policy_bad(at, name, "must be a whole number, 1 to %" PRId64, most);
    }
    *ret = (uint64_t)json_integer_value(value);
    return KV_OK;
}

KV_RC kv_policy_get_bool(const struct kv_policy_at *at, const char *name, bool *ret)
{
    const json_t *value = json_object_get(at->json, name);
    if (value != NULL && !json_is_boolean(value)) {
        return kv_policy_bad(at, name, "must be true or false");
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

KV_RC kv_policy_get_word(const struct kv_policy_at *at, const char *name, struct kv_policy_words words, int *ret)
{
    const json_t *value = json_object_get(at->json, name);
    if (value == NULL) {
        return KV_OK;
    }
    int word = word_of(value, words.list, words.count);
    if (word < 0) {
        char all[120];
        list_words(all, sizeof all, words.list, words.count);
        return kv_policy_bad(at, name, "must be one of %s", all);
    }
    *ret = word;
    return KV_OK;
}

KV_RC kv_policy_get_array(const struct kv_policy_at *at, const char *name, struct kv_policy_at *ret_array)
{
    *ret_array = kv_policy_below(at, name, json_object_get(at->json, name));
    if (ret_array->json != NULL && (!json_is_array(ret_array->json) || json_array_size(ret_array->json) == 0)) {
        return kv_policy_bad(ret_array, NULL,
                             "must be an array with at least one item; leave it out for no restriction");
    }
    return KV_OK;
}

/* A set of words as a mask of their places. Absent: `ret` stays. */
KV_RC kv_policy_get_words(const struct kv_policy_at *at, const char *name, struct kv_policy_words words,
                          uint32_t *ret_mask)
{
    struct kv_policy_at array;
    uint32_t mask = 0;
    KV_TRY(kv_policy_get_array(at, name, &array));
    for (size_t i = 0; i < json_array_size(array.json); i++) {
        struct kv_policy_at one = kv_policy_item(&array, i);
        int word = word_of(one.json, words.list, words.count);
        if (word < 0) {
            char all[120];
            list_words(all, sizeof all, words.list, words.count);
            return kv_policy_bad(&one, NULL, "must be one of %s", all);
        }
        if ((mask & 1u << word) != 0) {
            return kv_policy_bad(&one, NULL, "is named twice");
        }
        mask |= 1u << word;
    }
    *ret_mask = array.json == NULL ? *ret_mask : mask;
    return KV_OK;
}

/* A member of which this build knows one value only. */
KV_RC kv_policy_get_only(const struct kv_policy_at *at, const char *name, struct kv_policy_words words, const char *why)
{
    int word = 0;
    KV_TRY(kv_policy_get_word(at, name, words, &word));
    return word == 0 ? KV_OK : kv_policy_bad(at, name, "%s", why);
}

KV_RC kv_policy_get_text(const struct kv_policy_at *at, const char *name, char *text, size_t size)
{
    const json_t *value = json_object_get(at->json, name);
    if (value == NULL) {
        return KV_OK;
    }
    const char *given = json_string_value(value);
    if (given == NULL || json_string_length(value) >= size || given[0] == '\0') {
        return kv_policy_bad(at, name, "must be a text of 1 to %zu bytes", size - 1);
    }
    snprintf(text, size, "%s", given);
    return KV_OK;
}

/* --- the text ----------------------------------------------------------------------------------------------------- */

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

KV_RC kv_policy_load(struct kv_bytes text, struct kv_errinfo *info, json_t **ret_json)
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

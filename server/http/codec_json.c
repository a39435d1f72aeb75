/*
 * Strict decoding over jansson. What the library accepts and the contract does not is refused here: depth before
 * parsing, reals where integers belong, control characters in texts. Must never echo a value: it may be a secret in the
 * wrong place.
 */
#include "server/http/codec.h"

#include "dataplane/base/mem.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static json_t *as_json(kv_value *value)
{
    return (json_t *)(uintptr_t)value; /* kv_json is json_t under another name, so that jansson stays in this file */
}

static kv_value *as_value(const json_t *json)
{
    return (kv_value *)(const void *)json;
}

/* Brackets nested deeper than the limit, and more values than it, outside of strings. */
static KV_RC check_shape(struct kv_bytes body, struct kv_errinfo *info)
{
    int64_t depth = 0, members = 0;
    bool text = false;
    for (size_t i = 0; i < body.len; i++) {
        uint8_t c = body.data[i];
        if (text) {
            i += c == '\\' ? 1 : 0;
            text = c != '"';
        } else if (c == '"') {
            text = true;
        } else if (c == '{' || c == '[') {
            depth++;
            members++;
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == ',') {
            members++;
        }
        if (depth > KV_MAX_JSON_DEPTH || members > KV_MAX_JSON_MEMBERS) {
            return kv_fail_at(info, KV_E_INVALID_REQUEST, "", "at most %d levels and %d values", (int)KV_MAX_JSON_DEPTH,
                              (int)KV_MAX_JSON_MEMBERS);
        }
    }
    return KV_OK;
}

KV_RC kv_json_parse(struct kv_bytes body, struct kv_errinfo *info, struct kv_json **ret_json)
{
    json_error_t error;
    if (body.len == 0) {
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "", "the body must be a JSON object; this one is empty");
    }
    KV_TRY(check_shape(body, info));
    json_t *json = json_loadb((const char *)body.data, body.len, JSON_REJECT_DUPLICATES, &error);
    if (json == NULL) {
        const char *what = json_error_code(&error) == json_error_duplicate_key ? "a member appears twice"
                                                                               : "the body is not valid JSON";
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "", "%s (line %d, column %d)", what, error.line, error.column);
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "", "the body must be a JSON object");
    }
    *ret_json = (struct kv_json *)(void *)json;
    return KV_OK;
}

void kv_json_free(struct kv_json *json)
{
    json_decref((json_t *)(void *)json);
}

/* --- the check --------------------------------------------------------------------------------------------------- */

static const struct kv_field *field_of(const struct kv_field *fields, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            return &fields[i];
        }
    }
    return NULL;
}

static KV_RC bad_field(struct kv_errinfo *info, const char *pointer, const char *name, const char *text)
{
    char at[128];
    snprintf(at, sizeof at, "%s/%s", pointer, name);
    return kv_fail_at(info, KV_E_INVALID_REQUEST, at, "%s", text);
}

static KV_RC out_of_range(const struct kv_field *field, const char *pointer, const char *unit, struct kv_errinfo *info)
{
    char text[96];
    snprintf(text, sizeof text, "must be %" PRId64 " to %" PRId64 "%s", field->min, field->max, unit);
    return bad_field(info, pointer, field->name, text);
}

static bool in_range(const struct kv_field *field, int64_t number)
{
    return number >= field->min && number <= field->max;
}

static bool plain_text(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

static KV_RC check_text(const json_t *value, const struct kv_field *field, const char *pointer, struct kv_errinfo *info)
{
    const char *text = json_string_value(value);
    if (text == NULL) {
        return bad_field(info, pointer, field->name, "must be a text");
    }
    size_t len = json_string_length(value);
    if (!in_range(field, (int64_t)len)) {
        return out_of_range(field, pointer, " bytes long", info);
    }
    if (!plain_text(text, len)) {
        return bad_field(info, pointer, field->name, "must not hold control characters");
    }
    char word[80];
    if (field->words != NULL && (snprintf(word, sizeof word, "|%s|", text) >= (int)sizeof word ||
                                 strchr(text, '|') != NULL || strstr(field->words, word) == NULL)) {
        char allowed[160];
        snprintf(allowed, sizeof allowed, "must be one of %.*s", (int)strlen(field->words) - 2, field->words + 1);
        return bad_field(info, pointer, field->name, allowed);
    }
    return KV_OK;
}

static KV_RC check_field(const json_t *value, const struct kv_field *field, const char *pointer,
                         struct kv_errinfo *info)
{
    if ((field->type & KV_H_IMMUTABLE) != 0) {
        char at[128];
        snprintf(at, sizeof at, "%s/%s", pointer, field->name);
        return kv_fail_at(info, KV_E_IMMUTABLE_FIELD, at, "cannot be changed; leave it out");
    }
    if ((field->type & KV_H_NULLABLE) != 0 && json_is_null(value)) {
        return KV_OK;
    }
    switch (field->type & KV_FIELD_TYPE_MASK) {
    case KV_TEXT:
        return check_text(value, field, pointer, info);
    case KV_INT:
        if (!json_is_integer(value)) {
            return bad_field(info, pointer, field->name, "must be a whole number");
        }
        return in_range(field, json_integer_value(value)) ? KV_OK : out_of_range(field, pointer, "", info);
    case KV_OBJECT:
        return json_is_object(value) ? KV_OK : bad_field(info, pointer, field->name, "must be an object");
    case KV_BOOL:
        return json_is_boolean(value) ? KV_OK : bad_field(info, pointer, field->name, "must be true or false");
    case KV_ARRAY:
        if (!json_is_array(value)) {
            return bad_field(info, pointer, field->name, "must be an array");
        }
        return in_range(field, (int64_t)json_array_size(value)) ? KV_OK : out_of_range(field, pointer, " items", info);
    }
    return KV_E_INTERNAL;
}

/* A name of ours, misspelt, is shown; anything else may be what must not be shown, and the place has to do. */
static KV_RC unknown_member(struct kv_errinfo *info, const char *pointer, const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len > 40 || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != len) {
        return kv_fail_at(info, KV_E_INVALID_REQUEST, pointer, "there is an unknown member");
    }
    return bad_field(info, pointer, name, "unknown member");
}

KV_RC kv_json_check(kv_value *value, const char *pointer, const struct kv_field *fields, size_t count,
                    struct kv_errinfo *info)
{
    const char *name = NULL;
    json_t *member = NULL;
    json_object_foreach(as_json(value), name, member)
    {
        const struct kv_field *field = field_of(fields, count, name);
        if (field == NULL) {
            return unknown_member(info, pointer, name);
        }
        KV_TRY(check_field(member, field, pointer, info));
    }
    for (size_t i = 0; i < count; i++) {
        if (fields[i].required && json_object_get(as_json(value), fields[i].name) == NULL) {
            return bad_field(info, pointer, fields[i].name, "is required");
        }
    }
    return KV_OK;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

kv_value *kv_json_get(kv_value *object, const char *name)
{
    return as_value(json_object_get(as_json(object), name));
}

const char *kv_json_text(kv_value *object, const char *name)
{
    return json_string_value(as_json(kv_json_get(object, name)));
}

int64_t kv_json_int(kv_value *object, const char *name, int64_t fallback)
{
    const json_t *value = as_json(kv_json_get(object, name));
    return json_is_integer(value) ? json_integer_value(value) : fallback;
}

bool kv_json_bool(kv_value *object, const char *name, bool fallback)
{
    const json_t *value = as_json(kv_json_get(object, name));
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

bool kv_json_is_null(kv_value *object, const char *name)
{
    return json_is_null(as_json(kv_json_get(object, name)));
}

bool kv_json_value_is_null(kv_value *value)
{
    return json_is_null(as_json(value));
}

kv_value *kv_json_next(kv_value *object, void **iterator, const char **ret_name)
{
    json_t *json = as_json(object);
    void *at = *iterator == NULL ? json_object_iter(json) : json_object_iter_next(json, *iterator);
    *iterator = at;
    *ret_name = at == NULL ? NULL : json_object_iter_key(at);
    return at == NULL ? NULL : as_value(json_object_iter_value(at));
}

static int append_text(const char *text, size_t len, void *ctx)
{
    kv_buf_append(ctx, text, len);
    return 0;
}

KV_RC kv_json_canonical(kv_value *value, struct kv_buf *ret_text)
{
    if (json_dump_callback(as_json(value), append_text, ret_text, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) !=
        0) {
        return KV_E_NO_MEMORY;
    }
    return kv_buf_check(ret_text);
}

size_t kv_json_len(kv_value *array)
{
    return json_array_size(as_json(array));
}

kv_value *kv_json_at(kv_value *array, size_t index)
{
    return as_value(json_array_get(as_json(array), index));
}

const char *kv_json_as_text(kv_value *value)
{
    return json_string_value(as_json(value));
}

bool kv_json_as_int(kv_value *value, int64_t *ret_number)
{
    if (!json_is_integer(as_json(value))) {
        return false;
    }
    *ret_number = json_integer_value(as_json(value));
    return true;
}

bool kv_json_is_object(kv_value *value)
{
    return json_is_object(as_json(value));
}

KV_RC kv_json_id(kv_value *object, const char *pointer, const char *name, const char *prefix, struct kv_id *ret_id,
                 struct kv_errinfo *info)
{
    const char *text = kv_json_text(object, name);
    if (text == NULL || kv_id_parse(prefix, text, ret_id) != KV_OK) {
        char what[64];
        snprintf(what, sizeof what, "must be an id like %s_...", prefix);
        return bad_field(info, pointer, name, what);
    }
    return KV_OK;
}

KV_RC kv_json_hash(kv_value *object, const char *pointer, const char *name, uint8_t ret_hash[32],
                   struct kv_errinfo *info)
{
    const char *text = kv_json_text(object, name);
    if (text == NULL || kv_hex_decode(text, ret_hash, 32) != KV_OK) {
        return bad_field(info, pointer, name, "must be 64 lower-case hex digits");
    }
    return KV_OK;
}

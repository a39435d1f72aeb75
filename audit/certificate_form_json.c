/*
 * Holds JSON objects against tables of members. Must never let a member pass that the table does not have: what a
 * person reads in a valid certificate was checked.
 */
#include "audit/certificate_form_int.h"

#include "audit/emit_int.h"
#include "audit/text_int.h"

#include <jansson.h>
#include <string.h>

bool kv_form_is_text(const json_t *value, const char *expected)
{
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        !kv_text_printable(json_string_value(value), json_string_length(value))) {
        return false;
    }
    return expected == NULL || strcmp(json_string_value(value), expected) == 0;
}

static bool is_id(const json_t *value, const char *prefix)
{
    struct kv_id id;
    return kv_form_is_text(value, NULL) && kv_id_parse(prefix, json_string_value(value), &id) == KV_OK;
}

static bool is_time(const json_t *value)
{
    static const char form[] = "0000-00-00T00:00:00.000000Z";
    if (!kv_form_is_text(value, NULL) || json_string_length(value) != sizeof(form) - 1) {
        return false;
    }
    const char *text = json_string_value(value);
    for (size_t i = 0; i < sizeof(form) - 1; i++) {
        bool digit = text[i] >= '0' && text[i] <= '9';
        if (form[i] == '0' ? !digit : text[i] != form[i]) {
            return false;
        }
    }
    return true;
}

static bool is_hex(const json_t *value)
{
    uint8_t hash[32];
    return kv_form_is_text(value, NULL) && json_string_length(value) == 64 &&
           kv_hex_decode(json_string_value(value), hash, sizeof(hash)) == KV_OK;
}

bool kv_form_decimal(const json_t *value, uint64_t *ret_value)
{
    return kv_form_is_text(value, NULL) &&
           kv_text_u64(KV_BYTES(json_string_value(value), json_string_length(value)), ret_value) == KV_OK;
}

static bool is_integer(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           (uint64_t)json_integer_value(value) < KV_JSON_INTEGER_END;
}

static bool member_is_good(const json_t *value, const struct kv_member *member)
{
    uint64_t number;
    switch (member->kind) {
    case KV_FORM_TEXT:
        return kv_form_is_text(value, NULL);
    case KV_FORM_FIXED:
        return kv_form_is_text(value, member->arg);
    case KV_FORM_ID:
        return is_id(value, member->arg);
    case KV_FORM_TIME:
        return is_time(value);
    case KV_FORM_HEX:
        return is_hex(value);
    case KV_FORM_DECIMAL:
        return kv_form_decimal(value, &number);
    case KV_FORM_INTEGER:
        return is_integer(value);
    case KV_FORM_TRUE:
        return json_is_true(value);
    case KV_FORM_PART:
        break;
    }
    return json_is_object(value) || json_is_array(value);
}

KV_RC kv_form_object(const json_t *object, const char *where, const struct kv_member *members, struct kv_errinfo *info)
{
    if (!json_is_object(object)) {
        return kv_fail(info, KV_E_TAMPERED, "%s is not an object", where);
    }
    size_t seen = 0;
    for (const struct kv_member *member = members; member->name != NULL; member++) {
        const json_t *value = json_object_get(object, member->name);
        if (value == NULL && member->optional) {
            continue;
        }
        if (value == NULL || !member_is_good(value, member)) {
            return kv_fail(info, KV_E_TAMPERED, "%s/%s is %s", where, member->name,
                           value == NULL ? "missing" : "not what it has to be");
        }
        seen++;
    }
    if (seen != json_object_size(object)) {
        return kv_fail(info, KV_E_TAMPERED, "%s has a member that version 1 does not have",
                       where[0] == '\0' ? "the payload" : where);
    }
    return KV_OK;
}

KV_RC kv_form_array(const json_t *array, const char *where, const struct kv_member *members, struct kv_errinfo *info)
{
    if (!json_is_array(array) || json_array_size(array) > 64) {
        return kv_fail(info, KV_E_TAMPERED, "%s is not a short array", where);
    }
    for (size_t i = 0; i < json_array_size(array); i++) {
        KV_TRY(kv_form_object(json_array_get(array, i), where, members, info));
    }
    return KV_OK;
}

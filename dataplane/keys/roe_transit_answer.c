/*
 * Reading the few things that are asked of a transit engine's answers, without a copy: one of them is a root. Only
 * members by name are looked for, wherever they stand; what is read is then checked for its exact form, and a root for
 * the bytes that were sealed with it.
 */
#include "dataplane/keys/roe_transit_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HEX_DIGITS 32
#define FENCE_DIGITS_MAX 19

static const char *past_blanks(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

const char *kv_transit_member(const char *answer, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = strchr(answer, '"'); at != NULL; at = strchr(at + 1, '"')) {
        if (strncmp(at + 1, name, len) != 0 || at[1 + len] != '"') {
            continue;
        }
        const char *colon = past_blanks(at + len + 2);
        if (*colon == ':') {
            return past_blanks(colon + 1);
        }
    }
    return NULL;
}

bool kv_transit_is_true(const char *answer, const char *name)
{
    const char *value = kv_transit_member(answer, name);
    return value != NULL && strncmp(value, "true", 4) == 0;
}

bool kv_transit_is_false(const char *answer, const char *name)
{
    const char *value = kv_transit_member(answer, name);
    return value != NULL && strncmp(value, "false", 5) == 0;
}

static bool digits(const char *text, uint64_t *ret_number, size_t *ret_len)
{
    uint64_t number = 0;
    size_t len = 0;
    for (; text[len] >= '0' && text[len] <= '9' && len <= FENCE_DIGITS_MAX; len++) {
        number = number * 10 + (uint64_t)(text[len] - '0');
    }
    if (len == 0 || len > FENCE_DIGITS_MAX || (text[0] == '0' && len > 1)) {
        return false;
    }
    *ret_number = number;
    *ret_len = len;
    return true;
}

bool kv_transit_number(const char *answer, const char *name, uint64_t *ret_number)
{
    const char *value = kv_transit_member(answer, name);
    uint64_t number = 0;
    size_t len = 0;
    if (value == NULL || !digits(value, &number, &len) || strchr(",} \t\r\n", value[len]) == NULL ||
        value[len] == '\0') {
        return false;
    }
    *ret_number = number;
    return true;
}

bool kv_transit_string(const char *answer, const char *name, const char **ret_text, size_t *ret_len)
{
    const char *value = kv_transit_member(answer, name);
    if (value == NULL || *value != '"') {
        return false;
    }
    size_t len = strcspn(value + 1, "\"\\");
    if (value[1 + len] != '"') {
        return false;
    }
    *ret_text = value + 1;
    *ret_len = len;
    return true;
}

static bool parse_name(const char *text, size_t prefix, struct kv_roe_key *ret_key, size_t *ret_len)
{
    char hex[HEX_DIGITS + 1];
    size_t len = 0;
    struct kv_roe_key key = {0};
    if (strnlen(text, prefix + HEX_DIGITS + 1) <= prefix + HEX_DIGITS) {
        return false;
    }
    memcpy(hex, text + prefix, HEX_DIGITS);
    hex[HEX_DIGITS] = '\0';
    const char *fence = text + prefix + HEX_DIGITS + 1;
    if (fence[-1] != '-' || kv_hex_decode(hex, key.id.b, sizeof key.id.b) != KV_OK ||
        !digits(fence, &key.fence, &len) || fence[len] != '"') {
        return false;
    }
    *ret_key = key;
    *ret_len = prefix + HEX_DIGITS + 1 + len;
    return true;
}

bool kv_transit_next_name(const char **at, const char *prefix, struct kv_roe_key *ret_key)
{
    size_t prefix_len = strlen(prefix), len = 0;
    for (const char *quote = strchr(*at, '"'); quote != NULL; quote = strchr(quote + 1, '"')) {
        if (strncmp(quote + 1, prefix, prefix_len) == 0 && parse_name(quote + 1, prefix_len, ret_key, &len)) {
            *at = quote + len + 2;
            return true;
        }
    }
    return false;
}

bool kv_transit_name(const char *prefix, const struct kv_id *id, uint64_t fence, char ret_name[KV_TRANSIT_NAME_BYTES])
{
    char hex[HEX_DIGITS + 1];
    kv_hex_encode(id->b, sizeof id->b, hex);
    return snprintf(ret_name, KV_TRANSIT_NAME_BYTES, "%s%s-%" PRIu64, prefix, hex, fence) < KV_TRANSIT_NAME_BYTES;
}

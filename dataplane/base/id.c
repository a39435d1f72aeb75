/*
 * Ids. Never guesses at a spelling: what kv_id_text would not have written is refused.
 */
#include "dataplane/base/id.h"

#include "dataplane/base/check.h"

#include <string.h>

#define DIGITS 26

/* Crockford's alphabet, lower case: no i, l, o, u. */
static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

enum kv_err kv_id_new(const struct kv_env *env, struct kv_id *ret_id)
{
    struct kv_id id;
    KV_TRY(env->random(env->ctx, id.b, sizeof(id.b)));
    uint64_t us = env->realtime_us(env->ctx);
    uint64_t ms = us / 1000;
    for (unsigned i = 0; i < 6; i++) {
        id.b[i] = (uint8_t)(ms >> (40 - 8 * i));
    }
    /* RFC 9562 section 6.2, method 3: rand_a carries the fraction of the millisecond, so that ids sort by the
     * microsecond without a counter, which would be state shared by all threads. */
    uint64_t fraction = us % 1000 * 4096 / 1000;
    id.b[6] = (uint8_t)(0x70 | fraction >> 8);
    id.b[7] = (uint8_t)fraction;
    id.b[8] = (uint8_t)(0x80 | (id.b[8] & 0x3f));
    *ret_id = id;
    return KV_OK;
}

/* Bit `index` counted from the top of the 130 that 26 digits carry; the first two are always zero. */
static unsigned bit_of(const struct kv_id *id, unsigned index)
{
    if (index < 2) {
        return 0;
    }
    unsigned at = index - 2;
    return (unsigned)id->b[at / 8] >> (7 - at % 8) & 1;
}

void kv_id_text(const char *prefix, const struct kv_id *id, char text[KV_ID_TEXT_SIZE])
{
    size_t prefix_len = strlen(prefix);
    KV_ASSERT(prefix_len >= 1 && prefix_len <= 3);
    memcpy(text, prefix, prefix_len);
    text[prefix_len] = '_';
    char *out = text + prefix_len + 1;
    for (unsigned i = 0; i < DIGITS; i++) {
        unsigned value = 0;
        for (unsigned k = 0; k < 5; k++) {
            value = value << 1 | bit_of(id, 5 * i + k);
        }
        out[i] = alphabet[value];
    }
    out[DIGITS] = '\0';
}

static int digit_value(char c)
{
    const char *found = c != '\0' ? strchr(alphabet, c) : NULL;
    return found != NULL ? (int)(found - alphabet) : -1;
}

/* Exactly 26 digits of which the first is at most 7: more would not fit into 128 bits. */
static bool decode(const char *digits, struct kv_id *ret_id)
{
    struct kv_id id = {0};
    for (unsigned i = 0; i < DIGITS; i++) {
        int value = digit_value(digits[i]);
        if (value < 0 || (i == 0 && value > 7)) {
            return false;
        }
        for (unsigned k = 0; k < 5; k++) {
            unsigned index = 5 * i + k;
            if (index >= 2 && ((unsigned)value >> (4 - k) & 1) != 0) {
                id.b[(index - 2) / 8] |= (uint8_t)(1u << (7 - (index - 2) % 8));
            }
        }
    }
    if (digits[DIGITS] != '\0') {
        return false;
    }
    *ret_id = id;
    return true;
}

enum kv_err kv_id_parse(const char *prefix, const char *text, struct kv_id *ret_id)
{
    size_t prefix_len = strlen(prefix);
    KV_ASSERT(prefix_len >= 1 && prefix_len <= 3);
    if (strncmp(text, prefix, prefix_len) != 0 || text[prefix_len] != '_') {
        return KV_E_INVALID_REQUEST;
    }
    return decode(text + prefix_len + 1, ret_id) ? KV_OK : KV_E_INVALID_REQUEST;
}

bool kv_id_equal(const struct kv_id *a, const struct kv_id *b)
{
    return kv_id_compare(a, b) == 0;
}

bool kv_id_is_zero(const struct kv_id *id)
{
    static const struct kv_id zero;
    return kv_id_equal(id, &zero);
}

int kv_id_compare(const struct kv_id *a, const struct kv_id *b)
{
    return memcmp(a->b, b->b, sizeof(a->b));
}

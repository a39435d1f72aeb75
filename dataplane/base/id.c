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

/* The id as a number of 128 bits: 26 digits of five bits, the first one of three. */
struct number {
    uint64_t high, low;
};

static uint64_t read_half(const uint8_t b[8])
{
    uint64_t half = 0;
    for (unsigned i = 0; i < 8; i++) {
        half = half << 8 | b[i];
    }
    return half;
}

static void write_half(uint64_t half, uint8_t b[8])
{
    for (unsigned i = 8; i-- > 0; half >>= 8) {
        b[i] = (uint8_t)half;
    }
}

void kv_id_text(const char *prefix, const struct kv_id *id, char text[KV_ID_TEXT_SIZE])
{
    size_t prefix_len = strlen(prefix);
    KV_ASSERT(prefix_len >= 1 && prefix_len <= 3);
    memcpy(text, prefix, prefix_len);
    text[prefix_len] = '_';
    char *out = text + prefix_len + 1;
    struct number rest = {.high = read_half(id->b), .low = read_half(id->b + 8)};
    for (unsigned i = DIGITS; i-- > 0;) {
        out[i] = alphabet[rest.low & 31];
        rest.low = rest.low >> 5 | rest.high << 59;
        rest.high >>= 5;
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
    struct number number = {0};
    for (unsigned i = 0; i < DIGITS; i++) {
        int value = digit_value(digits[i]);
        if (value < 0 || (i == 0 && value > 7)) {
            return false;
        }
        number.high = number.high << 5 | number.low >> 59;
        number.low = number.low << 5 | (unsigned)value;
    }
    if (digits[DIGITS] != '\0') {
        return false;
    }
    write_half(number.high, ret_id->b);
    write_half(number.low, ret_id->b + 8);
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

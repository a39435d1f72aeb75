/*
 * Text codecs of bytes.h: numbers, hex, base64, base64url, UTF-8; and how far two words are apart. Never accepts a
 * second spelling of a value, and writes no result before the whole text is known to be good.
 */
#include "dataplane/base/bytes.h"

#include "dataplane/base/check.h"
#include "dataplane/base/text_int.h"

#include <string.h>

size_t kv_digits(uint64_t number, char digits[KV_DIGITS_SIZE])
{
    char reversed[KV_DIGITS_SIZE];
    size_t len = 0;
    do {
        reversed[len++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    for (size_t i = 0; i < len; i++) {
        digits[i] = reversed[len - 1 - i];
    }
    return len;
}

static const char hex_digits[] = "0123456789abcdef";

void kv_hex_encode(const void *data, size_t len, char *text)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = hex_digits[p[i] >> 4];
        text[2 * i + 1] = hex_digits[p[i] & 15];
    }
    text[2 * len] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

enum kv_err kv_hex_decode(const char *text, void *ret_data, size_t len)
{
    KV_ASSERT(len <= SIZE_MAX / 2);
    for (size_t i = 0; i < 2 * len; i++) {
        /* The terminator is no digit, so a short text stops here and is not read past its end. */
        if (hex_value(text[i]) < 0) {
            return KV_E_INVALID_REQUEST;
        }
    }
    if (text[2 * len] != '\0') {
        return KV_E_INVALID_REQUEST;
    }
    uint8_t *p = ret_data;
    for (size_t i = 0; i < len; i++) {
        p[i] = (uint8_t)(hex_value(text[2 * i]) << 4 | hex_value(text[2 * i + 1]));
    }
    return KV_OK;
}

/* What differs between the two alphabets of RFC 4648. */
struct base64_form {
    char digits[65];
    bool padded;
};

static const struct base64_form base64_plain = {
    .digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", .padded = true};
static const struct base64_form base64_url = {
    .digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", .padded = false};

size_t kv_base64_len(size_t len)
{
    KV_ASSERT(len <= SIZE_MAX / 4);
    return (len + 2) / 3 * 4;
}

size_t kv_base64url_len(size_t len)
{
    KV_ASSERT(len <= SIZE_MAX / 4);
    return (len * 4 + 2) / 3;
}

static void base64_encode(const struct base64_form *form, struct kv_bytes source, char *text)
{
    char *out = text;
    for (size_t i = 0; i < source.len; i += 3) {
        size_t left = source.len - i;
        uint32_t group = (uint32_t)source.data[i] << 16;
        group |= left > 1 ? (uint32_t)source.data[i + 1] << 8 : 0;
        group |= left > 2 ? (uint32_t)source.data[i + 2] : 0;
        size_t digits = left > 2 ? 4 : left + 1;
        for (size_t k = 0; k < digits; k++) {
            *out++ = form->digits[group >> (18 - 6 * k) & 63];
        }
        for (size_t k = digits; form->padded && k < 4; k++) {
            *out++ = '=';
        }
    }
    *out = '\0';
}

void kv_base64_encode(const void *data, size_t len, char *text)
{
    base64_encode(&base64_plain, KV_BYTES(data, len), text);
}

void kv_base64url_encode(const void *data, size_t len, char *text)
{
    base64_encode(&base64_url, KV_BYTES(data, len), text);
}

static int base64_value(const struct base64_form *form, char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    if (c == form->digits[62]) {
        return 62;
    }
    return c == form->digits[63] ? 63 : -1;
}

/* The number of digits before the padding; false when the padding is not what the encoder writes. */
static bool base64_digits(const struct base64_form *form, const char *text, size_t text_len, size_t *ret_digits)
{
    size_t digits = text_len;
    if (form->padded) {
        if (text_len % 4 != 0) {
            return false;
        }
        while (digits > 0 && text_len - digits < 2 && text[digits - 1] == '=') {
            digits--;
        }
    }
    if (digits % 4 == 1) {
        return false;
    }
    *ret_digits = digits;
    return true;
}

/* True when every digit is of the alphabet and the bits that the last digit has too many are zero. */
static bool base64_clean(const struct base64_form *form, const char *text, size_t digits)
{
    for (size_t i = 0; i < digits; i++) {
        if (base64_value(form, text[i]) < 0) {
            return false;
        }
    }
    unsigned spare = digits % 4 == 2 ? 15 : digits % 4 == 3 ? 3 : 0;
    return spare == 0 || ((unsigned)base64_value(form, text[digits - 1]) & spare) == 0;
}

static void base64_unpack(const struct base64_form *form, const char *text, size_t digits, uint8_t *target)
{
    uint32_t bits = 0;
    unsigned held = 0;
    for (size_t i = 0; i < digits; i++) {
        bits = bits << 6 | (uint32_t)base64_value(form, text[i]);
        held += 6;
        if (held >= 8) {
            held -= 8;
            *target++ = (uint8_t)(bits >> held);
        }
    }
}

static enum kv_err base64_decode(const struct base64_form *form, const char *text, size_t text_len, void *ret_data,
                                 size_t size, size_t *ret_len)
{
    size_t digits;
    if (!base64_digits(form, text, text_len, &digits) || !base64_clean(form, text, digits)) {
        return KV_E_INVALID_REQUEST;
    }
    size_t len = digits / 4 * 3 + (digits % 4 * 3) / 4;
    if (len > size) {
        return KV_E_LIMIT;
    }
    base64_unpack(form, text, digits, ret_data);
    *ret_len = len;
    return KV_OK;
}

enum kv_err kv_base64_decode(const char *text, size_t text_len, void *ret_data, size_t size, size_t *ret_len)
{
    return base64_decode(&base64_plain, text, text_len, ret_data, size, ret_len);
}

enum kv_err kv_base64url_decode(const char *text, size_t text_len, void *ret_data, size_t size, size_t *ret_len)
{
    return base64_decode(&base64_url, text, text_len, ret_data, size, ret_len);
}

bool kv_utf8_valid(const char *text, size_t len)
{
    struct kv_bytes rest = KV_BYTES(text, len);
    while (rest.len > 0) {
        size_t taken = kv_utf8_take(rest);
        if (taken == 0) {
            return false;
        }
        rest = KV_BYTES(rest.data + taken, rest.len - taken);
    }
    return true;
}

unsigned kv_edit_distance(const char *a, const char *b)
{
    size_t n = strnlen(a, 63), m = strnlen(b, 63);
    unsigned row[64];
    for (size_t j = 0; j <= m; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 1; i <= n; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned above = row[j];
            unsigned change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            unsigned step = (above < row[j - 1] ? above : row[j - 1]) + 1;
            row[j] = change < step ? change : step;
            diagonal = above;
        }
    }
    return row[m];
}

/*
 * UTF-8 and JSON escaping, one character at a time, without memory of its own. Never lets bytes through that would make
 * a log line or a document invalid.
 */
#include "dataplane/base/text_int.h"

#include "dataplane/base/check.h"

#include <string.h>

/* Length and smallest code point of a sequence that starts with `first`; length 0 for a byte that starts none. */
struct utf8_start {
    size_t len;
    uint32_t bits, least;
};

static struct utf8_start utf8_start_of(uint8_t first)
{
    if (first < 0x80) {
        return (struct utf8_start){.len = 1, .bits = first, .least = 0};
    }
    if ((first & 0xe0) == 0xc0) {
        return (struct utf8_start){.len = 2, .bits = first & 0x1fu, .least = 0x80};
    }
    if ((first & 0xf0) == 0xe0) {
        return (struct utf8_start){.len = 3, .bits = first & 0x0fu, .least = 0x800};
    }
    if ((first & 0xf8) == 0xf0) {
        return (struct utf8_start){.len = 4, .bits = first & 0x07u, .least = 0x10000};
    }
    return (struct utf8_start){.len = 0};
}

size_t kv_utf8_take(struct kv_bytes text)
{
    if (text.len == 0) {
        return 0;
    }
    struct utf8_start start = utf8_start_of(text.data[0]);
    if (start.len == 0 || start.len > text.len) {
        return 0;
    }
    uint32_t code = start.bits;
    for (size_t i = 1; i < start.len; i++) {
        if ((text.data[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (text.data[i] & 0x3fu);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < start.least || code > 0x10ffff || surrogate ? 0 : start.len;
}

/* The letter of a two-character escape, or 0. */
static char short_escape(uint8_t c)
{
    switch (c) {
    case '"':
    case '\\':
        return (char)c;
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

static size_t control_unit(uint8_t c, char *unit)
{
    static const char hex[] = "0123456789abcdef";
    memcpy(unit, "\\u00", 4);
    unit[4] = hex[c >> 4];
    unit[5] = hex[c & 15];
    return 6;
}

size_t kv_json_plain(struct kv_bytes text)
{
    size_t len = 0;
    while (len < text.len && text.data[len] >= 0x20 && text.data[len] < 0x7f && text.data[len] != '"' &&
           text.data[len] != '\\') {
        len++;
    }
    return len;
}

size_t kv_json_unit(struct kv_bytes text, char unit[KV_JSON_UNIT_SIZE], size_t *ret_taken)
{
    KV_ASSERT(text.len > 0);
    size_t taken = kv_utf8_take(text);
    if (taken == 0) {
        *ret_taken = 1;
        memcpy(unit, "\\ufffd", 6);
        return 6;
    }
    *ret_taken = taken;
    uint8_t first = text.data[0];
    char letter = short_escape(first);
    if (letter != 0) {
        unit[0] = '\\';
        unit[1] = letter;
        return 2;
    }
    if (first < 0x20 || first == 0x7f) {
        return control_unit(first, unit);
    }
    KV_ASSERT(taken <= 4);
    memcpy(unit, text.data, taken);
    return taken;
}

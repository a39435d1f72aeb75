/*
 * The growing buffer. Never grows past its maximum, never holds half of an append.
 */
#include "dataplane/base/buf.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/base/text_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FIRST_SIZE 256

void kv_buf_init(struct kv_buf *buf, size_t max)
{
    KV_ASSERT(max < SIZE_MAX / 4);
    *buf = (struct kv_buf){.max = max};
}

void kv_buf_done(struct kv_buf *buf)
{
    kv_free(buf->data);
    kv_buf_init(buf, buf->max);
}

void kv_buf_reset(struct kv_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
    buf->out_of_memory = false;
    if (buf->data != NULL) {
        buf->data[0] = 0;
    }
}

/* Room for `len` more bytes and the terminator. */
static bool reserve(struct kv_buf *buf, size_t len)
{
    if (buf->failed || len > buf->max - buf->len) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->len + len + 1;
    if (buf->data != NULL && need <= buf->size) {
        return true;
    }
    size_t size = buf->size * 2 > FIRST_SIZE ? buf->size * 2 : FIRST_SIZE;
    size = size > need ? size : need;
    size = size < buf->max + 1 ? size : buf->max + 1;
    uint8_t *data = kv_realloc_array(buf->data, size, 1);
    if (data == NULL) {
        buf->failed = true;
        buf->out_of_memory = true;
        return false;
    }
    buf->data = data;
    buf->size = size;
    return true;
}

void kv_buf_append(struct kv_buf *buf, const void *data, size_t len)
{
    if (!reserve(buf, len)) {
        return;
    }
    if (len > 0) {
        memcpy(buf->data + buf->len, data, len);
    }
    buf->len += len;
    buf->data[buf->len] = 0;
}

void kv_buf_reserve(struct kv_buf *buf, size_t len)
{
    reserve(buf, len);
}

void kv_buf_text(struct kv_buf *buf, const char *text)
{
    kv_buf_append(buf, text, strlen(text));
}

void kv_buf_number(struct kv_buf *buf, uint64_t number)
{
    char digits[KV_DIGITS_SIZE];
    kv_buf_append(buf, digits, kv_digits(number, digits));
}

void kv_buf_printf(struct kv_buf *buf, const char *format, ...)
{
    va_list measure, args;
    va_start(args, format);
    va_copy(measure, args);
    int len = vsnprintf(NULL, 0, format, measure);
    va_end(measure);
    KV_ASSERT(len >= 0);
    if (reserve(buf, (size_t)len)) {
        char *end = (char *)buf->data + buf->len;
        KV_ASSERT(vsnprintf(end, (size_t)len + 1, format, args) == len);
        buf->len += (size_t)len;
    }
    va_end(args);
}

void kv_buf_json_string(struct kv_buf *buf, const char *text)
{
    kv_buf_append(buf, "\"", 1);
    struct kv_bytes rest = KV_BYTES(text, strlen(text));
    while (rest.len > 0) {
        char unit[KV_JSON_UNIT_SIZE];
        size_t taken = kv_json_plain(rest);
        if (taken > 0) {
            kv_buf_append(buf, rest.data, taken);
        } else {
            size_t len = kv_json_unit(rest, unit, &taken);
            kv_buf_append(buf, unit, len);
        }
        rest = KV_BYTES(rest.data + taken, rest.len - taken);
    }
    kv_buf_append(buf, "\"", 1);
}

struct kv_bytes kv_buf_bytes(const struct kv_buf *buf)
{
    return KV_BYTES(buf->data, buf->len);
}

enum kv_err kv_buf_check(const struct kv_buf *buf)
{
    if (!buf->failed) {
        return KV_OK;
    }
    return buf->out_of_memory ? KV_E_NO_MEMORY : KV_E_LIMIT;
}

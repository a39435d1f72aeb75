/* Lines, decimal numbers and base64 of text from outside. Must never accept a second spelling of a value. */
#include "audit/text_int.h"

#include "dataplane/base/mem.h"

#include <string.h>

bool kv_text_line(struct kv_bytes *text, struct kv_bytes *ret_line)
{
    if (text->len == 0) {
        return false;
    }
    const uint8_t *end = memchr(text->data, '\n', text->len);
    if (end == NULL) {
        return false;
    }
    size_t len = (size_t)(end - text->data);
    *ret_line = KV_BYTES(text->data, len);
    *text = KV_BYTES(end + 1, text->len - len - 1);
    return true;
}

bool kv_text_prefix(struct kv_bytes *line, const char *prefix)
{
    size_t len = strlen(prefix);
    if (line->len < len || memcmp(line->data, prefix, len) != 0) {
        return false;
    }
    *line = KV_BYTES(line->data + len, line->len - len);
    return true;
}

bool kv_text_equal(struct kv_bytes text, const char *other)
{
    return text.len == strlen(other) && (text.len == 0 || memcmp(text.data, other, text.len) == 0);
}

KV_RC kv_text_u64(struct kv_bytes text, uint64_t *ret_value)
{
    if (text.len == 0 || text.len > 20 || (text.data[0] == '0' && text.len > 1)) {
        return KV_E_CORRUPT;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') {
            return KV_E_CORRUPT;
        }
        if (__builtin_mul_overflow(value, UINT64_C(10), &value) ||
            __builtin_add_overflow(value, (uint64_t)(text.data[i] - '0'), &value)) {
            return KV_E_CORRUPT;
        }
    }
    *ret_value = value;
    return KV_OK;
}

KV_RC kv_text_hash(struct kv_bytes text, struct kv_hash *ret_hash)
{
    struct kv_hash hash;
    size_t len = 0;
    if (text.len != KV_BASE64_HASH_LEN ||
        kv_base64_decode((const char *)text.data, text.len, hash.b, sizeof(hash.b), &len) != KV_OK ||
        len != sizeof(hash.b)) {
        return KV_E_CORRUPT;
    }
    *ret_hash = hash;
    return KV_OK;
}

static void put_encoded(struct kv_buf *buf, const void *data, size_t len, bool url)
{
    size_t text_len = url ? kv_base64url_len(len) : kv_base64_len(len);
    char *text = kv_alloc(text_len + 1);
    if (text == NULL) {
        buf->failed = true;
        return;
    }
    if (url) {
        kv_base64url_encode(data, len, text);
    } else {
        kv_base64_encode(data, len, text);
    }
    kv_buf_append(buf, text, text_len);
    kv_free(text);
}

void kv_text_put_base64(struct kv_buf *buf, const void *data, size_t len)
{
    put_encoded(buf, data, len, false);
}

void kv_text_put_base64url(struct kv_buf *buf, const void *data, size_t len)
{
    put_encoded(buf, data, len, true);
}

bool kv_text_printable(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] < 0x20 || text[i] > 0x7e) {
            return false;
        }
    }
    return true;
}

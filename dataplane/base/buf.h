/*
 * A growing byte buffer with a declared maximum. An append that fails sets `failed` and later appends do nothing, so
 * that a builder checks once, at its end. Not for secrets.
 */
#ifndef KV_BASE_BUF_H
#define KV_BASE_BUF_H

#include "dataplane/base/bytes.h"

struct kv_buf {
    uint8_t *data; /* owned; always NUL-terminated once not NULL, so it can be read as text */
    size_t len, size, max;
    bool failed;
    bool out_of_memory; /* the failure was the allocator, not the maximum */
};

void kv_buf_init(struct kv_buf *buf, size_t max);
void kv_buf_done(struct kv_buf *buf);  /* frees; the buffer can be used again */
void kv_buf_reset(struct kv_buf *buf); /* empty, memory kept, failure cleared */
void kv_buf_append(struct kv_buf *buf, const void *data, size_t len);
void kv_buf_reserve(struct kv_buf *buf, size_t len); /* so many more bytes can be appended without allocating */
void kv_buf_text(struct kv_buf *buf, const char *text);
void kv_buf_number(struct kv_buf *buf, uint64_t number); /* in decimal digits */
void kv_buf_printf(struct kv_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kv_buf_json_string(struct kv_buf *buf, const char *text); /* quoted and escaped (RFC 8259) */
struct kv_bytes kv_buf_bytes(const struct kv_buf *buf);        /* borrowed until the next append */
KV_RC kv_buf_check(const struct kv_buf *buf);                  /* KV_E_NO_MEMORY or KV_E_LIMIT when an append failed */

#endif

/*
 * Reading of line-based text from outside, shared by checkpoints and bundles. Everything here accepts one spelling
 * only.
 */
#ifndef KV_AUDIT_TEXT_INT_H
#define KV_AUDIT_TEXT_INT_H

#include "audit/merkle.h"

#define KV_BASE64_HASH_LEN 44u /* of 32 bytes */

/* Takes the bytes up to the next LF off `text`; false, and nothing taken, when there is no LF. */
bool kv_text_line(struct kv_bytes *text, struct kv_bytes *ret_line);
/* True, and the prefix is taken off, when `line` begins with it. */
bool kv_text_prefix(struct kv_bytes *line, const char *prefix);
bool kv_text_equal(struct kv_bytes text, const char *other);
/* Decimal without sign and leading zeroes, at most 2^64 - 1. */
KV_RC kv_text_u64(struct kv_bytes text, uint64_t *ret_value);
KV_RC kv_text_hash(struct kv_bytes text, struct kv_hash *ret_hash);
void kv_text_put_base64(struct kv_buf *buf, const void *data, size_t len);
void kv_text_put_base64url(struct kv_buf *buf, const void *data, size_t len);
/* Only 0x20 to 0x7e. */
bool kv_text_printable(const char *text, size_t len);

#endif

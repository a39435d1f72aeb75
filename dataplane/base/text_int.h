/*
 * Text helpers that buf, bytes and log share. Private to this folder.
 */
#ifndef KV_BASE_TEXT_INT_H
#define KV_BASE_TEXT_INT_H

#include "dataplane/base/bytes.h"

/* The bytes of the first character (RFC 3629), 0 when it is not valid UTF-8 or there is none. */
size_t kv_utf8_take(struct kv_bytes text);

#define KV_JSON_UNIT_SIZE 8

/* Writes the first character of `text`, which is not empty, as it stands inside a JSON string, without a terminator.
 * Bytes that are not UTF-8 become U+FFFD one by one. *ret_taken: bytes of `text` used up. Returns the bytes written. */
size_t kv_json_unit(struct kv_bytes text, char unit[KV_JSON_UNIT_SIZE], size_t *ret_taken);
/* The bytes at the beginning of `text` that stand for themselves inside a JSON string, as far as they are ASCII. */
size_t kv_json_plain(struct kv_bytes text);

#endif

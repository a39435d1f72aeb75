/*
 * Ids: UUIDv7 (RFC 9562) in memory, "<prefix>_<26 characters of Crockford base32, lower case>" in text.
 */
#ifndef KV_BASE_ID_H
#define KV_BASE_ID_H

#include "dataplane/base/env.h"

#define KV_ID_TEXT_SIZE 31 /* three letters, '_', 26, NUL */

KV_RC kv_id_new(const struct kv_env *env, struct kv_id *ret_id);
void kv_id_text(const char *prefix, const struct kv_id *id, char text[KV_ID_TEXT_SIZE]);
/* KV_E_INVALID_REQUEST unless the prefix matches and the spelling is the canonical one. */
KV_RC kv_id_parse(const char *prefix, const char *text, struct kv_id *ret_id);
bool kv_id_equal(const struct kv_id *a, const struct kv_id *b);
bool kv_id_is_zero(const struct kv_id *id);
int kv_id_compare(const struct kv_id *a, const struct kv_id *b);

#endif

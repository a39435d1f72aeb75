/* HKDF for many outputs of one key; see expand.c. Thread: one. */
#ifndef KV_CRYPTO_KDF_INT_H
#define KV_CRYPTO_KDF_INT_H

#include "dataplane/crypto/kdf.h"

struct kv_expander;

KV_RC kv_expander_new(struct kv_expander **ret_expander);
void kv_expander_free(struct kv_expander *expander); /* forgets; NULL is fine */
/* As kv_hkdf_expand_sha512, for a key of 1 to KV_MAX_SECRET_BYTES bytes. What was computed from the key alone is kept
 * until a call with another key, or kv_expander_forget. */
KV_RC kv_expander_expand(struct kv_expander *expander, struct kv_bytes prk, struct kv_bytes info, void *ret_okm,
                         size_t len);
void kv_expander_forget(struct kv_expander *expander); /* wipes it */

#endif

/* HKDF that was looked up once: OpenSSL's look-up costs as much as the derivation itself, once a block. */
#ifndef KV_CRYPTO_KDF_INT_H
#define KV_CRYPTO_KDF_INT_H

#include "dataplane/crypto/kdf.h"

struct kv_hkdf; /* immutable; holds no key */

KV_RC kv_hkdf_new(struct kv_hkdf **ret_hkdf);
void kv_hkdf_free(struct kv_hkdf *hkdf); /* NULL is fine */
/* `hkdf` may be NULL: then it is looked up for this call. */
KV_RC kv_hkdf_expand_sha512_with(const struct kv_hkdf *hkdf, struct kv_bytes prk, struct kv_bytes info, void *ret_okm,
                                 size_t len);

#endif

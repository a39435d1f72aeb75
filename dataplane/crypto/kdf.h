/*
 * HKDF-SHA512 (RFC 5869) with labels "kvrun/v1/<purpose>"; every variable field of the info is length-prefixed (u16,
 * big-endian), so that two lists of fields never give the same bytes. Thread: any.
 */
#ifndef KV_CRYPTO_KDF_H
#define KV_CRYPTO_KDF_H

#include "dataplane/base/bytes.h"
#include "dataplane/crypto/secret.h"

/* Extract with an empty salt, then expand to `len` bytes (at most 64). `purpose` is ASCII without the "kvrun/v1/". */
KV_RC kv_kdf_derive(const struct kv_secret *key, const char *purpose, const struct kv_bytes *fields, size_t count,
                    size_t len, struct kv_secret **ret_secret);

/* The bare functions, for the envelope and for outside vectors. */
KV_RC kv_hkdf_sha512(struct kv_bytes salt, struct kv_bytes ikm, struct kv_bytes info, void *ret_okm, size_t len);
KV_RC kv_hkdf_expand_sha512(struct kv_bytes prk, struct kv_bytes info, void *ret_okm, size_t len);
KV_RC kv_hkdf_sha256(struct kv_bytes salt, struct kv_bytes ikm, struct kv_bytes info, void *ret_okm, size_t len);

#endif

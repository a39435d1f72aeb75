/*
 * Ed25519 (RFC 8032). Signing keys live apart from the key tree: a file of mode 0600 holding the 32-byte seed in hex,
 * made at first start. Thread: any; a key is immutable after it was made.
 */
#ifndef KV_CRYPTO_SIGN_H
#define KV_CRYPTO_SIGN_H

#include "dataplane/base/bytes.h"
#include "dataplane/crypto/secret.h"

struct kv_sign_key; /* private */

KV_RC kv_sign_key_load(const char *path, struct kv_errinfo *info, struct kv_sign_key **ret_key);
/* Loads, or creates the file (O_EXCL, fsync of file and folder) when it is not there. */
KV_RC kv_sign_key_load_or_create(const struct kv_env *env, const char *path, struct kv_errinfo *info,
                                 struct kv_sign_key **ret_key);
KV_RC kv_sign_key_from_seed(const uint8_t seed[32], struct kv_sign_key **ret_key); /* vectors */
void kv_sign_key_free(struct kv_sign_key *key);
void kv_sign_public(const struct kv_sign_key *key, uint8_t ret_public[32]);
KV_RC kv_sign(const struct kv_sign_key *key, struct kv_bytes message, uint8_t ret_signature[64]);
/* KV_E_TAMPERED when the signature does not verify. */
KV_RC kv_verify(const uint8_t public_key[32], struct kv_bytes message, struct kv_bytes signature);

#endif

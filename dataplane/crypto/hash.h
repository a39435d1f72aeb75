/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104), over OpenSSL. Thread: any. KV_E_CRYPTO when OpenSSL fails. */
#ifndef KV_CRYPTO_HASH_H
#define KV_CRYPTO_HASH_H

#include "dataplane/base/bytes.h"
#include "dataplane/crypto/secret.h"

KV_RC kv_sha256(struct kv_bytes data, uint8_t ret_hash[32]);
/* Hash of the concatenation of `count` parts. */
KV_RC kv_sha256_parts(const struct kv_bytes *parts, size_t count, uint8_t ret_hash[32]);
/* The same for many short things that are no secret: a third of the time, because nothing is allocated or wiped. */
KV_RC kv_sha256_public(const struct kv_bytes *parts, size_t count, uint8_t ret_hash[32]);
KV_RC kv_hmac_sha256(const struct kv_secret *key, const struct kv_bytes *parts, size_t count, uint8_t ret_mac[32]);

#endif

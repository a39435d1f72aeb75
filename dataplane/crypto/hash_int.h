/* The bare HMAC, for keys that are no secret of ours (outside vectors), and small helpers around OpenSSL. */
#ifndef KV_CRYPTO_HASH_INT_H
#define KV_CRYPTO_HASH_INT_H

#include "dataplane/crypto/hash.h"

/* `digest` is "SHA256" or "SHA512"; `mac_len` its full length. */
KV_RC kv_hmac_raw(const char *digest, struct kv_bytes key, const struct kv_bytes *parts, size_t count, uint8_t *ret_mac,
                  size_t mac_len);

/* Drops what OpenSSL noted about a failure, so that no later caller reads a stale reason, and returns KV_E_CRYPTO, or
 * KV_E_NO_MEMORY when OpenSSL's heap had nothing left. */
enum kv_err kv_crypto_failed(void);

#endif

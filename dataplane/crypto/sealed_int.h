/*
 * Inside of the envelope: the contract of a cipher backend, and what the block form and the bare stream share.
 * A backend holds one AES-256-GCM state for one thread. It wipes key schedules in `clear`; it never keeps plaintext.
 */
#ifndef KV_CRYPTO_SEALED_INT_H
#define KV_CRYPTO_SEALED_INT_H

#include "dataplane/crypto/kdf_int.h"
#include "dataplane/crypto/sealed.h"

#define KV_AEAD_KEY_BYTES 32u
#define KV_AEAD_NONCE_BYTES 12u
#define KV_AEAD_TAG_BYTES 16u
#define KV_COMMITMENT_BYTES 32u

struct kv_cipher_ops {
    const char *name;
    KV_RC (*open)(void **ret_state); /* KV_E_UNSUPPORTED: not on this processor */
    void (*close)(void *state);      /* NULL is fine */
    KV_RC (*set_key)(void *state, const uint8_t key[KV_AEAD_KEY_BYTES]);
    void (*clear)(void *state); /* wipes key and message state; a new set_key follows */
    /* One message: start, update any number of times with any lengths, then exactly one of the two ends. */
    KV_RC (*start)(void *state, const uint8_t nonce[KV_AEAD_NONCE_BYTES], bool sealing);
    KV_RC (*update)(void *state, uint8_t *target, const uint8_t *source, size_t len);
    KV_RC (*finish_seal)(void *state, uint8_t ret_tag[KV_AEAD_TAG_BYTES]);
    KV_RC (*finish_open)(void *state, const uint8_t tag[KV_AEAD_TAG_BYTES]); /* KV_E_TAMPERED */
};

extern const struct kv_cipher_ops kv_cipher_openssl;
#ifdef KV_HAVE_IPSEC_MB
extern const struct kv_cipher_ops kv_cipher_ipsec_mb;
/* scatter.c: a verified block of `block_bytes`, which is what the segments' lengths add up to, into its page. Staging
 * is wiped. */
void kv_scatter(uint8_t *staging, size_t block_bytes, const struct kv_segment *target, size_t count);

#endif

struct kv_sealer {
    const struct kv_cipher_ops *ops;
    void *state; /* owned by ops */
    struct kv_expander *expander;
};

/* What the specification derives for one stream. Lives on a stack and is wiped there. */
struct kv_stream_keys {
    uint8_t aead_key[KV_AEAD_KEY_BYTES];
    uint8_t base_nonce[KV_AEAD_NONCE_BYTES];
    uint8_t commitment[KV_COMMITMENT_BYTES];
};

/* `expander` may be NULL, where there is no sealer. Else it keeps the key. */
KV_RC kv_stream_derive(struct kv_expander *expander, struct kv_bytes key, const uint8_t salt[KV_SALT_BYTES],
                       struct kv_bytes context, struct kv_stream_keys *ret_keys);
/* The nonce of chunk `index`. */
void kv_stream_nonce(const struct kv_stream_keys *keys, uint64_t index, uint8_t ret_nonce[KV_AEAD_NONCE_BYTES]);
/* Opens one chunk in one piece; the sealer's key is set. */
KV_RC kv_stream_open_chunk(struct kv_sealer *sealer, const struct kv_stream_keys *keys, uint64_t index,
                           struct kv_bytes ciphertext, const uint8_t tag[KV_AEAD_TAG_BYTES], uint8_t *target);

/* scatter.c: a verified block of `block_bytes`, which is what the segments' lengths add up to, into its page. Staging
 * is wiped. */
void kv_scatter(uint8_t *staging, size_t block_bytes, const struct kv_segment *target, size_t count);

#endif

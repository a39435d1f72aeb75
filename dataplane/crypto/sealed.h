/*
 * KVR1, the envelope of blocks and of tree nodes.
 *
 * The payload is an exact C2SP chunked-encryption stream (c2sp.org/chunked-encryption, AES-256-GCM with SHA-512, 16 KiB
 * chunks), stored de-interleaved: header pages, then the ciphertext of all chunks in one piece, as long as the
 * plaintext. Re-interleaving (salt | commitment | chunk 0 | tag 0 | chunk 1 | tag 1 …) gives the specification's bytes.
 *
 * Per block: HKDF-Expand-SHA512(key, "c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM" | 0 | salt[24] | context)
 *            = aead key[32] | base nonce[12] | commitment[32]; nonce of chunk i = base nonce XOR i (big-endian).
 * The last chunk is shorter than 16 KiB, possibly empty; it always has a tag.
 *
 * Header, big-endian, padded with zeroes to a multiple of 4 KiB:
 *    0  magic "KVR1"          4  u8 version = 1     5  u8 algorithm = 1   6  u8 derivation = 1   7  u8 kind
 *    8  tenant[16]           24  scope[16]         40  block_id[32]      72  layout_fingerprint[32]
 *  104  u64 seq             112  u64 plaintext_length                   120  u32 tag_count      124  u32 header_bytes
 *  128  salt[24]            152  commitment[32]   184  tags[tag_count][16]
 * context = "KVR1" | kind | tenant | scope | block_id | layout | seq | plaintext_length (117 bytes).
 * A header whose padding, counts or algorithm bytes differ from this is KV_E_CORRUPT.
 *
 * Plaintext never outlives a failure: a target that was partly written is wiped before an error is returned.
 */
#ifndef KV_CRYPTO_SEALED_H
#define KV_CRYPTO_SEALED_H

#include "dataplane/base/buf.h"
#include "dataplane/crypto/secret.h"

#define KV_CHUNK_BYTES 16384u
#define KV_SEALED_ALIGN 4096u
#define KV_SEALED_FIXED_BYTES 184u
#define KV_SALT_BYTES 24u

enum kv_sealed_kind { KV_SEALED_BLOCK = 1, KV_SEALED_NODE = 2, KV_SEALED_ROOT = 3, KV_SEALED_META = 4 };
enum kv_cipher_backend { KV_CIPHER_AUTO, KV_CIPHER_IPSEC_MB, KV_CIPHER_OPENSSL };

struct kv_sealed_context {
    enum kv_sealed_kind kind;
    struct kv_id tenant, scope;
    struct kv_block_id block_id;
    uint8_t layout[32];
    uint64_t seq; /* 0 for blocks */
    uint64_t plaintext_length;
};

/* A piece of plaintext memory; a block is gathered from, or scattered to, several. */
struct kv_segment {
    uint8_t *data; /* borrowed for the call */
    size_t len;
};

/* Cipher state and scratch of one thread. Not shared. */
struct kv_sealer;
KV_RC kv_sealer_new(enum kv_cipher_backend backend, struct kv_sealer **ret_sealer);
void kv_sealer_free(struct kv_sealer *sealer);
/* Sealing and opening of blocks keep what was computed from their key alone for the next block of the same key. This
 * wipes it: whoever borrowed the key calls it before he gives the key back. The other functions keep nothing. */
void kv_sealer_forget(struct kv_sealer *sealer);
const char *kv_sealer_backend(const struct kv_sealer *sealer); /* "ipsec-mb" or "openssl" */

uint32_t kv_sealed_tag_count(uint64_t plaintext_length);
uint32_t kv_sealed_header_bytes(uint64_t plaintext_length);  /* multiple of 4 KiB */
uint64_t kv_sealed_payload_bytes(uint64_t plaintext_length); /* the plaintext length padded to 4 KiB */
uint64_t kv_sealed_bytes(uint64_t plaintext_length);         /* header + payload */

/* Gathers the segments (their lengths add up to plaintext_length, else KV_E_INVALID_REQUEST) and seals them in one pass
 * into `target` (kv_sealed_bytes long: header, ciphertext, zero padding). `key` is 32 bytes. `salt` comes from
 * getrandom. */
KV_RC kv_sealed_seal(struct kv_sealer *sealer, const struct kv_secret *key, const struct kv_sealed_context *context,
                     const uint8_t salt[KV_SALT_BYTES], const struct kv_segment *source, size_t source_count,
                     uint8_t *target);

/* Checks header, context and commitment, and then every tag, before a byte of `target` is written: a target stays
 * untouched on any failure. `source_len` is what there is of the sealed bytes. `staging` is locked memory of at least
 * plaintext_length, wiped before return.
 * KV_E_WRONG_KEY: other key or other context (commitment). KV_E_TAMPERED: a tag. KV_E_TRUNCATED, KV_E_CORRUPT: header.
 */
KV_RC kv_sealed_open(struct kv_sealer *sealer, const struct kv_secret *key, const struct kv_sealed_context *context,
                     const uint8_t *source, size_t source_len, void *staging, size_t staging_size,
                     const struct kv_segment *target, size_t target_count);

/* The same, into the one buffer `target`, for nodes and other small things (wiped on failure). */
KV_RC kv_sealed_open_flat(struct kv_sealer *sealer, const struct kv_secret *key,
                          const struct kv_sealed_context *context, struct kv_bytes source, void *target,
                          size_t target_size);
KV_RC kv_sealed_seal_flat(struct kv_sealer *sealer, const struct kv_env *env, const struct kv_secret *key,
                          const struct kv_sealed_context *context, const void *plaintext, struct kv_buf *ret_sealed);

/* Only the commitment of a header: does this key open that block? Reads header pages only. */
KV_RC kv_sealed_check(const struct kv_secret *key, const struct kv_sealed_context *context, struct kv_bytes header);

/* Reads the clear fields of a header (nothing is authenticated by that). */
KV_RC kv_sealed_peek(struct kv_bytes header, struct kv_sealed_context *ret_context);

/* Compact form of the envelope for rows in a database: fixed header, tags, ciphertext, without padding. The flat
 * functions above read and write this form. */
size_t kv_sealed_compact_bytes(uint64_t plaintext_length);

/* The bare C2SP stream, for outside vectors: `stream` is salt | commitment | chunks with tags. */
KV_RC kv_chunked_open(struct kv_sealer *sealer, struct kv_bytes key, struct kv_bytes context, struct kv_bytes stream,
                      struct kv_buf *ret_plaintext);

#endif

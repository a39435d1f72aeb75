/* The header of KVR1 as bytes: writing it, and reading it without trusting it. No keys here. */
#ifndef KV_CRYPTO_SEALED_FORMAT_INT_H
#define KV_CRYPTO_SEALED_FORMAT_INT_H

#include "dataplane/crypto/sealed_int.h"

#define KV_SEALED_CONTEXT_BYTES 117u

/* PAGED: blocks, with padding. COMPACT: rows in a database. They differ in header_bytes, which can never be the same
 * for both. */
enum kv_sealed_form { KV_FORM_PAGED, KV_FORM_COMPACT };

struct kv_sealed_header {
    struct kv_sealed_context context;
    enum kv_sealed_form form;
    uint32_t tag_count, header_bytes;
    const uint8_t *salt, *commitment; /* borrowed from the source */
};

uint32_t kv_sealed_header_bytes_of(enum kv_sealed_form form, uint64_t plaintext_length);
bool kv_sealed_context_valid(const struct kv_sealed_context *context);
bool kv_sealed_context_equal(const struct kv_sealed_context *a, const struct kv_sealed_context *b);
void kv_sealed_context_encode(const struct kv_sealed_context *context, uint8_t ret_bytes[KV_SEALED_CONTEXT_BYTES]);

/* Writes everything but the tags: they stay zero. `target` has header_bytes. */
void kv_sealed_header_write(enum kv_sealed_form form, const struct kv_sealed_context *context,
                            const uint8_t salt[KV_SALT_BYTES], const uint8_t commitment[KV_COMMITMENT_BYTES],
                            uint8_t *target);
/* Reads the first KV_SEALED_FIXED_BYTES. KV_E_TRUNCATED, KV_E_CORRUPT. */
KV_RC kv_sealed_header_parse(struct kv_bytes source, struct kv_sealed_header *ret_header);
/* Is the whole source there, no more and no less, and is the header's padding zero? */
KV_RC kv_sealed_header_check_extent(const struct kv_sealed_header *header, struct kv_bytes source);

#endif

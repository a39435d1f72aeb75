/* What tests of the envelope share: each cipher backend of this machine, contexts, keys, memory with known bytes. */
#ifndef KV_TESTS_SEALED_CASES_H
#define KV_TESTS_SEALED_CASES_H

#include "dataplane/crypto/sealed.h"

/* Calls `fn` with a sealer of each backend there is; OpenSSL is always there. Returns how many. */
unsigned sealed_each_backend(void (*fn)(struct kv_sealer *sealer, void *ctx), void *ctx);

struct kv_sealed_context sealed_context(uint64_t plaintext_length); /* of a block, every field filled */
struct kv_secret *sealed_key(uint8_t fill);
/* The 117 context bytes, put together here from the description in sealed.h and not by the product. */
void sealed_context_bytes(const struct kv_sealed_context *context, uint8_t ret_bytes[117]);

/* Repeatable bytes and numbers. */
struct sealed_random {
    uint64_t state;
};
uint64_t sealed_random_next(struct sealed_random *random);
void sealed_random_fill(struct sealed_random *random, void *target, size_t len);

/* Cuts `memory` into segments of lengths from 0 to `longest`; the array is malloc'ed, `ret_count` its length. */
struct kv_segment *sealed_cut(struct sealed_random *random, uint8_t *memory, size_t len, size_t longest,
                              size_t *ret_count);

#endif

/*
 * Mappings for secrets: between two inaccessible pages, left out of core dumps, zero in a forked child, locked where
 * the kernel lets it. Thread: any, each mapping for itself.
 */
#ifndef KV_CRYPTO_PAGES_INT_H
#define KV_CRYPTO_PAGES_INT_H

#include "dataplane/crypto/secret.h"

struct kv_pages_kind {
    bool locked; /* never written to swap */
    bool shared; /* memfd_secret: a shared mapping, see kv_pages_after_fork */
};

size_t kv_page_bytes(void);
bool kv_round_to_pages(size_t bytes, size_t *ret_bytes); /* false when the sum overflows */

/* Addresses only, `bytes` (whole pages) of them, with a guard page on either side. */
KV_RC kv_pages_reserve(size_t bytes, uint8_t **ret_inner);
void kv_pages_release(uint8_t *inner, size_t bytes); /* wipe first */
/* Puts zeroed memory over reserved pages; memfd_secret(2) comes first where `secret` asks for it. What the kernel reads
 * and writes for us (O_DIRECT) cannot be such memory. */
KV_RC kv_pages_fill(uint8_t *inner, size_t bytes, bool secret, struct kv_pages_kind *ret_kind);
/* In a forked child, for a mapping of kind `shared`: zeroes in its place. The others are zeroes already. */
void kv_pages_after_fork(uint8_t *inner, size_t bytes);

#endif

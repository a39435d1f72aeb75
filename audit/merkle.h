/*
 * RFC 6962 Merkle trees (section 2.1): leaf hash SHA-256(0x00 | leaf), node hash SHA-256(0x01 | left | right).
 * Pure arithmetic; where hashes lie is a callback. Thread: any.
 */
#ifndef KV_AUDIT_MERKLE_H
#define KV_AUDIT_MERKLE_H

#include "dataplane/base/buf.h"

struct kv_hash {
    uint8_t b[32];
};

#define KV_MERKLE_DEPTH_MAX 64

KV_RC kv_merkle_leaf(struct kv_bytes leaf, struct kv_hash *ret_hash);
KV_RC kv_merkle_node(const struct kv_hash *left, const struct kv_hash *right, struct kv_hash *ret_hash);
KV_RC kv_merkle_empty(struct kv_hash *ret_hash); /* SHA-256("") */

/* The right edge of a growing tree: hashes of its complete subtrees, largest first. Enough to append and to know the
 * root. */
struct kv_frontier {
    uint64_t size;
    struct kv_hash hashes[KV_MERKLE_DEPTH_MAX]; /* as many as there are ones in `size` */
};
/* `on_node` (may be NULL) is told of each complete subtree that the leaf finishes, level 0 is the leaf itself. */
KV_RC kv_frontier_append(struct kv_frontier *frontier, const struct kv_hash *leaf,
                         KV_RC (*on_node)(void *ctx, unsigned level, uint64_t index, const struct kv_hash *hash),
                         void *ctx);
KV_RC kv_frontier_root(const struct kv_frontier *frontier, struct kv_hash *ret_root);
size_t kv_frontier_encode(const struct kv_frontier *frontier, uint8_t *ret_bytes /* 32 * 64 */);
KV_RC kv_frontier_decode(uint64_t size, struct kv_bytes bytes, struct kv_frontier *ret_frontier);

/* The root of a list of byte strings of equal length (block ids). With more than 4,096 several threads work on it for
 * as long as the call lasts; with fewer nothing is allocated here. */
KV_RC kv_merkle_root_of(const uint8_t *items, size_t item_len, size_t count, struct kv_hash *ret_root);

/* Hash of the complete subtree `index` of 2^level leaves. */
typedef KV_RC (*kv_merkle_fetch)(void *ctx, unsigned level, uint64_t index, struct kv_hash *ret_hash);

/* Proofs, sibling of the leaf first. `ret_proof` holds KV_MERKLE_DEPTH_MAX. KV_E_INVALID_REQUEST: index not below size.
 */
KV_RC kv_merkle_inclusion(kv_merkle_fetch fetch, void *ctx, uint64_t index, uint64_t size, struct kv_hash *ret_proof,
                          size_t *ret_count);
KV_RC kv_merkle_consistency(kv_merkle_fetch fetch, void *ctx, uint64_t size1, uint64_t size2, struct kv_hash *ret_proof,
                            size_t *ret_count);
/* KV_E_TAMPERED when the proof does not show it. */
KV_RC kv_merkle_verify_inclusion(const struct kv_hash *leaf, uint64_t index, uint64_t size, const struct kv_hash *proof,
                                 size_t count, const struct kv_hash *root);
KV_RC kv_merkle_verify_consistency(uint64_t size1, uint64_t size2, const struct kv_hash *root1,
                                   const struct kv_hash *root2, const struct kv_hash *proof, size_t count);

#endif

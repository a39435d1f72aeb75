/*
 * Hashing, and the growing right edge of a tree. Proofs are in merkle_proof.c, roots of plain lists in merkle_root.c.
 * Must never hash a leaf and a node alike: the first byte keeps them apart (RFC 6962, section 2.1).
 */
#include "audit/merkle.h"

#include "dataplane/base/check.h"
#include "dataplane/crypto/hash.h"

#include <string.h>

static const uint8_t leaf_prefix[1] = {0x00};
static const uint8_t node_prefix[1] = {0x01};

KV_RC kv_merkle_leaf(struct kv_bytes leaf, struct kv_hash *ret_hash)
{
    const struct kv_bytes parts[] = {KV_BYTES(leaf_prefix, sizeof(leaf_prefix)), leaf};
    struct kv_hash hash;
    KV_TRY(kv_sha256_public(parts, 2, hash.b));
    *ret_hash = hash;
    return KV_OK;
}

KV_RC kv_merkle_node(const struct kv_hash *left, const struct kv_hash *right, struct kv_hash *ret_hash)
{
    const struct kv_bytes parts[] = {KV_BYTES(node_prefix, sizeof(node_prefix)), KV_BYTES(left->b, sizeof(left->b)),
                                     KV_BYTES(right->b, sizeof(right->b))};
    struct kv_hash hash;
    KV_TRY(kv_sha256_public(parts, 3, hash.b));
    *ret_hash = hash;
    return KV_OK;
}

KV_RC kv_merkle_empty(struct kv_hash *ret_hash)
{
    struct kv_hash hash;
    KV_TRY(kv_sha256(KV_BYTES("", 0), hash.b));
    *ret_hash = hash;
    return KV_OK;
}

static size_t frontier_count(uint64_t size)
{
    return (size_t)__builtin_popcountll(size);
}

KV_RC kv_frontier_append(struct kv_frontier *frontier, const struct kv_hash *leaf,
                         KV_RC (*on_node)(void *ctx, unsigned level, uint64_t index, const struct kv_hash *hash),
                         void *ctx)
{
    if (frontier->size == UINT64_MAX) {
        return KV_E_LIMIT;
    }
    uint64_t index = frontier->size;
    size_t count = frontier_count(frontier->size);
    struct kv_hash hash = *leaf;
    unsigned level = 0;
    if (on_node != NULL) {
        KV_TRY(on_node(ctx, level, index, &hash));
    }
    /* A one at the end of the size is a complete left neighbour of the same height: the two make one of the next
     * height. */
    while ((index & 1) != 0) {
        KV_ASSERT(count > 0);
        count--;
        KV_TRY(kv_merkle_node(&frontier->hashes[count], &hash, &hash));
        level++;
        index >>= 1;
        if (on_node != NULL) {
            KV_TRY(on_node(ctx, level, index, &hash));
        }
    }
    KV_ASSERT(count < KV_MERKLE_DEPTH_MAX);
    frontier->hashes[count] = hash;
    frontier->size++;
    return KV_OK;
}

KV_RC kv_frontier_root(const struct kv_frontier *frontier, struct kv_hash *ret_root)
{
    size_t count = frontier_count(frontier->size);
    if (count == 0) {
        return kv_merkle_empty(ret_root);
    }
    struct kv_hash root = frontier->hashes[count - 1];
    for (size_t i = count - 1; i > 0; i--) {
        KV_TRY(kv_merkle_node(&frontier->hashes[i - 1], &root, &root));
    }
    *ret_root = root;
    return KV_OK;
}

size_t kv_frontier_encode(const struct kv_frontier *frontier, uint8_t *ret_bytes)
{
    size_t count = frontier_count(frontier->size);
    for (size_t i = 0; i < count; i++) {
        memcpy(ret_bytes + i * sizeof(struct kv_hash), frontier->hashes[i].b, sizeof(struct kv_hash));
    }
    return count * sizeof(struct kv_hash);
}

KV_RC kv_frontier_decode(uint64_t size, struct kv_bytes bytes, struct kv_frontier *ret_frontier)
{
    size_t count = frontier_count(size);
    if (bytes.len != count * sizeof(struct kv_hash)) {
        return KV_E_CORRUPT;
    }
    struct kv_frontier frontier = {.size = size};
    struct kv_reader reader = kv_reader_of(bytes);
    for (size_t i = 0; i < count; i++) {
        kv_read_raw(&reader, frontier.hashes[i].b, sizeof(frontier.hashes[i].b));
    }
    KV_ASSERT(kv_reader_done(&reader));
    *ret_frontier = frontier;
    return KV_OK;
}

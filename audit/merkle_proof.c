/*
 * Inclusion and consistency proofs: making them from complete subtrees, and checking them (RFC 9162, sections 2.1.3.2
 * and 2.1.4.2, whose trees are those of RFC 6962). A check must never accept a proof that has an element too many or
 * too few.
 */
#include "audit/merkle.h"

#include "dataplane/base/check.h"

#include <string.h>

struct source {
    kv_merkle_fetch fetch;
    void *ctx;
};

struct range {
    uint64_t start, size; /* start is a multiple of the subtree that the range begins with */
};

static unsigned log2_floor(uint64_t n)
{
    KV_ASSERT(n > 0);
    return 63u - (unsigned)__builtin_clzll(n);
}

/* The largest power of two below n, for n > 1. */
static uint64_t split_of(uint64_t n)
{
    return UINT64_C(1) << log2_floor(n - 1);
}

/* Root of leaves [start, start + size): the ones of `size` from the top are its complete subtrees, left to right. */
static KV_RC range_root(const struct source *source, struct range range, struct kv_hash *ret_hash)
{
    struct kv_hash parts[KV_MERKLE_DEPTH_MAX];
    size_t count = 0;
    while (range.size > 0) {
        unsigned level = log2_floor(range.size);
        KV_TRY(source->fetch(source->ctx, level, range.start >> level, &parts[count]));
        count++;
        range.start += UINT64_C(1) << level;
        range.size -= UINT64_C(1) << level;
    }
    KV_ASSERT(count > 0);
    struct kv_hash root = parts[count - 1];
    for (size_t i = count - 1; i > 0; i--) {
        KV_TRY(kv_merkle_node(&parts[i - 1], &root, &root));
    }
    *ret_hash = root;
    return KV_OK;
}

static void reverse(struct kv_hash *hashes, size_t count)
{
    for (size_t i = 0; i < count / 2; i++) {
        struct kv_hash other = hashes[i];
        hashes[i] = hashes[count - 1 - i];
        hashes[count - 1 - i] = other;
    }
}

KV_RC kv_merkle_inclusion(kv_merkle_fetch fetch, void *ctx, uint64_t index, uint64_t size, struct kv_hash *ret_proof,
                          size_t *ret_count)
{
    if (index >= size) {
        return KV_E_INVALID_REQUEST;
    }
    const struct source source = {.fetch = fetch, .ctx = ctx};
    struct range here = {.start = 0, .size = size};
    size_t count = 0;
    /* Down from the root: at each split the half that does not hold the leaf is an element of the proof. */
    while (here.size > 1) {
        uint64_t split = split_of(here.size);
        struct range left = {.start = here.start, .size = split};
        struct range right = {.start = here.start + split, .size = here.size - split};
        bool in_left = index < right.start;
        KV_ASSERT(count < KV_MERKLE_DEPTH_MAX);
        KV_TRY(range_root(&source, in_left ? right : left, &ret_proof[count]));
        count++;
        here = in_left ? left : right;
    }
    reverse(ret_proof, count);
    *ret_count = count;
    return KV_OK;
}

KV_RC kv_merkle_consistency(kv_merkle_fetch fetch, void *ctx, uint64_t size1, uint64_t size2, struct kv_hash *ret_proof,
                            size_t *ret_count)
{
    if (size1 == 0 || size1 > size2) {
        return KV_E_INVALID_REQUEST;
    }
    const struct source source = {.fetch = fetch, .ctx = ctx};
    struct range here = {.start = 0, .size = size2};
    size_t count = 0;
    bool old_root_is_here = true; /* the subtree we are in is the whole old tree: its root is known to the verifier */
    while (size1 - here.start != here.size) {
        uint64_t split = split_of(here.size);
        struct range left = {.start = here.start, .size = split};
        struct range right = {.start = here.start + split, .size = here.size - split};
        bool ends_in_left = size1 <= right.start;
        KV_ASSERT(count < KV_MERKLE_DEPTH_MAX);
        KV_TRY(range_root(&source, ends_in_left ? right : left, &ret_proof[count]));
        count++;
        old_root_is_here = old_root_is_here && ends_in_left;
        here = ends_in_left ? left : right;
    }
    if (!old_root_is_here) {
        KV_ASSERT(count < KV_MERKLE_DEPTH_MAX);
        KV_TRY(range_root(&source, here, &ret_proof[count]));
        count++;
    }
    reverse(ret_proof, count);
    *ret_count = count;
    return KV_OK;
}

static bool hashes_equal(const struct kv_hash *a, const struct kv_hash *b)
{
    return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}

KV_RC kv_merkle_verify_inclusion(const struct kv_hash *leaf, uint64_t index, uint64_t size, const struct kv_hash *proof,
                                 size_t count, const struct kv_hash *root)
{
    if (index >= size || count > KV_MERKLE_DEPTH_MAX) {
        return KV_E_TAMPERED;
    }
    uint64_t node = index;
    uint64_t last = size - 1;
    struct kv_hash hash = *leaf;
    for (size_t i = 0; i < count; i++) {
        if (last == 0) {
            return KV_E_TAMPERED;
        }
        if ((node & 1) != 0 || node == last) {
            KV_TRY(kv_merkle_node(&proof[i], &hash, &hash));
            /* Levels where the last node has no sibling add nothing to the proof. */
            while ((node & 1) == 0 && node != 0) {
                node >>= 1;
                last >>= 1;
            }
        } else {
            KV_TRY(kv_merkle_node(&hash, &proof[i], &hash));
        }
        node >>= 1;
        last >>= 1;
    }
    return last == 0 && hashes_equal(&hash, root) ? KV_OK : KV_E_TAMPERED;
}

/* Walks the proof of two different sizes; `hashes` are the roots it leads to: [0] of the old tree, [1] of the new one.
 */
static KV_RC walk_consistency(uint64_t node, uint64_t last, const struct kv_hash *proof, size_t count,
                              struct kv_hash hashes[2])
{
    for (size_t i = 0; i < count; i++) {
        if (last == 0) {
            return KV_E_TAMPERED;
        }
        if ((node & 1) != 0 || node == last) {
            KV_TRY(kv_merkle_node(&proof[i], &hashes[0], &hashes[0]));
            KV_TRY(kv_merkle_node(&proof[i], &hashes[1], &hashes[1]));
            while ((node & 1) == 0 && node != 0) {
                node >>= 1;
                last >>= 1;
            }
        } else {
            KV_TRY(kv_merkle_node(&hashes[1], &proof[i], &hashes[1]));
        }
        node >>= 1;
        last >>= 1;
    }
    return last == 0 ? KV_OK : KV_E_TAMPERED;
}

KV_RC kv_merkle_verify_consistency(uint64_t size1, uint64_t size2, const struct kv_hash *root1,
                                   const struct kv_hash *root2, const struct kv_hash *proof, size_t count)
{
    if (size1 == 0 || size1 > size2 || count > KV_MERKLE_DEPTH_MAX) {
        return KV_E_TAMPERED;
    }
    if (size1 == size2) {
        return count == 0 && hashes_equal(root1, root2) ? KV_OK : KV_E_TAMPERED;
    }
    if (count == 0) {
        return KV_E_TAMPERED;
    }
    uint64_t node = size1 - 1;
    uint64_t last = size2 - 1;
    while ((node & 1) != 0) {
        node >>= 1;
        last >>= 1;
    }
    /* An old tree that is complete is itself the first element, and left out of the proof. */
    bool complete = (size1 & (size1 - 1)) == 0;
    struct kv_hash hashes[2] = {complete ? *root1 : proof[0], complete ? *root1 : proof[0]};
    KV_TRY(walk_consistency(node, last, complete ? proof : proof + 1, complete ? count : count - 1, hashes));
    return hashes_equal(&hashes[0], root1) && hashes_equal(&hashes[1], root2) ? KV_OK : KV_E_TAMPERED;
}

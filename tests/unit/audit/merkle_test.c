/* Trees and proofs, held against a slow reference that follows the definition of RFC 6962 word by word. */
#include "audit/merkle.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MAX_TESTED 300u

struct store {
    struct kv_hash nodes[10][512];
    unsigned told;
};

static struct kv_hash leaves[SIZE_MAX_TESTED];

static void fill_leaves(void)
{
    for (unsigned i = 0; i < SIZE_MAX_TESTED; i++) {
        uint8_t data[4] = {(uint8_t)i, (uint8_t)(i >> 8), 'l', 'f'};
        cr_assert(eq(int, kv_merkle_leaf(KV_BYTES(data, i % 5), &leaves[i]), KV_OK));
    }
}

/* MTH(D[start:start+count]) as the RFC writes it. */
static struct kv_hash reference(unsigned start, unsigned count)
{
    struct kv_hash hash;
    if (count == 0) {
        cr_assert(eq(int, kv_merkle_empty(&hash), KV_OK));
        return hash;
    }
    if (count == 1) {
        return leaves[start];
    }
    unsigned split = 1;
    while (split * 2 < count) {
        split *= 2;
    }
    struct kv_hash left = reference(start, split);
    struct kv_hash right = reference(start + split, count - split);
    cr_assert(eq(int, kv_merkle_node(&left, &right, &hash), KV_OK));
    return hash;
}

static KV_RC put(void *ctx, unsigned level, uint64_t index, const struct kv_hash *hash)
{
    struct store *store = ctx;
    store->nodes[level][index] = *hash;
    store->told++;
    return KV_OK;
}

static KV_RC get(void *ctx, unsigned level, uint64_t index, struct kv_hash *ret_hash)
{
    *ret_hash = ((struct store *)ctx)->nodes[level][index];
    return KV_OK;
}

static bool same(const struct kv_hash *a, const struct kv_hash *b)
{
    return memcmp(a->b, b->b, 32) == 0;
}

static struct store *grow(struct kv_frontier *frontier, unsigned size)
{
    struct store *store = calloc(1, sizeof(*store));
    *frontier = (struct kv_frontier){.size = 0};
    for (unsigned i = 0; i < size; i++) {
        cr_assert(eq(int, kv_frontier_append(frontier, &leaves[i], put, store), KV_OK));
    }
    return store;
}

Test(merkle, hashes_are_those_of_the_rfc)
{
    /* SHA-256 of nothing, and of the single byte 0x00: root of an empty tree, hash of an empty leaf. */
    char text[65];
    struct kv_hash hash;
    cr_assert(eq(int, kv_merkle_empty(&hash), KV_OK));
    kv_hex_encode(hash.b, 32, text);
    cr_assert(eq(str, text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    cr_assert(eq(int, kv_merkle_leaf(KV_BYTES("", 0), &hash), KV_OK));
    kv_hex_encode(hash.b, 32, text);
    cr_assert(eq(str, text, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"));
}

Test(merkle, frontier_root_is_the_root_of_the_definition_at_every_size)
{
    struct kv_frontier frontier = {.size = 0};
    fill_leaves();
    for (unsigned size = 0; size <= SIZE_MAX_TESTED; size++) {
        struct kv_hash root, expected = reference(0, size);
        cr_assert(eq(int, kv_frontier_root(&frontier, &root), KV_OK));
        cr_assert(same(&root, &expected), "size %u", size);
        if (size < SIZE_MAX_TESTED) {
            cr_assert(eq(int, kv_frontier_append(&frontier, &leaves[size], NULL, NULL), KV_OK));
        }
    }
}

Test(merkle, frontier_tells_of_each_complete_subtree_once)
{
    struct kv_frontier frontier;
    fill_leaves();
    struct store *store = grow(&frontier, 300);
    /* 300 + 150 + 75 + 37 + 18 + 9 + 4 + 2 + 1 */
    cr_assert(eq(u32, store->told, 596));
    for (unsigned level = 0; level < 9; level++) {
        for (unsigned i = 0; (i + 1) << level <= 300; i++) {
            struct kv_hash expected = reference(i << level, 1u << level);
            cr_assert(same(&store->nodes[level][i], &expected));
        }
    }
    free(store);
}

Test(merkle, frontier_survives_encoding)
{
    uint8_t bytes[32 * KV_MERKLE_DEPTH_MAX];
    fill_leaves();
    struct kv_frontier frontier = {.size = 0};
    for (unsigned size = 0; size < SIZE_MAX_TESTED; size++) {
        struct kv_frontier back;
        struct kv_hash root, root_back;
        size_t len = kv_frontier_encode(&frontier, bytes);
        cr_assert(eq(sz, len, 32 * (size_t)__builtin_popcount(size)));
        cr_assert(eq(int, kv_frontier_decode(size, KV_BYTES(bytes, len), &back), KV_OK));
        cr_assert(eq(int, kv_frontier_root(&frontier, &root), KV_OK));
        cr_assert(eq(int, kv_frontier_root(&back, &root_back), KV_OK));
        cr_assert(same(&root, &root_back));
        cr_assert(eq(int, kv_frontier_append(&frontier, &leaves[size], NULL, NULL), KV_OK));
        cr_assert(eq(int, kv_frontier_append(&back, &leaves[size], NULL, NULL), KV_OK));
        cr_assert(eq(int, memcmp(&frontier, &back, sizeof(uint64_t) + 32), 0));
    }
}

Test(merkle, frontier_of_another_size_is_refused)
{
    uint8_t bytes[32 * 4] = {0};
    struct kv_frontier frontier;
    cr_assert(eq(int, kv_frontier_decode(7, KV_BYTES(bytes, 96), &frontier), KV_OK));
    cr_assert(eq(int, kv_frontier_decode(7, KV_BYTES(bytes, 95), &frontier), KV_E_CORRUPT));
    cr_assert(eq(int, kv_frontier_decode(7, KV_BYTES(bytes, 128), &frontier), KV_E_CORRUPT));
    cr_assert(eq(int, kv_frontier_decode(0, KV_BYTES(bytes, 32), &frontier), KV_E_CORRUPT));
}

Test(merkle, frontier_at_the_largest_size_takes_no_more)
{
    struct kv_frontier frontier = {.size = UINT64_MAX};
    struct kv_hash hash = {{0}};
    cr_assert(eq(int, kv_frontier_append(&frontier, &hash, NULL, NULL), KV_E_LIMIT));
}

static void check_inclusion(struct store *store, uint64_t index, uint64_t size)
{
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX + 1], root = reference(0, (unsigned)size);
    size_t count = 0;
    cr_assert(eq(int, kv_merkle_inclusion(get, store, index, size, proof, &count), KV_OK));
    cr_assert(eq(int, kv_merkle_verify_inclusion(&leaves[index], index, size, proof, count, &root), KV_OK));
    cr_assert(eq(int, kv_merkle_verify_inclusion(&leaves[index], index, size, proof, count + 1, &root), KV_E_TAMPERED));
    if (count > 0) {
        cr_assert(
            eq(int, kv_merkle_verify_inclusion(&leaves[index], index, size, proof, count - 1, &root), KV_E_TAMPERED));
        proof[index % count].b[index % 32] ^= 1;
        cr_assert(eq(int, kv_merkle_verify_inclusion(&leaves[index], index, size, proof, count, &root), KV_E_TAMPERED));
    }
}

Test(merkle, inclusion_proofs_verify_and_changed_ones_do_not)
{
    struct kv_frontier frontier;
    fill_leaves();
    struct store *store = grow(&frontier, SIZE_MAX_TESTED);
    for (unsigned size = 1; size <= SIZE_MAX_TESTED; size += size < 40 ? 1 : 37) {
        for (unsigned index = 0; index < size; index++) {
            check_inclusion(store, index, size);
        }
    }
    free(store);
}

Test(merkle, inclusion_needs_an_index_below_the_size)
{
    struct kv_frontier frontier;
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX], root;
    size_t count = 99;
    fill_leaves();
    struct store *store = grow(&frontier, 8);
    cr_assert(eq(int, kv_frontier_root(&frontier, &root), KV_OK));
    cr_assert(eq(int, kv_merkle_inclusion(get, store, 7, 8, proof, &count), KV_OK));
    cr_assert(eq(int, kv_merkle_inclusion(get, store, 8, 8, proof, &count), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_merkle_inclusion(get, store, 0, 0, proof, &count), KV_E_INVALID_REQUEST));
    cr_assert(eq(sz, count, 3));
    cr_assert(eq(int, kv_merkle_verify_inclusion(&leaves[7], 7, 8, proof, 3, &root), KV_OK));
    cr_assert(eq(int, kv_merkle_verify_inclusion(&leaves[7], 8, 8, proof, 3, &root), KV_E_TAMPERED));
    cr_assert(eq(int, kv_merkle_verify_inclusion(&leaves[7], 0, 0, proof, 0, &leaves[7]), KV_E_TAMPERED));
    free(store);
}

Test(merkle, consistency_proofs_verify_and_changed_ones_do_not)
{
    struct kv_frontier frontier;
    fill_leaves();
    struct store *store = grow(&frontier, SIZE_MAX_TESTED);
    for (unsigned size2 = 1; size2 <= SIZE_MAX_TESTED; size2 += size2 < 34 ? 1 : 53) {
        struct kv_hash root2 = reference(0, size2);
        for (unsigned size1 = 1; size1 <= size2; size1++) {
            struct kv_hash proof[KV_MERKLE_DEPTH_MAX + 1], root1 = reference(0, size1);
            size_t count = 0;
            cr_assert(eq(int, kv_merkle_consistency(get, store, size1, size2, proof, &count), KV_OK));
            cr_assert(eq(int, kv_merkle_verify_consistency(size1, size2, &root1, &root2, proof, count), KV_OK),
                      "%u to %u", size1, size2);
            cr_assert(
                eq(int, kv_merkle_verify_consistency(size1, size2, &root1, &root2, proof, count + 1), KV_E_TAMPERED));
            if (count > 0) {
                proof[size1 % count].b[size1 % 32] ^= 4;
                cr_assert(
                    eq(int, kv_merkle_verify_consistency(size1, size2, &root1, &root2, proof, count), KV_E_TAMPERED));
            }
        }
    }
    free(store);
}

Test(merkle, consistency_needs_an_older_tree_that_is_not_empty)
{
    struct kv_frontier frontier;
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    size_t count;
    fill_leaves();
    struct store *store = grow(&frontier, 8);
    cr_assert(eq(int, kv_merkle_consistency(get, store, 8, 8, proof, &count), KV_OK));
    cr_assert(eq(int, kv_merkle_consistency(get, store, 9, 8, proof, &count), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_merkle_consistency(get, store, 0, 8, proof, &count), KV_E_INVALID_REQUEST));
    free(store);
}

Test(merkle, root_of_a_list_is_the_root_of_its_tree)
{
    uint8_t items[7 * 32];
    struct kv_hash root, expected;
    for (unsigned i = 0; i < sizeof(items); i++) {
        items[i] = (uint8_t)(i * 7);
    }
    for (unsigned i = 0; i < 7; i++) {
        cr_assert(eq(int, kv_merkle_leaf(KV_BYTES(items + 32 * i, 32), &leaves[i]), KV_OK));
    }
    expected = reference(0, 7);
    cr_assert(eq(int, kv_merkle_root_of(items, 32, 7, &root), KV_OK));
    cr_assert(same(&root, &expected));
    expected = reference(0, 0);
    cr_assert(eq(int, kv_merkle_root_of(NULL, 32, 0, &root), KV_OK));
    cr_assert(same(&root, &expected));
}

/* Around the length of a piece, and of what is shared by threads. */
Test(merkle, root_of_a_long_list_is_that_of_the_growing_tree)
{
    static const size_t counts[] = {1, 2, 4095, 4096, 4097, 8192, 8193, 12288, 50001};
    size_t most = counts[sizeof counts / sizeof counts[0] - 1], at = 0;
    uint8_t *items = calloc(most, 32);
    struct kv_frontier frontier = {.size = 0};
    for (size_t i = 0; i < most; i++) {
        struct kv_hash hash, expected, root;
        memcpy(items + i * 32, &i, sizeof i);
        cr_assert(eq(int, kv_merkle_leaf(KV_BYTES(items + i * 32, 32), &hash), KV_OK));
        cr_assert(eq(int, kv_frontier_append(&frontier, &hash, NULL, NULL), KV_OK));
        if (i + 1 == counts[at]) {
            cr_assert(eq(int, kv_frontier_root(&frontier, &expected), KV_OK));
            cr_assert(eq(int, kv_merkle_root_of(items, 32, counts[at], &root), KV_OK));
            cr_assert(same(&root, &expected), "%zu", counts[at]);
            at++;
        }
    }
    cr_assert(eq(sz, at, sizeof counts / sizeof counts[0]));
    free(items);
}

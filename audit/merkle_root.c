/*
 * The root of a plain list. A long one is cut into pieces whose sizes are powers of two, so that each is a subtree (RFC
 * 6962, section 2.1), and several threads share them: somebody waits for the answer. How many threads there are must
 * never change it.
 */
#include "audit/merkle.h"

#include "dataplane/base/mem.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define PIECE ((size_t)4096) /* leaves: no fewer than a transfer's record may have, which a lane makes */
#define HELPERS_MAX 3u

struct list {
    const uint8_t *items;
    size_t item_len, count;
    size_t piece_count;
    struct kv_hash *roots; /* of the pieces */
    pthread_mutex_t mutex; /* guards the next two */
    size_t next;
    enum kv_err rc;
};

/* Neighbours together until one is left; one without a neighbour goes up as it is. */
static KV_RC fold(struct kv_hash *hashes, size_t count)
{
    while (count > 1) {
        for (size_t i = 0; i < count / 2; i++) {
            KV_TRY(kv_merkle_node(&hashes[2 * i], &hashes[2 * i + 1], &hashes[i]));
        }
        if (count % 2 != 0) {
            hashes[count / 2] = hashes[count - 1];
        }
        count = count / 2 + count % 2;
    }
    return KV_OK;
}

/* Subtrees that are whole, the largest first; two of one size become one. Nothing is allocated. */
static KV_RC piece_root(const struct list *list, size_t first, struct kv_hash *ret_root)
{
    size_t left = list->count - first, count = left < PIECE ? left : PIECE, depth = 0;
    struct kv_hash edge[KV_MERKLE_DEPTH_MAX];
    for (size_t i = 0; i < count; i++) {
        KV_TRY(kv_merkle_leaf(KV_BYTES(list->items + (first + i) * list->item_len, list->item_len), &edge[depth++]));
        for (size_t pairs = i; pairs % 2 != 0; pairs /= 2, depth--) {
            KV_TRY(kv_merkle_node(&edge[depth - 2], &edge[depth - 1], &edge[depth - 2]));
        }
    }
    for (; depth > 1; depth--) {
        KV_TRY(kv_merkle_node(&edge[depth - 2], &edge[depth - 1], &edge[depth - 2]));
    }
    *ret_root = edge[0];
    return KV_OK;
}

/* The next piece that nobody has; piece_count: none, or somebody failed. */
static size_t take(struct list *list, enum kv_err rc)
{
    pthread_mutex_lock(&list->mutex);
    list->rc = list->rc == KV_OK ? rc : list->rc;
    size_t piece = list->rc == KV_OK && list->next < list->piece_count ? list->next++ : list->piece_count;
    pthread_mutex_unlock(&list->mutex);
    return piece;
}

static void *work(void *arg)
{
    struct list *list = arg;
    enum kv_err rc = KV_OK;
    for (size_t piece = take(list, rc); piece < list->piece_count; piece = take(list, rc)) {
        rc = piece_root(list, piece * PIECE, &list->roots[piece]);
    }
    return NULL;
}

/* This thread works, too. One that cannot be made is one less. */
static void share(struct list *list)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t wanted = processors > 1 ? (size_t)processors - 1 : 0, begun = 0;
    pthread_t helpers[HELPERS_MAX];
    wanted = wanted < HELPERS_MAX ? wanted : HELPERS_MAX;
    wanted = wanted < list->piece_count - 1 ? wanted : list->piece_count - 1;
    while (begun < wanted && pthread_create(&helpers[begun], NULL, work, list) == 0) {
        begun++;
    }
    work(list);
    for (size_t i = 0; i < begun; i++) {
        pthread_join(helpers[i], NULL);
    }
}

static KV_RC long_root(struct list *list, struct kv_hash *ret_root)
{
    list->piece_count = list->count / PIECE + (list->count % PIECE != 0);
    list->roots = kv_alloc_array(list->piece_count, sizeof *list->roots);
    if (list->roots == NULL) {
        return KV_E_NO_MEMORY;
    }
    pthread_mutex_init(&list->mutex, NULL);
    share(list);
    pthread_mutex_destroy(&list->mutex);
    enum kv_err rc = list->rc == KV_OK ? fold(list->roots, list->piece_count) : list->rc;
    *ret_root = list->roots[0];
    kv_free(list->roots);
    return rc;
}

KV_RC kv_merkle_root_of(const uint8_t *items, size_t item_len, size_t count, struct kv_hash *ret_root)
{
    struct list list = {.items = items, .item_len = item_len, .count = count};
    struct kv_hash root;
    if (count == 0) {
        return kv_merkle_empty(ret_root);
    }
    KV_TRY(count <= PIECE ? piece_root(&list, 0, &root) : long_root(&list, &root));
    *ret_root = root;
    return KV_OK;
}

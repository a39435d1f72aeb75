/* Roots of long lists, which threads share, while other threads do the same: each is the growing tree's. */
#include "audit/merkle.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CALLERS 4
#define ITEMS ((size_t)20001)

struct caller {
    pthread_t thread;
    const uint8_t *items;
    struct kv_hash root;
    enum kv_err rc;
};

static void *call(void *arg)
{
    struct caller *caller = arg;
    for (int i = 0; i < 3 && caller->rc == KV_OK; i++) {
        caller->rc = kv_merkle_root_of(caller->items, 32, ITEMS, &caller->root);
    }
    return NULL;
}

Test(merkle_root_thread, is_the_same_for_all_at_once)
{
    struct caller callers[CALLERS] = {{.rc = KV_OK}};
    struct kv_frontier frontier = {.size = 0};
    struct kv_hash expected;
    uint8_t *items = calloc(ITEMS, 32);
    for (size_t i = 0; i < ITEMS; i++) {
        struct kv_hash leaf;
        memcpy(items + i * 32, &i, sizeof i);
        cr_assert(eq(int, kv_merkle_leaf(KV_BYTES(items + i * 32, 32), &leaf), KV_OK));
        cr_assert(eq(int, kv_frontier_append(&frontier, &leaf, NULL, NULL), KV_OK));
    }
    cr_assert(eq(int, kv_frontier_root(&frontier, &expected), KV_OK));
    for (int i = 0; i < CALLERS; i++) {
        callers[i].items = items;
        cr_assert(eq(int, pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0));
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        cr_assert(eq(int, callers[i].rc, KV_OK));
        cr_assert(eq(int, memcmp(&callers[i].root, &expected, sizeof expected), 0));
    }
    free(items);
}

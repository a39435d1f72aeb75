/*
 * Borrowers, openers, droppers and a lease keeper on one keyring at once, and walkers against a tree whose root goes
 * away. The checks are few: the sanitizer and the asserts inside do most of the work.
 */
#include "dataplane/base/id.h"
#include "dataplane/keys/keyring.h"
#include "dataplane/keys/ktree.h"
#include "tests/lib/ktree_store_history.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <string.h>

enum { SCOPES = 8, THREADS = 4, ROUNDS = 2000 };

static struct kv_keyring *ring;
static struct kv_ktree *tree;
static struct kvt_history history;
static struct kv_ktree_store store;
static struct kv_id tenant, scopes[SCOPES], root_id;
static struct kv_secret *secrets[SCOPES], *root;

static struct kv_id new_id(void)
{
    struct kv_id id;
    cr_assert(eq(int, kv_id_new(&kv_env_system, &id), KV_OK));
    return id;
}

static void run_threads(void *(*body)(void *), void *(*also)(void *))
{
    pthread_t threads[THREADS + 1];
    uintptr_t count = 0;
    for (; count < THREADS; count++) {
        cr_assert(pthread_create(&threads[count], NULL, body, (void *)count) == 0);
    }
    cr_assert(pthread_create(&threads[count], NULL, also, NULL) == 0);
    for (uintptr_t i = 0; i <= count; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void *borrow_and_open(void *arg)
{
    uintptr_t turn = (uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        size_t which = (turn * 3 + (size_t)i) % SCOPES;
        struct kv_scope_keys keys;
        if (i % 4 == 0) {
            KV_IGNORE(kv_keyring_open(ring, &tenant, &scopes[which], secrets[which]), "may be closing");
        }
        if (kv_keyring_borrow(ring, &scopes[which], &keys) == KV_OK) {
            uint8_t seen = 0;
            for (size_t b = 0; b < 32; b++) {
                seen |= kv_secret_data(keys.block)[b];
            }
            cr_assert(seen != 0, "a borrowed key was wiped");
            kv_keyring_return(ring, &keys);
        }
        KV_IGNORE(kv_keyring_lease_valid(ring) ? KV_OK : KV_E_LEASE_EXPIRED, "only that it can be asked");
    }
    return NULL;
}

static void *drop_and_wipe(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        cr_assert(eq(int, kv_keyring_drop(ring, &scopes[(size_t)i % SCOPES], false, UINT64_MAX), KV_OK));
        if (i % 16 == 0) {
            kv_keyring_wipe(ring);
        }
        kv_keyring_set_lease(ring, i % 5 == 0 ? 0 : UINT64_MAX);
        cr_assert(kv_keyring_count(ring) <= SCOPES);
    }
    return NULL;
}

Test(keyring_threads, nobody_sees_a_wiped_key_and_nothing_is_left)
{
    tenant = new_id();
    cr_assert(eq(int, kv_keyring_new(&kv_env_system, SCOPES, &ring), KV_OK));
    for (size_t i = 0; i < SCOPES; i++) {
        scopes[i] = new_id();
        cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &secrets[i]), KV_OK));
    }
    kv_keyring_set_lease(ring, UINT64_MAX);
    run_threads(borrow_and_open, drop_and_wipe);
    for (size_t i = 0; i < SCOPES; i++) {
        cr_assert(eq(int, kv_keyring_drop(ring, &scopes[i], true, UINT64_MAX), KV_OK));
        kv_secret_free(secrets[i]);
    }
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
    kv_keyring_free(ring);
}

static void *walk(void *arg)
{
    uint32_t turn = (uint32_t)(uintptr_t)arg;
    uint8_t first[32] = {0}, found[32];
    bool have_first = false;
    for (int i = 0; i < ROUNDS / 20; i++) {
        struct kv_secret *secret = NULL;
        enum kv_err rc = kv_ktree_slot(tree, &store, &tenant, 0, turn % 2 * 64, true, &secret);
        if (rc != KV_OK) {
            cr_assert(rc == KV_E_STALE || rc == KV_E_INVALID_STATE, "unexpected result %d", rc);
            continue;
        }
        memcpy(found, kv_secret_data(secret), 32);
        kv_secret_free(secret);
        if (have_first) {
            cr_assert(memcmp(first, found, 32) == 0);
        }
        memcpy(first, found, 32);
        have_first = true;
    }
    return NULL;
}

static void *purge_and_set(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS / 20; i++) {
        kv_ktree_purge(tree);
        cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
        cr_assert(kv_ktree_cached(tree) <= 64);
    }
    return NULL;
}

Test(ktree_threads, walks_and_purges_do_not_mix)
{
    const struct kv_id cluster = new_id();
    tenant = new_id();
    root_id = new_id();
    kvt_history_init(&history);
    store = kvt_history_store(&history);
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &root), KV_OK));
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &cluster, &tree), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    cr_assert(eq(int, kv_ktree_format(tree, &store), KV_OK));
    run_threads(walk, purge_and_set);
    kv_ktree_purge(tree);
    kv_secret_free(root);
    cr_assert(eq(sz, kv_secret_arena_used(), 0), "nothing outlives the purge");
    kv_ktree_free(tree);
    kvt_history_done(&history);
}

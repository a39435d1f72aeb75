/*
 * The erasure tree over a store that never forgets a row. The adversary of these tests holds every row ever written and
 * the present root secret.
 */
#include "dataplane/base/id.h"
#include "dataplane/keys/ktree.h"
#include "tests/lib/ktree_attack.h"
#include "tests/lib/ktree_store_history.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

static struct kvt_history history;
static struct kv_ktree_store store;
static struct kv_ktree *tree;
static struct kv_id cluster, tenant, other_tenant, root_id;
static struct kv_secret *root;

static struct kv_id new_id(void)
{
    struct kv_id id;
    cr_assert(eq(int, kv_id_new(&kv_env_system, &id), KV_OK));
    return id;
}

static struct kv_secret *new_secret(void)
{
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &secret), KV_OK));
    return secret;
}

static void set_up(void)
{
    kvt_history_init(&history);
    store = kvt_history_store(&history);
    cluster = new_id();
    tenant = new_id();
    other_tenant = new_id();
    root_id = new_id();
    root = new_secret();
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &cluster, &tree), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    cr_assert(eq(int, kv_ktree_format(tree, &store), KV_OK));
}

static void tear_down(void)
{
    kv_ktree_free(tree);
    kv_secret_free(root);
    kvt_history_done(&history);
    cr_assert(eq(sz, kv_secret_arena_used(), 0), "the tree left a secret behind");
}

TestSuite(ktree, .init = set_up, .fini = tear_down);

static enum kv_err slot_secret(const struct kv_id *of, uint32_t directory_slot, uint32_t slot, bool fill,
                               uint8_t ret_bytes[32])
{
    struct kv_secret *secret = NULL;
    enum kv_err rc = kv_ktree_slot(tree, &store, of, directory_slot, slot, fill, &secret);
    if (rc == KV_OK) {
        cr_assert(eq(sz, kv_secret_len(secret), 32));
        memcpy(ret_bytes, kv_secret_data(secret), 32);
    } else {
        cr_assert(secret == NULL, "a result was touched on failure");
    }
    kv_secret_free(secret);
    return rc;
}

static void must_slot(const struct kv_id *of, uint32_t directory_slot, uint32_t slot, uint8_t ret_bytes[32])
{
    cr_assert(eq(int, slot_secret(of, directory_slot, slot, true, ret_bytes), KV_OK));
}

/* Re-keys to a fresh root and makes the tree use it. */
static enum kv_err rekey(const struct kv_ktree_target *targets, size_t count)
{
    struct kv_id fresh_id = new_id();
    struct kv_secret *fresh = new_secret();
    enum kv_err rc = kv_ktree_rekey(tree, &store, targets, count, &fresh_id, fresh);
    if (rc == KV_OK) {
        cr_assert(eq(int, kv_ktree_set_root(tree, &fresh_id, fresh), KV_OK));
        kv_secret_free(root);
        root = fresh;
        root_id = fresh_id;
    } else {
        kv_secret_free(fresh);
    }
    return rc;
}

static struct kv_ktree_target target_of(const struct kv_id *of, uint32_t directory_slot, uint32_t slot)
{
    return (struct kv_ktree_target){.tenant = *of, .directory_slot = directory_slot, .slot = slot};
}

/* ---- the adversary ---- */

/* Every secret that E leads to. */
static struct kvt_reached attack(const uint8_t start[32])
{
    struct kvt_reached reached = {0};
    kvt_reach(&reached, start);
    kvt_ktree_attack(&history, &cluster, &root_id, &reached);
    return reached;
}

static bool adversary_reaches(const uint8_t secret[32])
{
    struct kvt_reached reached = attack(kv_secret_data(root));
    bool found = kvt_reached_has(&reached, secret);
    kvt_reached_done(&reached);
    return found;
}

/* ---- slots ---- */

Test(ktree, slot_has_the_same_secret_each_time)
{
    uint8_t first[32], again[32];
    must_slot(&tenant, 0, 0, first);
    must_slot(&tenant, 0, 0, again);
    cr_assert(memcmp(first, again, 32) == 0);
    kv_ktree_purge(tree);
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, again), KV_OK));
    cr_assert(memcmp(first, again, 32) == 0, "from the rows alone");
}

Test(ktree, slots_and_tenants_have_different_secrets)
{
    uint8_t a[32], b[32], c[32];
    must_slot(&tenant, 0, 0, a);
    must_slot(&tenant, 0, 1, b);
    must_slot(&other_tenant, 1, 0, c);
    cr_assert(memcmp(a, b, 32) != 0);
    cr_assert(memcmp(a, c, 32) != 0);
}

Test(ktree, first_and_last_slots_are_there_and_one_past_them_is_refused)
{
    uint8_t bytes[32];
    const uint32_t last = (uint32_t)KV_MAX_TENANT_SLOTS - 1, last_tenant = (uint32_t)KV_MAX_TENANTS - 1;
    must_slot(&tenant, last_tenant, last, bytes);
    must_slot(&other_tenant, 0, 0, bytes);
    cr_assert(eq(int, slot_secret(&tenant, last_tenant, last + 1, true, bytes), KV_E_LIMIT));
    cr_assert(eq(int, slot_secret(&tenant, last_tenant + 1, 0, true, bytes), KV_E_LIMIT));
    const struct kv_id zero = {0};
    cr_assert(eq(int, slot_secret(&zero, 0, 0, true, bytes), KV_E_INVALID_REQUEST));
}

Test(ktree, filling_inserts_each_node_once_and_never_updates)
{
    uint8_t bytes[32];
    cr_assert(eq(sz, history.count, 1), "the formatted top");
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(eq(sz, history.count, 6));
    for (uint32_t slot = 1; slot < 64; slot++) {
        must_slot(&tenant, 0, slot, bytes);
    }
    cr_assert(eq(sz, history.count, 6), "the leaf holds 64 slots");
    must_slot(&tenant, 0, 64, bytes);
    cr_assert(eq(sz, history.count, 7), "one leaf more");
    cr_assert(eq(sz, history.updates, 0));
}

Test(ktree, slot_without_rows_is_missing_unless_it_may_be_filled)
{
    uint8_t bytes[32];
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_MISSING));
    cr_assert(eq(sz, history.count, 1));
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_OK), "control");
    cr_assert(eq(int, slot_secret(&tenant, 0, 4096, false, bytes), KV_E_MISSING));
}

Test(ktree, unformatted_store_is_missing_even_when_filling)
{
    struct kvt_history empty;
    kvt_history_init(&empty);
    const struct kv_ktree_store empty_store = kvt_history_store(&empty);
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_ktree_slot(tree, &empty_store, &tenant, 0, 0, true, &secret), KV_E_MISSING));
    cr_assert(eq(int, kv_ktree_rekey(tree, &empty_store, NULL, 0, &tenant, root), KV_E_MISSING));
    kvt_history_done(&empty);
}

Test(ktree, second_format_is_stale)
{
    cr_assert(eq(int, kv_ktree_format(tree, &store), KV_E_STALE));
    cr_assert(eq(sz, history.count, 1));
}

static void another_writer_fills(void *arg)
{
    struct kv_ktree *other = arg;
    struct kv_secret *secret = NULL;
    if (history.loads != 1) {
        return; /* After the first load of the walk and before its second. */
    }
    history.before_load = NULL;
    cr_assert(eq(int, kv_ktree_slot(other, &store, &tenant, 0, 0, true, &secret), KV_OK));
    kv_secret_free(secret);
}

Test(ktree, nodes_that_another_writer_filled_meanwhile_are_taken)
{
    struct kv_ktree *other = NULL;
    uint8_t mine[32], theirs[32];
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &cluster, &other), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(other, &root_id, root), KV_OK));
    history.before_load = another_writer_fills;
    history.before_load_arg = other;
    must_slot(&tenant, 0, 0, mine);
    cr_assert(eq(sz, history.count, 6));
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_ktree_slot(other, &store, &tenant, 0, 0, false, &secret), KV_OK));
    memcpy(theirs, kv_secret_data(secret), 32);
    kv_secret_free(secret);
    cr_assert(memcmp(mine, theirs, 32) == 0);
    kv_ktree_free(other);
}

static KV_RC insert_loses_race(void *ctx, const struct kv_node_key *key, const struct kv_node_row *row)
{
    (void)ctx;
    (void)key;
    (void)row;
    return KV_E_STALE;
}

Test(ktree, lost_insert_without_a_row_to_take_is_stale)
{
    struct kv_ktree_store losing = store;
    struct kv_secret *secret = NULL;
    losing.insert = insert_loses_race;
    cr_assert(eq(int, kv_ktree_slot(tree, &losing, &tenant, 0, 0, true, &secret), KV_E_STALE));
}

/* ---- roots and the cache ---- */

Test(ktree, purged_tree_opens_nothing_and_caches_nothing)
{
    uint8_t bytes[32];
    struct kv_id found;
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(eq(sz, kv_ktree_cached(tree), 6));
    cr_assert(kv_ktree_root(tree, &found) && kv_id_equal(&found, &root_id));
    kv_ktree_purge(tree);
    cr_assert(eq(sz, kv_ktree_cached(tree), 0));
    cr_assert_not(kv_ktree_root(tree, &found));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, true, bytes), KV_E_INVALID_STATE));
    cr_assert(eq(int, kv_ktree_format(tree, &store), KV_E_INVALID_STATE));
    cr_assert(eq(int, rekey(NULL, 0), KV_E_INVALID_STATE));
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_OK), "control");
}

Test(ktree, cache_is_bounded)
{
    uint8_t bytes[32];
    for (uint32_t leaf = 0; leaf < 80; leaf++) {
        must_slot(&tenant, 0, leaf * 64, bytes);
    }
    cr_assert(eq(sz, kv_ktree_cached(tree), 64));
    for (uint32_t leaf = 0; leaf < 80; leaf++) {
        cr_assert(eq(int, slot_secret(&tenant, 0, leaf * 64, false, bytes), KV_OK));
    }
}

Test(ktree, setting_the_same_root_keeps_the_cache_and_another_wipes_it)
{
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    cr_assert(eq(sz, kv_ktree_cached(tree), 6));
    const struct kv_id fresh_id = new_id();
    cr_assert(eq(int, kv_ktree_set_root(tree, &fresh_id, root), KV_OK));
    cr_assert(eq(sz, kv_ktree_cached(tree), 0));
    const struct kv_id zero = {0};
    cr_assert(eq(int, kv_ktree_set_root(tree, &zero, root), KV_E_INVALID_REQUEST));
}

Test(ktree, rows_of_another_epoch_are_a_wrong_key)
{
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    const struct kv_id other_id = new_id();
    cr_assert(eq(int, kv_ktree_set_root(tree, &other_id, root), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_WRONG_KEY), "another root id");
    struct kv_secret *other = new_secret();
    kv_ktree_purge(tree);
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, other), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_WRONG_KEY), "another root secret");
    kv_ktree_purge(tree);
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_OK), "control");
    kv_secret_free(other);
}

Test(ktree, rekey_of_another_process_is_seen_at_the_next_walk)
{
    uint8_t bytes[32];
    struct kv_ktree *other = NULL;
    const struct kv_id fresh_id = new_id();
    struct kv_secret *fresh = new_secret();
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &cluster, &other), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(other, &root_id, root), KV_OK));
    cr_assert(eq(int, kv_ktree_rekey(other, &store, NULL, 0, &fresh_id, fresh), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_WRONG_KEY), "though every node is cached");
    cr_assert(eq(int, kv_ktree_set_root(tree, &fresh_id, fresh), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_OK), "control");
    kv_secret_free(fresh);
    kv_ktree_free(other);
}

Test(ktree, nodes_of_a_transaction_that_was_rolled_back_are_not_used)
{
    uint8_t gone[32], kept[32];
    must_slot(&tenant, 0, 0, gone);
    kvt_history_roll_back(&history, 1);
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, kept), KV_E_MISSING), "though the nodes are cached");
    must_slot(&tenant, 0, 0, kept);
    cr_assert(memcmp(gone, kept, 32) != 0);
}

Test(ktree, other_cluster_cannot_open_the_rows)
{
    struct kv_ktree *other = NULL;
    struct kv_secret *secret = NULL;
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &tenant, &other), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(other, &root_id, root), KV_OK));
    cr_assert(eq(int, kv_ktree_slot(other, &store, &tenant, 0, 0, false, &secret), KV_E_WRONG_KEY));
    kv_ktree_free(other);
}

Test(ktree, changed_row_is_tampered_and_moved_row_is_a_wrong_key)
{
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    must_slot(&tenant, 0, 64, bytes);
    kv_ktree_purge(tree);
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    const struct kv_node_key leaf = {.tree = tenant, .level = 0, .idx = 0}, next = {.tree = tenant, .idx = 1};
    struct kvt_row *row = kvt_history_find(&history, &leaf), *other = kvt_history_find(&history, &next);
    row->row.sealed[row->row.sealed_len - 1] ^= 1;
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_TAMPERED));
    row->row.sealed[row->row.sealed_len - 1] ^= 1;
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_OK), "control");
    kv_ktree_purge(tree);
    cr_assert(eq(int, kv_ktree_set_root(tree, &root_id, root), KV_OK));
    const struct kv_node_row kept = row->row;
    row->row = other->row;
    other->row = kept;
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_WRONG_KEY));
}

struct purger {
    pthread_t thread;
    bool started;
};

static void *purge_thread(void *arg)
{
    (void)arg;
    kv_ktree_purge(tree);
    return NULL;
}

/* From the walk's own thread the purge would wait for the walk. */
static void start_purge(void *arg)
{
    struct purger *purger = arg;
    struct kv_id ignored;
    history.before_load = NULL;
    cr_assert(pthread_create(&purger->thread, NULL, purge_thread, NULL) == 0);
    purger->started = true;
    while (kv_ktree_root(tree, &ignored)) {
        sched_yield();
    }
}

Test(ktree, walk_that_a_purge_overtakes_returns_nothing)
{
    struct purger purger = {0};
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    history.before_load = start_purge;
    history.before_load_arg = &purger;
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_STALE));
    cr_assert(purger.started);
    pthread_join(purger.thread, NULL);
    cr_assert(eq(sz, kv_ktree_cached(tree), 0), "nor did the walk fill the cache again");
}

static enum kv_err changed_inside;

static void change_root_inside(void *arg)
{
    const struct kv_id *fresh_id = arg;
    history.before_load = NULL;
    changed_inside = kv_ktree_set_root(tree, fresh_id, root);
}

Test(ktree, change_of_root_does_not_wait_for_ever_for_a_walk_that_hangs)
{
    /* The walk hangs because it is itself the one that changes the root. */
    uint8_t bytes[32];
    const struct kv_id fresh_id = new_id();
    must_slot(&tenant, 0, 0, bytes);
    history.before_load = change_root_inside;
    history.before_load_arg = (void *)(uintptr_t)&fresh_id;
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_E_STALE));
    cr_assert(eq(int, changed_inside, KV_E_BUSY));
    cr_assert(eq(int, kv_ktree_set_root(tree, &fresh_id, root), KV_OK), "now that the walk has ended");
}

/* ---- re-key ---- */

Test(ktree, erased_slot_is_unreachable_from_every_row_ever_stored)
{
    uint8_t erased[32], neighbour[32], far[32], foreign[32], found[32];
    must_slot(&tenant, 0, 7, erased);
    must_slot(&tenant, 0, 8, neighbour);
    must_slot(&tenant, 0, 70, far);
    must_slot(&other_tenant, 1, 7, foreign);
    cr_assert(adversary_reaches(erased), "control: before, the adversary gets it");
    const struct kv_ktree_target target = target_of(&tenant, 0, 7);
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    cr_assert_not(adversary_reaches(erased));
    cr_assert(adversary_reaches(neighbour), "control: the adversary still gets what lives");
    cr_assert(adversary_reaches(far));
    cr_assert(adversary_reaches(foreign));
    cr_assert(eq(int, slot_secret(&tenant, 0, 7, false, found), KV_E_SESSION_ERASED));
    cr_assert(eq(int, slot_secret(&tenant, 0, 7, true, found), KV_E_SESSION_ERASED), "filling does not bring it back");
    must_slot(&tenant, 0, 8, found);
    cr_assert(memcmp(found, neighbour, 32) == 0, "live slots keep their secrets");
    must_slot(&tenant, 0, 70, found);
    cr_assert(memcmp(found, far, 32) == 0);
    must_slot(&other_tenant, 1, 7, found);
    cr_assert(memcmp(found, foreign, 32) == 0);
}

Test(ktree, erased_slot_is_reachable_from_the_old_root_until_that_is_destroyed)
{
    /* Why the destruction of the old root is the moment of erasure, and not the re-key. */
    uint8_t erased[32], old_root[32];
    must_slot(&tenant, 0, 7, erased);
    memcpy(old_root, kv_secret_data(root), 32);
    const struct kv_ktree_target target = target_of(&tenant, 0, 7);
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    struct kvt_reached reached = attack(old_root);
    cr_assert(kvt_reached_has(&reached, erased));
    kvt_reached_done(&reached);
    cr_assert_not(adversary_reaches(erased));
}

Test(ktree, every_erasure_of_a_sequence_stays_erased)
{
    uint8_t secrets[6][32];
    for (uint32_t i = 0; i < 6; i++) {
        must_slot(&tenant, 0, i * 40, secrets[i]);
    }
    for (uint32_t i = 0; i < 5; i++) {
        const struct kv_ktree_target target = target_of(&tenant, 0, i * 40);
        cr_assert(eq(int, rekey(&target, 1), KV_OK));
        struct kvt_reached reached = attack(kv_secret_data(root));
        for (uint32_t j = 0; j < 6; j++) {
            cr_assert(eq(int, kvt_reached_has(&reached, secrets[j]), j > i), "slot %u after erasure %u", j, i);
        }
        kvt_reached_done(&reached);
    }
}

Test(ktree, full_batch_with_repeats_and_several_tenants)
{
    enum { BATCH = 64 }; /* the attack tries every secret on every row, so a full one would take minutes */
    struct kv_ktree_target targets[KV_ERASE_BATCH + 1] = {0};
    struct kv_id tenants[4];
    uint8_t erased[BATCH][32], live[4][32], found[32];
    for (uint32_t t = 0; t < 4; t++) {
        tenants[t] = new_id();
        must_slot(&tenants[t], t * 70, 200000, live[t]);
    }
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t t = i % 4, slot = (i / 8) * 37; /* Each slot twice. */
        targets[i] = target_of(&tenants[t], t * 70, slot);
        must_slot(&tenants[t], t * 70, slot, erased[i]);
    }
    for (uint32_t i = BATCH; i <= KV_ERASE_BATCH; i++) {
        targets[i] = targets[i % BATCH];
    }
    cr_assert(eq(int, rekey(targets, KV_ERASE_BATCH + 1), KV_E_LIMIT));
    cr_assert(eq(int, rekey(targets, KV_ERASE_BATCH), KV_OK));
    struct kvt_reached reached = attack(kv_secret_data(root));
    for (uint32_t i = 0; i < BATCH; i++) {
        cr_assert_not(kvt_reached_has(&reached, erased[i]), "target %u", i);
        cr_assert(
            eq(int, slot_secret(&tenants[i % 4], (i % 4) * 70, targets[i].slot, false, found), KV_E_SESSION_ERASED));
    }
    for (uint32_t t = 0; t < 4; t++) {
        cr_assert(kvt_reached_has(&reached, live[t]));
        must_slot(&tenants[t], t * 70, 200000, found);
        cr_assert(memcmp(found, live[t], 32) == 0);
    }
    kvt_reached_done(&reached);
}

/* ---- whole trees ---- */

static enum kv_err top_secret(uint32_t directory_slot)
{
    struct kv_secret *secret = NULL;
    enum kv_err rc = kv_ktree_top(tree, &store, directory_slot, &secret);
    cr_assert(eq(int, rc == KV_OK, secret != NULL));
    kv_secret_free(secret);
    return rc;
}

Test(ktree, whole_tree_goes_with_its_place_in_the_directory_and_costs_its_path_alone)
{
    static const uint32_t slots[] = {0, 63, 64, 4096, 262143};
    uint8_t erased[5][32], beside[32], far[32], found[32];
    for (size_t i = 0; i < 5; i++) {
        must_slot(&tenant, 0, slots[i], erased[i]);
    }
    must_slot(&other_tenant, 1, 0, beside);
    const struct kv_id third = new_id();
    must_slot(&third, 64 * 64, 0, far);
    cr_assert(eq(int, top_secret(0), KV_OK));
    size_t before = history.updates;
    const struct kv_ktree_target target = {.tenant = tenant, .directory_slot = 0, .slot = 5, .whole = true};
    cr_assert(adversary_reaches(erased[4]), "control: before, the adversary gets it");
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    cr_assert(eq(sz, history.updates - before, KV_TREE_LEVELS));
    struct kvt_reached reached = attack(kv_secret_data(root));
    for (size_t i = 0; i < 5; i++) {
        cr_assert_not(kvt_reached_has(&reached, erased[i]), "slot %u", slots[i]);
        cr_assert(eq(int, slot_secret(&tenant, 0, slots[i], true, found), KV_E_SESSION_ERASED));
    }
    cr_assert(kvt_reached_has(&reached, beside) && kvt_reached_has(&reached, far));
    kvt_reached_done(&reached);
    cr_assert(eq(int, top_secret(0), KV_E_SESSION_ERASED));
    cr_assert(eq(int, top_secret(1), KV_OK));
    cr_assert(eq(int, top_secret(2 * 64 * 64), KV_E_MISSING), "nobody was ever there");
    must_slot(&other_tenant, 1, 0, found);
    cr_assert(memcmp(found, beside, 32) == 0);
    cr_assert(eq(int, rekey(&target, 1), KV_OK), "again is fine");
}

Test(ktree, whole_tree_and_slots_of_it_go_in_one_batch_in_any_order)
{
    uint8_t erased[3][32], live[32], found[32];
    must_slot(&tenant, 0, 1, erased[0]);
    must_slot(&tenant, 0, 5000, erased[1]);
    must_slot(&other_tenant, 1, 9, erased[2]);
    must_slot(&other_tenant, 1, 10, live);
    const struct kv_ktree_target targets[] = {target_of(&tenant, 0, 1),
                                              {.tenant = tenant, .directory_slot = 0, .whole = true},
                                              target_of(&other_tenant, 1, 9),
                                              target_of(&tenant, 0, 5000)};
    cr_assert(eq(int, rekey(targets, 4), KV_OK));
    struct kvt_reached reached = attack(kv_secret_data(root));
    for (size_t i = 0; i < 3; i++) {
        cr_assert_not(kvt_reached_has(&reached, erased[i]), "%zu", i);
    }
    cr_assert(kvt_reached_has(&reached, live));
    kvt_reached_done(&reached);
    must_slot(&other_tenant, 1, 10, found);
    cr_assert(memcmp(found, live, 32) == 0);
}

Test(ktree, fresh_tree_at_another_place_has_other_secrets)
{
    uint8_t before[32], after[32], found[32];
    must_slot(&tenant, 0, 3, before);
    const struct kv_id fresh = new_id();
    must_slot(&fresh, 2, 3, after);
    cr_assert(memcmp(before, after, 32) != 0);
    const struct kv_ktree_target target = {.tenant = tenant, .directory_slot = 0, .whole = true};
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    must_slot(&fresh, 2, 3, found);
    cr_assert(memcmp(found, after, 32) == 0);
}

Test(ktree, leaf_has_the_secrets_of_its_slots_and_none_of_an_erased_one)
{
    struct kv_secret *leaf[KV_TREE_FANOUT] = {0};
    uint8_t expected[32];
    must_slot(&tenant, 0, 65, expected);
    const struct kv_ktree_target target = target_of(&tenant, 0, 66);
    cr_assert(eq(int, kv_ktree_leaf(tree, &store, &tenant, 0, 4096, leaf), KV_E_MISSING));
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    cr_assert(eq(int, kv_ktree_leaf(tree, &store, &tenant, 0, 70, leaf), KV_OK));
    for (unsigned i = 0; i < KV_TREE_FANOUT; i++) {
        cr_assert(eq(int, leaf[i] == NULL, i == 2), "slot %u", 64 + i);
        kv_secret_free(i == 1 ? NULL : leaf[i]);
    }
    cr_assert(eq(int, memcmp(kv_secret_data(leaf[1]), expected, sizeof expected), 0));
    kv_secret_free(leaf[1]);
}

Test(ktree, empty_batch_moves_the_tree_under_the_next_root)
{
    uint8_t before[32], after[32];
    must_slot(&tenant, 0, 0, before);
    const struct kv_id old = root_id;
    cr_assert(eq(int, rekey(NULL, 0), KV_OK));
    cr_assert_not(kv_id_equal(&old, &root_id));
    must_slot(&tenant, 0, 0, after);
    cr_assert(memcmp(before, after, 32) == 0);
    cr_assert(eq(sz, history.updates, 1));
}

Test(ktree, slot_that_was_never_filled_is_erased_without_a_row)
{
    uint8_t live[32], bytes[32];
    must_slot(&tenant, 0, 0, live);
    const struct kv_ktree_target targets[] = {target_of(&tenant, 0, 64 * 64 * 3), target_of(&other_tenant, 64 * 64, 1)};
    cr_assert(eq(int, rekey(targets, 2), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 64 * 64 * 3, false, bytes), KV_E_MISSING));
    cr_assert(eq(int, slot_secret(&other_tenant, 64 * 64, 1, false, bytes), KV_E_MISSING));
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(memcmp(live, bytes, 32) == 0);
}

Test(ktree, erasing_an_erased_slot_again_is_fine)
{
    uint8_t bytes[32];
    must_slot(&tenant, 0, 3, bytes);
    const struct kv_ktree_target target = target_of(&tenant, 0, 3);
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    cr_assert(eq(int, slot_secret(&tenant, 0, 3, false, bytes), KV_E_SESSION_ERASED));
}

Test(ktree, every_node_of_the_path_gets_a_fresh_id_and_the_next_version)
{
    uint8_t bytes[32];
    must_slot(&tenant, 5, 9, bytes);
    size_t before = history.count;
    struct kv_id old_ids[6];
    for (size_t i = 0; i < 6; i++) {
        old_ids[i] = history.rows[i].row.node_id;
    }
    const struct kv_ktree_target target = target_of(&tenant, 5, 9);
    cr_assert(eq(int, rekey(&target, 1), KV_OK));
    cr_assert(eq(sz, history.count, before + 6));
    for (size_t i = 0; i < 6; i++) {
        const struct kvt_row *row = kvt_history_find(&history, &history.rows[i].key);
        cr_assert_not(kv_id_equal(&row->row.node_id, &old_ids[i]));
        cr_assert(eq(long, row->row.version, 2));
    }
}

Test(ktree, tree_goes_on_with_its_root_until_the_next_is_set)
{
    uint8_t bytes[32];
    const struct kv_id fresh_id = new_id();
    struct kv_secret *fresh = new_secret();
    struct kv_id found;
    must_slot(&tenant, 0, 0, bytes);
    size_t mark = history.count;
    const struct kv_ktree_target target = target_of(&tenant, 0, 0);
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, &target, 1, &fresh_id, fresh), KV_OK));
    cr_assert(kv_ktree_root(tree, &found) && kv_id_equal(&found, &root_id));
    kvt_history_roll_back(&history, mark);
    cr_assert(eq(int, slot_secret(&tenant, 0, 0, false, bytes), KV_OK), "a transaction that failed changes nothing");
    kv_secret_free(fresh);
}

static void bump_version(void *arg)
{
    /* Another writer moves the leaf while the re-key reads. */
    const struct kv_node_key leaf = {.tree = tenant, .level = 0, .idx = 0};
    struct kvt_row *row = kvt_history_find(arg, &leaf);
    row->row.version++;
}

static size_t loads_at_start;

static void bump_after_the_leaf_was_read(void *arg)
{
    if (history.loads == loads_at_start + 6) {
        bump_version(arg);
    }
}

Test(ktree, version_that_changed_meanwhile_is_stale)
{
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    must_slot(&other_tenant, 1, 0, bytes);
    const struct kv_ktree_target targets[] = {target_of(&tenant, 0, 0), target_of(&other_tenant, 1, 0)};
    loads_at_start = history.loads;
    history.before_load = bump_after_the_leaf_was_read;
    history.before_load_arg = &history;
    size_t mark = history.count;
    cr_assert(eq(int, rekey(targets, 2), KV_E_STALE));
    history.before_load = NULL;
    kvt_history_roll_back(&history, mark);
    cr_assert(eq(int, rekey(targets, 2), KV_OK), "control: again, with nobody in between");
}

Test(ktree, rekey_of_another_epoch_is_a_wrong_key)
{
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    const struct kv_ktree_target target = target_of(&tenant, 0, 0);
    const struct kv_id wrong = new_id();
    const struct kv_id right = root_id;
    cr_assert(eq(int, kv_ktree_set_root(tree, &wrong, root), KV_OK));
    cr_assert(eq(int, rekey(&target, 1), KV_E_WRONG_KEY));
    cr_assert(eq(sz, history.updates, 0));
    cr_assert(eq(int, kv_ktree_set_root(tree, &right, root), KV_OK));
    cr_assert(eq(int, rekey(&target, 1), KV_OK), "control");
}

Test(ktree, rekey_refuses_what_makes_no_sense)
{
    const struct kv_id zero = {0}, fresh_id = new_id();
    struct kv_secret *fresh = new_secret(), *odd = NULL;
    uint8_t bytes[32];
    must_slot(&tenant, 0, 0, bytes);
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 16, &odd), KV_OK));
    struct kv_ktree_target target = target_of(&tenant, 0, 0);
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, &target, 1, &zero, fresh), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, &target, 1, &root_id, fresh), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, &target, 1, &fresh_id, odd), KV_E_INVALID_REQUEST));
    target.slot = (uint32_t)KV_MAX_TENANT_SLOTS;
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, &target, 1, &fresh_id, fresh), KV_E_LIMIT));
    const struct kv_ktree_target twice[] = {target_of(&tenant, 0, 0), target_of(&tenant, 1, 0)};
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, twice, 2, &fresh_id, fresh), KV_E_INVALID_REQUEST),
              "one tenant cannot hang under two directory slots");
    cr_assert(eq(sz, history.updates, 0));
    kv_secret_free(fresh);
    kv_secret_free(odd);
}

/* ---- single nodes ---- */

Test(ktree, node_opens_with_its_secret_only)
{
    struct kv_secret *children[KV_TREE_FANOUT] = {0}, *wrong = new_secret();
    const struct kv_node_key top = {.level = 2};
    const struct kvt_row *row = kvt_history_find(&history, &top);
    const struct kv_bytes sealed = KV_BYTES(row->row.sealed, row->row.sealed_len);
    cr_assert(eq(int, kv_node_open(&cluster, &top, &root_id, wrong, sealed, children), KV_E_WRONG_KEY));
    cr_assert(children[0] == NULL && children[63] == NULL);
    cr_assert(eq(int, kv_node_open(&cluster, &top, &root_id, root, sealed, children), KV_OK));
    for (size_t i = 0; i < KV_TREE_FANOUT; i++) {
        cr_assert(children[i] != NULL);
        kv_secret_free(children[i]);
    }
    kv_secret_free(wrong);
}

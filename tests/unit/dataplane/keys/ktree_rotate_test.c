/*
 * Rotating a tenant's key. The adversary holds every row ever written, all that the root before the rotation led to,
 * and the present root never.
 */
#include "dataplane/base/id.h"
#include "dataplane/keys/keyring.h"
#include "tests/lib/ktree_attack.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static struct kvt_history history;
static struct kv_ktree_store store;
static struct kv_ktree *tree;
static struct kv_id cluster, tenant, other, root_id;
static struct kv_secret *root;

#define TENANT_SLOT 70u /* of the directory: not in its first leaf */

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
    other = new_id();
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
    cr_assert(eq(sz, kv_locked_used(), 0));
}

TestSuite(ktree_rotate, .init = set_up, .fini = tear_down);

static enum kv_err slot_of(const struct kv_id *of, uint32_t directory_slot, uint32_t slot, uint8_t ret_bytes[32])
{
    struct kv_secret *secret = NULL;
    enum kv_err rc = kv_ktree_slot(tree, &store, of, directory_slot, slot, true, &secret);
    if (rc == KV_OK) {
        memcpy(ret_bytes, kv_secret_data(secret), 32);
    }
    kv_secret_free(secret);
    return rc;
}

static void must_slot(uint32_t slot, uint8_t ret_bytes[32])
{
    cr_assert(eq(int, slot_of(&tenant, TENANT_SLOT, slot, ret_bytes), KV_OK), "slot %u", slot);
}

static void use_root(const struct kv_id *id, struct kv_secret *secret)
{
    cr_assert(eq(int, kv_ktree_set_root(tree, id, secret), KV_OK));
    kv_secret_free(root);
    root = secret;
    root_id = *id;
}

static enum kv_err rotate(uint32_t slots_used, uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES])
{
    const struct kv_ktree_rotation rotation = {
        .tenant = tenant, .directory_slot = TENANT_SLOT, .slots_used = slots_used};
    struct kv_id fresh_id = new_id();
    struct kv_secret *fresh = new_secret();
    enum kv_err rc = kv_ktree_rotate(tree, &store, &rotation, &fresh_id, fresh, ret_fingerprint);
    if (rc == KV_OK) {
        use_root(&fresh_id, fresh);
    } else {
        kv_secret_free(fresh);
    }
    return rc;
}

/* Every node re-keyed, nothing else: the control of what a rotation has to do better. */
static void move_root(void)
{
    struct kv_id fresh_id = new_id();
    struct kv_secret *fresh = new_secret();
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, NULL, 0, &fresh_id, fresh), KV_OK));
    use_root(&fresh_id, fresh);
}

static struct kvt_reached all_of_the_root(void)
{
    struct kvt_reached reached = {0};
    kvt_reach(&reached, kv_secret_data(root));
    kvt_ktree_attack(&history, &cluster, &root_id, &reached);
    return reached;
}

Test(ktree_rotate, who_had_all_of_the_old_version_gets_no_key_that_was_given_out_later)
{
    static const uint32_t later[] = {5, 63, 64, 100, 4095, 4096, 100000};
    uint8_t early[32], now[32], name[KV_FINGERPRINT_BYTES];
    for (uint32_t slot = 0; slot < 5; slot++) {
        must_slot(slot, early);
    }
    struct kvt_reached had = all_of_the_root();
    cr_assert(kvt_reached_has(&had, early), "control");
    cr_assert(eq(int, rotate(5, name), KV_OK));
    must_slot(4, now);
    cr_assert(memcmp(early, now, 32) == 0, "a key that was given out stays");
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        must_slot(later[i], now);
        kvt_ktree_attack(&history, &cluster, &root_id, &had);
        cr_assert_not(kvt_reached_has(&had, now), "slot %u", later[i]);
    }
    cr_assert_not(kvt_reached_has(&had, kv_secret_data(root)));
    kvt_reached_done(&had);
}

Test(ktree_rotate, control_without_a_rotation_he_gets_them)
{
    uint8_t bytes[32];
    must_slot(0, bytes);
    struct kvt_reached had = all_of_the_root();
    move_root();
    must_slot(5, bytes);
    cr_assert(kvt_reached_has(&had, bytes), "in the leaf that he had opened");
    must_slot(64, bytes);
    must_slot(4096, bytes);
    kvt_ktree_attack(&history, &cluster, &root_id, &had);
    cr_assert(kvt_reached_has(&had, bytes), "in a leaf that was written later");
    kvt_reached_done(&had);
}

Test(ktree_rotate, the_next_root_leads_to_all_keys_and_to_no_node_of_before)
{
    static const uint32_t used[] = {0, 1, 63, 64, 4095, 4096, 8191};
    uint8_t before[7][32], bytes[32], others[32], name[KV_FINGERPRINT_BYTES];
    for (size_t i = 0; i < 7; i++) {
        must_slot(used[i], before[i]);
    }
    cr_assert(eq(int, slot_of(&other, TENANT_SLOT + 1, 9, others), KV_OK));
    struct kvt_reached had = all_of_the_root();
    const size_t rows = history.count;
    const struct kv_node_key top = {.tree = tenant, .level = KV_TREE_LEVELS - 1};
    const struct kv_id old_id = kvt_history_find(&history, &top)->row.node_id;
    cr_assert(eq(int, rotate(8192, name), KV_OK));
    cr_assert(eq(sz, history.updates, 3 + 1 + 2 + 5), "the directory's path, and every node of the tenant");
    cr_assert(eq(sz, history.count, rows + 11));
    cr_assert_not(kv_id_equal(&old_id, &kvt_history_find(&history, &top)->row.node_id));
    struct kvt_reached now = all_of_the_root();
    for (size_t i = 0; i < 7; i++) {
        cr_assert(kvt_reached_has(&now, before[i]), "slot %u", used[i]);
        must_slot(used[i], bytes);
        cr_assert(memcmp(before[i], bytes, 32) == 0);
    }
    size_t kept = 0; /* of all that was reached before: the tenant's used slots, the other's tree and its place */
    for (size_t i = 0; i < had.count; i++) {
        kept += kvt_reached_has(&now, had.secrets[i]);
    }
    cr_assert(kvt_reached_has(&now, others));
    cr_assert(le(sz, kept, 5 * 64 + 3 * 64 + 3 * 64), "%zu secrets were kept", kept);
    kvt_reached_done(&now);
    kvt_reached_done(&had);
}

Test(ktree_rotate, an_erased_slot_stays_erased)
{
    uint8_t bytes[32], name[KV_FINGERPRINT_BYTES];
    must_slot(0, bytes);
    must_slot(1, bytes);
    const struct kv_ktree_target target = {.tenant = tenant, .directory_slot = TENANT_SLOT, .slot = 1};
    struct kv_id fresh_id = new_id();
    struct kv_secret *fresh = new_secret();
    cr_assert(eq(int, kv_ktree_rekey(tree, &store, &target, 1, &fresh_id, fresh), KV_OK));
    use_root(&fresh_id, fresh);
    cr_assert(eq(int, rotate(2, name), KV_OK));
    cr_assert(eq(int, slot_of(&tenant, TENANT_SLOT, 1, bytes), KV_E_SESSION_ERASED));
    cr_assert(eq(int, slot_of(&tenant, TENANT_SLOT, 0, bytes), KV_OK), "control");
}

Test(ktree_rotate, a_fingerprint_is_the_same_until_the_secret_is_another)
{
    uint8_t first[KV_FINGERPRINT_BYTES], again[KV_FINGERPRINT_BYTES], next[KV_FINGERPRINT_BYTES], bytes[32];
    cr_assert(eq(int, kv_ktree_fingerprint(tree, &store, &tenant, TENANT_SLOT, false, first), KV_E_MISSING));
    cr_assert(eq(int, kv_ktree_fingerprint(tree, &store, &tenant, TENANT_SLOT, true, first), KV_OK));
    must_slot(0, bytes);
    cr_assert(eq(int, kv_ktree_fingerprint(tree, &store, &tenant, TENANT_SLOT, false, again), KV_OK));
    cr_assert(memcmp(first, again, sizeof first) == 0);
    cr_assert(eq(int, kv_ktree_fingerprint(tree, &store, &other, TENANT_SLOT, false, again), KV_OK));
    cr_assert(memcmp(first, again, sizeof first) != 0, "it belongs to the tenant");
    cr_assert(eq(int, rotate(1, next), KV_OK));
    cr_assert(memcmp(first, next, sizeof first) != 0);
    cr_assert(eq(int, kv_ktree_fingerprint(tree, &store, &tenant, TENANT_SLOT, false, again), KV_OK));
    cr_assert(memcmp(next, again, sizeof first) == 0, "what the rotation said is what is in force");
}

Test(ktree_rotate, a_fingerprint_is_no_part_of_a_key)
{
    uint8_t name[KV_FINGERPRINT_BYTES], bytes[32];
    must_slot(0, bytes);
    struct kvt_reached had = all_of_the_root();
    cr_assert(eq(int, kv_ktree_fingerprint(tree, &store, &tenant, TENANT_SLOT, false, name), KV_OK));
    for (size_t i = 0; i < had.count; i++) {
        cr_assert(memmem(had.secrets[i], 32, name, 8) == NULL);
    }
    struct kv_secret *scope = new_secret(), *keys[3] = {0};
    cr_assert(eq(int, kv_scope_fingerprint(scope, name), KV_OK));
    cr_assert(eq(int, kv_scope_key_block(scope, &keys[0]), KV_OK));
    cr_assert(eq(int, kv_scope_key_ids(scope, &keys[1]), KV_OK));
    cr_assert(eq(int, kv_scope_key_meta(scope, &keys[2]), KV_OK));
    for (size_t i = 0; i < 3; i++) {
        cr_assert(memmem(kv_secret_data(keys[i]), 32, name, 8) == NULL);
        kv_secret_free(keys[i]);
    }
    cr_assert(memmem(kv_secret_data(scope), 32, name, 8) == NULL);
    kv_secret_free(scope);
    kvt_reached_done(&had);
}

Test(ktree_rotate, refuses_what_makes_no_sense_and_writes_nothing)
{
    uint8_t bytes[32], name[KV_FINGERPRINT_BYTES] = {7}, untouched[KV_FINGERPRINT_BYTES] = {7};
    cr_assert(eq(int, rotate(0, name), KV_E_MISSING), "nothing of the tenant's tree is there");
    must_slot(0, bytes);
    must_slot(64, bytes);
    const size_t rows = history.count;
    cr_assert(eq(int, rotate((uint32_t)KV_MAX_TENANT_SLOTS + 1, name), KV_E_LIMIT));
    cr_assert(eq(int, rotate(64, name), KV_E_INTERNAL), "there are more rows than so many slots need");
    const struct kv_ktree_rotation rotation = {.tenant = tenant, .directory_slot = TENANT_SLOT, .slots_used = 65};
    const struct kv_id zero = {0};
    struct kv_secret *fresh = new_secret();
    cr_assert(eq(int, kv_ktree_rotate(tree, &store, &rotation, &zero, fresh, name), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_ktree_rotate(tree, &store, &rotation, &root_id, fresh, name), KV_E_INVALID_REQUEST));
    kv_secret_free(fresh);
    cr_assert(eq(sz, history.count, rows));
    cr_assert(memcmp(name, untouched, sizeof name) == 0);
    cr_assert(eq(int, rotate(65, name), KV_OK), "control");
}

Test(ktree_rotate, a_tree_with_damage_in_it_is_left_as_it_is)
{
    uint8_t bytes[32], name[KV_FINGERPRINT_BYTES];
    must_slot(0, bytes);
    must_slot(64, bytes);
    const struct kv_node_key leaf = {.tree = tenant, .level = 0, .idx = 1};
    struct kvt_row *row = kvt_history_find(&history, &leaf);
    const size_t updates = history.updates;
    row->row.sealed[row->row.sealed_len - 100] ^= 1;
    cr_assert(ne(int, rotate(65, name), KV_OK));
    cr_assert(eq(sz, history.updates, updates));
    row->row.sealed[row->row.sealed_len - 100] ^= 1;
    cr_assert(eq(int, rotate(65, name), KV_OK), "control");
}

Test(ktree_rotate, a_full_tree_is_rotated)
{
    uint8_t first[32], last[32], bytes[32], name[KV_FINGERPRINT_BYTES];
    const uint32_t slots = (uint32_t)KV_MAX_TENANT_SLOTS;
    for (uint32_t slot = 0; slot < slots; slot += 64 * 64) { /* a leaf of each middle node, and the last one */
        must_slot(slot, slot == 0 ? first : bytes);
    }
    must_slot(slots - 1, last);
    cr_assert(eq(int, rotate(slots, name), KV_OK));
    must_slot(0, bytes);
    cr_assert(memcmp(first, bytes, 32) == 0);
    must_slot(slots - 1, bytes);
    cr_assert(memcmp(last, bytes, 32) == 0);
}

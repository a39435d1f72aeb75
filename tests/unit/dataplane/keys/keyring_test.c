/*
 * Open scopes: leases, borrowers, dropping, wiping, bounds; and that every derivation is its own.
 */
#include "dataplane/base/id.h"
#include "dataplane/keys/keyring.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <string.h>

static uint64_t boottime_ns;

static uint64_t fake_boottime(void *ctx)
{
    (void)ctx;
    return boottime_ns;
}

static struct kv_env env;
static struct kv_keyring *ring;
static struct kv_id tenant, scope, other_scope;
static struct kv_secret *secret;

static struct kv_id new_id(void)
{
    struct kv_id id;
    cr_assert(eq(int, kv_id_new(&kv_env_system, &id), KV_OK));
    return id;
}

static void set_up(void)
{
    env = kv_env_system;
    env.boottime_ns = fake_boottime;
    boottime_ns = 1000;
    tenant = new_id();
    scope = new_id();
    other_scope = new_id();
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &secret), KV_OK));
    cr_assert(eq(int, kv_keyring_new(&env, 4, &ring), KV_OK));
    kv_keyring_set_lease(ring, UINT64_MAX);
}

static void tear_down(void)
{
    kv_keyring_free(ring);
    kv_secret_free(secret);
    cr_assert(eq(sz, kv_secret_arena_used(), 0), "the keyring left a key behind");
}

TestSuite(keyring, .init = set_up, .fini = tear_down);

static uint64_t in_ms(uint64_t ms)
{
    return kv_now_ns(&env) + ms * KV_MS_NS;
}

static void must_open(const struct kv_id *id)
{
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, id, secret), KV_OK));
}

Test(keyring, opened_scope_lends_its_keys)
{
    struct kv_scope_keys keys;
    must_open(&scope);
    cr_assert(kv_keyring_is_open(ring, &scope));
    cr_assert(eq(sz, kv_keyring_count(ring), 1));
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_OK));
    cr_assert(kv_id_equal(&keys.tenant, &tenant) && kv_id_equal(&keys.scope, &scope));
    struct kv_secret *block = NULL, *ids = NULL;
    cr_assert(eq(int, kv_scope_key_block(secret, &block), KV_OK));
    cr_assert(eq(int, kv_scope_key_ids(secret, &ids), KV_OK));
    cr_assert(kv_equal_constant_time(kv_secret_data(keys.block), kv_secret_data(block), 32));
    cr_assert(kv_equal_constant_time(kv_secret_data(keys.ids), kv_secret_data(ids), 32));
    kv_secret_free(block);
    kv_secret_free(ids);
    kv_keyring_return(ring, &keys);
    cr_assert(keys.entry == NULL && keys.block == NULL);
}

Test(keyring, opening_an_open_scope_is_ok_and_keeps_its_keys)
{
    struct kv_scope_keys keys;
    must_open(&scope);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_OK));
    const struct kv_secret *before = keys.block;
    must_open(&scope);
    cr_assert(eq(sz, kv_keyring_count(ring), 1));
    cr_assert(keys.block == before);
    kv_keyring_return(ring, &keys);
    const struct kv_id other_tenant = new_id();
    cr_assert(eq(int, kv_keyring_open(ring, &other_tenant, &scope, secret), KV_E_INVALID_REQUEST));
}

Test(keyring, unknown_scope_is_missing)
{
    struct kv_scope_keys keys;
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_E_MISSING));
    cr_assert_not(kv_keyring_is_open(ring, &scope));
    const struct kv_id zero = {0};
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, &zero, secret), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_keyring_open(ring, &zero, &scope, secret), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_keyring_drop(ring, &zero, true, 0), KV_E_INVALID_REQUEST));
}

Test(keyring, nothing_is_lent_before_the_first_lease)
{
    struct kv_keyring *fresh = NULL;
    struct kv_scope_keys keys;
    cr_assert(eq(int, kv_keyring_new(&env, 1, &fresh), KV_OK));
    cr_assert_not(kv_keyring_lease_valid(fresh));
    cr_assert(eq(int, kv_keyring_open(fresh, &tenant, &scope, secret), KV_OK));
    cr_assert(eq(int, kv_keyring_borrow(fresh, &scope, &keys), KV_E_LEASE_EXPIRED));
    kv_keyring_free(fresh);
}

Test(keyring, lease_ends_at_its_deadline_and_a_renewal_opens_again)
{
    struct kv_scope_keys keys;
    must_open(&scope);
    kv_keyring_set_lease(ring, 2000);
    boottime_ns = 1999;
    cr_assert(kv_keyring_lease_valid(ring));
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_OK));
    kv_keyring_return(ring, &keys);
    boottime_ns = 2000;
    cr_assert_not(kv_keyring_lease_valid(ring));
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_E_LEASE_EXPIRED));
    kv_keyring_set_lease(ring, 3000);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_OK));
    kv_keyring_return(ring, &keys);
    kv_keyring_set_lease(ring, 0);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_E_LEASE_EXPIRED));
}

Test(keyring, dropped_scope_is_missing_and_may_be_opened_again)
{
    struct kv_scope_keys keys;
    must_open(&scope);
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, false, in_ms(0)), KV_OK));
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_E_MISSING));
    cr_assert(eq(sz, kv_keyring_count(ring), 0));
    cr_assert(eq(sz, kv_secret_arena_used(), 1), "its keys are wiped; only the test's own secret is left");
    must_open(&scope);
    cr_assert(eq(int, kv_keyring_drop(ring, &other_scope, false, in_ms(0)), KV_OK), "what is not open is dropped");
}

Test(keyring, scope_dropped_for_good_stays_closed)
{
    struct kv_scope_keys keys;
    must_open(&scope);
    must_open(&other_scope);
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, true, in_ms(0)), KV_OK));
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, &scope, secret), KV_E_SESSION_ERASED));
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_E_SESSION_ERASED));
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, true, in_ms(0)), KV_OK), "again");
    kv_keyring_wipe(ring);
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, &scope, secret), KV_E_SESSION_ERASED),
              "a wipe forgets no erasure");
    must_open(&other_scope);
}

Test(keyring, scope_that_was_never_open_can_be_dropped_for_good)
{
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, true, in_ms(0)), KV_OK));
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, &scope, secret), KV_E_SESSION_ERASED));
}

Test(keyring, many_scopes_dropped_for_good_are_all_remembered)
{
    enum { MANY = 5000 };
    static struct kv_id ids[MANY];
    for (size_t i = 0; i < MANY; i++) {
        ids[i] = new_id();
        cr_assert(eq(int, kv_keyring_drop(ring, &ids[i], true, 0), KV_OK));
    }
    for (size_t i = 0; i < MANY; i++) {
        cr_assert(eq(int, kv_keyring_open(ring, &tenant, &ids[i], secret), KV_E_SESSION_ERASED));
    }
    must_open(&scope);
}

Test(keyring, drop_of_a_borrowed_scope_times_out_and_closes_it_all_the_same)
{
    struct kv_scope_keys keys, second;
    must_open(&scope);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_OK));
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, false, in_ms(1)), KV_E_TIMEOUT));
    cr_assert_not(kv_keyring_is_open(ring, &scope));
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &second), KV_E_MISSING));
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, &scope, secret), KV_E_BUSY), "not while a key of it is in use");
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, true, in_ms(1)), KV_E_TIMEOUT), "and again, now for good");
    uint8_t copy[32];
    memcpy(copy, kv_secret_data(keys.block), 32);
    kv_keyring_return(ring, &keys);
    cr_assert(eq(sz, kv_secret_arena_used(), 1), "the last return wipes");
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, true, in_ms(0)), KV_OK));
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, &scope, secret), KV_E_SESSION_ERASED));
}

struct returner {
    struct kv_scope_keys keys;
};

static void *return_when_closed(void *arg)
{
    struct returner *returner = arg;
    while (kv_keyring_is_open(ring, &returner->keys.scope)) {
        sched_yield();
    }
    kv_keyring_return(ring, &returner->keys);
    return NULL;
}

Test(keyring, drop_waits_for_the_borrower)
{
    struct returner returner;
    pthread_t thread;
    must_open(&scope);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &returner.keys), KV_OK));
    cr_assert(pthread_create(&thread, NULL, return_when_closed, &returner) == 0);
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, true, in_ms(20000)), KV_OK));
    cr_assert(eq(sz, kv_secret_arena_used(), 1), "when drop returns, the keys are gone");
    pthread_join(thread, NULL);
}

Test(keyring, two_borrowers_share_and_the_last_one_wipes)
{
    struct kv_scope_keys first, second;
    must_open(&scope);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &first), KV_OK));
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &second), KV_OK));
    cr_assert(first.block == second.block);
    cr_assert(eq(int, kv_keyring_drop(ring, &scope, false, 0), KV_E_TIMEOUT));
    kv_keyring_return(ring, &first);
    cr_assert(eq(sz, kv_secret_arena_used(), 3));
    kv_keyring_return(ring, &second);
    cr_assert(eq(sz, kv_secret_arena_used(), 1));
}

Test(keyring, wipe_forgets_idle_keys_at_once_and_busy_ones_at_their_return)
{
    struct kv_scope_keys keys;
    must_open(&scope);
    must_open(&other_scope);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_OK));
    kv_keyring_wipe(ring);
    cr_assert(eq(sz, kv_keyring_count(ring), 0));
    cr_assert(eq(sz, kv_secret_arena_used(), 3), "the borrowed pair and the test's secret");
    kv_keyring_return(ring, &keys);
    cr_assert(eq(sz, kv_secret_arena_used(), 1));
    must_open(&scope);
    cr_assert(eq(int, kv_keyring_borrow(ring, &scope, &keys), KV_OK), "control: a wipe is not for good");
    kv_keyring_return(ring, &keys);
}

Test(keyring, ring_holds_as_many_scopes_as_it_was_made_for_and_not_one_more)
{
    struct kv_id ids[5];
    for (size_t i = 0; i < 5; i++) {
        ids[i] = new_id();
    }
    for (size_t i = 0; i < 4; i++) {
        must_open(&ids[i]);
    }
    cr_assert(eq(int, kv_keyring_open(ring, &tenant, &ids[4], secret), KV_E_BUSY));
    must_open(&ids[0]);
    cr_assert(eq(sz, kv_secret_arena_used(), 9), "a refused open keeps no key");
    cr_assert(eq(int, kv_keyring_drop(ring, &ids[2], false, 0), KV_OK));
    must_open(&ids[4]);
    for (size_t i = 0; i < 5; i++) {
        cr_assert(eq(int, kv_keyring_is_open(ring, &ids[i]), i != 2));
    }
}

Test(keyring, size_of_a_ring_is_bounded)
{
    struct kv_keyring *other = NULL;
    cr_assert(eq(int, kv_keyring_new(&env, 0, &other), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_keyring_new(&env, (size_t)KV_MAX_SESSIONS_OPEN + 1, &other), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_keyring_new(&env, (size_t)KV_MAX_SESSIONS_OPEN, &other), KV_OK));
    kv_keyring_free(other);
    kv_keyring_free(NULL);
}

Test(keyring, every_derivation_is_its_own)
{
    struct kv_secret *made[10] = {0};
    const struct kv_id other_tenant = new_id();
    cr_assert(eq(int, kv_scope_secret(secret, &tenant, &scope, &made[0]), KV_OK));
    cr_assert(eq(int, kv_scope_secret(secret, &tenant, &other_scope, &made[1]), KV_OK));
    cr_assert(eq(int, kv_scope_secret(secret, &other_tenant, &scope, &made[2]), KV_OK));
    cr_assert(eq(int, kv_scope_secret(secret, &scope, &tenant, &made[3]), KV_OK));
    cr_assert(eq(int, kv_scope_key_block(made[0], &made[4]), KV_OK));
    cr_assert(eq(int, kv_scope_key_ids(made[0], &made[5]), KV_OK));
    cr_assert(eq(int, kv_scope_key_meta(made[0], &made[6]), KV_OK));
    cr_assert(eq(int, kv_scope_key_block(made[1], &made[7]), KV_OK));
    cr_assert(eq(int, kv_tenant_key_lookup(secret, &tenant, &made[8]), KV_OK));
    cr_assert(eq(int, kv_tenant_key_lookup(secret, &other_tenant, &made[9]), KV_OK));
    for (size_t i = 0; i < 10; i++) {
        cr_assert(eq(sz, kv_secret_len(made[i]), 32));
        for (size_t j = 0; j < i; j++) {
            cr_assert_not(kv_equal_constant_time(kv_secret_data(made[i]), kv_secret_data(made[j]), 32));
        }
    }
    struct kv_secret *again = NULL;
    cr_assert(eq(int, kv_scope_secret(secret, &tenant, &scope, &again), KV_OK));
    cr_assert(kv_equal_constant_time(kv_secret_data(again), kv_secret_data(made[0]), 32));
    kv_secret_free(again);
    for (size_t i = 0; i < 10; i++) {
        kv_secret_free(made[i]);
    }
}

/* Four fit. The one in use and the one used again stay, whatever comes. */
Test(keyring, room_is_made_among_idle_scopes_that_were_not_used_lately)
{
    struct kv_id ids[4], later[2] = {new_id(), new_id()};
    struct kv_scope_keys held, keys;
    for (size_t i = 0; i < 4; i++) {
        ids[i] = new_id();
        must_open(&ids[i]);
    }
    cr_assert(eq(int, kv_keyring_borrow(ring, &ids[0], &held), KV_OK));
    cr_assert(kv_keyring_evict(ring)); /* all are recent once */
    cr_assert(eq(sz, kv_keyring_count(ring), 3));
    must_open(&later[0]);
    for (size_t i = 1; i < 4; i++) {
        if (kv_keyring_is_open(ring, &ids[i])) {
            cr_assert(eq(int, kv_keyring_borrow(ring, &ids[i], &keys), KV_OK));
            kv_keyring_return(ring, &keys);
            break; /* this one and `later` are recent, the third idle one is not */
        }
    }
    cr_assert(kv_keyring_evict(ring));
    must_open(&later[1]);
    cr_assert(kv_keyring_is_open(ring, &ids[0]));
    cr_assert(kv_keyring_is_open(ring, &later[0]));
    while (kv_keyring_evict(ring)) {
    }
    cr_assert(eq(sz, kv_keyring_count(ring), 1), "the borrowed one stays");
    kv_keyring_return(ring, &held);
    cr_assert(kv_keyring_evict(ring));
    cr_assert_not(kv_keyring_evict(ring));
}

/*
 * Open scopes and who is using their keys. The lease is asked at every borrow; an expired one keeps every key in place
 * but out of reach until it is renewed or kv_keyring_wipe is called. It must never free a key that is borrowed.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/keyring_int.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/* Ids of scopes dropped for good, 16 bytes each and a third more for the empty slots: at most 128 MiB. */
#define DROPPED_MAX ((size_t)1 << 22)

/* Apart from the ring, so that a reader that has the ring as const can lock. */
struct ring_lock {
    pthread_mutex_t mutex;
    pthread_cond_t returned; /* a closing entry lost its last borrower; CLOCK_MONOTONIC */
};

struct kv_keyring {
    const struct kv_env *env; /* borrowed */
    struct ring_lock *lock;   /* owned; guards all that follows */
    uint64_t lease_deadline_ns;
    struct scope_table table;
    struct id_set dropped;
};

static void lock_ring(const struct kv_keyring *ring)
{
    KV_ASSERT(pthread_mutex_lock(&ring->lock->mutex) == 0);
}

static void unlock_ring(const struct kv_keyring *ring)
{
    KV_ASSERT(pthread_mutex_unlock(&ring->lock->mutex) == 0);
}

static struct ring_lock *ring_lock_new(void)
{
    struct ring_lock *lock = kv_alloc(sizeof(*lock));
    if (lock == NULL) {
        return NULL;
    }
    pthread_condattr_t attr;
    KV_ASSERT(pthread_condattr_init(&attr) == 0);
    KV_ASSERT(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    KV_ASSERT(pthread_mutex_init(&lock->mutex, NULL) == 0);
    KV_ASSERT(pthread_cond_init(&lock->returned, &attr) == 0);
    pthread_condattr_destroy(&attr);
    return lock;
}

KV_RC kv_keyring_new(const struct kv_env *env, size_t scopes_max, struct kv_keyring **ret_ring)
{
    if (scopes_max == 0 || scopes_max > (size_t)KV_MAX_SESSIONS_OPEN) {
        return KV_E_INVALID_REQUEST;
    }
    struct kv_keyring *ring = kv_alloc(sizeof(*ring));
    if (ring == NULL) {
        return KV_E_NO_MEMORY;
    }
    ring->env = env;
    id_set_init(&ring->dropped, DROPPED_MAX);
    ring->lock = ring_lock_new();
    if (ring->lock == NULL || scope_table_init(&ring->table, scopes_max) != KV_OK) {
        kv_keyring_free(ring);
        return KV_E_NO_MEMORY;
    }
    *ret_ring = ring;
    return KV_OK;
}

void kv_keyring_free(struct kv_keyring *ring)
{
    if (ring == NULL) {
        return;
    }
    scope_table_done(&ring->table);
    id_set_done(&ring->dropped);
    if (ring->lock != NULL) {
        pthread_cond_destroy(&ring->lock->returned);
        pthread_mutex_destroy(&ring->lock->mutex);
        kv_free(ring->lock);
    }
    kv_free(ring);
}

void kv_keyring_set_lease(struct kv_keyring *ring, uint64_t deadline_boottime_ns)
{
    lock_ring(ring);
    ring->lease_deadline_ns = deadline_boottime_ns;
    unlock_ring(ring);
}

/* Lock held. */
static bool lease_holds(const struct kv_keyring *ring)
{
    return ring->lease_deadline_ns == UINT64_MAX || ring->env->boottime_ns(ring->env->ctx) < ring->lease_deadline_ns;
}

bool kv_keyring_lease_valid(const struct kv_keyring *ring)
{
    lock_ring(ring);
    bool valid = lease_holds(ring);
    unlock_ring(ring);
    return valid;
}

struct key_pair {
    struct kv_secret *block, *ids; /* owned */
};

static void key_pair_done(struct key_pair *pair)
{
    kv_secret_free(pair->block);
    kv_secret_free(pair->ids);
}

static KV_RC derive_pair(const struct kv_secret *secret, struct key_pair *ret_pair)
{
    struct key_pair pair = {0};
    enum kv_err rc = kv_scope_key_block(secret, &pair.block);
    if (rc == KV_OK) {
        rc = kv_scope_key_ids(secret, &pair.ids);
    }
    if (rc != KV_OK) {
        key_pair_done(&pair);
        return rc;
    }
    *ret_pair = pair;
    return KV_OK;
}

/* Lock held. Moves the pair's keys into the table when the scope is not open yet. */
static KV_RC open_locked(struct kv_keyring *ring, const struct kv_id *tenant, const struct kv_id *scope,
                         struct key_pair *pair)
{
    if (id_set_has(&ring->dropped, scope)) {
        return KV_E_SESSION_ERASED;
    }
    struct scope_entry *entry = scope_table_find(&ring->table, scope);
    if (entry != NULL) {
        if (!kv_id_equal(&entry->tenant, tenant)) {
            return KV_E_INVALID_REQUEST;
        }
        return entry->state == SCOPE_OPEN ? KV_OK : KV_E_BUSY;
    }
    entry = scope_table_add(&ring->table, tenant, scope);
    if (entry == NULL) {
        return KV_E_BUSY;
    }
    entry->block = pair->block;
    entry->ids = pair->ids;
    *pair = (struct key_pair){0};
    return KV_OK;
}

KV_RC kv_keyring_open(struct kv_keyring *ring, const struct kv_id *tenant, const struct kv_id *scope,
                      const struct kv_secret *secret)
{
    if (kv_id_is_zero(scope) || kv_id_is_zero(tenant)) {
        return KV_E_INVALID_REQUEST;
    }
    struct key_pair pair = {0};
    KV_TRY(derive_pair(secret, &pair));
    lock_ring(ring);
    enum kv_err rc = open_locked(ring, tenant, scope, &pair);
    unlock_ring(ring);
    key_pair_done(&pair);
    return rc;
}

/* Lock held. */
static struct scope_entry *find_open(const struct kv_keyring *ring, const struct kv_id *scope)
{
    struct scope_entry *entry = scope_table_find(&ring->table, scope);
    return entry != NULL && entry->state == SCOPE_OPEN ? entry : NULL;
}

bool kv_keyring_is_open(struct kv_keyring *ring, const struct kv_id *scope)
{
    lock_ring(ring);
    bool open = find_open(ring, scope) != NULL;
    unlock_ring(ring);
    return open;
}

/* Lock held. */
static KV_RC borrow_locked(struct kv_keyring *ring, const struct kv_id *scope, struct kv_scope_keys *ret_keys)
{
    if (id_set_has(&ring->dropped, scope)) {
        return KV_E_SESSION_ERASED;
    }
    struct scope_entry *entry = find_open(ring, scope);
    if (entry == NULL) {
        return KV_E_MISSING;
    }
    if (!lease_holds(ring)) {
        return KV_E_LEASE_EXPIRED;
    }
    KV_ASSERT(entry->borrowers < UINT32_MAX);
    entry->borrowers++;
    entry->recent = true;
    *ret_keys = (struct kv_scope_keys){
        .block = entry->block, .ids = entry->ids, .tenant = entry->tenant, .scope = entry->scope, .entry = entry};
    return KV_OK;
}

KV_RC kv_keyring_borrow(struct kv_keyring *ring, const struct kv_id *scope, struct kv_scope_keys *ret_keys)
{
    lock_ring(ring);
    enum kv_err rc = borrow_locked(ring, scope, ret_keys);
    unlock_ring(ring);
    return rc;
}

void kv_keyring_return(struct kv_keyring *ring, struct kv_scope_keys *keys)
{
    struct scope_entry *entry = keys->entry;
    KV_ASSERT(entry != NULL); /* returned twice, or never borrowed */
    lock_ring(ring);
    if (scope_table_return(&ring->table, entry)) {
        pthread_cond_broadcast(&ring->lock->returned);
    }
    unlock_ring(ring);
    *keys = (struct kv_scope_keys){0};
}

/* Lock held. A scope that was opened again meanwhile is not closing any more. */
static bool is_closing(const struct kv_keyring *ring, const struct kv_id *scope)
{
    const struct scope_entry *entry = scope_table_find(&ring->table, scope);
    return entry != NULL && entry->state == SCOPE_CLOSING;
}

/* Lock held on entry and on return. Waits by the kernel's clock for what is left by the environment's, so that a clock
 * that a test has stopped cannot make this wait for ever. */
static KV_RC wait_until_gone(struct kv_keyring *ring, const struct kv_id *scope, uint64_t deadline_ns)
{
    uint64_t now_ns = kv_now_ns(ring->env);
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    const uint64_t left_max_ns = (uint64_t)KV_MAX_TRANSFER_MS * KV_MS_NS * 2; /* No borrower has a longer deadline. */
    left_ns = left_ns < left_max_ns ? left_ns : left_max_ns;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t nanos = (uint64_t)until.tv_nsec + left_ns;
    until.tv_sec += (time_t)(nanos / KV_S_NS);
    until.tv_nsec = (long)(nanos % KV_S_NS);
    int rc = 0;
    while (rc != ETIMEDOUT && is_closing(ring, scope)) {
        rc = pthread_cond_timedwait(&ring->lock->returned, &ring->lock->mutex, &until);
    }
    return is_closing(ring, scope) ? KV_E_TIMEOUT : KV_OK;
}

KV_RC kv_keyring_drop(struct kv_keyring *ring, const struct kv_id *scope, bool for_good, uint64_t deadline_ns)
{
    if (kv_id_is_zero(scope)) {
        return KV_E_INVALID_REQUEST;
    }
    lock_ring(ring);
    /* Closing comes first: when there is no memory to remember the scope, its keys are gone all the same. */
    struct scope_entry *entry = find_open(ring, scope);
    if (entry != NULL) {
        scope_table_close(&ring->table, entry);
    }
    enum kv_err remembered = for_good ? id_set_add(&ring->dropped, scope) : KV_OK;
    enum kv_err rc = wait_until_gone(ring, scope, deadline_ns);
    unlock_ring(ring);
    return remembered != KV_OK ? remembered : rc;
}

void kv_keyring_wipe(struct kv_keyring *ring)
{
    lock_ring(ring);
    for (size_t i = 0; i < ring->table.entries_max; i++) {
        if (ring->table.entries[i].state == SCOPE_OPEN) {
            scope_table_close(&ring->table, &ring->table.entries[i]);
        }
    }
    unlock_ring(ring);
}

bool kv_keyring_evict(struct kv_keyring *ring)
{
    lock_ring(ring);
    bool closed = scope_table_evict(&ring->table);
    unlock_ring(ring);
    return closed;
}

size_t kv_keyring_count(struct kv_keyring *ring)
{
    lock_ring(ring);
    size_t count = ring->table.open_count;
    unlock_ring(ring);
    return count;
}

/*
 * The arena of key material. Slots have one size, so that a freed slot is wiped and reused whole. The bookkeeping lies
 * outside the arena: it holds no secret, and it survives in a forked child, whose arena is wiped. Never write a secret
 * anywhere else, and never hand out a slot that was not wiped.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/pages_int.h"

#include <openssl/crypto.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

enum {
    SLOT_DATA_BYTES = 64, /* KV_MAX_SECRET_BYTES, which is no constant expression in C17; compared at start */
    DEFAULT_ARENA_BYTES = 4 << 20,
};

struct kv_secret {
    uint8_t data[SLOT_DATA_BYTES];
    uint32_t len;
    uint32_t generation;
    uint64_t canary; /* overwritten by who writes past the data, which stops the program when the secret is freed */
};

#define SLOT_NONE UINT32_MAX
#define SLOT_LIVE (UINT32_MAX - 1)

static struct {
    pthread_mutex_t lock;
    struct kv_secret *slots; /* between guard pages */
    size_t bytes;
    uint32_t *next_free; /* by slot: the next free one, or SLOT_LIVE */
    uint32_t *generations;
    uint32_t first_free;
    uint32_t count;
    size_t used;
    struct kv_pages_kind kind;
    uint64_t canary;
    bool fork_handlers;
    bool forked; /* what the parent left here is zeroes, canaries too */
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER, .first_free = SLOT_NONE};

void kv_wipe(void *memory, size_t len)
{
    if (len > 0) {
        explicit_bzero(memory, len);
    }
}

bool kv_equal_constant_time(const void *a, const void *b, size_t len)
{
    return CRYPTO_memcmp(a, b, len) == 0;
}

static void lock_before_fork(void)
{
    pthread_mutex_lock(&arena.lock);
}

static void unlock_after_fork(void)
{
    pthread_mutex_unlock(&arena.lock);
}

/* A private mapping is wiped by the kernel (MADV_WIPEONFORK), which a shared one cannot be. That one is not inherited
 * at all (MADV_DONTFORK); zeroes are put in its place here, so that a child sees the same in both cases. A child made
 * without fork(3) finds no memory there. */
static void child_after_fork(void)
{
    if (arena.slots != NULL && arena.kind.shared) {
        kv_pages_after_fork((uint8_t *)arena.slots, arena.bytes);
    }
    arena.forked = true;
    pthread_mutex_unlock(&arena.lock);
}

/* Rule zero: before main, because a fork that begins before the handlers are there and ends while another thread makes
 * the arena would leave its child with a lock that nobody opens. */
__attribute__((constructor)) static void watch_forks(void)
{
    arena.fork_handlers = pthread_atfork(lock_before_fork, unlock_after_fork, child_after_fork) == 0;
}

static KV_RC arena_map(size_t bytes)
{
    uint8_t *inner = NULL;
    KV_TRY(kv_pages_reserve(bytes, &inner));
    enum kv_err rc = kv_pages_fill(inner, bytes, true, &arena.kind);
    if (rc != KV_OK) {
        kv_pages_release(inner, bytes);
        return rc;
    }
    arena.bytes = bytes;
    arena.slots = (struct kv_secret *)(void *)inner;
    return KV_OK;
}

static void arena_chain_slots(void)
{
    for (uint32_t i = 0; i < arena.count; i++) {
        arena.next_free[i] = i + 1 < arena.count ? i + 1 : SLOT_NONE;
    }
    arena.first_free = 0;
    arena.used = 0;
}

static KV_RC arena_init_locked(size_t bytes)
{
    KV_ASSERT(KV_MAX_SECRET_BYTES == SLOT_DATA_BYTES);
    size_t rounded;
    if (arena.slots != NULL) {
        return KV_E_INVALID_STATE;
    }
    if (bytes == 0 || !kv_round_to_pages(bytes, &rounded) || rounded / sizeof(struct kv_secret) >= SLOT_LIVE) {
        return KV_E_INVALID_REQUEST;
    }
    size_t count = rounded / sizeof(struct kv_secret);
    if (!arena.fork_handlers) {
        return KV_E_NO_MEMORY;
    }
    if (getrandom(&arena.canary, sizeof arena.canary, 0) != (ssize_t)sizeof arena.canary) {
        return KV_E_CRYPTO;
    }
    uint32_t *next_free = kv_alloc_array(count, sizeof *next_free);
    uint32_t *generations = kv_alloc_array(count, sizeof *generations);
    if (next_free == NULL || generations == NULL || arena_map(rounded) != KV_OK) {
        kv_free(next_free);
        kv_free(generations);
        return KV_E_NO_MEMORY;
    }
    arena.next_free = next_free;
    arena.generations = generations;
    arena.count = (uint32_t)count;
    arena_chain_slots();
    return KV_OK;
}

KV_RC kv_secret_arena_init(size_t bytes)
{
    pthread_mutex_lock(&arena.lock);
    enum kv_err rc = arena_init_locked(bytes);
    pthread_mutex_unlock(&arena.lock);
    return rc;
}

void kv_secret_arena_done(void)
{
    pthread_mutex_lock(&arena.lock);
    if (arena.slots != NULL) {
        kv_wipe(arena.slots, arena.bytes);
        kv_pages_release((uint8_t *)arena.slots, arena.bytes);
        kv_free(arena.next_free);
        kv_free(arena.generations);
        arena.slots = NULL;
        arena.next_free = NULL;
        arena.generations = NULL;
        arena.first_free = SLOT_NONE;
        arena.count = 0;
        arena.used = 0;
        arena.kind = (struct kv_pages_kind){0};
    }
    pthread_mutex_unlock(&arena.lock);
}

bool kv_secret_arena_locked(void)
{
    pthread_mutex_lock(&arena.lock);
    bool locked = arena.kind.locked;
    pthread_mutex_unlock(&arena.lock);
    return locked;
}

size_t kv_secret_arena_capacity(void)
{
    pthread_mutex_lock(&arena.lock);
    enum kv_err rc = arena.slots != NULL ? KV_OK : arena_init_locked(DEFAULT_ARENA_BYTES);
    size_t count = rc == KV_OK ? arena.count : 0;
    pthread_mutex_unlock(&arena.lock);
    return count;
}

size_t kv_secret_arena_used(void)
{
    pthread_mutex_lock(&arena.lock);
    size_t used = arena.used;
    pthread_mutex_unlock(&arena.lock);
    return used;
}

size_t kv_secret_slot_bytes(void)
{
    return sizeof(struct kv_secret);
}

static KV_RC slot_take_locked(size_t len, struct kv_secret **ret_secret)
{
    if (arena.slots == NULL) {
        KV_TRY(arena_init_locked(DEFAULT_ARENA_BYTES));
    }
    uint32_t index = arena.first_free;
    if (index == SLOT_NONE) {
        return KV_E_NO_MEMORY;
    }
    KV_ASSERT(index < arena.count);
    arena.first_free = arena.next_free[index];
    arena.next_free[index] = SLOT_LIVE;
    arena.used++;
    struct kv_secret *secret = &arena.slots[index];
    kv_wipe(secret, sizeof *secret);
    secret->len = (uint32_t)len;
    secret->generation = ++arena.generations[index];
    secret->canary = arena.canary ^ index;
    *ret_secret = secret;
    return KV_OK;
}

KV_RC kv_secret_new(size_t len, struct kv_secret **ret_secret)
{
    if (len == 0) {
        return KV_E_INVALID_REQUEST;
    }
    if (len > SLOT_DATA_BYTES) {
        return KV_E_LIMIT;
    }
    pthread_mutex_lock(&arena.lock);
    enum kv_err rc = slot_take_locked(len, ret_secret);
    pthread_mutex_unlock(&arena.lock);
    return rc;
}

KV_RC kv_secret_random(const struct kv_env *env, size_t len, struct kv_secret **ret_secret)
{
    struct kv_secret *secret = NULL;
    KV_TRY(kv_secret_new(len, &secret));
    enum kv_err rc = env->random(env->ctx, secret->data, len);
    if (rc != KV_OK) {
        kv_secret_free(secret);
        return rc;
    }
    *ret_secret = secret;
    return KV_OK;
}

KV_RC kv_secret_copy(const void *bytes, size_t len, struct kv_secret **ret_secret)
{
    struct kv_secret *secret = NULL;
    KV_TRY(kv_secret_new(len, &secret));
    memcpy(secret->data, bytes, len);
    *ret_secret = secret;
    return KV_OK;
}

void kv_secret_free(struct kv_secret *secret)
{
    if (secret == NULL) {
        return;
    }
    pthread_mutex_lock(&arena.lock);
    KV_ASSERT(arena.slots != NULL);
    KV_ASSERT(secret >= arena.slots && secret < arena.slots + arena.count);
    KV_ASSERT(((uintptr_t)secret - (uintptr_t)arena.slots) % sizeof *secret == 0);
    uint32_t index = (uint32_t)(secret - arena.slots);
    KV_ASSERT(arena.next_free[index] == SLOT_LIVE);
    KV_ASSERT(secret->canary == (arena.canary ^ index) || (arena.forked && secret->canary == 0));
    kv_wipe(secret, sizeof *secret);
    arena.next_free[index] = arena.first_free;
    arena.first_free = index;
    arena.used--;
    pthread_mutex_unlock(&arena.lock);
    kv_forget();
}

void kv_secret_freep(struct kv_secret **secret)
{
    kv_secret_free(*secret);
    *secret = NULL;
}

const uint8_t *kv_secret_data(const struct kv_secret *secret)
{
    return secret->data;
}

uint8_t *kv_secret_data_mutable(struct kv_secret *secret)
{
    return secret->data;
}

size_t kv_secret_len(const struct kv_secret *secret)
{
    return secret->len;
}

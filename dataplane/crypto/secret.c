/*
 * The arena of key material and locked memory for plaintext on its way. Slots have one size, so that a freed slot is
 * wiped and reused whole. The bookkeeping lies outside the arena: it holds no secret, and it survives in a forked
 * child, whose arena is wiped. Never write a secret anywhere else, and never hand out a slot that was not wiped.
 */
#include "dataplane/crypto/secret.h"
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"

#include <openssl/crypto.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

enum {
    SLOT_DATA_BYTES = 64, /* KV_MAX_SECRET_BYTES, which is no constant expression in C17; compared at start */
    DEFAULT_ARENA_BYTES = 4 << 20,
};

struct kv_secret {
    uint8_t data[SLOT_DATA_BYTES];
    uint32_t len;
    uint32_t generation;
    uint64_t reserved;
};

#define SLOT_NONE UINT32_MAX
#define SLOT_LIVE (UINT32_MAX - 1)

static struct {
    pthread_mutex_t lock;
    uint8_t *mapping; /* guard page, slots, guard page */
    size_t mapping_bytes;
    struct kv_secret *slots;
    uint32_t *next_free; /* by slot: the next free one, or SLOT_LIVE */
    uint32_t *generations;
    uint32_t first_free;
    uint32_t count;
    size_t used;
    bool locked;
    bool shared; /* memfd_secret: a shared mapping, see child_after_fork */
    bool fork_handlers;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER, .first_free = SLOT_NONE};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* False when the sum overflows. */
static bool round_to_pages(size_t bytes, size_t *ret_bytes)
{
    size_t page = page_bytes();
    size_t sum;
    if (!kv_add_size(bytes, page - 1, &sum)) {
        return false;
    }
    *ret_bytes = sum / page * page;
    return true;
}

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
    if (arena.mapping != NULL && arena.shared) {
        void *zeroes = mmap(arena.slots, arena.mapping_bytes - 2 * page_bytes(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        KV_ASSERT(zeroes == (void *)arena.slots);
    }
    pthread_mutex_unlock(&arena.lock);
}

/* Rule zero: before main, because a fork that begins before the handlers are there and ends while another thread makes
 * the arena would leave its child with a lock that nobody opens. */
__attribute__((constructor)) static void watch_forks(void)
{
    arena.fork_handlers = pthread_atfork(lock_before_fork, unlock_after_fork, child_after_fork) == 0;
}

/* Puts secret memory over the inner pages of a reservation. */
static bool map_secretmem(uint8_t *inner, size_t bytes)
{
    long fd = KV_FAULT("crypto/secretmem") ? -1 : syscall(SYS_memfd_secret, 0);
    if (fd < 0) {
        return false;
    }
    bool mapped = ftruncate((int)fd, (off_t)bytes) == 0 &&
                  mmap(inner, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)fd, 0) != MAP_FAILED;
    close((int)fd);
    if (!mapped) {
        return false;
    }
    if (madvise(inner, bytes, MADV_DONTFORK) == 0) {
        return true;
    }
    /* A child would share the keys: give the pages back for the other kind. */
    void *again = mmap(inner, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    KV_ASSERT(again == (void *)inner);
    return false;
}

static bool map_anonymous(uint8_t *inner, size_t bytes, bool *ret_locked)
{
    void *memory = mmap(inner, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (memory == MAP_FAILED || madvise(inner, bytes, MADV_DONTDUMP) != 0 ||
        madvise(inner, bytes, MADV_WIPEONFORK) != 0) {
        return false;
    }
    *ret_locked = !KV_FAULT("crypto/mlock") && mlock(inner, bytes) == 0;
    return true;
}

static KV_RC arena_map(size_t bytes)
{
    size_t total;
    if (!kv_add_size(bytes, 2 * page_bytes(), &total)) {
        return KV_E_NO_MEMORY;
    }
    uint8_t *mapping = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
        return KV_E_NO_MEMORY;
    }
    uint8_t *inner = mapping + page_bytes();
    arena.shared = map_secretmem(inner, bytes);
    arena.locked = arena.shared;
    if (!arena.shared && !map_anonymous(inner, bytes, &arena.locked)) {
        munmap(mapping, total);
        return KV_E_NO_MEMORY;
    }
    arena.mapping = mapping;
    arena.mapping_bytes = total;
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
    if (arena.mapping != NULL) {
        return KV_E_INVALID_STATE;
    }
    if (bytes == 0 || !round_to_pages(bytes, &rounded) || rounded / sizeof(struct kv_secret) >= SLOT_LIVE) {
        return KV_E_INVALID_REQUEST;
    }
    size_t count = rounded / sizeof(struct kv_secret);
    if (!arena.fork_handlers) {
        return KV_E_NO_MEMORY;
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
    if (arena.mapping != NULL) {
        kv_wipe(arena.slots, arena.mapping_bytes - 2 * page_bytes());
        munmap(arena.mapping, arena.mapping_bytes);
        kv_free(arena.next_free);
        kv_free(arena.generations);
        arena.mapping = NULL;
        arena.slots = NULL;
        arena.next_free = NULL;
        arena.generations = NULL;
        arena.first_free = SLOT_NONE;
        arena.count = 0;
        arena.used = 0;
        arena.locked = false;
    }
    pthread_mutex_unlock(&arena.lock);
}

bool kv_secret_arena_locked(void)
{
    pthread_mutex_lock(&arena.lock);
    bool locked = arena.locked;
    pthread_mutex_unlock(&arena.lock);
    return locked;
}

size_t kv_secret_arena_capacity(void)
{
    pthread_mutex_lock(&arena.lock);
    enum kv_err rc = arena.mapping != NULL ? KV_OK : arena_init_locked(DEFAULT_ARENA_BYTES);
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

static KV_RC slot_take_locked(size_t len, struct kv_secret **ret_secret)
{
    if (arena.mapping == NULL) {
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
    KV_ASSERT(arena.mapping != NULL);
    KV_ASSERT(secret >= arena.slots && secret < arena.slots + arena.count);
    KV_ASSERT(((uintptr_t)secret - (uintptr_t)arena.slots) % sizeof *secret == 0);
    uint32_t index = (uint32_t)(secret - arena.slots);
    KV_ASSERT(arena.next_free[index] == SLOT_LIVE);
    kv_wipe(secret, sizeof *secret);
    arena.next_free[index] = arena.first_free;
    arena.first_free = index;
    arena.used--;
    pthread_mutex_unlock(&arena.lock);
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

KV_RC kv_locked_alloc(size_t bytes, void **ret_memory)
{
    size_t rounded;
    if (bytes == 0 || !round_to_pages(bytes, &rounded)) {
        return KV_E_INVALID_REQUEST;
    }
    void *memory = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return KV_E_NO_MEMORY;
    }
    if (madvise(memory, rounded, MADV_DONTDUMP) != 0 || madvise(memory, rounded, MADV_WIPEONFORK) != 0) {
        munmap(memory, rounded);
        return KV_E_NO_MEMORY;
    }
    int locked = mlock(memory, rounded);
    (void)locked; /* best effort: RLIMIT_MEMLOCK may be small, and then this works all the same */
    *ret_memory = memory;
    return KV_OK;
}

void kv_locked_free(void *memory, size_t bytes)
{
    size_t rounded;
    if (memory == NULL) {
        return;
    }
    KV_ASSERT(bytes > 0 && round_to_pages(bytes, &rounded));
    kv_wipe(memory, rounded);
    munmap(memory, rounded);
}

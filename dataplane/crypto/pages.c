/*
 * How the kernel is asked to hold memory with secrets in it, and whole pages of it for plaintext on its way. Never
 * hands out a page that a core dump or a forked child would take along.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/pages_int.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

/* Of kv_locked_alloc; process state as the arena is. */
static struct {
    pthread_mutex_t lock;
    size_t used;
} pages = {.lock = PTHREAD_MUTEX_INITIALIZER};

size_t kv_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool kv_round_to_pages(size_t bytes, size_t *ret_bytes)
{
    size_t page = kv_page_bytes();
    size_t sum;
    if (!kv_add_size(bytes, page - 1, &sum)) {
        return false;
    }
    *ret_bytes = sum / page * page;
    return true;
}

KV_RC kv_pages_reserve(size_t bytes, uint8_t **ret_inner)
{
    size_t total;
    if (!kv_add_size(bytes, 2 * kv_page_bytes(), &total)) {
        return KV_E_NO_MEMORY;
    }
    uint8_t *mapping = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        return KV_E_NO_MEMORY;
    }
    *ret_inner = mapping + kv_page_bytes();
    return KV_OK;
}

void kv_pages_release(uint8_t *inner, size_t bytes)
{
    munmap(inner - kv_page_bytes(), bytes + 2 * kv_page_bytes());
}

static bool fill_secretmem(uint8_t *inner, size_t bytes)
{
    long fd = KV_FAULT("crypto/secretmem") ? -1 : syscall(SYS_memfd_secret, O_CLOEXEC);
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

static bool fill_anonymous(uint8_t *inner, size_t bytes, bool *ret_locked)
{
    void *memory = mmap(inner, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (memory == MAP_FAILED || madvise(inner, bytes, MADV_DONTDUMP) != 0 ||
        madvise(inner, bytes, MADV_WIPEONFORK) != 0) {
        return false;
    }
    *ret_locked = !KV_FAULT("crypto/mlock") && mlock(inner, bytes) == 0;
    return true;
}

KV_RC kv_pages_fill(uint8_t *inner, size_t bytes, bool secret, struct kv_pages_kind *ret_kind)
{
    struct kv_pages_kind kind = {0};
    kind.shared = secret && fill_secretmem(inner, bytes);
    kind.locked = kind.shared;
    if (!kind.shared && !fill_anonymous(inner, bytes, &kind.locked)) {
        return KV_E_NO_MEMORY;
    }
    *ret_kind = kind;
    return KV_OK;
}

void kv_pages_after_fork(uint8_t *inner, size_t bytes)
{
    void *zeroes = mmap(inner, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    KV_ASSERT(zeroes == (void *)inner);
}

/* ---- plaintext on its way ---- */

/* Takes `bytes` of the bound, or nothing. */
static bool charge(size_t bytes)
{
    pthread_mutex_lock(&pages.lock);
    bool room = bytes <= (size_t)KV_MAX_PLAINTEXT_BYTES - pages.used;
    pages.used += room ? bytes : 0;
    pthread_mutex_unlock(&pages.lock);
    return room;
}

static void give_back(size_t bytes)
{
    pthread_mutex_lock(&pages.lock);
    KV_ASSERT(pages.used >= bytes);
    pages.used -= bytes;
    pthread_mutex_unlock(&pages.lock);
}

static KV_RC map_guarded(size_t bytes, void **ret_memory)
{
    uint8_t *inner = NULL;
    struct kv_pages_kind kind;
    KV_TRY(kv_pages_reserve(bytes, &inner));
    enum kv_err rc = kv_pages_fill(inner, bytes, false, &kind);
    if (rc != KV_OK) {
        kv_pages_release(inner, bytes);
        return rc;
    }
    *ret_memory = inner;
    return KV_OK;
}

KV_RC kv_locked_alloc(size_t bytes, void **ret_memory)
{
    size_t rounded;
    if (bytes == 0 || !kv_round_to_pages(bytes, &rounded)) {
        return KV_E_INVALID_REQUEST;
    }
    if (!charge(rounded)) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = map_guarded(rounded, ret_memory);
    if (rc != KV_OK) {
        give_back(rounded);
    }
    return rc;
}

void kv_locked_free(void *memory, size_t bytes)
{
    size_t rounded;
    if (memory == NULL) {
        return;
    }
    KV_ASSERT(bytes > 0 && kv_round_to_pages(bytes, &rounded));
    kv_wipe(memory, rounded);
    kv_pages_release(memory, rounded);
    give_back(rounded);
    kv_forget();
}

size_t kv_locked_used(void)
{
    pthread_mutex_lock(&pages.lock);
    size_t used = pages.used;
    pthread_mutex_unlock(&pages.lock);
    return used;
}

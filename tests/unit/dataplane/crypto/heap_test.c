/* The heap without OpenSSL: sizes, wiping, canaries, its end, what a forked child sees. tests/attack/heap_main.c has
 * OpenSSL at work in it: a program of Criterion's cannot, because that library uses OpenSSL before main. */
#include "dataplane/crypto/heap_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane/base/fault.h"

static size_t used(void)
{
    struct kv_crypto_heap_stats stats;
    kv_crypto_heap_stats(&stats);
    return stats.used_bytes;
}

/* Exit code of a child that runs `fn`; 1000 + signal when it was killed. */
static int in_child(int (*fn)(void *ctx), void *ctx)
{
    int status = 0;
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        _exit(fn(ctx));
    }
    cr_assert(eq(int, waitpid(pid, &status, 0), pid));
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static bool all_zero(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

Test(heap, is_opened_once_and_is_empty_before)
{
    struct kv_crypto_heap_stats stats;
    kv_crypto_heap_stats(&stats);
    cr_assert(eq(sz, stats.used_bytes, 0));
    cr_assert(eq(ptr, kv_heap_alloc(1), NULL), "nothing before it is open");
    cr_assert(kv_heap_refused());
    cr_assert(not(kv_heap_refused()));
    cr_assert(eq(int, kv_heap_open(), KV_OK));
    cr_assert(eq(int, kv_heap_open(), KV_E_INVALID_STATE));
}

/* Each size and its neighbours: zeroed, aligned, room for what was asked, wiped when it is freed. */
Test(heap, every_size_is_zeroed_aligned_and_wiped)
{
    cr_assert(eq(int, kv_heap_open(), KV_OK));
    for (size_t bytes = 1; bytes <= (size_t)1 << 20; bytes = bytes < 300 ? bytes + 1 : bytes + bytes / 7) {
        uint8_t *a = kv_heap_alloc(bytes), *b = kv_heap_alloc(bytes);
        cr_assert(a != NULL && b != NULL && a != b);
        cr_assert(eq(sz, (uintptr_t)a % 16, 0));
        cr_assert(all_zero(a, bytes), "%zu", bytes);
        cr_assert(ge(sz, kv_heap_room(a), bytes));
        memset(a, 0xaa, kv_heap_room(a));
        memset(b, 0xbb, kv_heap_room(b));
        size_t room = kv_heap_room(a);
        kv_heap_free(a);
        cr_assert(all_zero(a, room), "%zu", bytes);
        cr_assert(eq(int, b[0], 0xbb));
        cr_assert(eq(int, b[bytes - 1], 0xbb));
        kv_heap_free(b);
    }
    cr_assert(eq(sz, used(), 0));
    cr_assert(eq(ptr, kv_heap_alloc(0), NULL));
    kv_heap_free(NULL);
}

Test(heap, resizing_keeps_the_bytes)
{
    cr_assert(eq(int, kv_heap_open(), KV_OK));
    uint8_t *memory = kv_heap_resize(NULL, 10);
    memcpy(memory, "0123456789", 10);
    for (size_t bytes = 11; bytes < 200000; bytes += bytes / 2) {
        memory = kv_heap_resize(memory, bytes);
        cr_assert(memory != NULL && memcmp(memory, "0123456789", 10) == 0);
    }
    uint8_t *large = memory;
    memory = kv_heap_resize(memory, 10);
    cr_assert(memory != large, "what shrinks by much gives its place back");
    cr_assert(memcmp(memory, "0123456789", 10) == 0 && all_zero(large, 64));
    cr_assert(eq(ptr, kv_heap_resize(memory, 0), NULL));
    cr_assert(eq(sz, used(), 0));
}

/* A random walk; each allocation is filled with its own byte and looked at when it ends. */
Test(heap, places_never_overlap)
{
    enum { HELD = 300 };
    static struct {
        uint8_t *at;
        size_t len;
    } held[HELD];
    unsigned seed = 7;
    cr_assert(eq(int, kv_heap_open(), KV_OK));
    for (unsigned round = 0; round < 60000; round++) {
        unsigned i = (unsigned)rand_r(&seed) % HELD;
        if (held[i].at != NULL) {
            for (size_t k = 0; k < held[i].len; k += 13) {
                cr_assert(held[i].at[k] == (uint8_t)i);
            }
            kv_heap_free(held[i].at);
        }
        held[i].len = 1 + (size_t)rand_r(&seed) % (rand_r(&seed) % 50 == 0 ? 200000 : 3000);
        held[i].at = kv_heap_alloc(held[i].len);
        cr_assert(held[i].at != NULL);
        memset(held[i].at, (int)i, held[i].len);
    }
    for (unsigned i = 0; i < HELD; i++) {
        kv_heap_free(held[i].at);
    }
    cr_assert(eq(sz, used(), 0));
}

Test(heap, its_end_is_refused_and_counted_and_room_comes_back)
{
    enum { PIECES = 64 };
    uint8_t *pieces[PIECES + 1];
    size_t count = 0, piece = (size_t)KV_MAX_CRYPTO_HEAP_BYTES / PIECES - 8;
    struct kv_crypto_heap_stats stats;
    cr_assert(eq(int, kv_heap_open(), KV_OK));
    cr_assert(eq(ptr, kv_heap_alloc((size_t)KV_MAX_CRYPTO_HEAP_BYTES - 7), NULL));
    cr_assert(eq(ptr, kv_heap_alloc(SIZE_MAX), NULL));
    while (count <= PIECES && (pieces[count] = kv_heap_alloc(piece)) != NULL) {
        count++;
    }
    cr_assert(eq(sz, count, PIECES));
    cr_assert(eq(ptr, kv_heap_alloc(1), NULL));
    kv_crypto_heap_stats(&stats);
    cr_assert(eq(sz, stats.used_bytes, (size_t)KV_MAX_CRYPTO_HEAP_BYTES));
    cr_assert(eq(sz, stats.filled_bytes, (size_t)KV_MAX_CRYPTO_HEAP_BYTES));
    cr_assert(eq(u64, stats.refusals, 4));
    kv_heap_free(pieces[3]);
    cr_assert(ne(ptr, pieces[3] = kv_heap_alloc(1), NULL));
    for (size_t i = 0; i < count; i++) {
        kv_heap_free(pieces[i]);
    }
    /* The span of the last small place stays cut up; what lies behind it is one piece again. */
    size_t behind = (size_t)KV_MAX_CRYPTO_HEAP_BYTES - 3 * (piece + 8) - 65536;
    uint8_t *most = kv_heap_alloc(behind - 8);
    cr_assert(ne(ptr, most, NULL));
    kv_heap_free(most);
}

static int free_it(void *memory)
{
    kv_heap_free(memory);
    return 0;
}

static int free_twice(void *memory)
{
    /* A child has nothing of its parent's; what it allocates itself is held to the rules. */
    uint8_t *own = kv_heap_alloc(40);
    kv_heap_free(own);
    kv_heap_free(own);
    return 0;
}

/* What a child does to its own heap: fork first, then open, so that the checks are on. */
static int damage(void *ctx)
{
    const char *how = ctx;
    if (kv_heap_open() != KV_OK) {
        return 9;
    }
    uint8_t *memory = kv_heap_alloc(40), *large = kv_heap_alloc(100000);
    if (strcmp(how, "past") == 0) {
        memory[kv_heap_room(memory)] ^= 1;
    } else if (strcmp(how, "past a large one") == 0) {
        large[kv_heap_room(large)] ^= 1;
    } else if (strcmp(how, "inside") == 0) {
        memory += 16;
    } else if (strcmp(how, "foreign") == 0) {
        memory = (uint8_t *)&how;
    } else if (strcmp(how, "twice") == 0) {
        free_twice(NULL);
    }
    kv_heap_free(memory);
    kv_heap_free(large);
    return 0;
}

Test(heap, damage_stops_the_program)
{
    static char none[] = "none";
    static char ways[][20] = {"past", "past a large one", "inside", "foreign", "twice"};
    cr_assert(eq(int, in_child(damage, none), 0), "control");
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        cr_assert(eq(int, in_child(damage, ways[i]), 1000 + SIGABRT), "%s", ways[i]);
    }
}

static int look_in_child(void *memory)
{
    uint8_t *own = kv_heap_alloc(100);
    bool empty = all_zero(memory, 40) && own != NULL && own != memory;
    free_it(memory);
    memset(own, 1, 100);
    return empty ? 0 : 1;
}

static void child_finds_zeroes(void)
{
    cr_assert(eq(int, kv_heap_open(), KV_OK));
    uint8_t *memory = kv_heap_alloc(40);
    memset(memory, 0xaa, 40);
    cr_assert(eq(int, in_child(look_in_child, memory), 0));
    cr_assert(eq(int, memory[39], 0xaa));
    kv_heap_free(memory);
}

Test(heap, child_finds_zeroes_over_the_kernels_best_memory)
{
    child_finds_zeroes();
}

Test(heap, child_finds_zeroes_over_ordinary_locked_memory)
{
    kv_fault_set("crypto/secretmem=fail");
    child_finds_zeroes();
    kv_fault_set(NULL);
}

Test(heap, what_cannot_be_locked_is_used_and_said)
{
    struct kv_crypto_heap_stats stats;
    kv_fault_set("crypto/secretmem=fail,crypto/mlock=fail");
    cr_assert(eq(int, kv_heap_open(), KV_OK));
    kv_heap_free(kv_heap_alloc(1));
    kv_crypto_heap_stats(&stats);
    cr_assert(gt(sz, stats.filled_bytes, 0));
    cr_assert(eq(sz, stats.locked_bytes, 0));
    kv_fault_set(NULL);
}

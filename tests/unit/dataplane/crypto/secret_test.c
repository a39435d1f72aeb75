/* The arena: wiping, bounds, exhaustion, what a forked child sees, and both kinds of memory under it. */
#include "dataplane/crypto/secret.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dataplane/base/fault.h"

/* The flags of the mapping that holds `address` ("VmFlags:" of smaps), with a space before each. */
static void vm_flags_of(const void *address, char *flags, size_t size)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false;
    cr_assert(smaps != NULL);
    flags[0] = '\0';
    while (fgets(line, sizeof line, smaps) != NULL) {
        uintptr_t start, end;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &start, &end) == 2) {
            inside = (uintptr_t)address >= start && (uintptr_t)address < end;
        } else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            snprintf(flags, size, "%s", line + 8);
        }
    }
    fclose(smaps);
}

/* Exit code of a child that runs `fn`; 1000 + signal when it was killed. */
static int in_child(int (*fn)(const void *ctx), const void *ctx)
{
    int status = 0;
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        _exit(fn(ctx));
    }
    cr_assert(eq(int, waitpid(pid, &status, 0), pid));
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int read_byte(const void *address)
{
    return *(const volatile uint8_t *)address == 0xee ? 2 : 0;
}

Test(secret, new_secret_is_zeroed_and_counted)
{
    struct kv_secret *secret = NULL;
    static const uint8_t zero[64];
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
    cr_assert(eq(int, kv_secret_new(64, &secret), KV_OK));
    cr_assert(eq(sz, kv_secret_len(secret), 64));
    cr_assert(memcmp(kv_secret_data(secret), zero, 64) == 0);
    cr_assert(eq(sz, kv_secret_arena_used(), 1));
    kv_secret_freep(&secret);
    cr_assert(eq(ptr, secret, NULL));
    kv_secret_free(NULL);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

Test(secret, length_is_bounded_on_both_sides)
{
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_secret_new(0, &secret), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_secret_new((size_t)KV_MAX_SECRET_BYTES + 1, &secret), KV_E_LIMIT));
    cr_assert(eq(ptr, secret, NULL));
    cr_assert(eq(int, kv_secret_new(1, &secret), KV_OK));
    kv_secret_free(secret);
}

Test(secret, freed_secret_is_wiped)
{
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_secret_copy("sixteen byte key", 16, &secret), KV_OK));
    const uint8_t *data = kv_secret_data(secret);
    cr_assert(memcmp(data, "sixteen byte key", 16) == 0);
    kv_secret_free(secret);
    for (size_t i = 0; i < 16; i++) {
        cr_assert(eq(int, data[i], 0));
    }
}

static int free_again(const void *ctx)
{
    kv_secret_free((struct kv_secret *)(uintptr_t)ctx);
    return 0;
}

Test(secret, freeing_twice_stops_the_program)
{
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_secret_new(32, &secret), KV_OK));
    kv_secret_free(secret);
    cr_assert(eq(int, in_child(free_again, secret), 1000 + SIGABRT));
}

/* In its own arena, since one that a child inherits is zeroes, canaries too. */
static int write_past(const void *ctx)
{
    struct kv_secret *secret = NULL;
    kv_secret_arena_done();
    if (kv_secret_new(32, &secret) != KV_OK) {
        return 2;
    }
    if (ctx != NULL) {
        memset(kv_secret_data_mutable(secret), 0x11, 80);
    }
    kv_secret_free(secret);
    return 0;
}

Test(secret, writing_past_a_secret_stops_the_program)
{
    cr_assert(eq(int, in_child(write_past, NULL), 0), "control");
    cr_assert(eq(int, in_child(write_past, "past"), 1000 + SIGABRT));
}

static KV_RC random_fails(void *ctx, void *target, size_t len)
{
    return KV_E_CRYPTO;
}

Test(secret, random_secret_is_freed_when_there_is_no_randomness)
{
    struct kv_env env = kv_env_system;
    struct kv_secret *a = NULL, *b = NULL;
    env.random = random_fails;
    cr_assert(eq(int, kv_secret_random(&env, 32, &a), KV_E_CRYPTO));
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &a), KV_OK));
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &b), KV_OK));
    cr_assert(memcmp(kv_secret_data(a), kv_secret_data(b), 32) != 0);
    kv_secret_free(a);
    kv_secret_free(b);
}

Test(secret, arena_is_made_once_and_can_be_made_again_after_its_end)
{
    cr_assert(eq(int, kv_secret_arena_init(0), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_secret_arena_init(1), KV_OK));
    cr_assert(eq(int, kv_secret_arena_init(1), KV_E_INVALID_STATE));
    kv_secret_arena_done();
    kv_secret_arena_done();
    cr_assert(eq(int, kv_secret_arena_init(4096), KV_OK));
    kv_secret_arena_done();
    cr_assert(eq(int, kv_secret_arena_init(SIZE_MAX), KV_E_INVALID_REQUEST));
}

enum { FILL_MAX = 1000 };

static size_t fill(struct kv_secret *secrets[FILL_MAX])
{
    size_t count = 0;
    enum kv_err rc = KV_OK;
    while (count < FILL_MAX && (rc = kv_secret_new(32, &secrets[count])) == KV_OK) {
        count++;
    }
    cr_assert(eq(int, rc, KV_E_NO_MEMORY));
    return count;
}

Test(secret, full_arena_refuses_and_recovers)
{
    struct kv_secret *secrets[FILL_MAX], *late = NULL;
    cr_assert(eq(int, kv_secret_arena_init(4096), KV_OK));
    size_t count = fill(secrets);
    cr_assert(gt(sz, count, 40));
    cr_assert(eq(sz, kv_secret_arena_used(), count));
    kv_secret_free(secrets[count / 2]);
    cr_assert(eq(int, kv_secret_new(32, &late), KV_OK));
    cr_assert(eq(int, kv_secret_new(32, &secrets[count / 2]), KV_E_NO_MEMORY));
    secrets[count / 2] = late;
    for (size_t i = 0; i < count; i++) {
        kv_secret_free(secrets[i]);
    }
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
    cr_assert(eq(sz, fill(secrets), count));
    kv_secret_arena_done();
}

/* With an arena of one page the first and the last slot tell where its pages begin and end. */
static void guards_hold(void)
{
    struct kv_secret *secrets[FILL_MAX];
    uintptr_t first = UINTPTR_MAX, page = (uintptr_t)sysconf(_SC_PAGESIZE);
    cr_assert(eq(int, kv_secret_arena_init(page), KV_OK));
    size_t count = fill(secrets);
    for (size_t i = 0; i < count; i++) {
        uintptr_t at = (uintptr_t)kv_secret_data(secrets[i]);
        first = at < first ? at : first;
    }
    cr_assert(eq(sz, first % page, 0));
    cr_assert(eq(int, in_child(read_byte, (const void *)first), 0));
    cr_assert(eq(int, in_child(read_byte, (const void *)(first + page - 1)), 0));
    cr_assert(eq(int, in_child(read_byte, (const void *)(first - 1)), 1000 + SIGSEGV));
    cr_assert(eq(int, in_child(read_byte, (const void *)(first + page)), 1000 + SIGSEGV));
    kv_secret_arena_done();
}

/* Looks for the secret in a child, and lets the child write over its own copy. */
static int look_in_child(const void *ctx)
{
    struct kv_secret *secret = (struct kv_secret *)(uintptr_t)ctx;
    const uint8_t *data = kv_secret_data(secret);
    for (size_t i = 0; i < 32; i++) {
        if (data[i] != 0) {
            return 1;
        }
    }
    memset(kv_secret_data_mutable(secret), 0xbb, 32);
    struct kv_secret *own = NULL;
    if (kv_secret_copy("child", 5, &own) != KV_OK || memcmp(kv_secret_data(own), "child", 5) != 0) {
        return 2;
    }
    kv_secret_free(own);
    kv_secret_arena_done();
    return 0;
}

static void child_sees_nothing(void)
{
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_secret_new(32, &secret), KV_OK));
    memset(kv_secret_data_mutable(secret), 0xaa, 32);
    cr_assert(eq(int, in_child(look_in_child, secret), 0));
    for (size_t i = 0; i < 32; i++) {
        cr_assert(eq(int, kv_secret_data(secret)[i], 0xaa));
    }
    cr_assert(eq(sz, kv_secret_arena_used(), 1));
    kv_secret_free(secret);
    kv_secret_arena_done();
}

static void not_dumped(void)
{
    struct kv_secret *secret = NULL;
    char flags[512], ordinary[512];
    static uint8_t elsewhere[1];
    cr_assert(eq(int, kv_secret_new(32, &secret), KV_OK));
    vm_flags_of(kv_secret_data(secret), flags, sizeof flags);
    vm_flags_of(elsewhere, ordinary, sizeof ordinary);
    cr_assert(strstr(flags, " dd") != NULL, "%s", flags);
    cr_assert(strstr(ordinary, " dd") == NULL, "%s", ordinary);
    kv_secret_free(secret);
    kv_secret_arena_done();
}

Test(secret, arena_holds_over_the_kernels_best_memory)
{
    guards_hold();
    child_sees_nothing();
    not_dumped();
}

Test(secret, arena_holds_over_ordinary_locked_memory)
{
    kv_fault_set("crypto/secretmem=fail");
    guards_hold();
    child_sees_nothing();
    not_dumped();
    kv_fault_set(NULL);
}

Test(secret, arena_says_when_it_could_not_be_locked)
{
    struct kv_secret *secret = NULL;
    kv_fault_set("crypto/secretmem=fail,crypto/mlock=fail");
    cr_assert(eq(int, kv_secret_arena_init(4096), KV_OK));
    cr_assert(not(kv_secret_arena_locked()));
    cr_assert(eq(int, kv_secret_new(32, &secret), KV_OK));
    kv_secret_free(secret);
    kv_secret_arena_done();
    kv_fault_set("crypto/secretmem=fail");
    cr_assert(eq(int, kv_secret_arena_init(4096), KV_OK));
    cr_assert(kv_secret_arena_locked(), "needs 4 KiB of RLIMIT_MEMLOCK");
    kv_secret_arena_done();
    kv_fault_set(NULL);
}

Test(secret, failed_allocation_leaves_no_arena_behind)
{
    for (unsigned nth = 1; nth <= 2; nth++) {
        char spec[64];
        snprintf(spec, sizeof spec, "base/mem=fail@%uonce", nth);
        kv_fault_set(spec);
        cr_assert(eq(int, kv_secret_arena_init(4096), KV_E_NO_MEMORY));
        kv_fault_set(NULL);
        cr_assert(eq(int, kv_secret_arena_init(4096), KV_OK));
        kv_secret_arena_done();
    }
}

Test(secret, staging_memory_is_not_dumped_and_wiped_in_a_child)
{
    void *memory = NULL;
    char flags[512];
    cr_assert(eq(int, kv_locked_alloc(0, &memory), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_locked_alloc(SIZE_MAX, &memory), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_locked_alloc(10000, &memory), KV_OK));
    vm_flags_of(memory, flags, sizeof flags);
    cr_assert(strstr(flags, " dd") != NULL && strstr(flags, " wf") != NULL, "%s", flags);
    memset(memory, 0xee, 10000);
    cr_assert(eq(int, in_child(read_byte, memory), 0));
    cr_assert(eq(int, read_byte(memory), 2));
    cr_assert(eq(int, in_child(read_byte, (uint8_t *)memory - 1), 1000 + SIGSEGV));
    cr_assert(eq(int, in_child(read_byte, (uint8_t *)memory + 12288), 1000 + SIGSEGV));
    cr_assert(eq(sz, kv_locked_used(), 12288));
    kv_locked_free(memory, 10000);
    kv_locked_free(NULL, 0);
    cr_assert(eq(sz, kv_locked_used(), 0));
}

Test(secret, staging_memory_is_bounded)
{
    void *small = NULL, *large = NULL;
    size_t most = (size_t)KV_MAX_PLAINTEXT_BYTES;
    kv_fault_set("crypto/mlock=fail"); /* addresses only, where nothing is locked */
    cr_assert(eq(int, kv_locked_alloc(most + 1, &large), KV_E_NO_MEMORY));
    cr_assert(eq(int, kv_locked_alloc(most - 4096, &large), KV_OK));
    cr_assert(eq(int, kv_locked_alloc(4097, &small), KV_E_NO_MEMORY));
    cr_assert(eq(int, kv_locked_alloc(4096, &small), KV_OK));
    kv_locked_free(small, 4096);
    kv_locked_free(large, most - 4096);
    cr_assert(eq(sz, kv_locked_used(), 0));
    kv_fault_set(NULL);
}

Test(secret, comparison_sees_every_byte)
{
    uint8_t a[33], b[33];
    memset(a, 7, sizeof a);
    memset(b, 7, sizeof b);
    cr_assert(kv_equal_constant_time(a, b, sizeof a));
    for (size_t i = 0; i < sizeof a; i++) {
        b[i] ^= 0x80;
        cr_assert(not(kv_equal_constant_time(a, b, sizeof a)));
        b[i] ^= 0x80;
    }
    cr_assert(kv_equal_constant_time(a, b, 0));
}

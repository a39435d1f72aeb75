/* The allocator. */
#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

static bool is_zero(const void *p, size_t len)
{
    const unsigned char *bytes = p;
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

Test(mem, memory_comes_zeroed)
{
    void *a = kv_alloc(1000);
    void *b = kv_alloc_array(10, 100);
    void *c = kv_alloc_aligned(4096, 8192);
    cr_assert(is_zero(a, 1000) && is_zero(b, 1000) && is_zero(c, 8192));
    cr_assert(eq(sz, (uintptr_t)c % 4096, 0));
    kv_free(a);
    kv_free(b);
    kv_free(c);
}

Test(mem, nothing_is_still_an_allocation)
{
    void *a = kv_alloc(0);
    void *b = kv_alloc_array(0, 8);
    void *c = kv_alloc_aligned(64, 0);
    cr_assert(a != NULL && b != NULL && c != NULL);
    c = kv_realloc_array(c, 0, 8);
    cr_assert(c != NULL);
    kv_free(a);
    kv_free(b);
    kv_free(c);
    kv_free(NULL);
}

Test(mem, products_and_sums_stop_at_the_limit)
{
    size_t v = 7;
    cr_assert(kv_mul_size(SIZE_MAX / 2, 2, &v));
    cr_assert(eq(sz, v, SIZE_MAX - 1));
    cr_assert(not(kv_mul_size(SIZE_MAX / 2 + 1, 2, &v)));
    cr_assert(eq(sz, v, SIZE_MAX - 1)); /* untouched */
    cr_assert(kv_add_size(SIZE_MAX - 1, 1, &v));
    cr_assert(eq(sz, v, SIZE_MAX));
    cr_assert(not(kv_add_size(SIZE_MAX, 1, &v)));
    cr_assert(eq(sz, v, SIZE_MAX));
}

Test(mem, overflowing_array_is_no_memory_and_keeps_the_old_one)
{
    cr_assert(kv_alloc_array(SIZE_MAX / 2 + 1, 2) == NULL);
    char *p = kv_strdup("kept");
    cr_assert(kv_realloc_array(p, SIZE_MAX / 2 + 1, 2) == NULL);
    cr_assert(eq(str, p, "kept"));
    kv_free(p);
}

Test(mem, realloc_keeps_what_was_there)
{
    char *p = kv_strdup("abc");
    p = kv_realloc_array(p, 5000, 2);
    cr_assert(eq(str, p, "abc"));
    kv_free(p);
}

Test(mem, cleanup_frees_and_clears)
{
    char *p = kv_strdup("x");
    kv_freep(&p);
    cr_assert(p == NULL);
    KV_CLEANUP(kv_freep) char *q = kv_alloc(10);
    cr_assert(q != NULL); /* LeakSanitizer is the judge */
}

#ifdef KV_FAULTS
Test(mem, each_way_in_is_a_fault_point)
{
    char *p = kv_strdup("kept");
    kv_fault_set("base/mem=fail@1");
    cr_assert(kv_alloc(1) == NULL);
    cr_assert(kv_alloc_array(1, 1) == NULL);
    cr_assert(kv_alloc_aligned(64, 1) == NULL);
    cr_assert(kv_realloc_array(p, 1, 1) == NULL);
    cr_assert(kv_strdup("x") == NULL);
    kv_fault_set(NULL);
    char *control = kv_strdup(p);
    cr_assert(eq(str, control, "kept"));
    kv_free(control);
    kv_free(p);
}
#endif

#ifndef NDEBUG
Test(mem, thread_that_forbade_itself_to_allocate_stops, .signal = SIGABRT)
{
    kv_mem_forbid(true);
    kv_free(kv_alloc(1));
}
#endif

Test(mem, forbidding_can_be_lifted_and_freeing_is_allowed)
{
    void *p = kv_alloc(1);
    kv_mem_forbid(true);
    kv_free(p);
    kv_mem_forbid(false);
    p = kv_alloc(1);
    cr_assert(p != NULL);
    kv_free(p);
}

Test(mem, alignment_that_is_no_power_of_two_stops, .signal = SIGABRT)
{
    kv_free(kv_alloc_aligned(48, 1));
}

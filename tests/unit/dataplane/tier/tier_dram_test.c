/*
 * The dram tier and the slot allocator below it: exact slots, no slot twice, recovery after pressure.
 */
#include "dataplane/tier/slabs_int.h"
#include "dataplane/tier/tier_dram.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

static uint64_t next_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

Test(dram, slots_are_aligned_apart_and_inside_the_arena)
{
    struct kv_dram *dram;
    cr_assert(eq(int, kv_dram_new(8 * MIB, MIB, &dram), KV_OK));
    uint8_t *start, *slots[100];
    uint64_t bytes;
    kv_dram_arena(dram, &start, &bytes);
    cr_assert(eq(u64, bytes, 8 * MIB));
    for (unsigned i = 0; i < 100; i++) {
        uint64_t size = (i % 3 + 1) * 4 * KIB;
        cr_assert(eq(int, kv_dram_take(dram, size, &slots[i]), KV_OK));
        cr_assert(eq(u64, (uintptr_t)slots[i] % 4096, 0));
        cr_assert(slots[i] >= start && slots[i] + size <= start + bytes);
        memset(slots[i], (int)i, size);
    }
    for (unsigned i = 0; i < 100; i++) {
        cr_assert(eq(u8, slots[i][0], (uint8_t)i));
        cr_assert(eq(u8, slots[i][(i % 3 + 1) * 4 * KIB - 1], (uint8_t)i));
        kv_dram_give(dram, slots[i]);
        cr_assert(kv_dram_check(dram));
    }
    struct kv_dram_stats stats;
    kv_dram_stats(dram, &stats);
    cr_assert(eq(u64, stats.used_bytes, 0));
    cr_assert(eq(u64, stats.slab_bytes_in_use, 0));
    kv_dram_free(dram);
}

Test(dram, limits_are_told_apart)
{
    struct kv_dram *dram;
    uint8_t *slot, *last = NULL;
    cr_assert(eq(int, kv_dram_new(4 * MIB, MIB, &dram), KV_OK));
    cr_assert(eq(int, kv_dram_take(dram, MIB + 4 * KIB, &slot), KV_E_LIMIT));
    cr_assert(eq(int, kv_dram_take(dram, 4 * KIB + 1, &slot), KV_E_LIMIT));
    cr_assert(eq(int, kv_dram_take(dram, 0, &slot), KV_E_LIMIT));
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(eq(int, kv_dram_take(dram, MIB, &last), KV_OK));
    }
    slot = (uint8_t *)1;
    cr_assert(eq(int, kv_dram_take(dram, 4 * KIB, &slot), KV_E_NO_SPACE));
    cr_assert(eq(ptr, slot, (uint8_t *)1));
    kv_dram_give(dram, last);
    cr_assert(eq(int, kv_dram_take(dram, 4 * KIB, &slot), KV_OK)); /* an empty slab changes its class */
    kv_dram_free(dram);
}

Test(dram, sizes_that_make_no_arena_are_refused)
{
    struct kv_dram *dram = NULL;
    cr_assert(eq(int, kv_dram_new(0, 0, &dram), KV_E_LIMIT));
    cr_assert(eq(int, kv_dram_new(4095, 0, &dram), KV_E_LIMIT));
    cr_assert(eq(int, kv_dram_new(UINT64_C(1) << 40, 4096, &dram), KV_E_LIMIT));
    cr_assert(eq(ptr, dram, NULL));
    cr_assert(eq(int, kv_dram_new(16 * KIB, 0, &dram), KV_OK)); /* a quarter: one page a slab */
    kv_dram_free(dram);
    kv_dram_free(NULL);
}

/* Evicting at random until there is room always ends, and what was taken stays what it was. */
Test(dram, mixed_sizes_churn_at_95_percent_without_decay)
{
    enum { MOST = 16384, ROUNDS = 100000 };
    static const uint64_t sizes[] = {4 * KIB, 260 * KIB, 3 * MIB + 4 * KIB, 20 * KIB, 516 * KIB};
    static uint8_t *slots[MOST];
    static uint64_t held[MOST];
    struct kv_dram *dram;
    cr_assert(eq(int, kv_dram_new(256 * MIB, 8 * MIB, &dram), KV_OK));
    uint64_t seed = 7, used = 0, evictions = 0;
    unsigned count = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t size = sizes[next_random(&seed) % 5];
        enum kv_err rc = KV_E_NO_SPACE;
        while (rc == KV_E_NO_SPACE || count == MOST) {
            rc = used + size > 256 * MIB / 100 * 95 || count == MOST ? KV_E_NO_SPACE
                                                                     : kv_dram_take(dram, size, &slots[count]);
            if (rc == KV_OK) {
                break;
            }
            cr_assert(gt(uint, count, 0));
            unsigned victim = (unsigned)(next_random(&seed) % count);
            kv_dram_give(dram, slots[victim]);
            used -= held[victim];
            slots[victim] = slots[--count];
            held[victim] = held[count];
            evictions++;
        }
        held[count++] = size;
        used += size;
        if (round % 1000 == 0) {
            cr_assert(kv_dram_check(dram));
        }
    }
    struct kv_dram_stats stats;
    kv_dram_stats(dram, &stats);
    cr_assert(eq(u64, stats.used_bytes, used));
    cr_assert(eq(u64, stats.slots_used, count));
    cr_assert(lt(u64, evictions, (uint64_t)ROUNDS * 40));
    while (count > 0) {
        kv_dram_give(dram, slots[--count]);
    }
    cr_assert(kv_dram_check(dram));
    for (unsigned i = 0; i < 256 / 8; i++) { /* all of it is there again, for one class */
        uint8_t *slot;
        cr_assert(eq(int, kv_dram_take(dram, 8 * MIB, &slot), KV_OK));
    }
    kv_dram_free(dram);
}

Test(slabs, claim_takes_the_slot_asked_for_once_and_no_other)
{
    struct kv_slabs *slabs;
    cr_assert(eq(int, kv_slabs_new(4, 64 * KIB, &slabs), KV_OK));
    cr_assert(eq(int, kv_slabs_claim(slabs, 2 * 64 * KIB + 8 * KIB, 8 * KIB), KV_OK));
    cr_assert(eq(int, kv_slabs_claim(slabs, 2 * 64 * KIB + 8 * KIB, 8 * KIB), KV_E_CORRUPT));
    cr_assert(eq(int, kv_slabs_claim(slabs, 2 * 64 * KIB + 16 * KIB, 4 * KIB), KV_E_CORRUPT)); /* other class */
    cr_assert(eq(int, kv_slabs_claim(slabs, 4 * 64 * KIB, 8 * KIB), KV_E_CORRUPT));            /* past the end */
    cr_assert(eq(int, kv_slabs_claim(slabs, 12 * KIB, 8 * KIB), KV_E_CORRUPT));                /* between slots */
    cr_assert(eq(int, kv_slabs_claim(slabs, 60 * KIB, 60 * KIB), KV_E_CORRUPT));               /* over the edge */
    cr_assert(kv_slabs_check(slabs));
    uint64_t offset;
    for (unsigned i = 0; i < 7; i++) { /* the class's slab first, never the claimed slot */
        cr_assert(eq(int, kv_slabs_take(slabs, 8 * KIB, &offset), KV_OK));
        cr_assert(eq(u64, offset / (64 * KIB), 2));
        cr_assert(ne(u64, offset, 2 * 64 * KIB + 8 * KIB));
    }
    cr_assert(eq(int, kv_slabs_take(slabs, 8 * KIB, &offset), KV_OK));
    cr_assert(ne(u64, offset / (64 * KIB), 2));
    cr_assert(kv_slabs_check(slabs));
    kv_slabs_free(slabs);
}

Test(slabs, fullest_slab_is_filled_first)
{
    struct kv_slabs *slabs;
    uint64_t offset, slots[32];
    cr_assert(eq(int, kv_slabs_new(2, 64 * KIB, &slabs), KV_OK));
    for (unsigned i = 0; i < 32; i++) {
        cr_assert(eq(int, kv_slabs_take(slabs, 4 * KIB, &slots[i]), KV_OK));
    }
    for (unsigned i = 0; i < 10; i++) {
        kv_slabs_give(slabs, slots[i]); /* ten of the first, one of the second */
    }
    kv_slabs_give(slabs, slots[31]);
    cr_assert(eq(int, kv_slabs_take(slabs, 4 * KIB, &offset), KV_OK));
    cr_assert(eq(u64, offset, slots[31]));
    kv_slabs_free(slabs);
}

/*
 * The division of an nvme tier's bytes: never over the cap, and the same the next time.
 */
#include "dataplane/tier/nvme_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

Test(nvme_size, arena_and_index_fit_under_any_cap_and_reopen_with_the_same_table)
{
    unsigned fits = 0;
    for (uint64_t bytes = 100000; bytes < 4096 * GIB; bytes = bytes * 5 / 4 + 777) {
        static const uint64_t entries[] = {0, 1, 1000, 65536, 5000000};
        for (unsigned i = 0; i < 5; i++) {
            struct kv_tier_conf conf = {.bytes = bytes, .entries_max = entries[i]};
            uint64_t wanted = kv_nvme_wanted_entries(&conf);
            uint64_t room = kv_nvme_room_for_slabs(bytes, wanted);
            uint64_t slab = kv_nvme_choose_slab_bytes(&conf, room);
            uint64_t arena = kv_nvme_arena_bytes(room, slab);
            if (arena == 0) {
                continue;
            }
            fits++;
            cr_assert(le(u64, arena + kv_nvme_index_bytes(wanted), bytes));
            cr_assert(eq(u64, kv_nvme_entries_beside(bytes, arena, wanted), wanted));
            cr_assert(eq(u64, slab % 4096, 0));
            cr_assert(le(u64, (arena - KV_NVME_DATA_OFFSET) / slab, UINT16_MAX));
        }
    }
    cr_assert(gt(uint, fits, 200));
}

Test(nvme_size, slab_is_a_gibibyte_or_a_sixteenth_but_not_tiny)
{
    struct kv_tier_conf conf = {0};
    cr_assert(eq(u64, kv_nvme_choose_slab_bytes(&conf, 64 * GIB), GIB));
    cr_assert(eq(u64, kv_nvme_choose_slab_bytes(&conf, 8 * GIB), GIB / 2));
    cr_assert(eq(u64, kv_nvme_choose_slab_bytes(&conf, 64 * MIB), 16 * MIB));
    cr_assert(eq(u64, kv_nvme_choose_slab_bytes(&conf, 10 * MIB), 10 * MIB));
    conf.slab_bytes = 3 * MIB;
    cr_assert(eq(u64, kv_nvme_choose_slab_bytes(&conf, 64 * GIB), 3 * MIB));
    cr_assert(eq(u64, kv_nvme_arena_bytes(3 * MIB - 1, 3 * MIB), 0));
    cr_assert(eq(u64, kv_nvme_arena_bytes(3 * MIB, 3 * MIB), KV_NVME_DATA_OFFSET + 3 * MIB));
}

Test(nvme_size, table_that_does_not_fit_is_none)
{
    cr_assert(eq(u64, kv_nvme_entries_beside(8 * MIB, 8 * MIB, 100), 0));
    cr_assert(eq(u64, kv_nvme_entries_beside(8 * MIB, 9 * MIB, 100), 0));
    uint64_t some = kv_nvme_entries_beside(8 * MIB, 7 * MIB, 1000000);
    cr_assert(gt(u64, some, 0));
    cr_assert(le(u64, kv_nvme_index_bytes(some), MIB));
}

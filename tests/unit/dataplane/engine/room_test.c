/* Pressure: more than fits comes back bit-exact from wherever it went; what cannot fit is an answer and not a wait. */
#include "dataplane/engine/lane_int.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

/* 4 MiB of dram in 1 MiB slabs; a sealed block takes 68 KiB, so 15 a slab. */
#define DRAM_BLOCKS 60u

static struct kvt_rig rig;

static void start(void)
{
    kvt_rig_config(&rig);
}

static void finish(void)
{
    cr_assert(kv_dram_check(rig.engine->lane.dram));
    kvt_rig_stop(&rig);
}

TestSuite(room, .init = start, .fini = finish);

static struct kv_engine_stats stats_now(void)
{
    struct kv_engine_stats stats;
    kv_engine_stats(rig.engine, &stats);
    return stats;
}

Test(room, four_times_the_dram_comes_back_bit_exact)
{
    kvt_rig_with_nvme(&rig, 64u << 20);
    kvt_rig_start(&rig);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 4 * DRAM_BLOCKS));
    cr_assert(ge(u64, stats_now().demoted, 3 * DRAM_BLOCKS));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 4 * DRAM_BLOCKS), 0));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 4 * DRAM_BLOCKS), 0));
    cr_assert(eq(u64, stats_now().evicted, 0));
}

Test(room, one_operation_may_be_larger_than_the_dram)
{
    kvt_rig_with_nvme(&rig, 64u << 20);
    kv_pool_unref(rig.pool);
    rig.pool = kvt_pool_new(KVT_REGIONS, 3 * DRAM_BLOCKS, KVT_RUN_BYTES);
    kvt_rig_start(&rig);
    for (uint32_t i = 0; i < 3 * DRAM_BLOCKS; i++) {
        kvt_page_fill(rig.pool, i, i);
    }
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3 * DRAM_BLOCKS);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_STORED));
    kvt_run_free(&run);
    run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, 3 * DRAM_BLOCKS);
    for (uint32_t i = 0; i < 3 * DRAM_BLOCKS; i++) {
        kvt_page_set(rig.pool, i, 0);
    }
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(eq(u32, run.transfer.leading_blocks, 3 * DRAM_BLOCKS));
    for (uint32_t i = 0; i < 3 * DRAM_BLOCKS; i++) {
        cr_assert(kvt_page_has(rig.pool, i, i));
    }
    kvt_run_free(&run);
}

Test(room, without_nvme_an_operation_that_fills_the_dram_is_told_so_and_loses_nothing)
{
    kv_pool_unref(rig.pool);
    rig.pool = kvt_pool_new(KVT_REGIONS, DRAM_BLOCKS + 5, KVT_RUN_BYTES);
    kvt_rig_start(&rig);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, DRAM_BLOCKS + 5);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_STORED), DRAM_BLOCKS));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_BUSY), 5));
    for (uint32_t i = 0; i < DRAM_BLOCKS; i++) {
        cr_assert(eq(int, run.transfer.results[i], KV_BLOCK_STORED));
    }
    kvt_run_free(&run);
    run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, DRAM_BLOCKS);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(eq(u32, run.transfer.leading_blocks, DRAM_BLOCKS));
    kvt_run_free(&run);
}

Test(room, without_nvme_the_coldest_blocks_are_forgotten_tail_first)
{
    kvt_rig_start(&rig);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, DRAM_BLOCKS));
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1000, 10));
    cr_assert(eq(u64, stats_now().evicted, 10));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, DRAM_BLOCKS);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(eq(u32, run.transfer.leading_blocks, DRAM_BLOCKS - 10));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_MISSING), 10));
    kvt_run_free(&run);
    cr_assert(eq(u32, kvt_not_restored(&rig, 1000, 10), 0));
}

Test(room, above_the_high_watermark_cold_blocks_are_written_down_until_the_low_one)
{
    kvt_rig_with_nvme(&rig, 64u << 20);
    rig.conf.watermark_high_percent = 50;
    rig.conf.watermark_low_percent = 25;
    kvt_rig_start(&rig);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 29));
    for (unsigned i = 0; i < 200; i++) {
        kv_engine_poll(rig.engine);
    }
    cr_assert(eq(u64, stats_now().demoted, 0), "29 blocks of 68 KiB are under half of 4 MiB");
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 50, 4));
    for (unsigned i = 0; i < 100000 && rig.engine->lane.lowering; i++) {
        kv_engine_poll(rig.engine);
    }
    while (rig.engine->lane.ios_running > 0) {
        kv_engine_poll(rig.engine);
    }
    struct kv_engine_stats s = stats_now();
    cr_assert(le(u64, s.dram.used_bytes, s.dram.capacity_bytes / 4));
    cr_assert(gt(u64, s.dram.used_bytes, s.dram.capacity_bytes / 8));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 29), 0));
    cr_assert(eq(u32, kvt_not_restored(&rig, 50, 4), 0));
}

Test(room, unpromised_blocks_leave_nvme_for_others_and_promised_ones_never)
{
    kvt_rig_with_nvme(&rig, 12u << 20);
    kvt_rig_start(&rig);
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 20));
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1000, 8 * DRAM_BLOCKS));
    cr_assert(gt(u64, stats_now().evicted, 0));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 20), 0));
    cr_assert(eq(u32, kvt_not_restored(&rig, 1000 + 8 * DRAM_BLOCKS - 10, 10), 0), "the newest are still here");
    kvt_rig_restart(&rig);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 20), 0));
}

Test(room, a_durable_block_that_nvme_has_no_room_for_is_busy_and_not_kept)
{
    unsigned stored = 0, busy = 0;
    kvt_rig_with_nvme(&rig, 12u << 20);
    rig.conf.dram_bytes = 32u << 20;
    kvt_rig_start(&rig);
    for (unsigned i = 0; i < 5; i++) {
        struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, i * KVT_SLOTS, 0, KVT_SLOTS);
        run.transfer.wait = KV_WAIT_DURABLE;
        for (uint32_t k = 0; k < KVT_SLOTS; k++) {
            kvt_page_fill(rig.pool, k, i * KVT_SLOTS + k);
        }
        cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
        stored += kvt_run_count(&run, KV_BLOCK_STORED);
        busy += kvt_run_count(&run, KV_BLOCK_BUSY);
        kvt_run_free(&run);
    }
    cr_assert(eq(u32, stored + busy, 5 * KVT_SLOTS));
    cr_assert(gt(u32, busy, 0));
    cr_assert(gt(u32, stored, 0));
    cr_assert(eq(u64, stats_now().nvme.objects, stored));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 5 * KVT_SLOTS), busy));
}

Test(room, sizes_mix_in_one_arena)
{
    struct kv_pool *usual = rig.pool;
    kvt_rig_with_nvme(&rig, 64u << 20);
    kvt_rig_start(&rig);
    struct kv_pool *large = kvt_pool_new(2, KVT_SLOTS, 200000);
    for (unsigned round = 0; round < 3; round++) {
        cr_assert(kvt_store(&rig, KV_WAIT_DRAM, round * 1000, 70));
        rig.pool = large;
        cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 10000 + round * 1000, 12));
        rig.pool = usual;
    }
    for (unsigned round = 0; round < 3; round++) {
        cr_assert(eq(u32, kvt_not_restored(&rig, round * 1000, 70), 0));
        rig.pool = large;
        cr_assert(eq(u32, kvt_not_restored(&rig, 10000 + round * 1000, 12), 0));
        rig.pool = usual;
    }
    kv_pool_unref(large);
}

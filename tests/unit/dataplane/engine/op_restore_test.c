/* Replicas that were damaged, swapped, or sealed for something else: never wrong bytes, never a touched page, always
 * counted. */
#include "dataplane/base/fault.h"
#include "dataplane/engine/lane_int.h"
#include "tests/lib/engine_rig.h"
#include "tests/lib/nvme_damage.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define BLOCK_BYTES (KVT_REGIONS * KVT_RUN_BYTES)

static struct kvt_rig rig;

static void start(void)
{
    kvt_rig_config(&rig);
    kvt_rig_with_nvme(&rig, 64u << 20);
    kvt_rig_start(&rig);
}

static void finish(void)
{
    kvt_rig_stop(&rig);
}

TestSuite(restore, .init = start, .fini = finish);

static struct entry *entry_of(uint64_t block)
{
    struct kv_block_id id = kvt_block(block);
    return kv_index_find(rig.engine->lane.index, &rig.scope, &id);
}

static void flip_in_dram(uint64_t block, uint64_t at)
{
    entry_of(block)->slot[at] ^= 0x10;
}

static void drain(void)
{
    uint64_t blocks = 0;
    cr_assert(eq(int, kv_engine_drain_dram(rig.engine, kvt_clock_now(&rig.clock) + 60 * KV_S_NS, &blocks), KV_OK));
}

static struct kv_engine_stats stats_now(void)
{
    struct kv_engine_stats stats;
    kv_engine_stats(rig.engine, &stats);
    return stats;
}

/* Restores one block into a page of a known value; the page has to keep it unless the result is RESTORED. */
static enum kv_block_result restore_one(uint64_t block, uint8_t *ret_tier)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, block, 40, 1);
    kvt_page_set(rig.pool, 40, 0xc3);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    enum kv_block_result result = run.transfer.results[0];
    cr_assert(result == KV_BLOCK_RESTORED ? kvt_page_has(rig.pool, 40, block) : kvt_page_is(rig.pool, 40, 0xc3));
    *ret_tier = run.transfer.tiers[0];
    kvt_run_free(&run);
    return result;
}

static void expect_result(uint64_t block, enum kv_block_result expected)
{
    uint8_t tier = 0;
    cr_assert(eq(int, restore_one(block, &tier), expected), "block %lu", (unsigned long)block);
}

/* One bit in each part of the sealed bytes. */
static const uint64_t parts[] = {
    0,   4,   5,   7,   8,   24,   40,   72,   104,          112,          120,          124,
    128, 152, 184, 200, 248, 4000, 4095, 4096, 4096 + 16383, 4096 + 16384, 4096 + 40000, 4096 + BLOCK_BYTES - 1};
#define PARTS (sizeof parts / sizeof parts[0])

static uint64_t quarantined_on(unsigned tier)
{
    uint64_t sum = 0;
    for (unsigned kind = 0; kind < INTEGRITY_KINDS; kind++) {
        sum += kv_metric_value(rig.engine->lane.metrics.integrity[tier][kind]);
    }
    return sum;
}

Test(restore, a_flipped_bit_in_dram_is_quarantined_and_then_missing)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, PARTS + 1));
    for (unsigned i = 0; i < PARTS; i++) {
        flip_in_dram(i, parts[i]);
        expect_result(i, KV_BLOCK_QUARANTINED);
        expect_result(i, KV_BLOCK_MISSING);
    }
    expect_result(PARTS, KV_BLOCK_RESTORED);
    cr_assert(eq(u64, stats_now().quarantined, PARTS));
    cr_assert(eq(u32, kvt_sink_count(&rig.sink, KV_RECORD_INTEGRITY), PARTS));
}

Test(restore, a_flipped_bit_on_nvme_is_quarantined_and_then_missing)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, PARTS + 1));
    drain();
    for (unsigned i = 0; i < PARTS; i++) {
        struct kv_block_id id = kvt_block(i);
        cr_assert(kvt_nvme_flip(rig.folder, &id, parts[i]));
        expect_result(i, KV_BLOCK_QUARANTINED);
        expect_result(i, KV_BLOCK_MISSING);
    }
    expect_result(PARTS, KV_BLOCK_RESTORED);
    cr_assert(eq(u64, stats_now().quarantined, PARTS));
    cr_assert(eq(u64, quarantined_on(1), PARTS));
    kvt_rig_restart(&rig);
    expect_result(0, KV_BLOCK_MISSING);
    expect_result(PARTS, KV_BLOCK_RESTORED);
}

Test(restore, a_good_dram_copy_is_read_before_a_bad_one_on_nvme)
{
    struct kv_block_id id = kvt_block(3);
    uint8_t tier = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 3, 1));
    cr_assert(kvt_nvme_flip(rig.folder, &id, 5000));
    cr_assert(eq(int, restore_one(3, &tier), KV_BLOCK_RESTORED));
    cr_assert(eq(u8, tier, KV_TIER_DRAM));
    cr_assert(eq(u64, stats_now().quarantined, 0));
}

Test(restore, a_bad_dram_copy_is_replaced_by_the_good_one_on_nvme)
{
    uint8_t tier = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 3, 1));
    flip_in_dram(3, 5000);
    cr_assert(eq(int, restore_one(3, &tier), KV_BLOCK_RESTORED));
    cr_assert(eq(u8, tier, KV_TIER_NVME));
    cr_assert(eq(u64, stats_now().quarantined, 1));
    cr_assert(eq(u64, quarantined_on(0), 1));
    cr_assert(eq(int, restore_one(3, &tier), KV_BLOCK_RESTORED));
    cr_assert(eq(u8, tier, KV_TIER_DRAM), "healed");
}

Test(restore, both_replicas_bad_is_quarantined_and_a_new_offload_heals)
{
    struct kv_block_id id = kvt_block(3);
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 3, 1));
    flip_in_dram(3, 5000);
    cr_assert(kvt_nvme_flip(rig.folder, &id, 200));
    expect_result(3, KV_BLOCK_QUARANTINED);
    cr_assert(eq(u64, stats_now().quarantined, 2));
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 3, 1));
    expect_result(3, KV_BLOCK_RESTORED);
}

Test(restore, another_blocks_sealed_bytes_are_quarantined)
{
    struct kv_block_id a = kvt_block(1), b = kvt_block(2);
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 1, 2));
    drain();
    cr_assert(kvt_nvme_swap_in(rig.folder, &a, &b, kv_sealed_bytes(BLOCK_BYTES)));
    expect_result(2, KV_BLOCK_QUARANTINED);
    expect_result(1, KV_BLOCK_RESTORED);
}

Test(restore, another_scopes_sealed_bytes_are_quarantined)
{
    struct kv_id first = rig.scope;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1, 1));
    const uint8_t *foreign = entry_of(1)->slot;
    rig.scope = kvt_scope(2);
    kvt_rig_open_scope(&rig, &rig.scope);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1, 1));
    memcpy(entry_of(1)->slot, foreign, kv_sealed_bytes(BLOCK_BYTES));
    expect_result(1, KV_BLOCK_QUARANTINED);
    rig.scope = first;
    expect_result(1, KV_BLOCK_RESTORED);
}

Test(restore, damage_fails_its_block_alone)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, 40);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 40));
    flip_in_dram(17, 9999);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_RESTORED), 39));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_QUARANTINED), 1));
    cr_assert(eq(u32, run.transfer.leading_blocks, 17));
    kvt_run_free(&run);
}

/* ---- another layout ---- */

static struct kv_pool *other_layout(uint32_t regions, uint64_t run_bytes, const char *format)
{
    struct kvt_pool_plan plan;
    struct kv_pool *pool = NULL;
    kvt_pool_plan(&plan, regions, KVT_SLOTS, run_bytes);
    plan.spec.format = format;
    cr_assert(eq(int, kv_pool_attach(&plan.spec, NULL, &pool), KV_OK));
    return pool;
}

static void other_layout_misses(struct kv_pool *other)
{
    struct kv_pool *usual = rig.pool;
    rig.pool = other;
    expect_result(1, KV_BLOCK_MISSING);
    rig.pool = usual;
    expect_result(1, KV_BLOCK_RESTORED);
    cr_assert(eq(u64, stats_now().quarantined, 0), "nothing was wrong with the replica");
}

Test(restore, another_layout_of_the_same_size_is_a_miss_and_leaves_the_replica)
{
    struct kv_pool *other = other_layout(KVT_REGIONS, KVT_RUN_BYTES, "fp16");
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1, 1));
    other_layout_misses(other);
    kv_pool_unref(other);
}

Test(restore, another_cut_of_the_same_bytes_is_a_miss)
{
    struct kv_pool *other = other_layout(2 * KVT_REGIONS, KVT_RUN_BYTES / 2, "bf16");
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 1, 1));
    drain();
    other_layout_misses(other);
    kv_pool_unref(other);
}

Test(restore, another_size_is_a_miss)
{
    struct kv_pool *other = other_layout(KVT_REGIONS, 2 * KVT_RUN_BYTES, "bf16");
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1, 1));
    other_layout_misses(other);
    kv_pool_unref(other);
}

Test(restore, an_engine_that_changed_its_layout_replaces_what_it_stored_before)
{
    struct kv_pool *usual = rig.pool;
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 1, 4));
    kvt_rig_restart(&rig); /* now only the headers know the layout */
    rig.pool = other_layout(KVT_REGIONS, KVT_RUN_BYTES, "fp16");
    expect_result(1, KV_BLOCK_MISSING);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1, 1));
    expect_result(1, KV_BLOCK_RESTORED);
    kv_pool_unref(rig.pool);
    rig.pool = usual;
    expect_result(1, KV_BLOCK_MISSING);
    expect_result(2, KV_BLOCK_RESTORED);
}

/* ---- reads that fail ---- */

#ifdef KV_FAULTS

static enum kv_block_result restore_with_failing_read(uint64_t block)
{
    uint8_t tier = 0;
    kv_fault_set("io/submit=EIO@1once");
    enum kv_block_result result = restore_one(block, &tier);
    kv_fault_set(NULL);
    return result;
}

Test(restore, a_read_that_fails_once_is_not_a_loss)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 1, 2));
    drain();
    cr_assert(eq(int, restore_with_failing_read(1), KV_BLOCK_FAILED));
    expect_result(1, KV_BLOCK_RESTORED);
    expect_result(2, KV_BLOCK_RESTORED);
}

Test(restore, a_read_that_fails_twice_gives_the_replica_up)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 1, 2));
    drain();
    cr_assert(eq(int, restore_with_failing_read(1), KV_BLOCK_FAILED));
    cr_assert(eq(int, restore_with_failing_read(1), KV_BLOCK_MISSING));
    expect_result(1, KV_BLOCK_MISSING);
    expect_result(2, KV_BLOCK_RESTORED);
    cr_assert(eq(u64, stats_now().quarantined, 0), "a drive that fails is no integrity alarm");
}

#endif

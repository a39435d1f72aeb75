/* Draining nvme: what it has is forgotten, promised or not; what is in dram as well stays; nothing new goes down. */
#include "dataplane/engine/lane_int.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define DRAM_BLOCKS 60u /* see room_test.c */

static struct kvt_rig rig;

static void start(void)
{
    kvt_rig_config(&rig);
    kvt_rig_with_nvme(&rig, 64u << 20);
    kvt_rig_start(&rig);
}

static void finish(void)
{
    cr_assert(kv_dram_check(rig.engine->lane.dram));
    kvt_rig_stop(&rig);
}

TestSuite(drain_nvme, .init = start, .fini = finish);

static struct kv_engine_stats stats_now(void)
{
    struct kv_engine_stats stats;
    kv_engine_stats(rig.engine, &stats);
    return stats;
}

static enum kv_err drain(uint64_t *blocks)
{
    return kv_engine_drain_nvme(rig.engine, kvt_clock_now(&rig.clock) + 60 * KV_S_NS, blocks);
}

Test(drain_nvme, all_go_and_those_in_dram_too_stay_there)
{
    uint64_t blocks = 99;
    cr_assert(eq(int, drain(&blocks), KV_OK));
    cr_expect(eq(u64, blocks, 0), "none was there");
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 5));
    cr_assert(eq(u64, stats_now().nvme.objects, 5));
    cr_assert(eq(int, drain(&blocks), KV_OK));
    cr_expect(eq(u64, blocks, 5));
    cr_expect(eq(u64, stats_now().nvme.objects, 0));
    cr_expect(eq(u32, kvt_not_restored(&rig, 0, 5), 0), "from dram");
}

Test(drain_nvme, what_was_only_there_is_a_miss_and_can_be_stored_again)
{
    uint64_t blocks = 0, drained = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 3 * DRAM_BLOCKS));
    cr_assert(eq(int, kv_engine_drain_dram(rig.engine, kvt_clock_now(&rig.clock) + 60 * KV_S_NS, &drained), KV_OK));
    cr_assert(eq(int, drain(&blocks), KV_OK));
    cr_expect(eq(u64, blocks, 3 * DRAM_BLOCKS), "more than one poll drops");
    cr_expect(eq(u32, kvt_not_restored(&rig, 0, 3 * DRAM_BLOCKS), 3 * DRAM_BLOCKS));
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 5));
    cr_expect(eq(u32, kvt_not_restored(&rig, 0, 5), 0));
}

Test(drain_nvme, they_do_not_come_back_with_a_restart)
{
    uint64_t blocks = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 5));
    cr_assert(eq(int, drain(&blocks), KV_OK));
    kvt_rig_restart(&rig);
    cr_expect(eq(u64, stats_now().nvme.objects, 0));
    cr_expect(eq(u32, kvt_not_restored(&rig, 0, 5), 5));
}

Test(drain_nvme, one_in_use_is_waited_for)
{
    uint64_t blocks = 0, now = kvt_clock_now(&rig.clock);
    struct kv_block_id id = kvt_block(2);
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 5));
    struct entry *entry = kv_index_find(rig.engine->lane.index, &rig.scope, &id);
    cr_assert(entry != NULL);
    kv_index_pin(rig.engine->lane.index, entry);
    cr_expect(eq(int, kv_engine_drain_nvme(rig.engine, now, &blocks), KV_E_TIMEOUT));
    cr_expect(eq(u64, blocks, 4));
    cr_expect(eq(int, kv_engine_drain_nvme(rig.engine, now, &blocks), KV_E_TIMEOUT));
    cr_expect(eq(u64, blocks, 0));
    kv_room_unpin(&rig.engine->lane, entry);
    cr_expect(eq(int, drain(&blocks), KV_OK));
    cr_expect(eq(u64, blocks, 1));
}

Test(drain_nvme, closed_it_takes_nothing_from_dram_and_open_again_it_does)
{
    uint64_t blocks = 0, until = kvt_clock_now(&rig.clock) + 60 * KV_S_NS;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 5));
    cr_assert(eq(int, kv_engine_close_nvme(rig.engine, true), KV_OK));
    cr_expect(eq(int, kv_engine_drain_dram(rig.engine, until, &blocks), KV_E_NO_SPACE));
    for (uint64_t first = 10; first < 10 + 2 * DRAM_BLOCKS; first += DRAM_BLOCKS / 4) {
        cr_assert(kvt_store(&rig, KV_WAIT_DRAM, first, DRAM_BLOCKS / 4), "cold ones are forgotten to make room");
    }
    cr_expect(eq(u64, stats_now().nvme.objects, 0));
    cr_assert(eq(int, kv_engine_close_nvme(rig.engine, false), KV_OK));
    cr_expect(eq(int, kv_engine_drain_dram(rig.engine, until, &blocks), KV_OK));
    cr_expect(gt(u64, stats_now().nvme.objects, 0));
}

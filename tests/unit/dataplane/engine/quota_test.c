/* Who may keep how much where: what is charged is what is there, whatever takes it away. */
#include "dataplane/base/id.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <string.h>

static struct kvt_rig rig;

#define SEALED kv_sealed_bytes(65536)

static void start(uint64_t nvme_bytes)
{
    kvt_rig_config(&rig);
    if (nvme_bytes > 0) {
        kvt_rig_with_nvme(&rig, nvme_bytes);
    }
    kvt_rig_start(&rig);
}

static uint64_t charged(enum kv_tier_id tier)
{
    uint64_t bytes[KV_ENGINE_TIERS] = {0};
    cr_assert_eq(kv_engine_tenant_bytes(rig.engine, &rig.tenant, bytes), KV_OK);
    return bytes[tier];
}

static struct kv_scope_usage usage(void)
{
    struct kv_scope_usage usage = {0};
    cr_assert_eq(kv_engine_scope_usage(rig.engine, &rig.scope, &usage), KV_OK);
    return usage;
}

/* Offloads `count` blocks under the limits; how many were stored or present. All others were refused by a limit. */
static unsigned offload(uint64_t first, uint32_t count, enum kv_transfer_wait wait, struct kv_transfer_limits limits)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, first, (uint32_t)first, count);
    run.transfer.limits = limits;
    run.transfer.wait = wait;
    cr_assert_eq(kvt_run_go(&rig, &run), KV_OK);
    unsigned stored = kvt_run_count(&run, KV_BLOCK_STORED) + kvt_run_count(&run, KV_BLOCK_PRESENT);
    cr_assert_eq(kvt_run_count(&run, KV_BLOCK_DENIED), count - stored);
    cr_assert_eq(run.transfer.over_quota, count - stored);
    kvt_run_free(&run);
    return stored;
}

static struct kv_transfer_limits tenant_limits(uint64_t dram, uint64_t nvme)
{
    return (struct kv_transfer_limits){.version = 1, .tenant_bytes = {0, dram, nvme}};
}

Test(quota, blocks_up_to_the_limit_are_stored_and_the_next_is_refused)
{
    start(0);
    cr_expect_eq(offload(0, 4, KV_WAIT_DRAM, tenant_limits(3 * SEALED, 0)), 3);
    cr_expect_eq(charged(KV_TIER_DRAM), 3 * SEALED);
    cr_expect_eq(offload(0, 3, KV_WAIT_DRAM, tenant_limits(3 * SEALED, 0)), 3, "what is there is present");
    cr_expect_eq(offload(8, 1, KV_WAIT_DRAM, tenant_limits(4 * SEALED - 1, 0)), 0);
    cr_expect_eq(offload(8, 1, KV_WAIT_DRAM, tenant_limits(4 * SEALED, 0)), 1);
    cr_expect_eq(offload(9, 2, KV_WAIT_DRAM, (struct kv_transfer_limits){.version = 1}), 2, "0 is no limit");
    kvt_rig_stop(&rig);
}

Test(quota, what_is_dropped_is_given_back)
{
    start(1 << 24);
    uint64_t blocks = 0;
    cr_expect_eq(offload(0, 4, KV_WAIT_DURABLE, tenant_limits(0, 0)), 4);
    cr_expect(charged(KV_TIER_DRAM) == 4 * SEALED && charged(KV_TIER_NVME) == 4 * SEALED);
    cr_assert_eq(kv_engine_drop_scope(rig.engine, &rig.scope, &blocks), KV_OK);
    cr_expect(charged(KV_TIER_DRAM) == 0 && charged(KV_TIER_NVME) == 0);
    cr_expect_eq(offload(0, 4, KV_WAIT_DURABLE, tenant_limits(2 * SEALED, 4 * SEALED)), 4);
    kvt_rig_stop(&rig);
}

Test(quota, a_block_without_quota_in_dram_goes_straight_to_nvme_and_without_any_nowhere)
{
    start(1 << 24);
    cr_expect_eq(offload(0, 6, KV_WAIT_DRAM, tenant_limits(2 * SEALED, 3 * SEALED)), 5);
    cr_expect(charged(KV_TIER_DRAM) == 2 * SEALED && charged(KV_TIER_NVME) == 3 * SEALED);
    cr_expect(usage().dram_blocks == 2 && usage().nvme_blocks == 3 && usage().blocks == 5);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, 6);
    cr_assert_eq(kvt_run_go(&rig, &run), KV_OK);
    cr_expect(kvt_run_count(&run, KV_BLOCK_RESTORED) == 5 && kvt_run_count(&run, KV_BLOCK_MISSING) == 1);
    kvt_run_free(&run);
    kvt_rig_stop(&rig);
}

Test(quota, a_durable_block_needs_quota_on_nvme)
{
    start(1 << 24);
    cr_expect_eq(offload(0, 3, KV_WAIT_DURABLE, tenant_limits(0, 2 * SEALED)), 2);
    cr_expect_eq(charged(KV_TIER_NVME), 2 * SEALED);
    cr_expect_eq(usage().blocks, 2, "the refused one left nothing in dram");
    cr_expect_eq(offload(8, 1, KV_WAIT_DRAM, tenant_limits(0, 2 * SEALED)), 1, "dram has no limit");
    kvt_rig_stop(&rig);
}

Test(quota, what_the_lane_writes_down_by_itself_stays_within_the_limit)
{
    start(1 << 24);
    uint64_t blocks = 0;
    cr_expect_eq(offload(0, 4, KV_WAIT_DRAM, tenant_limits(0, 3 * SEALED)), 4);
    enum kv_err rc = kv_engine_drain_dram(rig.engine, UINT64_MAX, &blocks);
    cr_expect(rc == KV_OK || rc == KV_E_NO_SPACE);
    cr_expect(charged(KV_TIER_NVME) == 3 * SEALED && charged(KV_TIER_DRAM) == SEALED, "%lu %lu",
              (unsigned long)charged(KV_TIER_NVME), (unsigned long)charged(KV_TIER_DRAM));
    cr_expect_eq(usage().blocks, 4, "none is lost");
    kvt_rig_stop(&rig);
}

Test(quota, a_block_read_up_over_the_limit_does_not_stay_in_dram)
{
    start(1 << 24);
    uint64_t blocks = 0;
    cr_expect_eq(offload(0, 3, KV_WAIT_DURABLE, tenant_limits(0, 0)), 3);
    cr_assert_eq(kv_engine_drain_dram(rig.engine, UINT64_MAX, &blocks), KV_OK);
    cr_expect_eq(charged(KV_TIER_DRAM), 0);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, 3);
    run.transfer.limits = tenant_limits(2 * SEALED, 0);
    cr_assert_eq(kvt_run_go(&rig, &run), KV_OK);
    cr_expect(kvt_run_all(&run, KV_BLOCK_RESTORED));
    kvt_run_free(&run);
    cr_expect_eq(charged(KV_TIER_DRAM), 2 * SEALED);
    cr_expect_eq(usage().dram_blocks, 2);
    kvt_rig_stop(&rig);
}

Test(quota, after_a_restart_what_is_there_counts_once_it_is_known_whose_it_is)
{
    start(1 << 24);
    cr_expect_eq(offload(0, 3, KV_WAIT_DURABLE, tenant_limits(0, 0)), 3);
    kvt_rig_restart(&rig);
    cr_expect_eq(charged(KV_TIER_NVME), 0);
    cr_assert_eq(kv_engine_assign(rig.engine, &rig.scope, &rig.tenant), KV_OK);
    cr_assert_eq(kv_engine_assign(rig.engine, &rig.scope, &rig.tenant), KV_OK, "twice is once");
    cr_expect_eq(charged(KV_TIER_NVME), 3 * SEALED);
    cr_expect_eq(charged(KV_TIER_DRAM), 0);
    struct kv_id nobody = kvt_scope(77);
    cr_expect_eq(kv_engine_assign(rig.engine, &nobody, &rig.tenant), KV_OK, "a scope without blocks");
    kvt_rig_stop(&rig);
}

Test(quota, a_session_has_limits_of_its_own)
{
    start(1 << 24);
    cr_expect_eq(offload(0, 3, KV_WAIT_DRAM, (struct kv_transfer_limits){.session_blocks = 2}), 2);
    cr_expect_eq(offload(8, 1, KV_WAIT_DRAM, (struct kv_transfer_limits){.session_bytes = 3 * SEALED - 1}), 0);
    cr_expect_eq(offload(8, 1, KV_WAIT_DRAM, (struct kv_transfer_limits){.session_bytes = 3 * SEALED}), 1);
    struct kv_transfer_limits tier = {.session_tier_bytes = {0, 3 * SEALED, SEALED}};
    cr_expect_eq(offload(16, 2, KV_WAIT_DRAM, tier), 1, "no more in dram, one on nvme");
    cr_expect(usage().dram_blocks == 3 && usage().nvme_blocks == 1);
    kvt_rig_stop(&rig);
}

Test(quota, limits_of_an_older_version_never_replace_newer_ones)
{
    start(0);
    struct kv_transfer_limits newer = tenant_limits(2 * SEALED, 0), older = tenant_limits(0, 0);
    newer.version = 7;
    older.version = 6;
    cr_expect_eq(offload(0, 1, KV_WAIT_DRAM, newer), 1);
    cr_expect_eq(offload(8, 3, KV_WAIT_DRAM, older), 1);
    older.version = 8;
    cr_expect_eq(offload(8, 3, KV_WAIT_DRAM, older), 3, "the control: a newer one does");
    kvt_rig_stop(&rig);
}

/* Offload and restore as a caller sees them: round trips over each tier, what is refused, what is counted. */
#include "dataplane/base/metric.h"
#include "dataplane/engine/engine.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static struct kvt_rig rig;

static void start_dram(void)
{
    kvt_rig_config(&rig);
    kvt_rig_start(&rig);
}

static void start_nvme(void)
{
    kvt_rig_config(&rig);
    kvt_rig_with_nvme(&rig, 64u << 20);
    kvt_rig_start(&rig);
}

static void finish(void)
{
    kvt_rig_stop(&rig);
}

TestSuite(engine_dram, .init = start_dram, .fini = finish);
TestSuite(engine_nvme, .init = start_nvme, .fini = finish);

static uint64_t drain(void)
{
    uint64_t blocks = 0;
    cr_assert(eq(int, kv_engine_drain_dram(rig.engine, kvt_clock_now(&rig.clock) + 60 * KV_S_NS, &blocks), KV_OK));
    return blocks;
}

static unsigned tiers_of(uint64_t block)
{
    uint8_t tiers = 0xff;
    struct kv_block_id id = kvt_block(block);
    cr_assert(eq(int, kv_engine_lookup(rig.engine, &rig.scope, 1, &id, &tiers), KV_OK));
    return tiers;
}

static struct kv_engine_stats stats_now(void)
{
    struct kv_engine_stats stats;
    kv_engine_stats(rig.engine, &stats);
    return stats;
}

Test(engine_limits, largest_block_is_what_a_slab_holds_with_its_header_and_tags)
{
    kvt_rig_config(&rig);
    kvt_rig_start(&rig);
    uint64_t slab = rig.conf.dram_bytes / 4, largest = stats_now().block_bytes_max;
    cr_assert(le(u64, kv_sealed_bytes(largest), slab));
    cr_assert(gt(u64, kv_sealed_bytes(largest + 1), slab));
    kvt_rig_stop(&rig);
    kvt_rig_config(&rig);
    rig.conf.staging_bytes = 65536;
    kvt_rig_start(&rig);
    cr_assert(eq(u64, stats_now().block_bytes_max, 65536), "the staging memory is the smaller one");
    kvt_rig_stop(&rig);
}

Test(engine_limits, tiers_that_need_too_large_an_index_are_refused_with_the_reason)
{
    kvt_rig_config(&rig);
    kvt_rig_start(&rig); /* the control, and what the configuration borrows */
    struct kv_engine_conf conf = rig.conf;
    struct kv_errinfo info = {0};
    struct kv_engine *engine = NULL;
    conf.blocks_max = UINT32_MAX;
    cr_assert(eq(int, kv_engine_start(&conf, &info, &engine), KV_E_CONFIG));
    cr_assert(engine == NULL);
    cr_assert(strstr(info.text, "make the tiers smaller") != NULL, "%s", info.text);
    kvt_rig_stop(&rig);
}

Test(engine_dram, offloaded_blocks_come_back_bit_exact)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 100, 20));
    cr_assert(eq(u32, kvt_not_restored(&rig, 100, 20), 0));
}

Test(engine_dram, blocks_come_back_into_other_slots)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 4));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 30, 4);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert(kvt_page_has(rig.pool, 30 + i, i));
        cr_assert(eq(u8, run.transfer.tiers[i], KV_TIER_DRAM));
    }
    cr_assert(eq(u32, run.transfer.leading_blocks, 4));
    cr_assert(eq(u64, run.transfer.done_bytes, 4 * kv_pool_block_bytes(rig.pool)));
    kvt_run_free(&run);
}

Test(engine_dram, a_block_that_is_not_here_is_missing_and_its_page_untouched)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 2));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 10, 4);
    kvt_page_set(rig.pool, 12, 0x3c);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(eq(int, run.transfer.results[1], KV_BLOCK_RESTORED));
    cr_assert(eq(int, run.transfer.results[2], KV_BLOCK_MISSING));
    cr_assert(kvt_page_is(rig.pool, 12, 0x3c));
    cr_assert(eq(u32, run.transfer.leading_blocks, 2));
    kvt_run_free(&run);
}

Test(engine_dram, the_leading_run_ends_at_the_first_gap)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 1, 3));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, 4);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(eq(u32, run.transfer.leading_blocks, 0));
    cr_assert(eq(u32, run.transfer.done_blocks, 3));
    kvt_run_free(&run);
}

Test(engine_dram, offering_a_block_again_is_present_and_keeps_the_first_bytes)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 5, 1));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 5, 9, 1);
    kvt_page_fill(rig.pool, 9, 777);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_PRESENT));
    cr_assert(eq(u32, kvt_not_restored(&rig, 5, 1), 0));
    kvt_run_free(&run);
}

Test(engine_dram, durable_without_nvme_is_denied)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3);
    run.transfer.wait = KV_WAIT_DURABLE;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_DENIED));
    kvt_run_free(&run);
}

Test(engine_dram, no_allowed_tier_is_denied)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 1);
    run.transfer.tiers_allowed = 0;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_DENIED));
    kvt_run_free(&run);
}

Test(engine_dram, a_block_larger_than_a_slab_fails_and_the_next_size_works)
{
    struct kv_pool *usual = rig.pool;
    rig.pool = kvt_pool_new(1, 2, 1u << 20); /* with its header more than a slab of 1 MiB */
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 1);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_FAILED));
    kvt_run_free(&run);
    kv_pool_unref(rig.pool);
    rig.pool = kvt_pool_new(1, 2, (1u << 20) - 4096);
    run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 1);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_STORED));
    kvt_run_free(&run);
    kv_pool_unref(rig.pool);
    rig.pool = usual;
}

Test(engine_dram, wrong_counts_and_slots_are_refused_at_submit)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 1);
    run.slots[0] = KVT_SLOTS;
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_E_INVALID_REQUEST));
    run.slots[0] = KVT_SLOTS - 1;
    run.transfer.count = 0;
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_E_INVALID_REQUEST));
    run.transfer.count = (uint32_t)KV_MAX_BLOCKS_PER_CALL + 1;
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_E_INVALID_REQUEST));
    run.transfer.count = 1;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK), "control");
    kvt_run_free(&run);
}

Test(engine_dram, as_many_operations_as_the_limit_are_taken_and_one_more_is_busy)
{
    enum { COUNT = 256 };
    static struct kvt_run runs[COUNT + 1];
    cr_assert(eq(int, COUNT, (int)KV_MAX_LANE_OPERATIONS));
    for (unsigned i = 0; i <= COUNT; i++) {
        runs[i] = kvt_run_new(&rig, KV_TRANSFER_RESTORE, i, 0, 1);
        cr_assert(eq(int, kvt_run_submit(&rig, &runs[i]), i < COUNT ? KV_OK : KV_E_BUSY));
    }
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert(eq(int, kvt_run_wait(&rig, &runs[i]), KV_OK));
    }
    cr_assert(eq(int, kvt_run_go(&rig, &runs[COUNT]), KV_OK));
    for (unsigned i = 0; i <= COUNT; i++) {
        kvt_run_free(&runs[i]);
    }
}

Test(engine_dram, what_is_offered_is_stored_present_skipped_or_dropped)
{
    struct kv_id unknown = kvt_scope(99);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 7));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 4, 0, 9);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    kvt_run_free(&run);
    run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 50, 0, 5);
    run.transfer.wait = KV_WAIT_DURABLE;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    kvt_run_free(&run);
    run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 60, 0, 11);
    run.transfer.scope = unknown;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_E_MISSING));
    kvt_run_free(&run);
    struct kv_engine_stats s = stats_now();
    cr_assert(eq(u64, s.offered, 7 + 9 + 5 + 11));
    cr_assert(eq(u64, s.stored, 7 + 6));
    cr_assert(eq(u64, s.present, 3));
    cr_assert(eq(u64, s.skipped, 5));
    cr_assert(eq(u64, s.dropped, 11));
    cr_assert(eq(u64, s.operations, 4));
    cr_assert(eq(u64, s.operations_running, 0));
}

Test(engine_dram, questions_about_a_scope_are_answered)
{
    struct kv_scope_usage usage;
    struct kv_buf ids;
    struct kv_id scopes[4];
    size_t count = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 6));
    cr_assert(eq(int, kv_engine_scope_usage(rig.engine, &rig.scope, &usage), KV_OK));
    cr_assert(eq(u64, usage.blocks, 6));
    cr_assert(eq(u64, usage.dram_blocks, 6));
    cr_assert(eq(u64, usage.nvme_blocks, 0));
    cr_assert(eq(u64, usage.plaintext_bytes, 6 * kv_pool_block_bytes(rig.pool)));
    cr_assert(eq(u64, usage.dram_bytes, 6 * kv_sealed_bytes(kv_pool_block_bytes(rig.pool))));
    struct kv_id twice[3] = {rig.scope, {{1}}, rig.scope};
    cr_assert(eq(int, kv_engine_scopes_usage(rig.engine, twice, 3, &usage), KV_OK));
    cr_assert(eq(u64, usage.blocks, 12), "a sum; an unknown one adds nothing");
    cr_assert(eq(int, kv_engine_scopes_usage(rig.engine, twice, 0, &usage), KV_OK));
    cr_assert(eq(u64, usage.blocks, 0));
    cr_assert(eq(int, kv_engine_scopes_usage(rig.engine, twice, KV_ENGINE_SCOPES_ASKED + 1, &usage), KV_E_LIMIT));
    kv_buf_init(&ids, 6 * 32);
    cr_assert(eq(int, kv_engine_scope_blocks(rig.engine, &rig.scope, &ids), KV_OK));
    cr_assert(eq(sz, ids.len, 6 * 32));
    for (unsigned i = 1; i < 6; i++) {
        cr_assert(lt(int, memcmp(ids.data + (i - 1) * 32, ids.data + i * 32, 32), 0), "sorted");
    }
    kv_buf_done(&ids);
    kv_buf_init(&ids, 6 * 32 - 1);
    cr_assert(eq(int, kv_engine_scope_blocks(rig.engine, &rig.scope, &ids), KV_E_LIMIT));
    kv_buf_done(&ids);
    cr_assert(eq(int, kv_engine_scopes(rig.engine, scopes, 4, &count), KV_OK));
    struct kv_scope_usage usages[4] = {{0}};
    size_t again = 0;
    cr_assert(eq(int, kv_engine_usages(rig.engine, scopes, usages, 4, &again), KV_OK));
    cr_assert(eq(sz, again, count));
    for (size_t i = 0; i < count; i++) {
        cr_assert(eq(int, kv_engine_scope_usage(rig.engine, &scopes[i], &usage), KV_OK));
        cr_assert(eq(int, memcmp(&usage, &usages[i], sizeof usage), 0));
    }
    cr_assert(eq(sz, count, 1));
    cr_assert(eq(int, memcmp(&scopes[0], &rig.scope, sizeof rig.scope), 0));
}

Test(engine_dram, a_dropped_scope_is_gone_and_dropping_it_again_finds_nothing)
{
    uint64_t blocks = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 12));
    cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &rig.scope, &blocks), KV_OK));
    cr_assert(eq(u64, blocks, 12));
    cr_assert(eq(u64, stats_now().dram.used_bytes, 0));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 12), 12));
    cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &rig.scope, &blocks), KV_OK));
    cr_assert(eq(u64, blocks, 0));
}

Test(engine_dram, dropping_one_scope_leaves_the_other)
{
    struct kv_id first = rig.scope;
    uint64_t blocks = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 4));
    rig.scope = kvt_scope(2);
    kvt_rig_open_scope(&rig, &rig.scope);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 4));
    cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &first, &blocks), KV_OK));
    cr_assert(eq(u64, blocks, 4));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 4), 0));
}

Test(engine_dram, a_closed_pool_is_refused_and_closing_waits_for_nothing_when_nothing_runs)
{
    cr_assert(eq(int, kv_engine_close_pool(rig.engine, rig.pool, kvt_clock_now(&rig.clock) + KV_S_NS), KV_OK));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 1);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_E_INVALID_STATE));
    kvt_run_free(&run);
}

Test(engine_nvme, a_durable_block_is_on_nvme_and_its_dram_copy_stays)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 8));
    cr_assert(eq(u32, tiers_of(7), KVT_BOTH_TIERS));
    cr_assert(eq(u64, stats_now().nvme.objects, 8));
}

Test(engine_nvme, durable_for_a_block_that_is_in_dram_writes_it_down_and_is_present)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 3));
    cr_assert(eq(u32, tiers_of(0), 1u << KV_TIER_DRAM));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3);
    run.transfer.wait = KV_WAIT_DURABLE;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_PRESENT));
    cr_assert(eq(u8, run.transfer.tiers[0], KV_TIER_NVME));
    cr_assert(eq(u32, tiers_of(0), KVT_BOTH_TIERS));
    kvt_run_free(&run);
}

Test(engine_nvme, drained_blocks_come_back_from_nvme_and_are_promoted)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 20));
    cr_assert(eq(u64, drain(), 20));
    cr_assert(eq(u32, tiers_of(3), 1u << KV_TIER_NVME));
    cr_assert(eq(u64, stats_now().dram.used_bytes, 0));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, 20);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_RESTORED));
    cr_assert(eq(u8, run.transfer.tiers[3], KV_TIER_NVME));
    kvt_run_free(&run);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 20), 0));
    cr_assert(eq(u32, tiers_of(3), KVT_BOTH_TIERS));
}

Test(engine_nvme, durable_after_a_demotion_is_a_promise)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 5);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 5));
    cr_assert(eq(u64, drain(), 5));
    run.transfer.wait = KV_WAIT_DURABLE;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_PRESENT));
    kvt_run_free(&run);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 5), 0));
    kvt_rig_restart(&rig);
    cr_assert(eq(u64, stats_now().nvme.objects, 5), "the first replicas went");
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 5), 0));
}

Test(engine_nvme, durable_blocks_come_back_after_a_restart_and_others_are_missing)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 10));
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 50, 2));
    kvt_rig_restart(&rig);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 10), 0));
    cr_assert(eq(u32, tiers_of(50), 0));
    struct kv_scope_usage usage;
    cr_assert(eq(int, kv_engine_scope_usage(rig.engine, &rig.scope, &usage), KV_OK));
    cr_assert(eq(u64, usage.nvme_blocks, 10));
    cr_assert(eq(u64, usage.plaintext_bytes, 10 * kv_pool_block_bytes(rig.pool)));
}

Test(engine_nvme, a_dropped_scope_stays_dropped_after_a_restart)
{
    uint64_t blocks = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 10));
    cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &rig.scope, &blocks), KV_OK));
    cr_assert(eq(u64, blocks, 10));
    kvt_rig_restart(&rig);
    cr_assert(eq(u32, tiers_of(0), 0));
}

Test(engine_nvme, blocks_that_policy_keeps_from_nvme_are_never_written_there)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 6);
    run.transfer.tiers_allowed = 1u << KV_TIER_DRAM;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_STORED));
    kvt_run_free(&run);
    cr_assert(eq(u64, drain(), 0));
    cr_assert(eq(u32, tiers_of(0), 1u << KV_TIER_DRAM));
    cr_assert(eq(u64, stats_now().nvme.written_bytes, 0));
}

Test(engine_nvme, blocks_that_policy_keeps_from_dram_only_pass_through_it)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 6);
    for (uint32_t i = 0; i < 6; i++) {
        kvt_page_fill(rig.pool, i, i);
    }
    run.transfer.tiers_allowed = 1u << KV_TIER_NVME;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_STORED));
    cr_assert(eq(u8, run.transfer.tiers[0], KV_TIER_NVME));
    kvt_run_free(&run);
    cr_assert(eq(u32, tiers_of(0), 1u << KV_TIER_NVME));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 6), 0));
    cr_assert(eq(u32, tiers_of(0), 1u << KV_TIER_NVME), "nor do they stay after a restore");
}

static void sample_opens_with(enum kv_tier_id tier, uint32_t expected)
{
    struct kv_buf headers;
    uint32_t lens[8], count = 0;
    struct kv_scope_keys keys;
    size_t at = 0;
    kv_buf_init(&headers, 1u << 20);
    cr_assert(eq(int, kv_engine_sample(rig.engine, &rig.scope, tier, 8, &headers, lens, &count), KV_OK));
    cr_assert(eq(u32, count, expected));
    cr_assert(eq(int, kv_keyring_borrow(rig.keyring, &rig.scope, &keys), KV_OK));
    for (uint32_t i = 0; i < count; i++) {
        struct kv_sealed_context context;
        struct kv_bytes header = KV_BYTES(headers.data + at, lens[i]);
        cr_assert(eq(int, kv_sealed_peek(header, &context), KV_OK));
        cr_assert(eq(int, kv_sealed_check(keys.block, &context, header), KV_OK));
        at += lens[i];
    }
    cr_assert(eq(sz, at, headers.len));
    kv_keyring_return(rig.keyring, &keys);
    kv_buf_done(&headers);
}

Test(engine_nvme, samples_of_headers_open_with_the_key_from_dram_and_from_nvme)
{
    sample_opens_with(KV_TIER_NONE, 0);
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 5));
    sample_opens_with(KV_TIER_NONE, 5);
    sample_opens_with(KV_TIER_DRAM, 5);
    sample_opens_with(KV_TIER_NVME, 0);
    kvt_rig_restart(&rig);
    sample_opens_with(KV_TIER_DRAM, 0);
    sample_opens_with(KV_TIER_NVME, 5);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 10, 2));
    sample_opens_with(KV_TIER_DRAM, 7); /* what was read of nvme is in dram, too */
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 12, 3));
    sample_opens_with(KV_TIER_NONE, 8);
}

Test(engine_dram, draining_without_nvme_says_that_there_is_no_room)
{
    uint64_t blocks = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 2));
    cr_assert(eq(int, kv_engine_drain_dram(rig.engine, kvt_clock_now(&rig.clock) + KV_S_NS, &blocks), KV_E_NO_SPACE));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 2), 0));
}

static bool printed(const char *line)
{
    struct kv_buf text;
    kv_buf_init(&text, 1u << 20);
    kv_metric_print(&text, KV_METRIC_TEXT);
    bool has = strstr((const char *)text.data, line) != NULL;
    kv_buf_done(&text);
    return has;
}

Test(engine_nvme, every_series_is_there_from_the_start_and_counts)
{
    cr_assert(printed("kvrun_transfer_blocks_total{direction=\"restore\",tier=\"nvme\",result=\"restored\"} 0"));
    cr_assert(printed("kvrun_tier_evictions_total{tier=\"dram\",reason=\"capacity\"} 0"));
    cr_assert(printed("kvrun_integrity_failures_total{tier=\"nvme\",kind=\"tag\"} 0"));
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 3));
    cr_assert(printed("kvrun_transfer_blocks_total{direction=\"offload\",tier=\"nvme\",result=\"stored\"} 3"));
    cr_assert(printed("kvrun_transfer_bytes_total{direction=\"offload\"} 196608"));
    cr_assert(printed("kvrun_transfer_duration_seconds_count{direction=\"offload\"} 1"));
    cr_assert(printed("kvrun_tier_objects{tier=\"nvme\"} 3"));
    cr_assert(printed("kvrun_tier_up{tier=\"nvme\"} 1"));
    cr_assert(printed("kvrun_tier_io_duration_seconds_count{tier=\"nvme\",op=\"write\"} 3"));
    cr_assert(printed("kvrun_seal_bytes_total{op=\"seal\",device=\"host\"} 196608"));
    cr_assert(printed("kvrun_transfer_batch_blocks_bucket{direction=\"offload\",le=\"4.0\"} 1"));
    cr_assert(printed("kvrun_transfers_inflight{lane=\"0\"} 0"));
}

/* Two rigs of the same steps end with the same numbers after the same polls. */
static unsigned polls_of_a_round(struct kvt_rig *one)
{
    unsigned polls = 0;
    struct kvt_run run = kvt_run_new(one, KV_TRANSFER_OFFLOAD, 0, 0, KVT_SLOTS);
    cr_assert(eq(int, kvt_run_submit(one, &run), KV_OK));
    while (!kvt_run_ended(&run)) {
        kv_engine_poll(one->engine);
        polls++;
    }
    cr_assert(kvt_run_count(&run, KV_BLOCK_STORED) > 0);
    kvt_run_free(&run);
    return polls;
}

Test(engine_dram, the_same_steps_take_the_same_polls)
{
    static struct kvt_rig other;
    kvt_rig_config(&other);
    kvt_rig_start(&other);
    cr_assert(eq(u32, polls_of_a_round(&rig), polls_of_a_round(&other)));
    kvt_rig_stop(&other);
}

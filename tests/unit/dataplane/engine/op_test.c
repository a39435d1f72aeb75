/* What stands between a caller and its blocks: fence, lease, keys, deadline, cancel, the audit sink, a stop. */
#include "dataplane/base/fault.h"
#include "dataplane/engine/lane_int.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static struct kvt_rig rig;
static bool stopped;

static void start(void)
{
    stopped = false;
    kvt_rig_config(&rig);
    kvt_rig_with_nvme(&rig, 64u << 20);
    kvt_rig_start(&rig);
}

static void finish(void)
{
    if (!stopped) {
        kvt_rig_stop(&rig);
    }
}

TestSuite(op, .init = start, .fini = finish);

static uint64_t later(uint64_t ns)
{
    return kvt_clock_now(&rig.clock) + ns;
}

static void drain(void)
{
    uint64_t blocks = 0;
    cr_assert(eq(int, kv_engine_drain_dram(rig.engine, later(60 * KV_S_NS), &blocks), KV_OK));
}

/* ---- keys ---- */

Test(op, a_scope_that_is_not_open_is_refused_as_a_whole)
{
    struct kv_id other = kvt_scope(9);
    for (unsigned kind = 0; kind < 2; kind++) {
        struct kvt_run run = kvt_run_new(&rig, kind == 0 ? KV_TRANSFER_OFFLOAD : KV_TRANSFER_RESTORE, 0, 0, 2);
        run.transfer.scope = other;
        cr_assert(eq(int, kvt_run_go(&rig, &run), KV_E_MISSING));
        cr_assert(kvt_run_all(&run, KV_BLOCK_FAILED));
        kvt_run_free(&run);
    }
    kvt_rig_open_scope(&rig, &other);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 2);
    run.transfer.scope = other;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK), "control");
    kvt_run_free(&run);
}

Test(op, another_tenants_name_on_a_scope_is_refused)
{
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 2);
    run.transfer.tenant.b[3] ^= 1;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_E_MISSING));
    cr_assert(kvt_run_all(&run, KV_BLOCK_FAILED));
    kvt_run_free(&run);
}

Test(op, a_lease_that_ran_out_refuses_and_its_renewal_works)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 2));
    kv_keyring_set_lease(rig.keyring, kvt_clock_now(&rig.clock));
    for (unsigned kind = 0; kind < 2; kind++) {
        struct kvt_run run = kvt_run_new(&rig, kind == 0 ? KV_TRANSFER_OFFLOAD : KV_TRANSFER_RESTORE, 0, 0, 2);
        cr_assert(eq(int, kvt_run_go(&rig, &run), KV_E_LEASE_EXPIRED));
        kvt_run_free(&run);
    }
    kv_keyring_set_lease(rig.keyring, later(10 * KV_S_NS));
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 2), 0));
}

Test(op, a_lease_that_runs_out_while_blocks_are_fetched_releases_nothing)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 8));
    drain();
    kvt_sink_hold(&rig.sink, true);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, 8);
    for (uint32_t i = 0; i < 8; i++) {
        kvt_page_set(rig.pool, i, 0x99);
    }
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    while (rig.engine->lane.stats.promoted < 8) {
        kv_engine_poll(rig.engine);
    }
    cr_assert(not(kvt_run_ended(&run)), "fetched, but not on record");
    kv_keyring_set_lease(rig.keyring, kvt_clock_now(&rig.clock));
    kvt_sink_flush(&rig.sink);
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_E_LEASE_EXPIRED));
    cr_assert(kvt_run_all(&run, KV_BLOCK_FAILED));
    for (uint32_t i = 0; i < 8; i++) {
        cr_assert(kvt_page_is(rig.pool, i, 0x99));
    }
    kvt_run_free(&run);
    kvt_sink_hold(&rig.sink, false);
    kv_keyring_set_lease(rig.keyring, UINT64_MAX);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 8), 0));
}

/* ---- the record ---- */

Test(op, plaintext_is_released_only_when_the_record_is_durable)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 3));
    kvt_sink_hold(&rig.sink, true);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 10, 3);
    kvt_page_set(rig.pool, 10, 0x99);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    for (unsigned i = 0; i < 1000; i++) {
        kv_engine_poll(rig.engine);
    }
    cr_assert(not(kvt_run_ended(&run)));
    cr_assert(kvt_page_is(rig.pool, 10, 0x99));
    kvt_sink_flush(&rig.sink);
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_OK));
    cr_assert(kvt_page_has(rig.pool, 10, 0));
    kvt_run_free(&run);
}

Test(op, an_offload_is_answered_only_when_its_record_is_durable)
{
    kvt_sink_hold(&rig.sink, true);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    for (unsigned i = 0; i < 1000; i++) {
        kv_engine_poll(rig.engine);
    }
    cr_assert(not(kvt_run_ended(&run)));
    kvt_sink_flush(&rig.sink);
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_STORED));
    kvt_run_free(&run);
}

Test(op, a_sink_that_refuses_ends_transfers_unacknowledged_and_keeps_nothing)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 100, 2));
    kvt_sink_refuse(&rig.sink, true);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_E_AUDIT_UNAVAILABLE));
    cr_assert(kvt_run_all(&run, KV_BLOCK_FAILED));
    kvt_run_free(&run);
    run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 100, 0, 2);
    kvt_page_set(rig.pool, 0, 0x99);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_E_AUDIT_UNAVAILABLE));
    cr_assert(kvt_page_is(rig.pool, 0, 0x99));
    kvt_run_free(&run);
    kvt_sink_refuse(&rig.sink, false);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 3), 3));
    cr_assert(eq(u32, kvt_not_restored(&rig, 100, 2), 0));
}

Test(op, a_sink_that_hangs_ends_transfers_at_their_deadline)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 100, 2));
    kvt_sink_hold(&rig.sink, true);
    for (unsigned kind = 0; kind < 2; kind++) {
        struct kvt_run run = kvt_run_new(&rig, kind == 0 ? KV_TRANSFER_OFFLOAD : KV_TRANSFER_RESTORE, kind * 100, 0, 2);
        cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
        for (unsigned i = 0; i < 100; i++) {
            kv_engine_poll(rig.engine);
        }
        cr_assert(not(kvt_run_ended(&run)));
        kvt_clock_advance(&rig.clock, 31 * KV_S_NS);
        cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_E_AUDIT_UNAVAILABLE));
        kvt_run_free(&run);
    }
}

Test(op, one_record_a_transfer_says_what_was_moved)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 5));
    cr_assert(eq(u32, kvt_sink_count(&rig.sink, KV_RECORD_OFFLOAD), 1));
    const struct kv_transfer_record *record = &rig.sink.records[0];
    cr_assert(eq(u32, record->blocks, 5));
    cr_assert(eq(u64, record->bytes, 5 * kv_pool_block_bytes(rig.pool)));
    cr_assert(eq(int, (int)record->tier, KV_TIER_NVME));
    cr_assert(eq(int, memcmp(&record->scope, &rig.scope, sizeof rig.scope), 0));
    struct kv_block_id first = kvt_block(0);
    cr_assert(eq(int, memcmp(&rig.sink.first_id[0], &first, sizeof first), 0));
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 3, 0, 10);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    kvt_run_free(&run);
    cr_assert(eq(u32, kvt_sink_count(&rig.sink, KV_RECORD_RESTORE), 1));
    cr_assert(eq(u32, rig.sink.records[1].blocks, 2), "those that are here");
    run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 500, 0, 10);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    kvt_run_free(&run);
    cr_assert(eq(u32, kvt_sink_count(&rig.sink, KV_RECORD_RESTORE), 1), "nothing moved, nothing to record");
}

/* ---- fence ---- */

Test(op, after_a_fence_transfers_are_refused_for_good)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 4));
    cr_assert(eq(int, kv_engine_fence(rig.engine, &rig.scope, later(KV_S_NS)), KV_OK));
    cr_assert(eq(int, kv_engine_fence(rig.engine, &rig.scope, later(KV_S_NS)), KV_OK), "idempotent");
    for (unsigned kind = 0; kind < 2; kind++) {
        struct kvt_run run = kvt_run_new(&rig, kind == 0 ? KV_TRANSFER_OFFLOAD : KV_TRANSFER_RESTORE, 0, 0, 4);
        cr_assert(eq(int, kvt_run_go(&rig, &run), KV_E_SESSION_ERASED));
        cr_assert(kvt_run_all(&run, KV_BLOCK_ERASED));
        kvt_run_free(&run);
    }
    rig.scope = kvt_scope(2);
    kvt_rig_open_scope(&rig, &rig.scope);
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 4), "others go on");
}

Test(op, a_fence_ends_a_restore_that_waits_and_releases_nothing)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, KVT_SLOTS));
    kvt_sink_hold(&rig.sink, true);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_RESTORE, 0, 0, KVT_SLOTS);
    for (uint32_t i = 0; i < KVT_SLOTS; i++) {
        kvt_page_set(rig.pool, i, 0x42);
    }
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    kv_engine_poll(rig.engine);
    cr_assert(eq(int, kv_engine_fence(rig.engine, &rig.scope, later(KV_S_NS)), KV_OK));
    cr_assert(kvt_run_ended(&run), "the fence returned, so nothing of it runs");
    cr_assert(kvt_run_all(&run, KV_BLOCK_ERASED));
    for (uint32_t i = 0; i < KVT_SLOTS; i++) {
        cr_assert(kvt_page_is(rig.pool, i, 0x42));
    }
    kvt_run_free(&run);
}

Test(op, a_fence_lets_blocks_under_way_finish_and_ends_the_others)
{
    kv_pool_unref(rig.pool);
    rig.pool = kvt_pool_new(1, KVT_SLOTS, 1000000); /* more than one poll seals */
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, KVT_SLOTS);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    kv_engine_poll(rig.engine);
    cr_assert(eq(int, kv_engine_fence(rig.engine, &rig.scope, later(20 * KV_S_NS)), KV_OK));
    cr_assert(kvt_run_ended(&run));
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_OK));
    cr_assert(gt(u32, kvt_run_count(&run, KV_BLOCK_STORED), 0));
    cr_assert(gt(u32, kvt_run_count(&run, KV_BLOCK_ERASED), 0));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_STORED) + kvt_run_count(&run, KV_BLOCK_ERASED), KVT_SLOTS));
    kvt_run_free(&run);
    cr_assert(eq(int, kv_keyring_drop(rig.keyring, &rig.scope, true, 0), KV_OK), "no key is in use");
}

Test(op, a_fence_that_must_wait_too_long_says_so_and_keeps_refusing)
{
    kvt_sink_hold(&rig.sink, true);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 2);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    for (unsigned i = 0; i < 10; i++) {
        kv_engine_poll(rig.engine);
    }
    cr_assert(eq(int, kv_engine_fence(rig.engine, &rig.scope, later(KV_MS_NS)), KV_E_TIMEOUT));
    struct kvt_run second = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 2);
    cr_assert(eq(int, kvt_run_go(&rig, &second), KV_E_SESSION_ERASED));
    kvt_sink_flush(&rig.sink);
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_OK));
    cr_assert(eq(int, kv_engine_fence(rig.engine, &rig.scope, later(KV_S_NS)), KV_OK));
    kvt_run_free(&run);
    kvt_run_free(&second);
}

Test(op, more_fences_than_are_remembered_work_once_the_keyring_refuses_by_itself)
{
    for (unsigned i = 0; i < FENCED_MAX + 10; i++) {
        struct kv_id scope = kvt_scope(200);
        memcpy(scope.b + 4, &i, sizeof i);
        cr_assert(eq(int, kv_engine_fence(rig.engine, &scope, later(KV_S_NS)), KV_OK));
        cr_assert(eq(int, kv_keyring_drop(rig.keyring, &scope, true, 0), KV_OK));
    }
}

/* ---- deadline and cancel ---- */

Test(op, a_deadline_that_has_passed_begins_nothing)
{
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 2));
    for (unsigned kind = 0; kind < 2; kind++) {
        struct kvt_run run = kvt_run_new(&rig, kind == 0 ? KV_TRANSFER_OFFLOAD : KV_TRANSFER_RESTORE, 0, 0, 2);
        run.transfer.deadline_ns = kvt_clock_now(&rig.clock);
        cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
        cr_assert(kvt_run_all(&run, KV_BLOCK_TIMEOUT));
        kvt_run_free(&run);
    }
}

Test(op, a_deadline_in_the_middle_finishes_what_began)
{
    kv_pool_unref(rig.pool);
    rig.pool = kvt_pool_new(1, KVT_SLOTS, 1000000);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, KVT_SLOTS);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    kv_engine_poll(rig.engine);
    kvt_clock_advance(&rig.clock, 29 * KV_S_NS);
    run.transfer.deadline_ns = kvt_clock_now(&rig.clock);
    kvt_sink_flush(&rig.sink);
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_OK));
    cr_assert(gt(u32, kvt_run_count(&run, KV_BLOCK_STORED), 0));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_STORED) + kvt_run_count(&run, KV_BLOCK_TIMEOUT), KVT_SLOTS));
    kvt_run_free(&run);
}

Test(op, a_cancelled_operation_ends_and_others_do_not)
{
    kv_pool_unref(rig.pool);
    rig.pool = kvt_pool_new(1, KVT_SLOTS, 1000000);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, KVT_SLOTS);
    struct kvt_run other = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 500, 0, 3);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    cr_assert(eq(int, kvt_run_submit(&rig, &other), KV_OK));
    kv_engine_poll(rig.engine);
    kv_engine_cancel(rig.engine, &run.transfer.op);
    kv_engine_cancel(rig.engine, &run.transfer.scope); /* no operation has this id: nothing happens */
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_OK));
    cr_assert(eq(int, kvt_run_wait(&rig, &other), KV_OK));
    cr_assert(gt(u32, kvt_run_count(&run, KV_BLOCK_TIMEOUT), 0));
    cr_assert(kvt_run_all(&other, KV_BLOCK_STORED));
    kvt_run_free(&run);
    kvt_run_free(&other);
}

Test(op, closing_a_pool_ends_its_operations_and_then_nothing_uses_it)
{
    struct kv_pool *usual = rig.pool;
    rig.pool = kvt_pool_new(1, KVT_SLOTS, 1000000);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, KVT_SLOTS);
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    kv_engine_poll(rig.engine);
    cr_assert(eq(int, kv_engine_close_pool(rig.engine, rig.pool, later(10 * KV_S_NS)), KV_OK));
    cr_assert(kvt_run_ended(&run));
    cr_assert(gt(u32, kvt_run_count(&run, KV_BLOCK_TIMEOUT), 0));
    kvt_run_free(&run);
    kv_pool_unref(rig.pool);
    rig.pool = usual;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 1), "others go on");
}

/* ---- stop ---- */

Test(op, a_stop_with_running_operations_ends_them_all)
{
    struct kvt_run runs[6];
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, KVT_SLOTS));
    drain();
    for (unsigned i = 0; i < 6; i++) {
        runs[i] = kvt_run_new(&rig, i % 2 == 0 ? KV_TRANSFER_RESTORE : KV_TRANSFER_OFFLOAD, i * 20, 0, KVT_SLOTS);
        runs[i].transfer.wait = KV_WAIT_DURABLE;
        cr_assert(eq(int, kvt_run_submit(&rig, &runs[i]), KV_OK));
        if (i == 2) {
            kv_engine_poll(rig.engine);
        }
    }
    kvt_rig_stop(&rig);
    stopped = true;
    for (unsigned i = 0; i < 6; i++) {
        cr_assert(kvt_run_ended(&runs[i]));
        cr_assert(eq(u32, kvt_run_count(&runs[i], KV_BLOCK_PENDING), 0));
        kvt_run_free(&runs[i]);
    }
}

Test(op, a_stop_with_a_hanging_sink_ends_in_bounded_time)
{
    kvt_sink_hold(&rig.sink, true);
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 2);
    run.transfer.deadline_ns = UINT64_MAX;
    cr_assert(eq(int, kvt_run_submit(&rig, &run), KV_OK));
    kv_engine_poll(rig.engine);
    kv_queue_close(rig.engine->inbox);
    pthread_mutex_lock(&rig.engine->mutex);
    rig.engine->stop_asked = true;
    pthread_mutex_unlock(&rig.engine->mutex);
    kv_engine_poll(rig.engine);
    kvt_clock_advance(&rig.clock, 6 * KV_S_NS);
    cr_assert(eq(int, kvt_run_wait(&rig, &run), KV_E_AUDIT_UNAVAILABLE));
    kvt_run_free(&run);
}

/* ---- faults ---- */

Test(op, without_randomness_nothing_is_sealed)
{
    rig.clock.random_fails = true;
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_FAILED));
    kvt_run_free(&run);
    rig.clock.random_fails = false;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 3), "control");
}

#ifdef KV_FAULTS

Test(op, a_seal_that_fails_publishes_nothing)
{
    kv_fault_set("engine/offload/sealed=EIO");
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3);
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    cr_assert(kvt_run_all(&run, KV_BLOCK_FAILED));
    kvt_run_free(&run);
    kv_fault_set(NULL);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 3), 3));
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 3), "control");
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 3), 0));
}

Test(op, a_write_down_that_fails_leaves_nothing_to_be_found)
{
    kv_fault_set("tier/nvme/data-write=EIO@1once");
    struct kvt_run run = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, 0, 0, 3);
    for (uint32_t i = 0; i < 3; i++) {
        kvt_page_fill(rig.pool, i, i);
    }
    run.transfer.wait = KV_WAIT_DURABLE;
    cr_assert(eq(int, kvt_run_go(&rig, &run), KV_OK));
    kv_fault_set(NULL);
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_FAILED), 1));
    cr_assert(eq(u32, kvt_run_count(&run, KV_BLOCK_STORED), 2));
    kvt_run_free(&run);
    cr_assert(eq(u32, kvt_not_restored(&rig, 0, 3), 1), "the two that were stored are the control");
}

Test(op, a_drop_that_fails_says_so_and_can_be_asked_again)
{
    uint64_t blocks = 0;
    cr_assert(kvt_store(&rig, KV_WAIT_DRAM, 0, 3));
    kv_fault_set("engine/drop=EIO@1once");
    cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &rig.scope, &blocks), KV_E_IO));
    kv_fault_set(NULL);
    cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &rig.scope, &blocks), KV_OK));
    cr_assert(eq(u64, blocks, 3));
}

#endif

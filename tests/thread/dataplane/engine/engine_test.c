/*
 * The engine with its own thread: transfers from four threads, questions, cancels and a fence between them. Run under
 * ThreadSanitizer; every operation has to end, and what is restored has to be right.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/engine/engine.h"
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>

#define WORKERS 4u
#define ROUNDS 12u
#define BLOCKS 8u

static struct kvt_rig rig;

static void start(void)
{
    kvt_rig_config(&rig);
    kvt_rig_with_nvme(&rig, 64u << 20);
    rig.conf.manual_poll = false;
    rig.conf.io_kind = KV_IO_AUTO;
    rig.conf.env = &kv_env_system;
    rig.conf.watermark_high_percent = 60;
    rig.conf.watermark_low_percent = 40;
    kvt_rig_start(&rig);
}

static void finish(void)
{
    kvt_rig_stop(&rig);
}

TestSuite(engine_threads, .init = start, .fini = finish);

struct worker {
    pthread_t thread;
    unsigned number;
    struct kv_id scope;
    unsigned bad, erased;
};

static enum kv_err transfer(struct worker *worker, enum kv_transfer_kind kind, uint64_t first, struct kvt_run *run)
{
    *run = kvt_run_new(&rig, kind, first, worker->number * 2 * BLOCKS, BLOCKS);
    run->transfer.scope = worker->scope;
    run->transfer.wait = first % 3 == 0 ? KV_WAIT_DURABLE : KV_WAIT_DRAM;
    return kvt_run_go(&rig, run);
}

static void round_trip(struct worker *worker, unsigned round)
{
    struct kvt_run run;
    uint64_t first = worker->number * 1000 + round * BLOCKS;
    uint32_t slot = worker->number * 2 * BLOCKS;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        kvt_page_fill(rig.pool, slot + i, first + i);
    }
    enum kv_err rc = transfer(worker, KV_TRANSFER_OFFLOAD, first, &run);
    worker->erased += rc == KV_E_SESSION_ERASED;
    worker->bad += rc != KV_OK && rc != KV_E_SESSION_ERASED;
    kvt_run_free(&run);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        kvt_page_set(rig.pool, slot + i, 0x55);
    }
    rc = transfer(worker, KV_TRANSFER_RESTORE, first, &run);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        bool restored = run.transfer.results[i] == KV_BLOCK_RESTORED;
        worker->bad += restored ? !kvt_page_has(rig.pool, slot + i, first + i) : !kvt_page_is(rig.pool, slot + i, 0x55);
        worker->bad += !restored && rc == KV_OK && run.transfer.results[i] != KV_BLOCK_ERASED;
    }
    kvt_run_free(&run);
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    for (unsigned round = 0; round < ROUNDS; round++) {
        round_trip(worker, round);
    }
    return NULL;
}

/* Questions from a fifth thread, while the four work. */
static void ask_around(void)
{
    struct kv_engine_stats stats;
    struct kv_scope_usage usage;
    struct kv_id scope = kvt_scope(11), none = kvt_scope(77);
    struct kv_block_id block = kvt_block(0);
    uint8_t tiers = 0;
    for (unsigned i = 0; i < 50; i++) {
        kv_engine_stats(rig.engine, &stats);
        kv_engine_cancel(rig.engine, &none);
        cr_assert(eq(int, kv_engine_scope_usage(rig.engine, &scope, &usage), KV_OK));
        cr_assert(eq(int, kv_engine_lookup(rig.engine, &scope, 1, &block, &tiers), KV_OK));
    }
}

static void run_workers(struct worker *workers, bool fence)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.number = i, .scope = kvt_scope((uint8_t)(11 + i % 2))};
        kvt_rig_open_scope(&rig, &workers[i].scope);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        cr_assert(eq(int, pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0));
    }
    ask_around();
    if (fence) {
        struct kv_id scope = kvt_scope(11);
        uint64_t blocks = 0;
        cr_assert(eq(int, kv_engine_fence(rig.engine, &scope, kv_now_ns(&kv_env_system) + 30 * KV_S_NS), KV_OK));
        cr_assert(eq(int, kv_keyring_drop(rig.keyring, &scope, true, 0), KV_OK), "nobody uses the key any more");
        cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &scope, &blocks), KV_OK));
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
}

#ifdef KV_FAULTS
static uint64_t in_ms(unsigned ms)
{
    return kv_now_ns(&kv_env_system) + ms * KV_MS_NS;
}

Test(engine_threads, what_was_dropped_is_durable_or_not_said_to_be)
{
    uint64_t blocks = 0;
    struct kv_engine_stats stats;
    kv_engine_stats(rig.engine, &stats);
    cr_assert_not(kv_id_is_zero(&stats.nvme.place));
    cr_assert(eq(int, kv_engine_dropped(rig.engine, in_ms(20000)), KV_OK), "nothing was dropped");
    cr_assert(kvt_store(&rig, KV_WAIT_DURABLE, 0, 4));
    kv_fault_set("tier/nvme/log-sync=fail@1,tier/nvme/ckpt-write=fail@1");
    cr_assert(eq(int, kv_engine_drop_scope(rig.engine, &rig.scope, &blocks), KV_OK));
    cr_assert(eq(int, kv_engine_dropped(rig.engine, in_ms(50)), KV_E_TIMEOUT));
    kv_fault_set(NULL);
    cr_assert(eq(int, kv_engine_dropped(rig.engine, in_ms(20000)), KV_OK));
}
#endif

Test(engine_threads, four_threads_of_transfers_get_their_own_bytes_back)
{
    struct worker workers[WORKERS];
    run_workers(workers, false);
    for (unsigned i = 0; i < WORKERS; i++) {
        cr_assert(eq(u32, workers[i].bad, 0));
        cr_assert(eq(u32, workers[i].erased, 0));
    }
    struct kv_engine_stats stats;
    kv_engine_stats(rig.engine, &stats);
    cr_assert(eq(u64, stats.offered, WORKERS * ROUNDS * BLOCKS));
    cr_assert(eq(u64, stats.offered, stats.stored + stats.present + stats.skipped + stats.dropped));
}

Test(engine_threads, a_fence_between_transfers_ends_those_of_its_scope_and_no_others)
{
    struct worker workers[WORKERS];
    struct kv_id fenced = kvt_scope(11);
    struct kv_scope_usage usage;
    run_workers(workers, true);
    for (unsigned i = 0; i < WORKERS; i++) {
        cr_assert(eq(u32, workers[i].bad, 0));
        cr_assert(i % 2 == 0 || workers[i].erased == 0);
    }
    cr_assert(eq(int, kv_engine_scope_usage(rig.engine, &fenced, &usage), KV_OK));
    cr_assert(eq(u64, usage.blocks, 0));
}

Test(engine_threads, a_stop_under_load_ends_every_operation)
{
    struct kvt_run runs[20];
    for (unsigned i = 0; i < 20; i++) {
        runs[i] = kvt_run_new(&rig, KV_TRANSFER_OFFLOAD, i * 100, 0, KVT_SLOTS);
        runs[i].transfer.wait = KV_WAIT_DURABLE;
        cr_assert(eq(int, kvt_run_submit(&rig, &runs[i]), KV_OK));
    }
    cr_assert(eq(int, kv_engine_stop(rig.engine), KV_OK));
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(kvt_run_ended(&runs[i]));
        cr_assert(eq(u32, kvt_run_count(&runs[i], KV_BLOCK_PENDING), 0));
        kvt_run_free(&runs[i]);
    }
    kvt_rig_start(&rig);
}

/* Many offloads of one tenant at once, beside restores and drops: its quota is never exceeded and is used up exactly.
 */
#include "tests/lib/engine_rig.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>

#define WORKERS 4u
#define BLOCKS 16u
#define ROUNDS 8u
#define QUOTA_DRAM (10 * kv_sealed_bytes(65536))
#define QUOTA_NVME (14 * kv_sealed_bytes(65536))

static struct kvt_rig rig;
static atomic_bool over, done;

struct worker {
    pthread_t thread;
    unsigned number, wrong, denied;
    struct kv_id scope;
};

static void look(void)
{
    uint64_t bytes[KV_ENGINE_TIERS] = {0};
    if (kv_engine_tenant_bytes(rig.engine, &rig.tenant, bytes) == KV_OK &&
        (bytes[KV_TIER_DRAM] > QUOTA_DRAM || bytes[KV_TIER_NVME] > QUOTA_NVME)) {
        atomic_store(&over, true);
    }
}

static void transfer(struct worker *worker, enum kv_transfer_kind kind, uint64_t first)
{
    struct kvt_run run = kvt_run_new(&rig, kind, first, worker->number * BLOCKS, BLOCKS);
    run.transfer.scope = worker->scope;
    run.transfer.wait = first % 2 == 0 ? KV_WAIT_DURABLE : KV_WAIT_DRAM;
    run.transfer.limits = (struct kv_transfer_limits){.version = 1, .tenant_bytes = {0, QUOTA_DRAM, QUOTA_NVME}};
    enum kv_err rc = kvt_run_go(&rig, &run);
    unsigned denied = kvt_run_count(&run, KV_BLOCK_DENIED);
    worker->wrong += rc != KV_OK || denied != run.transfer.over_quota;
    worker->denied += denied;
    kvt_run_free(&run);
    look();
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    uint64_t dropped = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        transfer(worker, KV_TRANSFER_OFFLOAD, round);
        transfer(worker, KV_TRANSFER_RESTORE, round);
        if (round % 3 == worker->number % 3 && round + 1 < ROUNDS) {
            worker->wrong += kv_engine_drop_scope(rig.engine, &worker->scope, &dropped) != KV_OK;
        }
    }
    return NULL;
}

static void *watch(void *arg)
{
    while (!atomic_load(&done)) {
        look();
    }
    return arg;
}

Test(quota_threads, the_quota_is_never_exceeded_and_used_up_at_the_end)
{
    struct worker workers[WORKERS] = {0};
    pthread_t watcher;
    unsigned denied = 0;
    kvt_rig_config(&rig);
    kvt_rig_with_nvme(&rig, 64u << 20);
    rig.conf.manual_poll = false;
    rig.conf.env = &kv_env_system;
    kvt_rig_start(&rig);
    pthread_create(&watcher, NULL, watch, NULL);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i].number = i;
        workers[i].scope = kvt_scope((uint8_t)(50 + i));
        kvt_rig_open_scope(&rig, &workers[i].scope);
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        cr_expect_eq(workers[i].wrong, 0);
        denied += workers[i].denied;
    }
    atomic_store(&done, true);
    pthread_join(watcher, NULL);
    cr_expect(!atomic_load(&over));
    cr_expect_gt(denied, 0);
    for (unsigned i = 0; i < WORKERS; i++) {
        transfer(&workers[i], KV_TRANSFER_OFFLOAD, 0); /* nobody drops any more: now all of it is used */
    }
    uint64_t bytes[KV_ENGINE_TIERS] = {0}, dropped = 0;
    cr_assert_eq(kv_engine_tenant_bytes(rig.engine, &rig.tenant, bytes), KV_OK);
    cr_expect_eq(bytes[KV_TIER_NVME], QUOTA_NVME);
    for (unsigned i = 0; i < WORKERS; i++) {
        cr_assert_eq(kv_engine_drop_scope(rig.engine, &workers[i].scope, &dropped), KV_OK);
    }
    cr_assert_eq(kv_engine_tenant_bytes(rig.engine, &rig.tenant, bytes), KV_OK);
    cr_expect(bytes[KV_TIER_DRAM] == 0 && bytes[KV_TIER_NVME] == 0, "all of it was given back");
    kvt_rig_stop(&rig);
}

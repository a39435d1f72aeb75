#include "tests/lib/engine_rig.h"

#include "dataplane/crypto/secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLLS_MAX 200000u

static void must(enum kv_err rc, const char *what)
{
    if (rc != KV_OK) {
        (void)fprintf(stderr, "%s: %s\n", what, kv_err_name(rc));
        abort();
    }
}

struct kv_id kvt_scope(uint8_t n)
{
    struct kv_id id;
    memset(id.b, 0x50, sizeof id.b);
    id.b[0] = n;
    return id;
}

struct kv_block_id kvt_block(uint64_t n)
{
    struct kv_block_id id;
    memset(id.b, 0x77, sizeof id.b);
    memcpy(id.b, &n, sizeof n);
    return id;
}

void kvt_rig_open_scope(struct kvt_rig *rig, const struct kv_id *scope)
{
    uint8_t bytes[32];
    struct kv_secret *secret = NULL;
    memset(bytes, scope->b[0], sizeof bytes);
    must(kv_secret_copy(bytes, sizeof bytes, &secret), "secret");
    must(kv_keyring_open(rig->keyring, &rig->tenant, scope, secret), "open scope");
    kv_secret_free(secret);
}

void kvt_rig_config(struct kvt_rig *rig)
{
    *rig = (struct kvt_rig){.conf = {.dram_bytes = 4u << 20,
                                     .dram_slab_bytes = 1u << 20,
                                     .io_kind = KV_IO_THREADS,
                                     .blocks_max = 4096,
                                     .cipher = KV_CIPHER_OPENSSL,
                                     .manual_poll = true}};
    enum kv_err rc = kv_secret_arena_init(1u << 20);
    must(rc == KV_E_INVALID_STATE ? KV_OK : rc, "arena");
    kvt_clock_init(&rig->clock);
    kvt_sink_init(&rig->sink);
    must(kv_keyring_new(&rig->clock.env, 64, &rig->keyring), "keyring");
    kv_keyring_set_lease(rig->keyring, UINT64_MAX);
    rig->pool = kvt_pool_new(KVT_REGIONS, KVT_SLOTS, KVT_RUN_BYTES);
    rig->tenant = *kv_pool_tenant(rig->pool);
    rig->scope = kvt_scope(1);
    rig->conf.env = &rig->clock.env;
    kvt_rig_open_scope(rig, &rig->scope);
}

void kvt_rig_with_nvme(struct kvt_rig *rig, uint64_t bytes)
{
    kvt_folder_make(rig->folder);
    rig->conf.nvme_path = rig->folder;
    rig->conf.nvme_bytes = bytes;
}

void kvt_rig_start(struct kvt_rig *rig)
{
    struct kv_errinfo info = {.code = KV_OK};
    rig->conf.keyring = rig->keyring;
    rig->conf.sink = &rig->sink.sink;
    enum kv_err rc = kv_engine_start(&rig->conf, &info, &rig->engine);
    if (rc != KV_OK) {
        (void)fprintf(stderr, "%s\n", info.text);
    }
    must(rc, "engine");
}

void kvt_rig_restart(struct kvt_rig *rig)
{
    must(kv_engine_stop(rig->engine), "stop");
    kvt_rig_start(rig);
}

void kvt_rig_stop(struct kvt_rig *rig)
{
    must(kv_engine_stop(rig->engine), "stop");
    kv_pool_unref(rig->pool);
    kv_keyring_free(rig->keyring);
    if (rig->folder[0] != 0) {
        kvt_folder_remove(rig->folder);
    }
}

struct kvt_run kvt_run_new(struct kvt_rig *rig, enum kv_transfer_kind kind, uint64_t first_block, uint32_t first_slot,
                           uint32_t count)
{
    struct kvt_run run = {.ids = calloc(count, sizeof *run.ids), .slots = calloc(count, sizeof *run.slots)};
    for (uint32_t i = 0; i < count; i++) {
        run.ids[i] = kvt_block(first_block + i);
        run.slots[i] = first_slot + i;
    }
    run.transfer = (struct kv_transfer){.kind = kind,
                                        .wait = KV_WAIT_DRAM,
                                        .tenant = rig->tenant,
                                        .scope = rig->scope,
                                        .pool = rig->pool,
                                        .count = count,
                                        .block_ids = run.ids,
                                        .slots = run.slots,
                                        .tiers_allowed = KVT_BOTH_TIERS,
                                        .deadline_ns = kv_now_ns(rig->conf.env) + 30 * KV_S_NS,
                                        .results = calloc(count, sizeof(enum kv_block_result)),
                                        .tiers = calloc(count, 1)};
    must(kv_env_system.random(kv_env_system.ctx, &run.transfer.op, sizeof run.transfer.op), "op id");
    must(kv_future_new(&run.transfer.future), "future");
    return run;
}

void kvt_run_free(struct kvt_run *run)
{
    free(run->ids);
    free(run->slots);
    free(run->transfer.results);
    free(run->transfer.tiers);
    kv_future_free(run->transfer.future);
}

enum kv_err kvt_run_submit(struct kvt_rig *rig, struct kvt_run *run)
{
    return kv_engine_submit(rig->engine, &run->transfer);
}

/* The rc of an operation can be a time-out of its own only in theory; the engine ends none with it. */
bool kvt_run_ended(const struct kvt_run *run)
{
    return kv_future_wait(run->transfer.future, 0) != KV_E_TIMEOUT;
}

/* Gives the threads of the io a moment when there was nothing to do: completions come from outside. */
static void turn(struct kvt_rig *rig)
{
    if (kv_engine_poll(rig->engine) == 0) {
        struct timespec moment = {.tv_nsec = 50000};
        (void)nanosleep(&moment, NULL);
        kvt_clock_advance(&rig->clock, 50000);
    }
}

enum kv_err kvt_run_wait(struct kvt_rig *rig, struct kvt_run *run)
{
    if (!rig->conf.manual_poll) {
        return kv_future_wait(run->transfer.future, UINT64_MAX);
    }
    for (unsigned i = 0; i < POLLS_MAX && !kvt_run_ended(run); i++) {
        turn(rig);
    }
    return kv_future_wait(run->transfer.future, 0);
}

enum kv_err kvt_run_go(struct kvt_rig *rig, struct kvt_run *run)
{
    enum kv_err rc = kvt_run_submit(rig, run);
    return rc == KV_OK ? kvt_run_wait(rig, run) : rc;
}

unsigned kvt_run_count(const struct kvt_run *run, enum kv_block_result result)
{
    unsigned count = 0;
    for (uint32_t i = 0; i < run->transfer.count; i++) {
        count += run->transfer.results[i] == result;
    }
    return count;
}

bool kvt_run_all(const struct kvt_run *run, enum kv_block_result result)
{
    return kvt_run_count(run, result) == run->transfer.count;
}

bool kvt_store(struct kvt_rig *rig, enum kv_transfer_wait wait, uint64_t first_block, uint32_t count)
{
    bool good = true;
    for (uint32_t done = 0; done < count; done += KVT_SLOTS) {
        uint32_t now = count - done < KVT_SLOTS ? count - done : KVT_SLOTS;
        for (uint32_t i = 0; i < now; i++) {
            kvt_page_fill(rig->pool, i, first_block + done + i);
        }
        struct kvt_run run = kvt_run_new(rig, KV_TRANSFER_OFFLOAD, first_block + done, 0, now);
        run.transfer.wait = wait;
        good = kvt_run_go(rig, &run) == KV_OK && kvt_run_all(&run, KV_BLOCK_STORED) && good;
        kvt_run_free(&run);
    }
    return good;
}

unsigned kvt_not_restored(struct kvt_rig *rig, uint64_t first_block, uint32_t count)
{
    unsigned bad = 0;
    for (uint32_t done = 0; done < count; done += KVT_SLOTS) {
        uint32_t now = count - done < KVT_SLOTS ? count - done : KVT_SLOTS;
        for (uint32_t i = 0; i < now; i++) {
            kvt_page_set(rig->pool, i, 0xee);
        }
        struct kvt_run run = kvt_run_new(rig, KV_TRANSFER_RESTORE, first_block + done, 0, now);
        enum kv_err rc = kvt_run_go(rig, &run);
        for (uint32_t i = 0; i < now; i++) {
            bad += rc != KV_OK || run.transfer.results[i] != KV_BLOCK_RESTORED ||
                   !kvt_page_has(rig->pool, i, first_block + done + i);
        }
        kvt_run_free(&run);
    }
    return bad;
}

bool kvt_poll_until(struct kvt_rig *rig, bool (*done)(struct kvt_rig *rig, void *ctx), void *ctx)
{
    for (unsigned i = 0; i < POLLS_MAX && !done(rig, ctx); i++) {
        turn(rig);
    }
    return done(rig, ctx);
}

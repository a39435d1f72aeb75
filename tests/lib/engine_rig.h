/*
 * An engine with everything it needs, for tests: keyring, audit sink, clock, folder, one pool, and transfers that
 * allocate their own arrays. With manual_poll (the default) the test is the lane's thread; kvt_rig_config changes what
 * it wants before kvt_rig_start.
 */
#ifndef KV_TESTS_ENGINE_RIG_H
#define KV_TESTS_ENGINE_RIG_H

#include "dataplane/engine/engine.h"
#include "tests/lib/fake_sink.h"
#include "tests/lib/manual_clock.h"
#include "tests/lib/memfd_pool.h"
#include "tests/lib/temp_folder.h"

#define KVT_BOTH_TIERS ((1u << KV_TIER_DRAM) | (1u << KV_TIER_NVME))
#define KVT_RUN_BYTES 16384u
#define KVT_REGIONS 4u /* a page of 64 KiB */
#define KVT_SLOTS 64u

struct kvt_rig {
    struct kvt_clock clock;
    struct kvt_sink sink;
    struct kv_keyring *keyring;
    struct kv_engine_conf conf;
    struct kv_engine *engine;
    struct kv_pool *pool;
    struct kv_id tenant, scope;
    char folder[KVT_PATH_BYTES];
};

struct kvt_run {
    struct kv_transfer transfer;
    struct kv_block_id *ids;
    uint32_t *slots;
};

/* 4 MiB of dram, no nvme, manual_poll, lease without end, one open scope. Aborts when something cannot be had. */
void kvt_rig_config(struct kvt_rig *rig);
void kvt_rig_with_nvme(struct kvt_rig *rig, uint64_t bytes); /* before the start */
void kvt_rig_start(struct kvt_rig *rig);
void kvt_rig_restart(struct kvt_rig *rig); /* stop and start over the same folder */
void kvt_rig_stop(struct kvt_rig *rig);
void kvt_rig_open_scope(struct kvt_rig *rig, const struct kv_id *scope);
struct kv_id kvt_scope(uint8_t n);
struct kv_block_id kvt_block(uint64_t n);

/* `count` blocks from `first_block` on, in slots from `first_slot` on. The rest is set to what is usual; change it
 * before the go. */
struct kvt_run kvt_run_new(struct kvt_rig *rig, enum kv_transfer_kind kind, uint64_t first_block, uint32_t first_slot,
                           uint32_t count);
void kvt_run_free(struct kvt_run *run);
enum kv_err kvt_run_submit(struct kvt_rig *rig, struct kvt_run *run);
bool kvt_run_ended(const struct kvt_run *run);
enum kv_err kvt_run_wait(struct kvt_rig *rig, struct kvt_run *run); /* polls when the test is the lane */
enum kv_err kvt_run_go(struct kvt_rig *rig, struct kvt_run *run);   /* submit and wait */
bool kvt_run_all(const struct kvt_run *run, enum kv_block_result result);
unsigned kvt_run_count(const struct kvt_run *run, enum kv_block_result result);

/* Pages `first_slot`… get the bytes of blocks `first_block`…, are offloaded, and every result is STORED. */
bool kvt_store(struct kvt_rig *rig, enum kv_transfer_wait wait, uint64_t first_block, uint32_t count);
/* Pages are overwritten, restored, and hold the bytes of the blocks again. Returns how many did not. */
unsigned kvt_not_restored(struct kvt_rig *rig, uint64_t first_block, uint32_t count);
bool kvt_poll_until(struct kvt_rig *rig, bool (*done)(struct kvt_rig *rig, void *ctx), void *ctx);

#endif

/*
 * The lane: one poll function that takes messages, lets operations go on, reaps io and makes room. A thread calls it in
 * the server; a test or a simulator calls it itself. It never blocks and never allocates on the path of a transfer.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/engine/lane_int.h"

#define POLL_MESSAGES 64u
#define SMALLEST_BLOCK 65536u
#define BLOCKS_AT_LEAST 65536u
#define SLAB_DEFAULT (UINT64_C(64) << 20)
#define IO_DEPTH 64u
#define IO_THREADS 4u

_Static_assert(POOL_REGIONS_MAX == 1024, "same as the limit POOL_REGIONS, which is no constant expression");

/* ---- opening ---- */

static uint64_t blocks_max_of(const struct kv_engine_conf *conf)
{
    uint64_t blocks = (conf->dram_bytes + conf->nvme_bytes) / SMALLEST_BLOCK;
    if (conf->blocks_max != 0) {
        return conf->blocks_max;
    }
    return blocks > BLOCKS_AT_LEAST ? blocks : BLOCKS_AT_LEAST;
}

static uint64_t slab_bytes_of(const struct kv_engine_conf *conf)
{
    uint64_t slab = conf->dram_slab_bytes;
    if (slab == 0) {
        slab = conf->dram_bytes / 4 < SLAB_DEFAULT ? conf->dram_bytes / 4 : SLAB_DEFAULT;
    }
    return slab & ~(uint64_t)(KV_SEALED_ALIGN - 1);
}

/* The longest plaintext that fits in a slab with its header and tags. The surplus shrinks to nothing in a few turns. */
static uint64_t largest_block(uint64_t slab_bytes)
{
    uint64_t bytes = slab_bytes;
    while (bytes > 0 && kv_sealed_bytes(bytes) > slab_bytes) {
        uint64_t surplus = kv_sealed_bytes(bytes) - slab_bytes;
        bytes -= surplus < bytes ? surplus : bytes;
    }
    return bytes;
}

static KV_RC open_memory(struct lane *lane, const struct kv_engine_conf *conf, struct kv_errinfo *info)
{
    lane->slab_bytes = slab_bytes_of(conf);
    if (lane->slab_bytes == 0) {
        return kv_fail(info, KV_E_CONFIG, "the dram tier needs at least four slabs of 4 KiB");
    }
    enum kv_err rc = kv_dram_new(conf->dram_bytes, lane->slab_bytes, &lane->dram);
    if (rc != KV_OK) {
        return kv_fail(info, rc == KV_E_LIMIT ? KV_E_CONFIG : rc,
                       "the dram tier cannot have %llu bytes in slabs of %llu; make it smaller or its slabs larger",
                       (unsigned long long)conf->dram_bytes, (unsigned long long)lane->slab_bytes);
    }
    rc = kv_index_new(blocks_max_of(conf), conf->env, &lane->index);
    if (rc != KV_OK) {
        return kv_fail(info, rc == KV_E_LIMIT ? KV_E_CONFIG : rc,
                       "the index cannot have %llu blocks, one for each 64 KiB of the tiers; make the tiers smaller",
                       (unsigned long long)blocks_max_of(conf));
    }
    lane->staging_bytes = conf->staging_bytes != 0 ? conf->staging_bytes : (uint64_t)KV_MAX_BLOCK_BYTES;
    uint64_t largest = largest_block(lane->slab_bytes);
    lane->staging_bytes = lane->staging_bytes > largest ? largest : lane->staging_bytes;
    KV_TRY(kv_locked_alloc(lane->staging_bytes, &lane->staging));
    rc = kv_sealer_new(conf->cipher, &lane->sealer);
    if (rc != KV_OK) {
        return kv_fail(info, rc, "this build or this processor does not have the crypto backend asked for; use auto");
    }
    lane->ios = kv_alloc_array(LANE_IO_MAX, sizeof *lane->ios);
    if (lane->ios == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (unsigned i = 0; i < LANE_IO_MAX; i++) {
        lane->ios[i].lane = lane;
        lane->ios[i].next_free = lane->free_ios;
        lane->free_ios = &lane->ios[i];
    }
    return KV_OK;
}

static KV_RC open_io(struct lane *lane, const struct kv_engine_conf *conf, struct kv_errinfo *info)
{
    struct kv_io_conf io = {.kind = conf->io_kind,
                            .depth = conf->io_depth != 0 ? conf->io_depth : IO_DEPTH,
                            .threads = conf->io_threads != 0 ? conf->io_threads : IO_THREADS,
                            .fixed_piece_bytes = lane->slab_bytes, /* no slot crosses a slab's border */
                            .env = conf->env};
    kv_dram_arena(lane->dram, &io.fixed, &io.fixed_bytes);
    return kv_io_open(&io, info, &lane->io);
}

static void found(void *ctx, const struct kv_tier_key *key, uint64_t where, uint64_t bytes, bool promised)
{
    struct lane *lane = ctx;
    struct entry *entry = NULL;
    bool second = kv_index_find(lane->index, &key->scope, &key->block_id) != NULL;
    enum kv_err rc =
        second ? kv_index_add_grave(lane->index, key, bytes, &entry) : kv_index_add(lane->index, key, bytes, &entry);
    if (rc != KV_OK) {
        kv_log(KV_LOG_WARN, "engine", "block_not_indexed", KV_FRC(rc));
        return;
    }
    entry->promised = promised;
    kv_index_set_nvme(lane->index, entry, true, where);
    if (!second) {
        kv_quota_charge(entry, KV_TIER_NVME);
    }
}

static KV_RC open_nvme(struct lane *lane, const struct kv_engine_conf *conf, struct kv_errinfo *info)
{
    if (conf->nvme_path == NULL || conf->nvme_path[0] == 0) {
        return KV_OK;
    }
    struct kv_tier_conf tier = {.path = conf->nvme_path,
                                .bytes = conf->nvme_bytes,
                                .entries_max = blocks_max_of(conf),
                                .io = lane->io,
                                .env = conf->env};
    KV_TRY(kv_tier_nvme.open(&tier, info, &lane->nvme));
    lane->nvme->ops->scan(lane->nvme, found, lane);
    return KV_OK;
}

KV_RC kv_lane_open(struct lane *lane, const struct kv_engine_conf *conf, struct kv_errinfo *info)
{
    lane->env = conf->env;
    lane->keyring = conf->keyring;
    lane->sink = conf->sink;
    lane->high_percent = conf->watermark_high_percent != 0 ? conf->watermark_high_percent : 90;
    lane->low_percent = conf->watermark_low_percent != 0 ? conf->watermark_low_percent : 80;
    lane->nvme_evict_batch = 1;
    kv_list_init(&lane->operations);
    kv_list_init(&lane->controls);
    KV_TRY(open_memory(lane, conf, info));
    KV_TRY(open_io(lane, conf, info));
    KV_TRY(open_nvme(lane, conf, info));
    kv_stats_register(&lane->metrics);
    kv_stats_publish(lane);
    return KV_OK;
}

KV_RC kv_lane_close(struct lane *lane)
{
    enum kv_err rc = KV_OK;
    if (lane->nvme != NULL) {
        rc = lane->nvme->ops->close(lane->nvme);
    }
    if (lane->io != NULL) {
        lane->io->ops->close(lane->io);
    }
    kv_sealer_free(lane->sealer);
    if (lane->staging != NULL) {
        kv_locked_free(lane->staging, lane->staging_bytes);
    }
    kv_dram_free(lane->dram);
    kv_index_free(lane->index);
    kv_free(lane->ios);
    return rc;
}

/* ---- polling ---- */

static void drain_inbox(struct lane *lane)
{
    for (unsigned i = 0; i < POLL_MESSAGES; i++) {
        struct message *message = kv_queue_try_pop(lane->engine->inbox);
        if (message == NULL) {
            return;
        }
        if (message->kind == MESSAGE_TRANSFER) {
            kv_op_begin(lane, LINK_OF(message, struct op, message));
        } else {
            kv_control_begin(lane, LINK_OF(message, struct control, message));
        }
        lane->progress++;
    }
}

/* Each operation of a kind once, in turn: the first one of this round is the last one of the next. */
static void advance_kind(struct lane *lane, enum kv_transfer_kind kind)
{
    uint32_t rounds = lane->operations_running;
    struct link *link = lane->operations.next;
    struct op *first = NULL;
    for (uint32_t i = 0; i < rounds && link != &lane->operations; i++) {
        struct op *op = LINK_OF(link, struct op, in_lane);
        link = link->next;
        if (op->transfer->kind != kind) {
            continue;
        }
        uint64_t serial = op->serial;
        kv_op_advance(lane, op);
        bool there = link->prev != &lane->operations && LINK_OF(link->prev, struct op, in_lane)->serial == serial;
        first = first == NULL && there ? op : first;
    }
    if (first != NULL) {
        kv_list_remove(&first->in_lane);
        kv_list_append(&lane->operations, &first->in_lane);
    }
}

static void begin_stop(struct lane *lane)
{
    for (struct link *l = lane->operations.next; l != &lane->operations; l = l->next) {
        LINK_OF(l, struct op, in_lane)->cancelled = true;
    }
    if (!lane->stopping) {
        lane->stopping = true;
        lane->give_up_ns = kv_now_ns(lane->env) + STOP_NS;
        kv_controls_abort(lane);
    }
}

bool kv_lane_gave_up(const struct lane *lane)
{
    return lane->stopping && kv_now_ns(lane->env) >= lane->give_up_ns;
}

static bool stop_asked(struct lane *lane)
{
    struct kv_engine *engine = lane->engine;
    pthread_mutex_lock(&engine->mutex);
    bool asked = engine->stop_asked;
    engine->last_turn_ns = kv_now_ns(lane->env);
    pthread_mutex_unlock(&engine->mutex);
    return asked;
}

unsigned kv_lane_poll(struct lane *lane)
{
    lane->progress = 0;
    lane->retry_soon = false;
    lane->budget_bytes = POLL_SEAL_BYTES;
    bool stop = stop_asked(lane);
    drain_inbox(lane);
    kv_engine_take_cancels(lane->engine, lane);
    if (stop) {
        begin_stop(lane);
    }
    lane->progress += lane->io->ops->reap(lane->io, LANE_IO_MAX);
    if (lane->nvme != NULL) {
        lane->progress += lane->nvme->ops->poll(lane->nvme, LANE_IO_MAX);
    }
    advance_kind(lane, KV_TRANSFER_RESTORE); /* somebody waits to compute */
    advance_kind(lane, KV_TRANSFER_OFFLOAD);
    kv_controls_advance(lane);
    if (!lane->stopping) {
        kv_room_lower(lane);
    }
    kv_room_graves(lane);
    if (lane->progress > 0) {
        kv_stats_publish(lane);
    }
    return lane->progress;
}

/* Graves that wait for a record do not hold up a stop: the next start finds those blocks and drops them when they fail
 * again. */
bool kv_lane_idle(const struct lane *lane)
{
    return lane->operations_running == 0 && lane->ios_running == 0 && kv_list_empty(&lane->controls) &&
           kv_queue_len(lane->engine->inbox) == 0 && lane->io->ops->in_flight(lane->io) == 0;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void kv_lane_wait(struct lane *lane)
{
    uint64_t now = kv_now_ns(lane->env);
    uint64_t until = now + (lane->retry_soon || lane->stopping ? RETRY_NS : IDLE_NS);
    if (lane->nvme != NULL) {
        until = earlier(until, lane->nvme->ops->next_due_ns(lane->nvme));
    }
    for (struct link *l = lane->operations.next; l != &lane->operations; l = l->next) {
        const struct op *op = LINK_OF(l, struct op, in_lane);
        if (op->transfer->deadline_ns > now) {
            until = earlier(until, op->transfer->deadline_ns);
        }
    }
    for (struct link *l = lane->controls.next; l != &lane->controls; l = l->next) {
        until = earlier(until, LINK_OF(l, struct control, waiting)->deadline_ns);
    }
    KV_IGNORE(lane->io->ops->wait(lane->io, until), "a wait that times out is as good as one that was woken");
}

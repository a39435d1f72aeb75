/*
 * The shared side of the engine: start and stop, the thread, and what other threads do before and after a message:
 * checking, allocating, waking. It never touches what the lane owns while the lane runs.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/engine/lane_int.h"

#include <string.h>

#define INBOX_MAX (2 * (size_t)KV_MAX_LANE_OPERATIONS)

/* ---- waking ---- */

/* Under the mutex, although it ends in a system call (a write to an eventfd): only so can the io not be closed
 * meanwhile. */
void kv_engine_wake(struct kv_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    if (engine->open) {
        engine->lane.io->ops->wake(engine->lane.io);
    }
    pthread_mutex_unlock(&engine->mutex);
}

static void sink_grew(void *arg)
{
    kv_engine_wake(arg);
}

static void set_open(struct kv_engine *engine, bool open)
{
    pthread_mutex_lock(&engine->mutex);
    engine->open = open;
    pthread_mutex_unlock(&engine->mutex);
}

/* ---- the thread ---- */

static KV_RC open_lane(struct kv_engine *engine)
{
    enum kv_err rc = kv_lane_open(&engine->lane, &engine->conf, engine->info);
    if (rc != KV_OK) {
        KV_IGNORE(kv_lane_close(&engine->lane), "the first cause is the one to tell");
        return rc;
    }
    set_open(engine, true);
    if (engine->conf.sink != NULL) {
        engine->conf.sink->set_wake(engine->conf.sink->ctx, sink_grew, engine);
    }
    return KV_OK;
}

static KV_RC close_lane(struct kv_engine *engine)
{
    if (engine->conf.sink != NULL) {
        engine->conf.sink->set_wake(engine->conf.sink->ctx, NULL, NULL);
    }
    set_open(engine, false);
    return kv_lane_close(&engine->lane);
}

static void *run(void *arg)
{
    struct kv_engine *engine = arg;
    struct lane *lane = &engine->lane;
    enum kv_err rc = open_lane(engine);
    kv_future_set(engine->ready, rc);
    if (rc != KV_OK) {
        return NULL;
    }
    kv_mem_forbid(true);
    while (!lane->stopping || !kv_lane_idle(lane)) {
        if (kv_lane_poll(lane) == 0) {
            kv_lane_wait(lane);
        }
    }
    kv_mem_forbid(false);
    engine->closed_rc = close_lane(engine);
    return NULL;
}

/* ---- start and stop ---- */

static KV_RC check_conf(const struct kv_engine_conf *conf, struct kv_errinfo *info)
{
    if (conf->keyring == NULL || conf->env == NULL) {
        return kv_fail(info, KV_E_CONFIG, "the engine needs a keyring and a clock");
    }
    if (conf->watermark_high_percent > 100 || conf->watermark_low_percent > conf->watermark_high_percent) {
        return kv_fail(info, KV_E_CONFIG, "watermarks: low %u %% must be at most high %u %%, and that at most 100",
                       conf->watermark_low_percent, conf->watermark_high_percent);
    }
    return KV_OK;
}

static void engine_free(struct kv_engine *engine)
{
    kv_queue_free(engine->inbox);
    kv_future_free(engine->ready);
    pthread_mutex_destroy(&engine->mutex);
    kv_free(engine->nvme_path);
    kv_free(engine);
}

static KV_RC engine_new(const struct kv_engine_conf *conf, struct kv_errinfo *info, struct kv_engine **ret_engine)
{
    struct kv_engine *engine = kv_alloc(sizeof *engine);
    if (engine == NULL) {
        return KV_E_NO_MEMORY;
    }
    engine->conf = *conf;
    engine->info = info;
    engine->threaded = !conf->manual_poll;
    engine->lane.engine = engine;
    kv_list_init(&engine->registered);
    pthread_mutex_init(&engine->mutex, NULL);
    enum kv_err rc = kv_queue_new(INBOX_MAX, &engine->inbox);
    rc = rc == KV_OK ? kv_future_new(&engine->ready) : rc;
    if (rc == KV_OK && conf->nvme_path != NULL) {
        engine->nvme_path = kv_strdup(conf->nvme_path);
        engine->conf.nvme_path = engine->nvme_path;
        rc = engine->nvme_path != NULL ? KV_OK : KV_E_NO_MEMORY;
    }
    if (rc != KV_OK) {
        engine_free(engine);
        return rc;
    }
    *ret_engine = engine;
    return KV_OK;
}

static KV_RC start_thread(struct kv_engine *engine)
{
    if (pthread_create(&engine->thread, NULL, run, engine) != 0) {
        return kv_fail(engine->info, KV_E_NO_MEMORY, "the lane's thread cannot be started; raise the limit of threads");
    }
    enum kv_err rc = kv_future_wait(engine->ready, UINT64_MAX);
    if (rc != KV_OK) {
        pthread_join(engine->thread, NULL);
    }
    return rc;
}

KV_RC kv_engine_start(const struct kv_engine_conf *conf, struct kv_errinfo *info, struct kv_engine **ret_engine)
{
    struct kv_engine *engine = NULL;
    KV_TRY(check_conf(conf, info));
    KV_TRY(engine_new(conf, info, &engine));
    enum kv_err rc = engine->threaded ? start_thread(engine) : open_lane(engine);
    if (rc != KV_OK) {
        engine_free(engine);
        return rc;
    }
    engine->info = NULL;
    *ret_engine = engine;
    return KV_OK;
}

/* One turn of a lane that has no thread: poll, and give completions a moment when there was nothing to do. */
static void turn(struct kv_engine *engine)
{
    struct lane *lane = &engine->lane;
    if (kv_lane_poll(lane) == 0) {
        KV_IGNORE(lane->io->ops->wait(lane->io, kv_now_ns(lane->env) + KV_MS_NS), "looked at again anyway");
    }
}

KV_RC kv_engine_stop(struct kv_engine *engine)
{
    if (engine == NULL) {
        return KV_OK;
    }
    kv_queue_close(engine->inbox);
    pthread_mutex_lock(&engine->mutex);
    engine->stop_asked = true;
    pthread_mutex_unlock(&engine->mutex);
    if (engine->threaded) {
        kv_engine_wake(engine);
        pthread_join(engine->thread, NULL);
    } else {
        while (!engine->lane.stopping || !kv_lane_idle(&engine->lane)) {
            turn(engine);
        }
        engine->closed_rc = close_lane(engine);
    }
    enum kv_err rc = engine->closed_rc;
    engine_free(engine);
    return rc;
}

unsigned kv_engine_poll(struct kv_engine *engine)
{
    KV_ASSERT(!engine->threaded);
    return kv_lane_poll(&engine->lane);
}

/* ---- transfers ---- */

static KV_RC check_transfer(const struct kv_transfer *transfer)
{
    if (transfer->count == 0 || transfer->count > (uint64_t)KV_MAX_BLOCKS_PER_CALL || transfer->pool == NULL ||
        transfer->block_ids == NULL || transfer->slots == NULL || transfer->results == NULL ||
        transfer->tiers == NULL || transfer->future == NULL) {
        return KV_E_INVALID_REQUEST;
    }
    for (uint32_t i = 0; i < transfer->count; i++) {
        if (transfer->slots[i] >= kv_pool_slots(transfer->pool)) {
            return KV_E_INVALID_REQUEST;
        }
    }
    return kv_pool_is_closed(transfer->pool) ? KV_E_INVALID_STATE : KV_OK;
}

static KV_RC op_new(struct kv_transfer *transfer, struct op **ret_op)
{
    struct op *op = kv_alloc(sizeof *op);
    if (op == NULL) {
        return KV_E_NO_MEMORY;
    }
    op->message.kind = MESSAGE_TRANSFER;
    op->transfer = transfer;
    op->pool = kv_pool_ref(transfer->pool);
    op->blocks = kv_alloc_array(transfer->count, sizeof *op->blocks);
    op->recorded_ids = kv_alloc_array(transfer->count, sizeof *op->recorded_ids);
    if (op->blocks == NULL || op->recorded_ids == NULL) {
        kv_op_free(op);
        return KV_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < transfer->count; i++) {
        transfer->results[i] = KV_BLOCK_PENDING;
        transfer->tiers[i] = KV_TIER_NONE;
    }
    *ret_op = op;
    return KV_OK;
}

static KV_RC enlist(struct kv_engine *engine, struct op *op)
{
    pthread_mutex_lock(&engine->mutex);
    bool full = engine->operations >= (uint64_t)KV_MAX_LANE_OPERATIONS;
    if (!full) {
        engine->operations++;
        kv_list_append(&engine->registered, &op->registered);
    }
    pthread_mutex_unlock(&engine->mutex);
    return full ? KV_E_BUSY : KV_OK;
}

void kv_engine_forget(struct kv_engine *engine, struct op *op)
{
    pthread_mutex_lock(&engine->mutex);
    kv_list_remove(&op->registered);
    engine->operations--;
    pthread_mutex_unlock(&engine->mutex);
}

KV_RC kv_engine_submit(struct kv_engine *engine, struct kv_transfer *transfer)
{
    struct op *op = NULL;
    KV_TRY(check_transfer(transfer));
    KV_TRY(op_new(transfer, &op));
    enum kv_err rc = enlist(engine, op);
    if (rc != KV_OK) {
        kv_op_free(op);
        return rc;
    }
    rc = kv_queue_push(engine->inbox, &op->message);
    if (rc != KV_OK) {
        kv_engine_forget(engine, op);
        kv_op_free(op);
        return rc;
    }
    kv_engine_wake(engine);
    return KV_OK;
}

void kv_engine_cancel(struct kv_engine *engine, const struct kv_id *id)
{
    pthread_mutex_lock(&engine->mutex);
    for (struct link *l = engine->registered.next; l != &engine->registered; l = l->next) {
        struct op *op = LINK_OF(l, struct op, registered);
        if (kv_id_equal(&op->transfer->op, id)) {
            op->cancel_asked = true;
            engine->cancel_pending = true;
        }
    }
    pthread_mutex_unlock(&engine->mutex);
    kv_engine_wake(engine);
}

void kv_engine_take_cancels(struct kv_engine *engine, struct lane *lane)
{
    pthread_mutex_lock(&engine->mutex);
    for (struct link *l = engine->registered.next; engine->cancel_pending && l != &engine->registered; l = l->next) {
        struct op *op = LINK_OF(l, struct op, registered);
        if (op->cancel_asked && !op->cancelled) {
            op->cancelled = true;
            lane->progress++;
        }
    }
    engine->cancel_pending = false;
    pthread_mutex_unlock(&engine->mutex);
}

uint64_t kv_engine_last_turn_ns(struct kv_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    uint64_t turn = engine->last_turn_ns;
    pthread_mutex_unlock(&engine->mutex);
    return turn;
}

void kv_engine_stats(struct kv_engine *engine, struct kv_engine_stats *ret_stats)
{
    pthread_mutex_lock(&engine->mutex);
    *ret_stats = engine->stats;
    pthread_mutex_unlock(&engine->mutex);
}

KV_RC kv_engine_ask(struct kv_engine *engine, struct control *control)
{
    control->message.kind = MESSAGE_CONTROL;
    if (engine->threaded) {
        KV_TRY(kv_future_new(&control->future));
    }
    enum kv_err rc = kv_queue_push(engine->inbox, &control->message);
    if (rc == KV_OK && engine->threaded) {
        kv_engine_wake(engine);
        rc = kv_future_wait(control->future, UINT64_MAX);
    } else if (rc == KV_OK) {
        while (!control->answered) {
            turn(engine);
        }
        rc = control->rc;
    }
    kv_future_free(control->future);
    return rc;
}

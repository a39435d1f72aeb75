/*
 * What offload and restore share: beginning, the window of blocks under way, results, the record, the end.
 * Every operation ends with one result a block, and its future is set only when nothing of it runs any more.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/engine/lane_int.h"

#include <string.h>

static const char *const state_names[OP_STATES] = {"queued", "running", "recording", "done"};
static const uint32_t allowed[OP_STATES] = {
    [OP_QUEUED] = 1u << OP_RUNNING | 1u << OP_DONE,
    [OP_RUNNING] = 1u << OP_RECORDING | 1u << OP_DONE,
    [OP_RECORDING] = 1u << OP_DONE,
};
static const struct kv_sm_table op_table = {
    .name = "operation", .state_names = state_names, .allowed = allowed, .state_count = OP_STATES};

struct kv_sealed_context kv_op_context(const struct op *op, const struct kv_block_id *block_id)
{
    struct kv_sealed_context context = {.kind = KV_SEALED_BLOCK,
                                        .tenant = op->transfer->tenant,
                                        .scope = op->transfer->scope,
                                        .block_id = *block_id,
                                        .plaintext_length = kv_pool_block_bytes(op->pool)};
    memcpy(context.layout, kv_pool_fingerprint(op->pool), sizeof context.layout);
    return context;
}

bool kv_op_past_deadline(const struct lane *lane, const struct op *op)
{
    return kv_now_ns(lane->env) >= op->transfer->deadline_ns;
}

bool kv_op_may_begin(struct lane *lane, struct op *op, enum kv_block_result *ret_result)
{
    if (op->fenced) {
        *ret_result = KV_BLOCK_ERASED;
        return false;
    }
    if (op->cancelled || kv_op_past_deadline(lane, op)) {
        *ret_result = KV_BLOCK_TIMEOUT;
        return false;
    }
    return true;
}

void kv_op_end_block(struct lane *lane, struct op *op, uint32_t i, enum kv_block_result result)
{
    struct op_block *block = &op->blocks[i];
    KV_ASSERT(block->step != STEP_ENDED && result != KV_BLOCK_PENDING);
    if (block->entry != NULL) {
        kv_room_unpin(lane, block->entry);
        block->entry = NULL;
    }
    block->step = STEP_ENDED;
    op->transfer->results[i] = result;
    lane->progress++;
}

void kv_op_refuse(struct lane *lane, struct op *op, enum kv_err rc)
{
    op->refused = true;
    op->rc = rc;
    enum kv_block_result result = rc == KV_E_SESSION_ERASED ? KV_BLOCK_ERASED : KV_BLOCK_FAILED;
    for (uint32_t i = 0; i < op->transfer->count; i++) {
        if (op->blocks[i].step != STEP_ENDED) {
            kv_op_end_block(lane, op, i, result);
        } else if (op->transfer->results[i] == KV_BLOCK_STORED || op->transfer->results[i] == KV_BLOCK_PRESENT) {
            op->transfer->results[i] = result; /* not acknowledged, whatever was done */
        }
    }
    op->next = op->transfer->count;
    op->active_count = 0;
}

KV_RC kv_op_record(struct lane *lane, struct op *op, uint32_t blocks, enum kv_tier_id tier)
{
    const struct kv_transfer *transfer = op->transfer;
    if (lane->sink == NULL) {
        return KV_OK;
    }
    struct kv_transfer_record record = {
        .kind = transfer->kind == KV_TRANSFER_OFFLOAD ? KV_RECORD_OFFLOAD : KV_RECORD_RESTORE,
        .op = transfer->op,
        .tenant = transfer->tenant,
        .scope = transfer->scope,
        .tier = tier,
        .blocks = blocks,
        .bytes = blocks * kv_pool_block_bytes(op->pool),
        .realtime_us = lane->env->realtime_us(lane->env->ctx),
        .duration_us = (uint32_t)((kv_now_ns(lane->env) - op->started_ns) / 1000),
        .outcome = KV_OK,
        .has_policy = transfer->has_policy,
        .policy_versions = {transfer->policy_versions[0], transfer->policy_versions[1]},
        .block_ids = op->recorded_ids,
    };
    enum kv_err rc = lane->sink->append(lane->sink->ctx, &record, &op->record_seq);
    return rc == KV_OK ? KV_OK : KV_E_AUDIT_UNAVAILABLE;
}

bool kv_op_recorded(const struct lane *lane, const struct op *op)
{
    return op->record_seq == 0 || lane->sink->durable(lane->sink->ctx) >= op->record_seq;
}

/* ---- the end ---- */

static void sum_up(struct lane *lane, struct op *op)
{
    struct kv_transfer *transfer = op->transfer;
    bool gap = false;
    transfer->done_blocks = 0;
    transfer->leading_blocks = 0;
    for (uint32_t i = 0; i < transfer->count; i++) {
        enum kv_block_result result = transfer->results[i];
        bool done = result == KV_BLOCK_STORED || result == KV_BLOCK_PRESENT || result == KV_BLOCK_RESTORED;
        transfer->tiers[i] = done ? transfer->tiers[i] : KV_TIER_NONE;
        gap = gap || result != KV_BLOCK_RESTORED;
        transfer->leading_blocks += !gap;
        transfer->done_blocks += done;
        kv_stats_block(lane, op, result, transfer->tiers[i]);
    }
    transfer->done_bytes = transfer->done_blocks * kv_pool_block_bytes(op->pool);
    transfer->duration_ns = kv_now_ns(lane->env) - op->started_ns;
}

/* From the last block to the first, so that the front of a session is what stays longest. */
static void touch_backwards(struct lane *lane, const struct op *op)
{
    for (uint32_t i = op->transfer->count; i > 0; i--) {
        struct entry *entry = kv_index_find(lane->index, &op->transfer->scope, &op->transfer->block_ids[i - 1]);
        if (entry != NULL) {
            kv_index_touch(lane->index, entry);
        }
    }
}

void kv_op_free(struct op *op)
{
    kv_pool_unref(op->pool);
    kv_free(op->blocks);
    kv_free(op->recorded_ids);
    kv_free(op);
}

static void op_finish(struct lane *lane, struct op *op)
{
    kv_sm_move(&op->state, OP_DONE);
    if (op->keyed) {
        touch_backwards(lane, op);
        kv_sealer_forget(lane->sealer); /* it may keep what it made of the key */
        kv_keyring_return(lane->keyring, &op->keys);
    }
    sum_up(lane, op);
    kv_stats_operation(lane, op);
    if (op->scope != NULL) {
        op->scope->operations--;
        kv_index_scope_release(lane->index, op->scope);
    }
    kv_list_remove(&op->in_lane);
    lane->operations_running--;
    lane->progress++;
    kv_engine_forget(lane->engine, op);
    kv_stats_publish(lane); /* whoever waits for the future may ask for the numbers next */
    struct kv_future *future = op->transfer->future;
    /* A lease that ended half way: the results of the blocks tell. */
    enum kv_err rc = op->refused || op->transfer->done_blocks == 0 ? op->rc : KV_OK;
    kv_op_free(op); /* before the future is set: then the pool may go, too */
    kv_future_set(future, rc);
}

/* ---- the beginning ---- */

static KV_RC take_keys(struct lane *lane, struct op *op)
{
    const struct kv_transfer *transfer = op->transfer;
    if (op->scope->is_fenced) {
        return KV_E_SESSION_ERASED;
    }
    KV_TRY(kv_keyring_borrow(lane->keyring, &transfer->scope, &op->keys));
    op->keyed = true;
    /* A scope is addressed together with its tenant; a wrong pair is as good as a scope that is not open. */
    return kv_id_equal(&op->keys.tenant, &transfer->tenant) ? KV_OK : KV_E_MISSING;
}

static KV_RC enter(struct lane *lane, struct op *op)
{
    if (lane->stopping) {
        return KV_E_SHUTTING_DOWN;
    }
    if (kv_pool_is_closed(op->pool)) {
        return KV_E_INVALID_STATE;
    }
    struct scope *scope = NULL;
    if (kv_index_scope_get(lane->index, &op->transfer->scope, &scope) != KV_OK) {
        return KV_E_BUSY;
    }
    op->scope = scope;
    scope->operations++;
    KV_TRY(take_keys(lane, op)); /* says that the tenant is the scope's */
    if (kv_quota_assign(lane->index, scope, &op->transfer->tenant) != KV_OK) {
        return KV_E_BUSY;
    }
    kv_quota_set_limits(scope, &op->transfer->limits);
    return KV_OK;
}

void kv_op_begin(struct lane *lane, struct op *op)
{
    kv_sm_init(&op->state, &op_table, OP_QUEUED);
    op->serial = ++lane->serial;
    op->started_ns = kv_now_ns(lane->env);
    kv_list_append(&lane->operations, &op->in_lane);
    lane->operations_running++;
    lane->stats.operations++;
    lane->progress++;
    if (op->transfer->kind == KV_TRANSFER_OFFLOAD) {
        lane->stats.offered += op->transfer->count;
    }
    enum kv_err rc = enter(lane, op);
    if (rc != KV_OK) {
        kv_op_refuse(lane, op, rc);
        op_finish(lane, op);
        return;
    }
    kv_sm_move(&op->state, OP_RUNNING);
}

/* ---- running ---- */

static bool step_block(struct lane *lane, struct op *op, uint32_t i)
{
    bool offload = op->transfer->kind == KV_TRANSFER_OFFLOAD;
    return offload ? kv_offload_step(lane, op, i) : kv_restore_step(lane, op, i);
}

static void step_active(struct lane *lane, struct op *op)
{
    uint32_t kept = 0;
    for (uint32_t k = 0; k < op->active_count; k++) {
        uint32_t i = op->active[k];
        if (!step_block(lane, op, i) && !op->refused) {
            op->active[kept++] = i;
        }
        if (op->refused) {
            return;
        }
    }
    op->active_count = kept;
}

static void fill_window(struct lane *lane, struct op *op)
{
    while (!op->refused && op->next < op->transfer->count && op->active_count < OP_WINDOW) {
        if (lane->budget_bytes == 0) {
            lane->progress++; /* there is more to do at once */
            return;
        }
        uint32_t i = op->next++;
        if (!step_block(lane, op, i) && !op->refused) {
            op->active[op->active_count++] = i;
        }
    }
}

static void recording(struct lane *lane, struct op *op)
{
    if (!kv_op_recorded(lane, op)) {
        if (!kv_lane_gave_up(lane) && !kv_op_past_deadline(lane, op)) {
            return;
        }
        kv_op_refuse(lane, op, KV_E_AUDIT_UNAVAILABLE);
        kv_offload_undo(lane, op);
    } else if (KV_FAULT("engine/offload/recorded")) {
        kv_op_refuse(lane, op, KV_E_AUDIT_UNAVAILABLE);
    }
    op_finish(lane, op);
}

void kv_op_advance(struct lane *lane, struct op *op)
{
    if (op->state.state == OP_RECORDING) {
        recording(lane, op);
        return;
    }
    bool offload = op->transfer->kind == KV_TRANSFER_OFFLOAD;
    if (offload || kv_restore_locate(lane, op)) {
        step_active(lane, op);
        fill_window(lane, op);
    }
    if (op->next < op->transfer->count || op->active_count > 0) {
        return;
    }
    if (offload && !op->refused && kv_offload_blocks_done(lane, op)) {
        kv_sm_move(&op->state, OP_RECORDING);
        recording(lane, op);
        return;
    }
    op_finish(lane, op);
}

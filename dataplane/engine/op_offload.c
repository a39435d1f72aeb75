/*
 * Offload: a block goes from the engine's page, sealed in one pass, into a dram slot, into the index, and, where the
 * caller waits for durability, onto nvme. It must never publish a slot whose seal failed, and never answer "stored" for
 * a transfer that is not on record.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/engine/lane_int.h"

#include <string.h>

static bool allowed_on(const struct op *op, enum kv_tier_id tier)
{
    return (op->transfer->tiers_allowed & 1u << tier) != 0;
}

static bool may_write_down(const struct lane *lane, const struct op *op)
{
    return lane->nvme != NULL && allowed_on(op, KV_TIER_NVME);
}

/* A block that may not rest in dram passes through it on its way to nvme, whatever the caller waits for. */
static bool wants_durable(const struct op *op)
{
    return op->transfer->wait == KV_WAIT_DURABLE || !allowed_on(op, KV_TIER_DRAM);
}

static bool end(struct lane *lane, struct op *op, uint32_t i, enum kv_block_result result)
{
    kv_op_end_block(lane, op, i, result);
    return true;
}

static bool end_done(struct lane *lane, struct op *op, uint32_t i)
{
    struct op_block *block = &op->blocks[i];
    op->transfer->tiers[i] =
        block->entry->on_nvme && (wants_durable(op) || block->entry->slot == NULL) ? KV_TIER_NVME : KV_TIER_DRAM;
    return end(lane, op, i, block->fresh ? KV_BLOCK_STORED : KV_BLOCK_PRESENT);
}

static uint64_t sealed_size(const struct op *op)
{
    return kv_sealed_bytes(kv_pool_block_bytes(op->pool));
}

static bool rests_in_dram(const struct op *op)
{
    return allowed_on(op, KV_TIER_DRAM) && kv_quota_fits(op->scope, KV_TIER_DRAM, sealed_size(op));
}

static bool over_quota(struct lane *lane, struct op *op, uint32_t i)
{
    op->transfer->over_quota++;
    return end(lane, op, i, KV_BLOCK_DENIED);
}

/* One block more: within what the session may have, and on the tiers where it is to lie. */
static bool has_quota(const struct lane *lane, const struct op *op)
{
    const struct kv_transfer_limits *limits = &op->transfer->limits;
    const struct scope *scope = op->scope;
    bool blocks = limits->session_blocks == 0 || scope->usage.blocks < limits->session_blocks;
    bool bytes = limits->session_bytes == 0 || (scope->live_bytes <= limits->session_bytes &&
                                                sealed_size(op) <= limits->session_bytes - scope->live_bytes);
    bool down = may_write_down(lane, op) && kv_quota_fits(scope, KV_TIER_NVME, sealed_size(op));
    return blocks && bytes && (wants_durable(op) ? down : down || rests_in_dram(op));
}

/* Seals the page into the slot. The salt comes from the system for each block: it is what makes two seals differ. */
static KV_RC seal(struct lane *lane, struct op *op, uint32_t i, uint8_t *slot)
{
    struct kv_sealed_context context = kv_op_context(op, &op->transfer->block_ids[i]);
    uint8_t salt[KV_SALT_BYTES];
    if (!kv_pool_segments(op->pool, op->transfer->slots[i], lane->segments)) {
        return KV_E_INVALID_REQUEST;
    }
    KV_TRY(lane->env->random(lane->env->ctx, salt, sizeof salt));
    uint64_t begun = kv_now_ns(lane->env);
    KV_TRY(kv_sealed_seal(lane->sealer, op->keys.block, &context, salt, lane->segments, kv_pool_region_count(op->pool),
                          slot));
    kv_stats_seal(lane, LANE_SEAL, kv_pool_block_bytes(op->pool), begun);
    return KV_FAULT("engine/offload/sealed") ? KV_E_IO : KV_OK;
}

static KV_RC publish(struct lane *lane, struct op *op, uint32_t i, uint8_t *slot)
{
    struct kv_tier_key key = {.scope = op->transfer->scope, .block_id = op->transfer->block_ids[i]};
    uint64_t plaintext = kv_pool_block_bytes(op->pool);
    struct entry *entry = NULL;
    KV_TRY(kv_index_add(lane->index, &key, kv_sealed_bytes(plaintext), &entry));
    kv_index_set_plaintext(entry, plaintext);
    entry->writer = op->serial;
    entry->layout_known = true;
    memcpy(entry->layout, kv_pool_fingerprint(op->pool), sizeof entry->layout);
    entry->slot_verified = true;
    entry->no_nvme = !may_write_down(lane, op);
    entry->no_dram = !rests_in_dram(op);
    kv_index_pin(lane->index, entry);
    op->blocks[i].entry = entry;
    op->blocks[i].fresh = true;
    kv_index_set_slot(lane->index, entry, slot);
    if (!entry->no_dram) {
        kv_quota_charge(entry, KV_TIER_DRAM);
    }
    return KV_OK;
}

/*
 * On nvme, but written there without a promise, which would be evicted for room. The promise is part of the tier's
 * record, so the block is written again: read up if need be, then the old replica goes and the new one is put. True: in
 * dram only, now.
 */
static bool unpromised(struct lane *lane, struct op *op, uint32_t i, bool *ret_ended)
{
    struct op_block *block = &op->blocks[i];
    struct entry *entry = block->entry;
    enum kv_block_result result = KV_BLOCK_BUSY;
    *ret_ended = false;
    if (!kv_op_may_begin(lane, op, &result)) {
        *ret_ended = end(lane, op, i, result);
        return false;
    }
    if (entry->slot != NULL) {
        enum kv_err rc = kv_room_forget_nvme(lane, entry);
        *ret_ended = rc != KV_OK && end(lane, op, i, KV_BLOCK_BUSY);
        return rc == KV_OK;
    }
    if (block->from_nvme) {
        *ret_ended = end(lane, op, i, KV_BLOCK_FAILED); /* was read and did not come */
        return false;
    }
    enum kv_err rc = kv_room_get(lane, entry);
    block->from_nvme = rc == KV_OK;
    if (rc != KV_OK && rc != KV_E_BUSY) {
        *ret_ended = end(lane, op, i, rc == KV_E_NO_SPACE ? KV_BLOCK_BUSY : KV_BLOCK_FAILED);
    }
    return false;
}

/* The write-down of a block that is in dram, until it is there or cannot be. */
static bool step_down(struct lane *lane, struct op *op, uint32_t i)
{
    struct op_block *block = &op->blocks[i];
    struct entry *entry = block->entry;
    bool ended = false;
    if (entry->dead) {
        return end(lane, op, i, op->fenced ? KV_BLOCK_ERASED : KV_BLOCK_FAILED);
    }
    bool passing = entry->no_dram && !entry->on_nvme && may_write_down(lane, op);
    if (!wants_durable(op) && !passing) {
        return end_done(lane, op, i);
    }
    if (entry->on_nvme && entry->promised) {
        return end_done(lane, op, i);
    }
    if (entry->writing || entry->fetching) {
        return false;
    }
    if (entry->on_nvme && !unpromised(lane, op, i, &ended)) {
        return ended;
    }
    if (block->asked && entry->put_rc != KV_OK) {
        return end(lane, op, i, entry->put_rc == KV_E_NO_SPACE ? KV_BLOCK_BUSY : KV_BLOCK_FAILED);
    }
    enum kv_block_result result = KV_BLOCK_BUSY;
    if (!kv_op_may_begin(lane, op, &result)) {
        return end(lane, op, i, result);
    }
    enum kv_err rc = kv_room_put(lane, entry, true, false);
    block->asked = block->asked || rc == KV_OK;
    if (rc == KV_OK || rc == KV_E_BUSY) {
        return false;
    }
    if (rc == KV_E_QUOTA) {
        return over_quota(lane, op, i);
    }
    return end(lane, op, i, rc == KV_E_NO_SPACE ? KV_BLOCK_BUSY : KV_BLOCK_FAILED);
}

static bool same_layout(const struct op *op, const struct entry *entry)
{
    return entry->bytes == kv_sealed_bytes(kv_pool_block_bytes(op->pool)) &&
           (!entry->layout_known || memcmp(entry->layout, kv_pool_fingerprint(op->pool), sizeof entry->layout) == 0);
}

/* What is already here. False: nothing that this pool could read back, go on and store. */
static bool step_present(struct lane *lane, struct op *op, uint32_t i, struct entry *entry, bool *ret_ended)
{
    if (!same_layout(op, entry)) {
        if (entry->pins > 0) {
            *ret_ended = end(lane, op, i, KV_BLOCK_BUSY);
            return true;
        }
        kv_room_kill(lane, entry); /* the engine changed its pages; what it wrote before is of no use to it */
        return false;
    }
    entry->shared = entry->shared || entry->writer != op->serial;
    if (may_write_down(lane, op)) {
        entry->no_nvme = false;
    }
    kv_index_pin(lane->index, entry);
    op->blocks[i].entry = entry;
    op->blocks[i].step = STEP_SEALED;
    *ret_ended = step_down(lane, op, i);
    return true;
}

static enum kv_block_result result_of_room(enum kv_err rc)
{
    return rc == KV_E_NO_SPACE ? KV_BLOCK_BUSY : KV_BLOCK_FAILED;
}

static bool store(struct lane *lane, struct op *op, uint32_t i)
{
    uint64_t plaintext = kv_pool_block_bytes(op->pool);
    uint8_t *slot = NULL;
    if (plaintext > lane->staging_bytes) {
        return end(lane, op, i, KV_BLOCK_FAILED); /* could be sealed, but never opened again */
    }
    enum kv_err rc = kv_room_take(lane, kv_sealed_bytes(plaintext), &slot);
    if (rc == KV_E_BUSY) {
        return false;
    }
    if (rc != KV_OK) {
        return end(lane, op, i, result_of_room(rc));
    }
    lane->budget_bytes -= plaintext < lane->budget_bytes ? plaintext : lane->budget_bytes;
    rc = seal(lane, op, i, slot);
    if (rc == KV_OK) {
        rc = publish(lane, op, i, slot);
    }
    if (rc != KV_OK) {
        kv_dram_give(lane->dram, slot);
        return end(lane, op, i, rc == KV_E_LIMIT ? KV_BLOCK_BUSY : KV_BLOCK_FAILED);
    }
    op->blocks[i].step = STEP_SEALED;
    if (KV_FAULT("engine/offload/published")) {
        kv_room_kill(lane, op->blocks[i].entry);
        return end(lane, op, i, KV_BLOCK_FAILED);
    }
    return step_down(lane, op, i);
}

static bool step_new(struct lane *lane, struct op *op, uint32_t i)
{
    enum kv_block_result result = KV_BLOCK_PENDING;
    bool ended = false;
    if (!kv_op_may_begin(lane, op, &result)) {
        return end(lane, op, i, result);
    }
    if (wants_durable(op) && !may_write_down(lane, op)) {
        return end(lane, op, i, KV_BLOCK_DENIED);
    }
    if (!kv_keyring_lease_valid(lane->keyring)) {
        op->rc = KV_E_LEASE_EXPIRED;
        return end(lane, op, i, KV_BLOCK_FAILED);
    }
    struct entry *entry = kv_index_find(lane->index, &op->transfer->scope, &op->transfer->block_ids[i]);
    if (entry != NULL && step_present(lane, op, i, entry, &ended)) {
        return ended;
    }
    return has_quota(lane, op) ? store(lane, op, i) : over_quota(lane, op, i);
}

bool kv_offload_step(struct lane *lane, struct op *op, uint32_t i)
{
    return op->blocks[i].step == STEP_NEW ? step_new(lane, op, i) : step_down(lane, op, i);
}

/* Unless another operation has answered for it since. */
static void undo_block(struct lane *lane, const struct op *op, uint32_t i)
{
    if (!op->blocks[i].fresh) {
        return;
    }
    struct entry *entry = kv_index_find(lane->index, &op->transfer->scope, &op->transfer->block_ids[i]);
    if (entry != NULL && entry->writer == op->serial && !entry->shared) {
        kv_room_kill(lane, entry);
    }
}

/* Nothing that is not on record stays. */
void kv_offload_undo(struct lane *lane, struct op *op)
{
    for (uint32_t i = 0; i < op->transfer->count; i++) {
        undo_block(lane, op, i);
    }
}

bool kv_offload_blocks_done(struct lane *lane, struct op *op)
{
    const struct kv_transfer *transfer = op->transfer;
    uint32_t done = 0;
    enum kv_tier_id lowest = KV_TIER_NONE;
    for (uint32_t i = 0; i < transfer->count; i++) {
        if (transfer->results[i] == KV_BLOCK_STORED || transfer->results[i] == KV_BLOCK_PRESENT) {
            op->recorded_ids[done++] = transfer->block_ids[i];
            lowest = transfer->tiers[i] > lowest ? (enum kv_tier_id)transfer->tiers[i] : lowest;
        } else {
            undo_block(lane, op, i); /* a store that failed is never found later, and is on no record */
        }
    }
    if (done == 0) {
        return false;
    }
    if (kv_op_record(lane, op, done, lowest) != KV_OK) {
        kv_op_refuse(lane, op, KV_E_AUDIT_UNAVAILABLE);
        kv_offload_undo(lane, op);
        return false;
    }
    return true;
}

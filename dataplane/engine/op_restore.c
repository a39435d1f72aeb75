/*
 * Restore: find, fetch, and only when the record of it is on stable storage and the lease still holds, verify, open and
 * scatter. No byte reaches a page before all of its block is verified: kv_sealed_open opens into staging and copies
 * from there.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/engine/lane_int.h"

#include <string.h>

static bool end(struct lane *lane, struct op *op, uint32_t i, enum kv_block_result result)
{
    kv_op_end_block(lane, op, i, result);
    return true;
}

static struct entry *find(struct lane *lane, const struct op *op, uint32_t i)
{
    struct entry *entry = kv_index_find(lane->index, &op->transfer->scope, &op->transfer->block_ids[i]);
    /* Another size is another layout: a miss, found without reading a byte. */
    return entry != NULL && entry->bytes == kv_sealed_bytes(kv_pool_block_bytes(op->pool)) ? entry : NULL;
}

/* The record names what is about to be opened and is written while the bytes are fetched. */
bool kv_restore_locate(struct lane *lane, struct op *op)
{
    uint32_t found = 0;
    enum kv_tier_id lowest = KV_TIER_NONE;
    if (op->located) {
        return !op->refused;
    }
    op->located = true;
    for (uint32_t i = 0; i < op->transfer->count; i++) {
        const struct entry *entry = find(lane, op, i);
        if (entry != NULL) {
            enum kv_tier_id tier = entry->slot != NULL ? KV_TIER_DRAM : KV_TIER_NVME;
            lowest = tier > lowest ? tier : lowest;
            op->recorded_ids[found++] = op->transfer->block_ids[i];
        }
    }
    if (found > 0 && kv_op_record(lane, op, found, lowest) != KV_OK) {
        kv_op_refuse(lane, op, KV_E_AUDIT_UNAVAILABLE);
        return false;
    }
    return true;
}

static bool no_replica(struct lane *lane, struct op *op, uint32_t i)
{
    if (op->blocks[i].tainted) {
        return end(lane, op, i, KV_BLOCK_QUARANTINED);
    }
    return end(lane, op, i, op->fenced ? KV_BLOCK_ERASED : KV_BLOCK_MISSING);
}

/* Gets the bytes into dram. True: ended. */
static bool fetch(struct lane *lane, struct op *op, uint32_t i)
{
    struct op_block *block = &op->blocks[i];
    struct entry *entry = block->entry;
    if (entry->fetching) {
        block->from_nvme = true;
        return false;
    }
    if (!entry->on_nvme) {
        return no_replica(lane, op, i);
    }
    if (block->asked && entry->get_errors > 0) {
        return end(lane, op, i, KV_BLOCK_FAILED);
    }
    enum kv_block_result result = KV_BLOCK_PENDING;
    if (!kv_op_may_begin(lane, op, &result)) {
        return end(lane, op, i, result);
    }
    enum kv_err rc = kv_room_get(lane, entry);
    if (rc == KV_OK) {
        block->asked = true;
        block->from_nvme = true;
    }
    if (rc == KV_OK || rc == KV_E_BUSY) {
        return false;
    }
    return end(lane, op, i, rc == KV_E_NO_SPACE ? KV_BLOCK_BUSY : KV_BLOCK_FAILED);
}

static uint64_t record_integrity(struct lane *lane, const struct op *op, const struct entry *entry, enum kv_err cause)
{
    uint64_t seq = 0;
    if (lane->sink == NULL) {
        return 0;
    }
    struct kv_transfer_record record = {
        .kind = KV_RECORD_INTEGRITY,
        .op = op->transfer->op,
        .tenant = op->transfer->tenant,
        .scope = op->transfer->scope,
        .tier = entry->slot_verified ? KV_TIER_DRAM : KV_TIER_NVME,
        .blocks = 1,
        .bytes = entry->plaintext_bytes,
        .realtime_us = lane->env->realtime_us(lane->env->ctx),
        .outcome = cause,
        .block_ids = &entry->block_id,
    };
    KV_IGNORE(lane->sink->append(lane->sink->ctx, &record, &seq), "the log line and the metric tell it, too");
    return seq;
}

/* The entry went while we held it: another operation found it bad, it was dropped, or our own read found it cut off. */
static bool died(struct lane *lane, struct op *op, uint32_t i)
{
    struct op_block *block = &op->blocks[i];
    struct entry *entry = block->entry;
    if (block->asked && !block->tainted && kv_err_class_of(entry->get_rc) == KV_CLASS_INTEGRITY) {
        block->tainted = true;
        lane->stats.quarantined++;
        entry->hold_seq = record_integrity(lane, op, entry, entry->get_rc);
    }
    return no_replica(lane, op, i);
}

/*
 * A dram copy that once opened, or was sealed here, can only have gone bad in dram: nvme may still be good. One that
 * came from nvme and never opened says that both are bad.
 */
static bool quarantine(struct lane *lane, struct op *op, uint32_t i, enum kv_err cause)
{
    struct op_block *block = &op->blocks[i];
    struct entry *entry = block->entry;
    bool only_dram = entry->slot_verified && entry->on_nvme;
    kv_log(KV_LOG_ERROR, "engine", "replica_quarantined", KV_FRC(cause),
           KV_FT("tier", entry->slot_verified ? "dram" : "nvme"), KV_FID("session", "ses", &entry->scope_id));
    lane->stats.quarantined++;
    kv_stats_integrity(lane, entry->slot_verified ? KV_TIER_DRAM : KV_TIER_NVME, cause);
    uint64_t seq = record_integrity(lane, op, entry, cause);
    block->tainted = true;
    if (only_dram) {
        kv_room_free_slot(lane, entry);
        return false; /* the next step fetches from nvme */
    }
    entry->hold_seq = seq;
    kv_room_kill(lane, entry);
    return no_replica(lane, op, i);
}

/* The commitment did not fit. Sealed under another layout by this very key: a miss, and the replica is in order. */
static bool is_other_layout(const struct op *op, struct entry *entry, const struct kv_sealed_context *wanted)
{
    struct kv_sealed_context context;
    struct kv_bytes header = KV_BYTES(entry->slot, entry->bytes);
    if (kv_sealed_peek(header, &context) != KV_OK || context.kind != wanted->kind || context.seq != wanted->seq ||
        !kv_id_equal(&context.tenant, &wanted->tenant) || !kv_id_equal(&context.scope, &wanted->scope) ||
        memcmp(&context.block_id, &wanted->block_id, sizeof wanted->block_id) != 0 ||
        kv_sealed_bytes(context.plaintext_length) != entry->bytes) {
        return false;
    }
    header.len = kv_sealed_header_bytes(context.plaintext_length);
    if (kv_sealed_check(op->keys.block, &context, header) != KV_OK) {
        return false;
    }
    memcpy(entry->layout, context.layout, sizeof entry->layout);
    entry->layout_known = true;
    kv_index_set_plaintext(entry, context.plaintext_length);
    return true;
}

static bool open_block(struct lane *lane, struct op *op, uint32_t i)
{
    struct op_block *block = &op->blocks[i];
    struct entry *entry = block->entry;
    uint64_t plaintext = kv_pool_block_bytes(op->pool);
    struct kv_sealed_context context = kv_op_context(op, &entry->block_id);
    if (plaintext > lane->staging_bytes || !kv_pool_segments(op->pool, op->transfer->slots[i], lane->segments)) {
        return end(lane, op, i, KV_BLOCK_FAILED);
    }
    lane->budget_bytes -= plaintext < lane->budget_bytes ? plaintext : lane->budget_bytes;
    uint64_t begun = kv_now_ns(lane->env);
    enum kv_err rc = kv_sealed_open(lane->sealer, op->keys.block, &context, entry->slot, entry->bytes, lane->staging,
                                    lane->staging_bytes, lane->segments, kv_pool_region_count(op->pool));
    if (rc == KV_OK) {
        kv_stats_seal(lane, LANE_OPEN, plaintext, begun);
        KV_IGNORE((KV_FAULT("engine/restore/opened") ? KV_E_IO : KV_OK), "a place to kill; the page is written by now");
        entry->slot_verified = true;
        entry->get_errors = 0;
        entry->layout_known = true;
        memcpy(entry->layout, context.layout, sizeof entry->layout);
        kv_index_set_plaintext(entry, plaintext);
        op->transfer->tiers[i] = block->from_nvme ? KV_TIER_NVME : KV_TIER_DRAM;
        return end(lane, op, i, KV_BLOCK_RESTORED);
    }
    if (rc == KV_E_WRONG_KEY && is_other_layout(op, entry, &context)) {
        return end(lane, op, i, KV_BLOCK_MISSING);
    }
    if (kv_err_class_of(rc) == KV_CLASS_INTEGRITY) {
        return quarantine(lane, op, i, rc);
    }
    return end(lane, op, i, KV_BLOCK_FAILED);
}

/* The last gate before plaintext. */
static bool release(struct lane *lane, struct op *op, uint32_t i)
{
    if (op->fenced) {
        return end(lane, op, i, KV_BLOCK_ERASED);
    }
    if (!kv_op_recorded(lane, op)) {
        if (kv_lane_gave_up(lane) || kv_op_past_deadline(lane, op)) {
            kv_op_refuse(lane, op, KV_E_AUDIT_UNAVAILABLE);
            return true;
        }
        return false;
    }
    if (!kv_keyring_lease_valid(lane->keyring)) {
        end(lane, op, i, KV_BLOCK_FAILED);
        op->rc = KV_E_LEASE_EXPIRED;
        return true;
    }
    if (lane->budget_bytes == 0) {
        lane->progress++;
        return false;
    }
    return open_block(lane, op, i);
}

static bool begin(struct lane *lane, struct op *op, uint32_t i, enum kv_block_result *ret_result)
{
    struct op_block *block = &op->blocks[i];
    if (!kv_op_may_begin(lane, op, ret_result)) {
        return false;
    }
    struct entry *entry = find(lane, op, i);
    if (entry == NULL) {
        *ret_result = KV_BLOCK_MISSING;
        return false;
    }
    kv_index_pin(lane->index, entry);
    block->entry = entry;
    block->step = STEP_HELD;
    return true;
}

bool kv_restore_step(struct lane *lane, struct op *op, uint32_t i)
{
    struct op_block *block = &op->blocks[i];
    enum kv_block_result result = KV_BLOCK_PENDING;
    if (block->step == STEP_NEW && !begin(lane, op, i, &result)) {
        return end(lane, op, i, result);
    }
    if (block->entry->dead) {
        return died(lane, op, i);
    }
    return block->entry->slot == NULL ? fetch(lane, op, i) : release(lane, op, i);
}

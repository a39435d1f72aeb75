/*
 * Questions and orders to the lane: lookup, fence, drop, sample, usage, the lists, close pool, drain. Those that can be
 * answered at once are; the others wait on lane.controls and are looked at in each poll, until they are done or their
 * deadline has passed. Every control is answered exactly once: it lives on the asker's stack.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"
#include "dataplane/engine/lane_int.h"

#include <string.h>

#define DROP_PER_POLL 512u
#define LIST_PER_POLL 1024u

/* Where a list goes on in the next poll: pinned, so that it stays where it is unless it dies. */
static void move_cursor(struct lane *lane, struct control *control, struct entry *entry)
{
    if (control->cursor != NULL) {
        kv_room_unpin(lane, control->cursor);
    }
    if (entry != NULL) {
        kv_index_pin(lane->index, entry);
    }
    control->cursor = entry;
}

static void answer(struct lane *lane, struct control *control, enum kv_err rc)
{
    kv_list_remove(&control->waiting);
    for (uint32_t i = 0; i < control->sampled_count; i++) {
        if (control->sampled[i] != NULL) {
            kv_room_unpin(lane, control->sampled[i]);
        }
    }
    move_cursor(lane, control, NULL);
    lane->progress++;
    control->rc = rc;
    control->answered = true;
    if (control->future != NULL) {
        kv_future_set(control->future, rc); /* the last touch: the asker may be gone after it */
    }
}

static void lookup(struct lane *lane, struct control *control)
{
    for (uint32_t i = 0; i < control->count; i++) {
        const struct entry *entry = kv_index_find(lane->index, control->scope, &control->block_ids[i]);
        unsigned mask = 0;
        if (entry != NULL) {
            mask |= entry->slot != NULL ? 1u << KV_TIER_DRAM : 0;
            mask |= entry->on_nvme ? 1u << KV_TIER_NVME : 0;
        }
        control->ret_tiers[i] = (uint8_t)mask;
    }
}

static void usage(struct lane *lane, struct control *control)
{
    struct kv_scope_usage *sum = &control->usage;
    *sum = (struct kv_scope_usage){.blocks = 0};
    for (uint32_t i = 0; i < control->count; i++) {
        const struct scope *scope = kv_index_scope_find(lane->index, &control->scope[i]);
        if (scope != NULL) {
            sum->blocks += scope->usage.blocks;
            sum->dram_blocks += scope->usage.dram_blocks;
            sum->nvme_blocks += scope->usage.nvme_blocks;
            sum->dram_bytes += scope->usage.dram_bytes;
            sum->nvme_bytes += scope->usage.nvme_bytes;
            sum->plaintext_bytes += scope->usage.plaintext_bytes;
        }
    }
}

static struct entry *entry_at(struct link *link)
{
    return LINK_OF(link, struct entry, in_scope);
}

/* Questions may let a buffer grow: they are not on the path of a transfer. */
static void append(const struct lane *lane, struct kv_buf *buf, const void *data, size_t len)
{
    kv_mem_forbid(false);
    kv_buf_append(buf, data, len);
    kv_mem_forbid(lane->engine->threaded);
}

/* A part in each poll, into a buffer that has room. When the entry to go on with died meanwhile, all of it again. */
static bool blocks_done(struct lane *lane, struct control *control)
{
    struct scope *scope = kv_index_scope_find(lane->index, control->scope);
    if (scope == NULL) {
        return true;
    }
    if (control->cursor != NULL && control->cursor->dead) {
        move_cursor(lane, control, NULL);
        kv_buf_reset(control->ret_buf);
    }
    struct link *link = control->cursor != NULL ? &control->cursor->in_scope : scope->blocks.next;
    for (unsigned i = 0; i < LIST_PER_POLL && link != &scope->blocks; i++, link = link->next) {
        append(lane, control->ret_buf, &entry_at(link)->block_id, sizeof(struct kv_block_id));
    }
    if (link == &scope->blocks || control->ret_buf->failed) {
        return true;
    }
    move_cursor(lane, control, entry_at(link));
    lane->progress++; /* there is more to list */
    return false;
}

static KV_RC assign(struct lane *lane, const struct control *control)
{
    struct scope *scope = kv_index_scope_find(lane->index, control->scope);
    return scope == NULL ? KV_OK : kv_quota_assign(lane->index, scope, control->tenant);
}

static void tenant_bytes(struct lane *lane, struct control *control)
{
    const struct account *account = kv_quota_find(lane->index, control->tenant);
    if (account != NULL) {
        memcpy(control->tenant_bytes, account->used, sizeof control->tenant_bytes);
    }
}

static void scopes(struct lane *lane, struct control *control)
{
    const struct index *index = lane->index;
    for (uint32_t cell = 0; cell <= index->by_scope.mask && control->blocks < control->scopes_max; cell++) {
        if (index->by_scope.cells[cell] == 0) {
            continue;
        }
        const struct scope *scope = &index->scopes[index->by_scope.cells[cell] - 1];
        if (!kv_list_empty(&scope->blocks)) {
            if (control->ret_usages != NULL) {
                control->ret_usages[control->blocks] = scope->usage;
            }
            control->ret_scopes[control->blocks++] = scope->id;
        }
    }
}

/* ---- fence ---- */

/* A fence may be forgotten once the keyring refuses the scope for good by itself. */
static void forget_fences(struct lane *lane)
{
    struct link *head = &lane->index->fenced;
    for (struct link *l = head->next, *next = NULL; l != head; l = next) {
        struct scope *scope = LINK_OF(l, struct scope, fenced);
        struct kv_scope_keys keys;
        next = l->next;
        enum kv_err rc = kv_keyring_borrow(lane->keyring, &scope->id, &keys);
        if (rc == KV_OK) {
            kv_keyring_return(lane->keyring, &keys);
        }
        if (rc == KV_E_SESSION_ERASED && scope->operations == 0) {
            kv_list_remove(&scope->fenced);
            scope->is_fenced = false;
            lane->index->fenced_count--;
            kv_index_scope_release(lane->index, scope);
        }
    }
}

static KV_RC begin_fence(struct lane *lane, struct control *control)
{
    struct scope *scope = NULL;
    if (lane->index->fenced_count >= FENCED_MAX) {
        forget_fences(lane);
    }
    if (lane->index->fenced_count >= FENCED_MAX || kv_index_scope_get(lane->index, control->scope, &scope) != KV_OK) {
        return KV_E_BUSY;
    }
    if (!scope->is_fenced) {
        scope->is_fenced = true;
        lane->index->fenced_count++;
        kv_list_append(&lane->index->fenced, &scope->fenced);
    }
    for (struct link *l = lane->operations.next; l != &lane->operations; l = l->next) {
        struct op *op = LINK_OF(l, struct op, in_lane);
        op->fenced = op->fenced || op->scope == scope;
    }
    return KV_OK;
}

static bool fence_done(struct lane *lane, struct control *control)
{
    const struct scope *scope = kv_index_scope_find(lane->index, control->scope);
    return scope == NULL || scope->operations == 0;
}

/* ---- drop ---- */

/* Kills what is there, a part in each poll, and is done when every replica was given back. */
static bool drop_done(struct lane *lane, struct control *control)
{
    if (KV_FAULT("engine/undropped")) {
        return true;
    }
    struct scope *scope = kv_index_scope_find(lane->index, control->scope);
    for (unsigned i = 0; scope != NULL && i < DROP_PER_POLL && !kv_list_empty(&scope->blocks); i++) {
        struct entry *entry = entry_at(scope->blocks.next);
        kv_room_kill(lane, entry);
        control->blocks++;
    }
    kv_room_graves(lane);
    scope = kv_index_scope_find(lane->index, control->scope);
    return scope == NULL || (kv_list_empty(&scope->blocks) && scope->graves == 0);
}

static bool dropped_done(struct lane *lane, struct control *control)
{
    return lane->nvme == NULL || lane->nvme->ops->dropped(lane->nvme, &control->mark);
}

/* ---- sample ---- */

static void begin_sample(struct lane *lane, struct control *control)
{
    struct scope *scope = kv_index_scope_find(lane->index, control->scope);
    if (scope == NULL) {
        return;
    }
    uint32_t max = control->count < SAMPLE_MAX ? control->count : SAMPLE_MAX;
    for (struct link *l = scope->blocks.next; l != &scope->blocks && control->sampled_count < max; l = l->next) {
        struct entry *entry = entry_at(l);
        if (control->tier != KV_TIER_NONE && (control->tier == KV_TIER_DRAM) != (entry->slot != NULL)) {
            continue;
        }
        kv_index_pin(lane->index, entry);
        control->sampled[control->sampled_count++] = entry;
    }
}

static void copy_header(const struct lane *lane, struct control *control, const struct entry *entry)
{
    struct kv_sealed_context context;
    if (kv_sealed_peek(KV_BYTES(entry->slot, entry->bytes), &context) != KV_OK) {
        return; /* damaged: no header that a key could be held against */
    }
    uint32_t len = kv_sealed_header_bytes(context.plaintext_length);
    if (len <= entry->bytes) {
        append(lane, control->ret_buf, entry->slot, len);
        control->ret_lens[control->blocks++] = len;
    }
}

/* True when the entry is dealt with. */
static bool sample_one(struct lane *lane, struct control *control, uint32_t i)
{
    struct entry *entry = control->sampled[i];
    if (entry->dead || (entry->slot == NULL && !entry->on_nvme)) {
        return true;
    }
    if (entry->slot != NULL) {
        copy_header(lane, control, entry);
        return true;
    }
    if (entry->fetching) {
        return false;
    }
    if (control->read_asked[i]) {
        return true; /* was read and did not come */
    }
    enum kv_err rc = kv_room_get(lane, entry);
    control->read_asked[i] = rc == KV_OK;
    return rc != KV_OK && rc != KV_E_BUSY;
}

static bool sample_done(struct lane *lane, struct control *control)
{
    bool done = true;
    for (uint32_t i = 0; i < control->sampled_count; i++) {
        if (control->sampled[i] == NULL) {
            continue;
        }
        if (!sample_one(lane, control, i)) {
            done = false;
            continue;
        }
        kv_room_unpin(lane, control->sampled[i]);
        control->sampled[i] = NULL;
    }
    return done;
}

/* ---- pools and drain ---- */

static bool close_pool_done(struct lane *lane, struct control *control)
{
    bool used = false;
    for (struct link *l = lane->operations.next; l != &lane->operations; l = l->next) {
        struct op *op = LINK_OF(l, struct op, in_lane);
        if (op->pool == control->pool) {
            op->cancelled = true;
            used = true;
        }
    }
    return !used;
}

static void free_clean(struct lane *lane, struct control *control)
{
    struct link *head = &lane->index->ranks[RANK_CLEAN];
    while (!kv_list_empty(head)) {
        kv_room_free_slot(lane, LINK_OF(head->next, struct entry, in_dram));
        control->blocks++;
    }
}

/* Writes down what it can in each poll. Blocks kept from nvme by policy stay; they are not in the way of the answer. */
static bool drain_done(struct lane *lane, struct control *control, enum kv_err *ret_rc)
{
    struct link *dirty = &lane->index->ranks[RANK_DIRTY];
    free_clean(lane, control);
    *ret_rc = lane->nvme == NULL && !kv_list_empty(&lane->index->ranks[RANK_KEPT]) ? KV_E_NO_SPACE : KV_OK;
    while (!kv_list_empty(dirty)) {
        if (!kv_room_nvme_ready(lane)) {
            *ret_rc = KV_E_NO_SPACE;
            break;
        }
        struct entry *entry = LINK_OF(dirty->next, struct entry, in_dram);
        enum kv_err rc = kv_room_put(lane, entry, false, false);
        if (rc == KV_E_BUSY) {
            return false;
        }
        if (rc == KV_E_NO_SPACE && entry->no_nvme) {
            continue; /* its tenant has no quota left there: it stays, like what policy keeps */
        }
        if (rc != KV_OK) {
            *ret_rc = rc == KV_E_NO_SPACE ? rc : KV_E_IO;
            break;
        }
    }
    return lane->ios_running == 0 && lane->index->pinned_slots == 0;
}

/* A poll looks at so many entries and drops so many: transfers go on meanwhile. */
#define DRAIN_LOOKS 4096u
#define DRAIN_DROPS 64u

/* Round after round over all entries, until one found none on nvme: what is in use goes in a later one. */
static bool drain_nvme_done(struct lane *lane, struct control *control)
{
    struct index *index = lane->index;
    unsigned drops = 0;
    for (unsigned looks = 0; lane->nvme != NULL && looks < DRAIN_LOOKS && drops < DRAIN_DROPS; looks++) {
        if (control->place == index->entries_max) {
            if (!control->in_use) {
                return true;
            }
            control->place = 0;
            control->in_use = false;
            lane->retry_soon = true;
            return false;
        }
        struct entry *entry = &index->entries[control->place++];
        if (entry->on_nvme && kv_room_drop_nvme(lane, entry)) {
            control->blocks++;
            drops++;
        } else if (entry->on_nvme || entry->writing) {
            control->in_use = true;
        }
    }
    lane->progress++; /* there is more to look at */
    return lane->nvme == NULL;
}

/* ---- all of them ---- */

static bool advance(struct lane *lane, struct control *control, enum kv_err *ret_rc)
{
    *ret_rc = KV_OK;
    switch (control->kind) {
    case CONTROL_FENCE:
        return fence_done(lane, control);
    case CONTROL_DROP:
        return drop_done(lane, control);
    case CONTROL_DROPPED:
        return dropped_done(lane, control);
    case CONTROL_SAMPLE:
        if (sample_done(lane, control)) {
            *ret_rc = kv_buf_check(control->ret_buf);
            return true;
        }
        return false;
    case CONTROL_CLOSE_POOL:
        return close_pool_done(lane, control);
    case CONTROL_DRAIN:
        return drain_done(lane, control, ret_rc);
    case CONTROL_DRAIN_NVME:
        return drain_nvme_done(lane, control);
    case CONTROL_BLOCKS:
        if (blocks_done(lane, control)) {
            *ret_rc = kv_buf_check(control->ret_buf);
            return true;
        }
        return false;
    case CONTROL_CLOSE_NVME:
    case CONTROL_LOOKUP:
    case CONTROL_USAGE:
    case CONTROL_ASSIGN:
    case CONTROL_TENANT:
    case CONTROL_SCOPES:
        break;
    }
    return true;
}

static KV_RC begin(struct lane *lane, struct control *control)
{
    switch (control->kind) {
    case CONTROL_LOOKUP:
        lookup(lane, control);
        return KV_OK;
    case CONTROL_USAGE:
        usage(lane, control);
        return KV_OK;
    case CONTROL_ASSIGN:
        return assign(lane, control);
    case CONTROL_TENANT:
        tenant_bytes(lane, control);
        return KV_OK;
    case CONTROL_BLOCKS:
        return KV_OK;
    case CONTROL_SCOPES:
        scopes(lane, control);
        return KV_OK;
    case CONTROL_FENCE:
        return begin_fence(lane, control);
    case CONTROL_DROP:
        return KV_FAULT("engine/drop") ? KV_E_IO : KV_OK;
    case CONTROL_SAMPLE:
        begin_sample(lane, control);
        return KV_OK;
    case CONTROL_CLOSE_POOL:
        kv_pool_close(control->pool);
        return KV_OK;
    case CONTROL_CLOSE_NVME:
        lane->nvme_closed = control->closed;
        return KV_OK;
    case CONTROL_DROPPED:
    case CONTROL_DRAIN:
    case CONTROL_DRAIN_NVME:
        return KV_OK;
    }
    return KV_E_INTERNAL;
}

static void advance_or_wait(struct lane *lane, struct control *control)
{
    enum kv_err rc = KV_OK;
    if (advance(lane, control, &rc)) {
        answer(lane, control, rc);
    } else if (kv_now_ns(lane->env) >= control->deadline_ns) {
        answer(lane, control, KV_E_TIMEOUT);
    }
}

void kv_control_begin(struct lane *lane, struct control *control)
{
    enum kv_err rc = lane->stopping ? KV_E_SHUTTING_DOWN : begin(lane, control);
    kv_list_append(&lane->controls, &control->waiting);
    if (rc != KV_OK) {
        answer(lane, control, rc);
        return;
    }
    advance_or_wait(lane, control);
}

void kv_controls_advance(struct lane *lane)
{
    for (struct link *l = lane->controls.next, *next = NULL; l != &lane->controls; l = next) {
        next = l->next;
        advance_or_wait(lane, LINK_OF(l, struct control, waiting));
    }
}

void kv_controls_abort(struct lane *lane)
{
    while (!kv_list_empty(&lane->controls)) {
        answer(lane, LINK_OF(lane->controls.next, struct control, waiting), KV_E_SHUTTING_DOWN);
    }
}

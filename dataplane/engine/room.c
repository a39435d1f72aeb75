/*
 * Room: dram slots for whoever needs one, demotion of cold blocks, reads and writes at the nvme tier. It must never
 * free a slot that a tier reads from or writes to, and never evict a block that was promised as durable.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/engine/lane_int.h"

#define PROTECTED_SCAN 64 /* entries looked at before an eviction gives up */

bool kv_room_nvme_ready(const struct lane *lane)
{
    if (lane->nvme == NULL || lane->nvme_closed) {
        return false;
    }
    struct kv_tier_stats stats = {.up = false};
    lane->nvme->ops->stats(lane->nvme, &stats);
    return stats.up;
}

static struct placement_facts facts_of(struct lane *lane)
{
    struct kv_dram_stats dram;
    kv_dram_stats(lane->dram, &dram);
    const struct index *index = lane->index;
    if (lane->nvme_full && kv_now_ns(lane->env) - lane->nvme_full_ns > KV_S_NS) {
        lane->nvme_full = false; /* look again now and then: others may have freed something */
    }
    return (struct placement_facts){
        .capacity_bytes = dram.capacity_bytes,
        .used_bytes = dram.used_bytes,
        .leaving_bytes = lane->leaving_bytes,
        .high_percent = lane->high_percent,
        .low_percent = lane->low_percent,
        .lowering = lane->lowering,
        .clean = !kv_list_empty(&index->ranks[RANK_CLEAN]),
        .dirty = !kv_list_empty(&index->ranks[RANK_DIRTY]),
        .kept = !kv_list_empty(&index->ranks[RANK_KEPT]),
        .nvme_ready = kv_room_nvme_ready(lane),
        .nvme_full = lane->nvme_full,
        .can_write =
            lane->free_ios != NULL && lane->write_downs<WRITE_DOWN_MAX, .room_coming = index->pinned_slots> 0 ||
            lane->ios_running > 0,
    };
}

static struct entry *coldest(struct lane *lane, enum entry_rank rank)
{
    struct link *head = &lane->index->ranks[rank];
    return kv_list_empty(head) ? NULL : LINK_OF(head->next, struct entry, in_dram);
}

void kv_room_free_slot(struct lane *lane, struct entry *entry)
{
    KV_ASSERT(!entry->writing && !entry->fetching);
    uint8_t *slot = entry->slot;
    kv_index_set_slot(lane->index, entry, NULL);
    entry->slot_verified = false;
    kv_dram_give(lane->dram, slot);
    lane->progress++;
}

/* An operation's own blocks are not forgotten before it has answered for them. */
static bool is_fresh(const struct lane *lane, const struct entry *entry)
{
    if (entry->writer == 0) {
        return false;
    }
    for (struct link *l = lane->operations.next; l != &lane->operations; l = l->next) {
        if (LINK_OF(l, struct op, in_lane)->serial == entry->writer) {
            return true;
        }
    }
    return false;
}

static bool evict_of(struct lane *lane, enum entry_rank rank)
{
    struct link *head = &lane->index->ranks[rank];
    struct link *link = head->next;
    for (unsigned i = 0; i < PROTECTED_SCAN && link != head; i++, link = link->next) {
        struct entry *entry = LINK_OF(link, struct entry, in_dram);
        if (!is_fresh(lane, entry)) {
            lane->stats.evicted++;
            kv_metric_add(lane->metrics.evictions[0], 1);
            kv_room_free_slot(lane, entry);
            kv_room_kill(lane, entry);
            return true;
        }
    }
    return false;
}

static KV_RC make_room_once(struct lane *lane)
{
    struct placement_facts facts = facts_of(lane);
    switch (kv_placement_make_room(&facts)) {
    case PLACE_FREE_CLEAN:
        kv_room_free_slot(lane, coldest(lane, RANK_CLEAN));
        return KV_OK;
    case PLACE_WRITE_DOWN:
        if (kv_room_put(lane, coldest(lane, RANK_DIRTY), false, true) == KV_E_NO_SPACE) {
            return KV_OK; /* nvme_full is set now: the next look says what else can be done */
        }
        return KV_E_BUSY;
    case PLACE_WAIT:
        return KV_E_BUSY;
    case PLACE_EVICT:
        if (evict_of(lane, RANK_KEPT) || evict_of(lane, RANK_DIRTY)) {
            return KV_OK;
        }
        return facts.room_coming ? KV_E_BUSY : KV_E_NO_SPACE;
    case PLACE_NOTHING:
        break;
    }
    return KV_E_NO_SPACE;
}

KV_RC kv_room_take(struct lane *lane, uint64_t bytes, uint8_t **ret_slot)
{
    /* Slots of other sizes share the slabs, so one freed slot need not be enough; bounded by what there is to free. */
    for (uint32_t i = 0; i <= lane->index->entries_max; i++) {
        enum kv_err rc = kv_dram_take(lane->dram, bytes, ret_slot);
        if (rc != KV_E_NO_SPACE) {
            return rc;
        }
        rc = make_room_once(lane);
        if (rc == KV_E_BUSY) {
            lane->retry_soon = true;
        }
        KV_TRY(rc);
    }
    return KV_E_NO_SPACE;
}

void kv_room_lower(struct lane *lane)
{
    for (unsigned i = 0; i < WRITE_DOWN_MAX; i++) {
        struct placement_facts facts = facts_of(lane);
        lane->lowering = kv_placement_lowering(&facts);
        facts.lowering = lane->lowering;
        enum placement_step step = kv_placement_lower(&facts);
        if (step == PLACE_FREE_CLEAN) {
            kv_room_free_slot(lane, coldest(lane, RANK_CLEAN));
        } else if (step != PLACE_WRITE_DOWN || kv_room_put(lane, coldest(lane, RANK_DIRTY), false, true) != KV_OK) {
            return;
        }
    }
}

/* ---- nvme ---- */

static struct lane_io *io_take(struct lane *lane)
{
    struct lane_io *io = lane->free_ios;
    if (io != NULL) {
        lane->free_ios = io->next_free;
        lane->ios_running++;
    }
    return io;
}

static void io_give(struct lane *lane, struct lane_io *io)
{
    io->entry = NULL;
    io->next_free = lane->free_ios;
    lane->free_ios = io;
    KV_ASSERT(lane->ios_running > 0);
    lane->ios_running--;
}

/* Drops the coldest nvme blocks that nobody was promised. Returns how many. */
static unsigned nvme_evict(struct lane *lane, unsigned max)
{
    unsigned n = 0;
    struct link *head = &lane->index->nvme_cold;
    while (n < max && !kv_list_empty(head)) {
        struct entry *entry = LINK_OF(head->next, struct entry, in_nvme);
        struct kv_tier_key key = {.scope = entry->scope_id, .block_id = entry->block_id};
        if (lane->nvme->ops->drop(lane->nvme, &key, entry->where) != KV_OK) {
            break;
        }
        kv_index_set_nvme(lane->index, entry, false, 0);
        lane->stats.evicted++;
        kv_metric_add(lane->metrics.evictions[1], 1);
        if (entry->slot == NULL) {
            kv_room_kill(lane, entry);
        }
        n++;
    }
    return n;
}

/* nvme said that it is full, and that no room is on its way. KV_E_BUSY: now some is. Slots of other sizes share the
 * slabs, so each refusal in a row drops twice as many. */
static KV_RC nvme_make_room(struct lane *lane)
{
    if (nvme_evict(lane, lane->nvme_evict_batch) > 0) {
        lane->nvme_evict_batch = lane->nvme_evict_batch < 64 ? lane->nvme_evict_batch * 2 : 64;
        lane->progress++;
        return KV_E_BUSY;
    }
    lane->nvme_full = true;
    lane->nvme_full_ns = kv_now_ns(lane->env);
    return KV_E_NO_SPACE;
}

KV_RC kv_room_forget_nvme(struct lane *lane, struct entry *entry)
{
    struct kv_tier_key key = {.scope = entry->scope_id, .block_id = entry->block_id};
    struct entry *grave = NULL;
    KV_TRY(kv_index_add_grave(lane->index, &key, entry->bytes, &grave));
    kv_index_set_nvme(lane->index, grave, true, entry->where);
    kv_index_set_nvme(lane->index, entry, false, 0);
    return KV_OK;
}

bool kv_room_drop_nvme(struct lane *lane, struct entry *entry)
{
    struct kv_tier_key key = {.scope = entry->scope_id, .block_id = entry->block_id};
    if (entry->dead || entry->pins > 0 || entry->writing || entry->fetching ||
        lane->nvme->ops->drop(lane->nvme, &key, entry->where) != KV_OK) {
        return false;
    }
    kv_index_set_nvme(lane->index, entry, false, 0);
    if (entry->slot == NULL) {
        kv_room_kill(lane, entry);
    }
    lane->progress++;
    return true;
}

static void put_done(struct kv_tier_op *tier_op, enum kv_err rc)
{
    struct lane_io *io = tier_op->owner;
    struct lane *lane = io->lane;
    struct entry *entry = io->entry;
    bool leaving = io->leaving;
    lane->progress++;
    if (leaving) {
        lane->leaving_bytes -= entry->bytes;
        lane->write_downs--;
    }
    kv_stats_io(lane, LANE_WRITE, entry->bytes, io->begun_ns, rc);
    entry->writing = false;
    entry->put_rc = rc;
    if (rc != KV_OK) {
        kv_quota_give_back(entry, KV_TIER_NVME);
    }
    if (rc != KV_OK) {
        kv_log(KV_LOG_WARN, "engine", "write_down_failed", KV_FRC(rc));
        kv_index_touch(lane->index, entry);
        io_give(lane, io);
        return;
    }
    lane->nvme_evict_batch = 1;
    lane->stats.demoted += leaving;
    entry->promised = tier_op->promised;
    kv_index_set_nvme(lane->index, entry, true, tier_op->where);
    io_give(lane, io);
    if ((leaving || entry->no_dram) && entry->pins == 0 && !entry->dead) {
        kv_room_free_slot(lane, entry);
    }
}

/* A block that is to be written down on its own account stays in dram until its tenant asks for more; of one that was
 * asked for the caller hears. */
static KV_RC over_quota(struct lane *lane, struct entry *entry, bool promised)
{
    if (promised) {
        return KV_E_QUOTA;
    }
    entry->no_nvme = true;
    kv_index_touch(lane->index, entry);
    return KV_E_NO_SPACE;
}

KV_RC kv_room_put(struct lane *lane, struct entry *entry, bool promised, bool leaving)
{
    KV_ASSERT(entry->slot != NULL && !entry->writing && !entry->on_nvme);
    if (leaving && KV_FAULT("engine/demote/start")) {
        return KV_E_BUSY;
    }
    if (!kv_quota_fits(entry->scope, KV_TIER_NVME, entry->bytes)) {
        return over_quota(lane, entry, promised);
    }
    struct lane_io *io = io_take(lane);
    if (io == NULL) {
        return KV_E_BUSY;
    }
    io->entry = entry;
    io->begun_ns = kv_now_ns(lane->env);
    io->leaving = leaving;
    io->tier_op = (struct kv_tier_op){.kind = KV_TIER_PUT,
                                      .key = {.scope = entry->scope_id, .block_id = entry->block_id},
                                      .data = entry->slot,
                                      .bytes = entry->bytes,
                                      .promised = promised,
                                      .done = put_done,
                                      .owner = io};
    enum kv_err rc = lane->nvme->ops->submit(lane->nvme, &io->tier_op);
    if (rc != KV_OK) {
        io_give(lane, io);
        lane->retry_soon = true;
        if (rc == KV_E_LIMIT) {
            entry->no_nvme = true; /* never fits there: not to be picked again and again */
            kv_index_touch(lane->index, entry);
        }
        return rc == KV_E_NO_SPACE ? nvme_make_room(lane) : rc;
    }
    entry->writing = true;
    kv_quota_charge(entry, KV_TIER_NVME);
    if (leaving) {
        lane->leaving_bytes += entry->bytes;
        lane->write_downs++;
    }
    kv_index_touch(lane->index, entry);
    lane->progress++;
    return KV_OK;
}

static void get_done(struct kv_tier_op *tier_op, enum kv_err rc)
{
    struct lane_io *io = tier_op->owner;
    struct lane *lane = io->lane;
    struct entry *entry = io->entry;
    uint8_t *slot = tier_op->data;
    kv_stats_io(lane, LANE_READ, entry->bytes, io->begun_ns, rc);
    io_give(lane, io);
    lane->progress++;
    entry->fetching = false;
    entry->get_rc = rc;
    if (rc == KV_OK) {
        entry->slot_verified = false;
        kv_index_set_slot(lane->index, entry, slot);
        if (!entry->dead && !entry->no_dram && kv_quota_fits(entry->scope, KV_TIER_DRAM, entry->bytes)) {
            kv_quota_charge(entry, KV_TIER_DRAM);
        }
        lane->stats.promoted++;
        return;
    }
    entry->get_errors++;
    kv_log(KV_LOG_WARN, "engine", "read_failed", KV_FRC(rc));
    kv_dram_give(lane->dram, slot);
    kv_index_touch(lane->index, entry);
    if (!entry->dead && (rc != KV_E_IO || entry->get_errors >= GET_ERRORS_MAX)) {
        if (rc != KV_E_IO) {
            kv_stats_integrity(lane, KV_TIER_NVME, rc);
        }
        kv_room_kill(lane, entry);
    }
}

KV_RC kv_room_get(struct lane *lane, struct entry *entry)
{
    KV_ASSERT(entry->slot == NULL && !entry->fetching && entry->on_nvme && entry->pins > 0);
    if (lane->free_ios == NULL) {
        return KV_E_BUSY;
    }
    uint8_t *slot = NULL;
    KV_TRY(kv_room_take(lane, entry->bytes, &slot));
    struct lane_io *io = io_take(lane);
    if (io == NULL) { /* making room took the last one */
        kv_dram_give(lane->dram, slot);
        return KV_E_BUSY;
    }
    io->entry = entry;
    io->begun_ns = kv_now_ns(lane->env);
    io->leaving = false;
    io->tier_op = (struct kv_tier_op){.kind = KV_TIER_GET,
                                      .key = {.scope = entry->scope_id, .block_id = entry->block_id},
                                      .where = entry->where,
                                      .data = slot,
                                      .bytes = entry->bytes,
                                      .done = get_done,
                                      .owner = io};
    enum kv_err rc = lane->nvme->ops->submit(lane->nvme, &io->tier_op);
    if (rc != KV_OK) {
        io_give(lane, io);
        kv_dram_give(lane->dram, slot);
        lane->retry_soon = true;
        return rc;
    }
    entry->fetching = true;
    kv_index_touch(lane->index, entry);
    lane->progress++;
    return KV_OK;
}

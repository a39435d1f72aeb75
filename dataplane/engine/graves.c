/*
 * The end of an entry: unpinned, dead, given back. A dead entry is found by nobody and waits on the graves until
 * nothing touches its replicas; it must never lose its nvme place before the record that condemned it is durable.
 */
#include "dataplane/engine/lane_int.h"

#define POLL_GRAVES 256u

void kv_room_kill(struct lane *lane, struct entry *entry)
{
    kv_index_kill(lane->index, entry);
    lane->progress++;
}

void kv_room_unpin(struct lane *lane, struct entry *entry)
{
    kv_index_unpin(lane->index, entry);
    if (entry->pins > 0 || entry->dead || entry->writing || entry->fetching) {
        return;
    }
    /* A block that may not rest in dram, or has no quota there, only passed through it. */
    if ((entry->no_dram || !entry->charged[KV_TIER_DRAM]) && entry->on_nvme && entry->slot != NULL) {
        kv_room_free_slot(lane, entry);
    }
}

static bool record_flushed(const struct lane *lane, uint64_t seq)
{
    return seq == 0 || lane->sink == NULL || lane->sink->durable(lane->sink->ctx) >= seq;
}

/* True: freed. False: something still touches it, or its record is not flushed. */
static bool bury(struct lane *lane, struct entry *entry)
{
    if (entry->pins > 0 || entry->writing || entry->fetching) {
        return false;
    }
    if (entry->slot != NULL) {
        kv_room_free_slot(lane, entry);
    }
    if (entry->on_nvme) {
        struct kv_tier_key key = {.scope = entry->scope_id, .block_id = entry->block_id};
        if (!record_flushed(lane, entry->hold_seq)) {
            return false;
        }
        if (lane->nvme->ops->drop(lane->nvme, &key, entry->where) != KV_OK) {
            lane->retry_soon = true;
            return false;
        }
        kv_index_set_nvme(lane->index, entry, false, 0);
        lane->nvme_full = false;
    }
    kv_index_free_entry(lane->index, entry);
    lane->progress++;
    return true;
}

/* Those that cannot go yet move to the end, so that they do not stand before the others. */
void kv_room_graves(struct lane *lane)
{
    struct link *head = &lane->index->graves;
    struct link *last = head->prev;
    struct link *link = head->next;
    for (unsigned i = 0; i < POLL_GRAVES && link != head; i++) {
        struct link *next = link->next;
        bool at_end = link == last;
        if (!bury(lane, LINK_OF(link, struct entry, in_scope))) {
            kv_list_remove(link);
            kv_list_append(head, link);
        }
        if (at_end) {
            return;
        }
        link = next;
    }
}

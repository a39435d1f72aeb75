/*
 * What to do when the dram arena is full: a pure function of facts, so that it is judged by a table of cases. Must
 * never free a copy that is the only one while it can still be written down.
 */
#include "dataplane/engine/placement_int.h"

enum placement_step kv_placement_make_room(const struct placement_facts *facts)
{
    if (facts->clean) {
        return PLACE_FREE_CLEAN;
    }
    bool nvme = facts->nvme_ready && !facts->nvme_full;
    if (facts->dirty && nvme) {
        return facts->can_write ? PLACE_WRITE_DOWN : PLACE_WAIT;
    }
    if (facts->leaving_bytes > 0) {
        return PLACE_WAIT;
    }
    if (facts->dirty || facts->kept) {
        return PLACE_EVICT;
    }
    return facts->room_coming ? PLACE_WAIT : PLACE_NOTHING;
}

static uint64_t percent_of(uint64_t bytes, unsigned percent)
{
    return bytes / 100 * percent + bytes % 100 * percent / 100;
}

bool kv_placement_lowering(const struct placement_facts *facts)
{
    uint64_t staying = facts->used_bytes - facts->leaving_bytes;
    if (facts->used_bytes > percent_of(facts->capacity_bytes, facts->high_percent)) {
        return true;
    }
    return facts->lowering && staying > percent_of(facts->capacity_bytes, facts->low_percent);
}

enum placement_step kv_placement_lower(const struct placement_facts *facts)
{
    uint64_t staying = facts->used_bytes - facts->leaving_bytes;
    if (!facts->lowering || staying <= percent_of(facts->capacity_bytes, facts->low_percent)) {
        return PLACE_NOTHING;
    }
    if (facts->clean) {
        return PLACE_FREE_CLEAN;
    }
    if (facts->dirty && facts->nvme_ready && !facts->nvme_full && facts->can_write) {
        return PLACE_WRITE_DOWN;
    }
    return PLACE_NOTHING;
}

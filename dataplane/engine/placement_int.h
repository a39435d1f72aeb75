/*
 * Placement: what to do next when the dram arena is too full. Pure: facts in, one step out; it never sees an entry, a
 * tier or a clock. This version is LRU: which block a step takes is the coldest of the list that the step names, and
 * operations touch their blocks from last to first, so that within a scope the tail goes before the front.
 */
#ifndef KV_ENGINE_PLACEMENT_INT_H
#define KV_ENGINE_PLACEMENT_INT_H

#include <stdbool.h>
#include <stdint.h>

enum placement_step {
    PLACE_NOTHING,    /* all is well, or nothing can be done */
    PLACE_FREE_CLEAN, /* give back the dram copy of the coldest block that is also on nvme */
    PLACE_WRITE_DOWN, /* write the coldest dram-only block to nvme */
    PLACE_WAIT,       /* room is coming: something is being written or is in use */
    PLACE_EVICT,      /* forget the coldest block that cannot be written down */
};

struct placement_facts {
    uint64_t capacity_bytes, used_bytes;
    uint64_t leaving_bytes; /* being written down to be freed */
    unsigned high_percent, low_percent;
    bool lowering;           /* above high was seen, and low not yet */
    bool clean, dirty, kept; /* is there a block of that rank that nobody uses? */
    bool nvme_ready;         /* takes writes now */
    bool nvme_full;          /* holds only promised blocks */
    bool can_write;          /* an io record is free and the write-down queue is not at its bound */
    bool room_coming;        /* slots in use by operations or moves */
};

/* For an operation that needs a slot and did not get one. */
enum placement_step kv_placement_make_room(const struct placement_facts *facts);
/* In the background, between the watermarks. Never evicts. */
enum placement_step kv_placement_lower(const struct placement_facts *facts);
bool kv_placement_lowering(const struct placement_facts *facts); /* the new value of `lowering` */

#endif

/* The table of cases of placement. */
#include "dataplane/engine/placement_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

struct room_case {
    const char *what;
    struct placement_facts facts;
    enum placement_step step;
};

static const struct room_case room_cases[] = {
    {"a clean copy goes first",
     {.clean = true, .dirty = true, .nvme_ready = true, .can_write = true},
     PLACE_FREE_CLEAN},
    {"then a dirty one is written down", {.dirty = true, .nvme_ready = true, .can_write = true}, PLACE_WRITE_DOWN},
    {"or waits for its turn", {.dirty = true, .nvme_ready = true}, PLACE_WAIT},
    {"what is leaving is awaited before anything is forgotten", {.kept = true, .leaving_bytes = 1}, PLACE_WAIT},
    {"without nvme the coldest is forgotten", {.dirty = true}, PLACE_EVICT},
    {"a full nvme is as good as none",
     {.dirty = true, .nvme_ready = true, .nvme_full = true, .can_write = true},
     PLACE_EVICT},
    {"kept blocks are forgotten when nothing else helps", {.kept = true, .nvme_ready = true}, PLACE_EVICT},
    {"slots in use come back", {.room_coming = true}, PLACE_WAIT},
    {"nothing at all", {.nvme_ready = true}, PLACE_NOTHING},
};

Test(placement, room_is_made_in_the_order_of_least_loss)
{
    for (unsigned i = 0; i < sizeof room_cases / sizeof room_cases[0]; i++) {
        cr_expect(eq(int, kv_placement_make_room(&room_cases[i].facts), room_cases[i].step), "%s", room_cases[i].what);
    }
}

static struct placement_facts dram_at(unsigned percent, bool lowering)
{
    return (struct placement_facts){.capacity_bytes = 1000,
                                    .used_bytes = percent * 10,
                                    .high_percent = 90,
                                    .low_percent = 80,
                                    .lowering = lowering,
                                    .dirty = true,
                                    .nvme_ready = true,
                                    .can_write = true};
}

Test(placement, lowering_begins_above_high_and_ends_at_low)
{
    struct placement_facts facts = dram_at(90, false);
    cr_assert(not(kv_placement_lowering(&facts)));
    facts = dram_at(91, false);
    cr_assert(kv_placement_lowering(&facts));
    facts = dram_at(81, true);
    cr_assert(kv_placement_lowering(&facts));
    facts = dram_at(80, true);
    cr_assert(not(kv_placement_lowering(&facts)));
}

Test(placement, lowering_writes_down_until_what_stays_is_low_and_never_evicts)
{
    struct placement_facts facts = dram_at(91, true);
    cr_assert(eq(int, kv_placement_lower(&facts), PLACE_WRITE_DOWN));
    facts.leaving_bytes = 109;
    cr_assert(eq(int, kv_placement_lower(&facts), PLACE_WRITE_DOWN));
    facts.leaving_bytes = 110;
    cr_assert(eq(int, kv_placement_lower(&facts), PLACE_NOTHING));
    facts = dram_at(91, true);
    facts.nvme_ready = false;
    cr_assert(eq(int, kv_placement_lower(&facts), PLACE_NOTHING));
    facts.clean = true;
    cr_assert(eq(int, kv_placement_lower(&facts), PLACE_FREE_CLEAN));
}

Test(placement, percentages_of_a_huge_arena_do_not_overflow)
{
    struct placement_facts facts = dram_at(0, false);
    facts.capacity_bytes = UINT64_MAX;
    facts.used_bytes = UINT64_MAX / 100 * 89;
    cr_assert(not(kv_placement_lowering(&facts)));
    facts.used_bytes = UINT64_MAX / 100 * 91;
    cr_assert(kv_placement_lowering(&facts));
}

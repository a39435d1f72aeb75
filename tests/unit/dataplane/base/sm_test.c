/* State machines as tables. */
#include "dataplane/base/sm.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>

enum { IDLE, RUNNING, DONE };

static const char *const names[] = {"idle", "running", "done"};
static const uint32_t allowed[] = {[IDLE] = 1u << RUNNING, [RUNNING] = 1u << DONE | 1u << IDLE, [DONE] = 0};
static const struct kv_sm_table table = {.name = "job", .state_names = names, .allowed = allowed, .state_count = 3};

Test(sm, listed_moves_are_made)
{
    struct kv_sm sm;
    kv_sm_init(&sm, &table, IDLE);
    cr_assert(eq(str, (char *)kv_sm_name(&sm), "idle"));
    kv_sm_move(&sm, RUNNING);
    kv_sm_move(&sm, IDLE);
    kv_sm_move(&sm, RUNNING);
    kv_sm_move(&sm, DONE);
    cr_assert(eq(uint, sm.state, DONE));
    cr_assert(eq(str, (char *)kv_sm_name(&sm), "done"));
}

Test(sm, may_answers_for_every_pair)
{
    for (unsigned from = 0; from < 3; from++) {
        for (unsigned to = 0; to < 3; to++) {
            struct kv_sm sm;
            kv_sm_init(&sm, &table, from);
            bool expected = (from == IDLE && to == RUNNING) || (from == RUNNING && to != RUNNING);
            cr_assert(eq(int, kv_sm_may(&sm, to), expected));
        }
    }
}

Test(sm, state_past_the_table_is_never_allowed)
{
    struct kv_sm sm;
    kv_sm_init(&sm, &table, RUNNING);
    cr_assert(not(kv_sm_may(&sm, 3)));
    cr_assert(not(kv_sm_may(&sm, 32)));
    cr_assert(not(kv_sm_may(&sm, 33)));
}

Test(sm, unlisted_move_stops, .signal = SIGABRT)
{
    struct kv_sm sm;
    kv_sm_init(&sm, &table, DONE);
    kv_sm_move(&sm, IDLE);
}

Test(sm, move_to_itself_is_a_move_like_any_other, .signal = SIGABRT)
{
    struct kv_sm sm;
    kv_sm_init(&sm, &table, RUNNING);
    kv_sm_move(&sm, RUNNING);
}

Test(sm, first_state_has_to_exist, .signal = SIGABRT)
{
    struct kv_sm sm;
    kv_sm_init(&sm, &table, 3);
}

Test(sm, table_holds_32_states)
{
    static const char *many[32];
    static uint32_t masks[32];
    for (unsigned i = 0; i < 32; i++) {
        many[i] = "s";
        masks[i] = UINT32_MAX;
    }
    const struct kv_sm_table wide = {.name = "w", .state_names = many, .allowed = masks, .state_count = 32};
    struct kv_sm sm;
    kv_sm_init(&sm, &wide, 0);
    kv_sm_move(&sm, 31);
    cr_assert(eq(uint, sm.state, 31));
}

Test(sm, table_of_33_states_stops, .signal = SIGABRT)
{
    const struct kv_sm_table wide = {.name = "w", .state_names = names, .allowed = allowed, .state_count = 33};
    struct kv_sm sm;
    kv_sm_init(&sm, &wide, 0);
}

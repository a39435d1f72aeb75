/* The buckets: the rate, the burst, one caller beside another, and a table that does not grow. */
#include "server/http/rate.h"

#include "tests/lib/manual_clock.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

static struct kvt_clock clock_;
static struct kv_rate *rate;
static struct kv_rate_state state;

static void start(void)
{
    kvt_clock_init(&clock_);
    cr_assert(eq(int, kv_rate_new(&clock_.env, &rate), KV_OK));
}

static void end(void)
{
    kv_rate_free(rate);
}

TestSuite(rate, .init = start, .fini = end);

static bool take(enum kv_rate_kind kind, unsigned who)
{
    uint8_t id[16] = {0};
    memcpy(id, &who, sizeof who);
    id[15] = 1;
    return kv_rate_take(rate, kind, id, &state);
}

static unsigned burst(enum kv_rate_kind kind, unsigned who)
{
    unsigned count = 0;
    while (count < 10000 && take(kind, who)) {
        count++;
    }
    return count;
}

Test(rate, as_many_at_once_as_in_a_second_and_then_one_after_the_other)
{
    kv_rate_set(rate, KV_RATE_USUAL, 10);
    cr_assert(take(KV_RATE_USUAL, 1));
    cr_expect(state.present && state.limit == 10 && state.remaining == 9 && state.reset_seconds == 1);
    cr_expect(eq(uint, burst(KV_RATE_USUAL, 1), 9u));
    cr_expect(eq(uint, state.remaining, 0u));
    kvt_clock_advance(&clock_, 50 * KV_MS_NS);
    cr_expect(not(take(KV_RATE_USUAL, 1)), "a tenth of a second a request");
    kvt_clock_advance(&clock_, 51 * KV_MS_NS);
    cr_expect(take(KV_RATE_USUAL, 1));
    cr_expect(not(take(KV_RATE_USUAL, 1)));
    kvt_clock_advance(&clock_, 3600 * KV_S_NS);
    cr_expect(eq(uint, burst(KV_RATE_USUAL, 1), 10u), "a bucket holds a second's worth however long it rests");
}

Test(rate, refused_requests_do_not_push_the_end_away)
{
    kv_rate_set(rate, KV_RATE_USUAL, 1);
    cr_assert(take(KV_RATE_USUAL, 1));
    for (int i = 0; i < 100; i++) {
        cr_expect(not(take(KV_RATE_USUAL, 1)));
    }
    kvt_clock_advance(&clock_, KV_S_NS);
    cr_expect(take(KV_RATE_USUAL, 1));
}

Test(rate, callers_and_kinds_have_their_own)
{
    kv_rate_set(rate, KV_RATE_USUAL, 5);
    kv_rate_set(rate, KV_RATE_ERASE, 3);
    cr_expect(eq(uint, burst(KV_RATE_USUAL, 1), 5u));
    cr_expect(eq(uint, burst(KV_RATE_USUAL, 2), 5u));
    cr_expect(eq(uint, burst(KV_RATE_ERASE, 1), 3u), "erasing is not delayed by what its caller did besides");
}

Test(rate, none_is_no_bound)
{
    cr_expect(eq(uint, burst(KV_RATE_PEER, 1), 10000u));
    kv_rate_set(rate, KV_RATE_PEER, 2);
    cr_expect(eq(uint, burst(KV_RATE_PEER, 1), 2u));
    kv_rate_set(rate, KV_RATE_PEER, 0);
    cr_expect(take(KV_RATE_PEER, 1), "a new rate holds from the next request on");
}

Test(rate, looking_takes_none)
{
    uint8_t id[16] = {[0] = 1, [15] = 1};
    cr_expect(kv_rate_is_left(rate, KV_RATE_STRANGER, id), "no bound");
    kv_rate_set(rate, KV_RATE_STRANGER, 3);
    for (int i = 0; i < 10; i++) {
        cr_expect(kv_rate_is_left(rate, KV_RATE_STRANGER, id));
    }
    cr_assert(take(KV_RATE_STRANGER, 1) && take(KV_RATE_STRANGER, 1));
    cr_expect(kv_rate_is_left(rate, KV_RATE_STRANGER, id), "the last one");
    cr_assert(take(KV_RATE_STRANGER, 1));
    cr_expect(not(kv_rate_is_left(rate, KV_RATE_STRANGER, id)));
    cr_expect(kv_rate_is_left(rate, KV_RATE_STRANGER_ERASE, id), "another kind");
    id[0] = 2;
    cr_expect(kv_rate_is_left(rate, KV_RATE_STRANGER, id), "another caller");
    id[0] = 1;
    kvt_clock_advance(&clock_, KV_S_NS / 3 + 1);
    cr_expect(kv_rate_is_left(rate, KV_RATE_STRANGER, id));
    cr_assert(take(KV_RATE_STRANGER, 1));
    cr_expect(not(kv_rate_is_left(rate, KV_RATE_STRANGER, id)));
}

Test(rate, many_callers_take_no_more_room_and_most_keep_their_buckets)
{
    kv_rate_set(rate, KV_RATE_USUAL, 1);
    for (unsigned who = 0; who < 1000; who++) {
        cr_assert(take(KV_RATE_USUAL, who));
    }
    unsigned kept = 0;
    for (unsigned who = 0; who < 1000; who++) {
        kept += take(KV_RATE_USUAL, who) ? 0 : 1;
    }
    cr_expect(gt(uint, kept, 990u));
    for (unsigned who = 0; who < 100000; who++) {
        take(KV_RATE_USUAL, who);
    }
}

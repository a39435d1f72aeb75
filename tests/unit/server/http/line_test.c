/* The line: order, the places that are kept, and who is served by whom. */
#include "server/http/line.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define PLACES 6
#define RESERVED 2

static struct kv_line *line;
static struct kv_req ordinary[PLACES + 1], urgent[PLACES + 1];

static void start(void)
{
    cr_assert(eq(int, kv_line_new(PLACES, RESERVED, &line), KV_OK));
}

static void end(void)
{
    kv_line_close(line);
    while (kv_line_pop(line, false) != NULL) {
    }
    kv_line_free(line);
}

TestSuite(line, .init = start, .fini = end);

static void fill(void)
{
    for (size_t i = 0; i < PLACES - RESERVED; i++) {
        cr_assert(eq(int, kv_line_push(line, &ordinary[i], false), KV_OK));
    }
}

Test(line, the_last_places_are_for_the_urgent)
{
    fill();
    cr_expect(eq(int, kv_line_push(line, &ordinary[PLACES], false), KV_E_BUSY));
    cr_expect(eq(int, kv_line_push(line, &urgent[0], true), KV_OK));
    cr_expect(eq(int, kv_line_push(line, &urgent[1], true), KV_OK));
    cr_expect(eq(int, kv_line_push(line, &urgent[2], true), KV_E_BUSY));
    cr_expect(eq(sz, kv_line_len(line), PLACES));
}

Test(line, the_urgent_may_have_all_places)
{
    for (size_t i = 0; i < PLACES; i++) {
        cr_expect(eq(int, kv_line_push(line, &urgent[i], true), KV_OK));
    }
    cr_expect(eq(int, kv_line_push(line, &urgent[PLACES], true), KV_E_BUSY));
    cr_expect(eq(int, kv_line_push(line, &ordinary[0], false), KV_E_BUSY));
}

Test(line, urgent_first_then_in_order)
{
    fill();
    cr_assert(eq(int, kv_line_push(line, &urgent[0], true), KV_OK));
    cr_assert(eq(int, kv_line_push(line, &urgent[1], true), KV_OK));
    cr_expect(eq(ptr, kv_line_pop(line, false), &urgent[0]));
    cr_expect(eq(ptr, kv_line_pop(line, true), &urgent[1]));
    cr_expect(eq(ptr, kv_line_pop(line, false), &ordinary[0]));
    cr_expect(eq(ptr, kv_line_pop(line, false), &ordinary[1]));
}

Test(line, one_who_was_in_before_has_a_place)
{
    fill();
    kv_line_return(line, &ordinary[PLACES - 1], false);
    for (size_t i = 0; i < PLACES; i++) {
        cr_expect(eq(int, kv_line_push(line, &urgent[i], true), i == 0 ? KV_OK : KV_E_BUSY), "places are counted");
    }
    kv_line_return(line, &urgent[PLACES], true);
    cr_expect(eq(ptr, kv_line_pop(line, true), &urgent[0]));
    cr_expect(eq(ptr, kv_line_pop(line, true), &urgent[PLACES]));
}

Test(line, a_closed_one_is_emptied_by_those_who_serve_it)
{
    fill();
    kv_line_close(line);
    cr_expect(eq(int, kv_line_push(line, &urgent[0], true), KV_E_SHUTTING_DOWN));
    cr_expect(eq(ptr, kv_line_pop(line, true), NULL), "nothing for this one");
    for (size_t i = 0; i < PLACES - RESERVED; i++) {
        cr_expect(eq(ptr, kv_line_pop(line, false), &ordinary[i]));
    }
    cr_expect(eq(ptr, kv_line_pop(line, false), NULL));
}

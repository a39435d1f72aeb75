/* Ids of requests. */
#include "server/http/request_ids.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

Test(request_ids, none_is_given_twice_when_the_bytes_are_drawn_again)
{
    enum { COUNT = 300 }; /* of 64 that one drawing is enough for */
    static struct kv_id list[COUNT];
    struct kv_request_ids ids;
    kv_request_ids_init(&ids);
    for (int i = 0; i < COUNT; i++) {
        cr_assert(eq(int, kv_request_ids_next(&ids, &list[i]), KV_OK));
        for (int k = 0; k < i; k++) { /* the random half: the other one is the time */
            cr_assert(ne(int, memcmp(list[k].b + 8, list[i].b + 8, 8), 0), "%d and %d", k, i);
        }
        cr_assert(i == 0 || memcmp(list[i - 1].b, list[i].b, 6) <= 0);
    }
    kv_request_ids_done(&ids);
}

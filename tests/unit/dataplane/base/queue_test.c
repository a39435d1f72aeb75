/* The inbox, by one thread. What several threads do to it is in tests/thread. */
#include "dataplane/base/fault.h"
#include "dataplane/base/queue.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <poll.h>
#include <signal.h>

static int items[8];

static bool readable(const struct kv_queue *queue)
{
    struct pollfd wait = {.fd = kv_queue_fd(queue), .events = POLLIN};
    return poll(&wait, 1, 0) == 1;
}

static struct kv_queue *queue_of(size_t max)
{
    struct kv_queue *queue = NULL;
    cr_assert(eq(int, kv_queue_new(max, &queue), KV_OK));
    return queue;
}

Test(queue, items_come_out_in_order_around_the_ring)
{
    struct kv_queue *queue = queue_of(3);
    for (int round = 0; round < 5; round++) {
        cr_assert(eq(int, kv_queue_push(queue, &items[0]), KV_OK));
        cr_assert(eq(int, kv_queue_push(queue, &items[1]), KV_OK));
        cr_assert(eq(sz, kv_queue_len(queue), 2));
        cr_assert(eq(ptr, kv_queue_try_pop(queue), &items[0]));
        cr_assert(eq(ptr, kv_queue_pop(queue), &items[1]));
    }
    cr_assert(kv_queue_try_pop(queue) == NULL);
    kv_queue_free(queue);
}

Test(queue, full_queue_is_busy_until_something_leaves)
{
    struct kv_queue *queue = queue_of(2);
    cr_assert(eq(int, kv_queue_push(queue, &items[0]), KV_OK));
    cr_assert(eq(int, kv_queue_push(queue, &items[1]), KV_OK));
    cr_assert(eq(int, kv_queue_push(queue, &items[2]), KV_E_BUSY));
    cr_assert(eq(ptr, kv_queue_try_pop(queue), &items[0]));
    cr_assert(eq(int, kv_queue_push(queue, &items[2]), KV_OK));
    cr_assert(eq(ptr, kv_queue_try_pop(queue), &items[1]));
    cr_assert(eq(ptr, kv_queue_try_pop(queue), &items[2]));
    kv_queue_free(queue);
}

Test(queue, descriptor_is_readable_while_something_waits)
{
    struct kv_queue *queue = queue_of(4);
    cr_assert(not(readable(queue)));
    KV_IGNORE(kv_queue_push(queue, &items[0]), "there is room");
    KV_IGNORE(kv_queue_push(queue, &items[1]), "there is room");
    cr_assert(readable(queue));
    kv_queue_try_pop(queue);
    cr_assert(readable(queue));
    kv_queue_try_pop(queue);
    cr_assert(not(readable(queue)));
    KV_IGNORE(kv_queue_push(queue, &items[0]), "there is room");
    cr_assert(readable(queue));
    kv_queue_try_pop(queue);
    kv_queue_free(queue);
}

Test(queue, closed_queue_takes_nothing_and_gives_out_the_rest)
{
    struct kv_queue *queue = queue_of(4);
    KV_IGNORE(kv_queue_push(queue, &items[0]), "there is room");
    kv_queue_close(queue);
    kv_queue_close(queue);
    cr_assert(eq(int, kv_queue_push(queue, &items[1]), KV_E_SHUTTING_DOWN));
    cr_assert(eq(ptr, kv_queue_pop(queue), &items[0]));
    cr_assert(kv_queue_pop(queue) == NULL);
    cr_assert(kv_queue_pop(queue) == NULL);
    kv_queue_free(queue);
}

Test(queue, closing_wakes_a_poller_once)
{
    struct kv_queue *queue = queue_of(4);
    kv_queue_close(queue);
    cr_assert(readable(queue));
    cr_assert(kv_queue_try_pop(queue) == NULL);
    cr_assert(not(readable(queue)));
    kv_queue_free(queue);
}

Test(queue, free_takes_null)
{
    kv_queue_free(NULL);
    kv_future_free(NULL);
}

Test(queue, null_is_no_item, .signal = SIGABRT)
{
    struct kv_queue *queue = queue_of(1);
    KV_IGNORE(kv_queue_push(queue, NULL), "does not return");
}

Test(queue, size_that_overflows_is_no_memory)
{
    struct kv_queue *queue = NULL;
    cr_assert(eq(int, kv_queue_new(SIZE_MAX / 4, &queue), KV_E_NO_MEMORY));
    cr_assert(queue == NULL);
}

#ifdef KV_FAULTS
Test(queue, without_memory_there_is_no_queue_and_no_future)
{
    struct kv_queue *queue = NULL;
    struct kv_future *future = NULL;
    kv_fault_set("base/mem=fail");
    cr_assert(eq(int, kv_queue_new(4, &queue), KV_E_NO_MEMORY));
    cr_assert(eq(int, kv_future_new(&future), KV_E_NO_MEMORY));
    cr_assert(queue == NULL && future == NULL);
}
#endif

/* The inbox under many producers, with waiting and with polling consumers. */
#include "dataplane/base/queue.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define PRODUCERS 4
#define PER_PRODUCER 2000
#define CONSUMERS 2
#define TOTAL (PRODUCERS * PER_PRODUCER)

struct item {
    int producer, number;
    atomic_int taken;
};

static struct item items[PRODUCERS][PER_PRODUCER];

struct producer {
    struct kv_queue *queue;
    int index;
};

static void *produce(void *arg)
{
    struct producer *producer = arg;
    for (int i = 0; i < PER_PRODUCER; i++) {
        struct item *item = &items[producer->index][i];
        item->producer = producer->index;
        item->number = i;
        enum kv_err rc;
        while ((rc = kv_queue_push(producer->queue, item)) == KV_E_BUSY) {
            sched_yield();
        }
        cr_assert(eq(int, rc, KV_OK));
    }
    return NULL;
}

/* Marks an item; with one consumer, each producer's items come in its order. */
static void take(struct item *item, int last[PRODUCERS])
{
    cr_assert(eq(int, atomic_fetch_add(&item->taken, 1), 0));
    cr_assert(gt(int, item->number, last[item->producer]));
    last[item->producer] = item->number;
}

static void *consume_waiting(void *arg)
{
    int last[PRODUCERS] = {-1, -1, -1, -1};
    struct item *item;
    while ((item = kv_queue_pop(arg)) != NULL) {
        take(item, last);
    }
    return NULL;
}

static void *consume_polling(void *arg)
{
    int last[PRODUCERS] = {-1, -1, -1, -1};
    struct pollfd wait = {.fd = kv_queue_fd(arg), .events = POLLIN};
    for (int seen = 0; seen < TOTAL;) {
        /* A lost wake-up shows as a poll that nothing ends. */
        int ready = poll(&wait, 1, 30000);
        cr_assert(ready == 1 || (ready < 0 && errno == EINTR));
        struct item *item;
        while ((item = kv_queue_try_pop(arg)) != NULL) {
            take(item, last);
            seen++;
        }
    }
    return NULL;
}

static void run(void *(*consume)(void *), int consumers)
{
    struct kv_queue *queue;
    cr_assert(eq(int, kv_queue_new(16, &queue), KV_OK));
    pthread_t producing[PRODUCERS], consuming[CONSUMERS];
    struct producer producers[PRODUCERS];
    for (int i = 0; i < consumers; i++) {
        cr_assert(eq(int, pthread_create(&consuming[i], NULL, consume, queue), 0));
    }
    for (int i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){.queue = queue, .index = i};
        cr_assert(eq(int, pthread_create(&producing[i], NULL, produce, &producers[i]), 0));
    }
    for (int i = 0; i < PRODUCERS; i++) {
        pthread_join(producing[i], NULL);
    }
    kv_queue_close(queue);
    for (int i = 0; i < consumers; i++) {
        pthread_join(consuming[i], NULL);
    }
    for (int i = 0; i < PRODUCERS; i++) {
        for (int k = 0; k < PER_PRODUCER; k++) {
            cr_assert(eq(int, items[i][k].taken, 1));
        }
    }
    cr_assert(eq(sz, kv_queue_len(queue), 0));
    kv_queue_free(queue);
}

Test(queue_thread, each_item_is_taken_once_and_in_its_producers_order)
{
    run(consume_waiting, 1);
}

Test(queue_thread, several_consumers_share_the_items)
{
    run(consume_waiting, CONSUMERS);
}

Test(queue_thread, polling_consumer_misses_no_wake_up)
{
    run(consume_polling, 1);
}

Test(queue_thread, closing_releases_everyone_who_waits)
{
    struct kv_queue *queue;
    cr_assert(eq(int, kv_queue_new(1, &queue), KV_OK));
    pthread_t waiting[CONSUMERS];
    for (int i = 0; i < CONSUMERS; i++) {
        cr_assert(eq(int, pthread_create(&waiting[i], NULL, consume_waiting, queue), 0));
    }
    kv_queue_close(queue);
    for (int i = 0; i < CONSUMERS; i++) {
        pthread_join(waiting[i], NULL);
    }
    kv_queue_free(queue);
}

static void *set_future(void *arg)
{
    kv_future_set(arg, KV_E_TAMPERED);
    return NULL;
}

Test(queue_thread, waiter_may_free_the_future_as_soon_as_it_has_the_result)
{
    for (int i = 0; i < 500; i++) {
        struct kv_future *future;
        cr_assert(eq(int, kv_future_new(&future), KV_OK));
        pthread_t setter;
        cr_assert(eq(int, pthread_create(&setter, NULL, set_future, future), 0));
        uint64_t deadline_ns = i % 2 == 0 ? UINT64_MAX : kv_now_ns(&kv_env_system) + 30 * KV_S_NS;
        cr_assert(eq(int, kv_future_wait(future, deadline_ns), KV_E_TAMPERED));
        kv_future_free(future);
        pthread_join(setter, NULL);
    }
}

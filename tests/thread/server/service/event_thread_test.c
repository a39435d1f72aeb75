/* The hub under several publishers and readers: every reader sees each publisher's events in order, once. */
#include "server/service/event.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <pthread.h>

#define PUBLISHERS 3
#define READERS 3
#define EACH 20000

static struct kv_events *events;

static void *publish(void *arg)
{
    const unsigned *number = arg;
    for (uint64_t i = 1; i <= EACH; i++) {
        kv_events_publish(events, &(struct kv_event){.type = KV_EVENT_TIER_STATE, .blocks = *number, .version = i});
    }
    return NULL;
}

static void *read_all(void *arg)
{
    uint64_t position = 0, seen = 0, last[PUBLISHERS] = {0}, *wrong = arg;
    struct kv_event_filter all = {.all_tenants = true};
    while (seen < PUBLISHERS * EACH) {
        struct kv_event_record records[64];
        bool lost = false;
        size_t count = kv_events_read(events, &all, &position, records, 64, &lost);
        *wrong += lost;
        for (size_t i = 0; i < count; i++) {
            *wrong += records[i].position != ++seen || records[i].version != ++last[records[i].blocks];
        }
    }
    return NULL;
}

Test(event, publishers_and_readers_beside_each_other)
{
    pthread_t publishers[PUBLISHERS], readers[READERS];
    unsigned numbers[PUBLISHERS];
    uint64_t wrong[READERS] = {0};
    struct kv_id incarnation = {{1}};
    cr_assert(eq(int, kv_events_new(&kv_env_system, &incarnation, PUBLISHERS * EACH, &events), KV_OK));
    for (unsigned i = 0; i < READERS; i++) {
        cr_assert(eq(int, pthread_create(&readers[i], NULL, read_all, &wrong[i]), 0));
    }
    for (unsigned i = 0; i < PUBLISHERS; i++) {
        numbers[i] = i;
        cr_assert(eq(int, pthread_create(&publishers[i], NULL, publish, &numbers[i]), 0));
    }
    for (unsigned i = 0; i < PUBLISHERS; i++) {
        pthread_join(publishers[i], NULL);
    }
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(readers[i], NULL);
        cr_expect(eq(u64, wrong[i], 0));
    }
    kv_events_free(events);
}

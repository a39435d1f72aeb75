/* The hub of events: order, filters, what a slow reader learns, ids across processes. */
#include "server/service/event.h"

#include "dataplane/base/id.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

#define RING 8

static struct kv_events *events;
static struct kv_id ours, theirs, one, other;

static void start(void)
{
    struct kv_id incarnation;
    cr_assert(eq(int, kv_id_new(&kv_env_system, &incarnation), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &ours), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &theirs), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &one), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &other), KV_OK));
    cr_assert(eq(int, kv_events_new(&kv_env_system, &incarnation, RING, &events), KV_OK));
}

static void end(void)
{
    kv_events_free(events);
}

TestSuite(event, .init = start, .fini = end);

static void publish(enum kv_event_type type, struct kv_id tenant, struct kv_id session)
{
    kv_events_publish(events, &(struct kv_event){.type = type, .tenant = tenant, .session = session});
}

static void publish_many(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        publish(KV_EVENT_SESSION_CREATED, ours, one);
    }
}

/* How many match from the start on. */
static size_t matching(const struct kv_event_filter *filter)
{
    struct kv_event_record records[RING];
    uint64_t position = 0;
    bool lost = true;
    size_t count = kv_events_read(events, filter, &position, records, RING, &lost);
    cr_expect(not(lost));
    cr_expect(eq(u64, position, kv_events_newest(events)), "what does not match is passed over, too");
    return count;
}

Test(event, positions_count_up_and_texts_are_copied)
{
    char state[40] = "certified";
    kv_events_publish(events, &(struct kv_event){.type = KV_EVENT_ERASURE_STATE,
                                                 .tenant = ours,
                                                 .session = one,
                                                 .subject = other,
                                                 .subject_prefix = "era",
                                                 .state = state,
                                                 .blocks = 7});
    memset(state, 'x', 39); /* longer than is kept, and not the one that was meant */
    kv_events_publish(events, &(struct kv_event){.type = KV_EVENT_TIER_STATE, .name = "nvme", .state = state});
    struct kv_event_record records[RING];
    uint64_t position = 0;
    bool lost = true;
    struct kv_event_filter all = {.all_tenants = true};
    cr_assert(eq(sz, kv_events_read(events, &all, &position, records, RING, &lost), 2));
    cr_expect(eq(u64, records[0].position, 1));
    cr_expect(eq(str, records[0].state, "certified"));
    cr_expect(eq(str, records[0].subject_prefix, "era"));
    cr_expect(eq(u64, records[0].blocks, 7));
    cr_expect(eq(u64, records[1].position, 2));
    cr_expect(eq(sz, strlen(records[1].state), 31));
    cr_expect(eq(str, records[1].name, "nvme"));
    cr_expect(eq(u64, position, 2));
    cr_expect(eq(sz, kv_events_read(events, &all, &position, records, RING, &lost), 0));
    cr_expect(not(lost));
}

Test(event, a_tenant_sees_its_own_and_never_the_platforms)
{
    struct kv_id none = {0};
    publish(KV_EVENT_SESSION_CREATED, ours, one);
    publish(KV_EVENT_SESSION_CREATED, theirs, other);
    publish(KV_EVENT_TIER_STATE, none, none);
    cr_expect(eq(sz, matching(&(struct kv_event_filter){.tenant = ours}), 1));
    cr_expect(eq(sz, matching(&(struct kv_event_filter){.all_tenants = true}), 3));
    cr_expect(eq(sz, matching(&(struct kv_event_filter){.all_tenants = true, .tenant = theirs}), 1));
    cr_expect(eq(sz, matching(&(struct kv_event_filter){.tenant = ours, .session = other}), 0));
    cr_expect(eq(sz, matching(&(struct kv_event_filter){.tenant = ours, .session = one}), 1));
    cr_expect(eq(sz, matching(&(struct kv_event_filter){.tenant = ours, .subject = one}), 0));
    cr_expect(eq(sz, matching(&(struct kv_event_filter){.all_tenants = true, .types = 1u << KV_EVENT_TIER_STATE}), 1));
}

Test(event, the_ring_keeps_as_many_as_it_has_places)
{
    struct kv_event_record records[RING];
    struct kv_event_filter all = {.all_tenants = true};
    uint64_t position = 0;
    bool lost = true;
    cr_expect(eq(u64, kv_events_oldest(events), 1));
    publish_many(RING);
    cr_expect(eq(u64, kv_events_oldest(events), 1));
    cr_expect(eq(sz, kv_events_read(events, &all, &position, records, RING, &lost), RING));
    cr_expect(not(lost));
    publish_many(1);
    cr_expect(eq(u64, kv_events_oldest(events), 2));
    position = 1;
    cr_expect(eq(sz, kv_events_read(events, &all, &position, records, RING, &lost), RING));
    cr_expect(not(lost), "the oldest that is kept is the next one");
    position = 0;
    cr_expect(eq(sz, kv_events_read(events, &all, &position, records, RING, &lost), 0));
    cr_expect(lost);
    cr_expect(eq(u64, position, 1), "it stands before the oldest");
    cr_expect(eq(sz, kv_events_read(events, &all, &position, records, RING, &lost), RING));
    cr_expect(not(lost));
    cr_expect(eq(u64, records[0].position, 2));
}

Test(event, reading_stops_at_the_room_there_is)
{
    struct kv_event_record records[RING];
    struct kv_event_filter all = {.all_tenants = true};
    uint64_t position = 0;
    bool lost = false;
    publish_many(5);
    cr_expect(eq(sz, kv_events_read(events, &all, &position, records, 2, &lost), 2));
    cr_expect(eq(u64, position, 2));
    cr_expect(eq(sz, kv_events_read(events, &all, &position, records, 4, &lost), 3));
    cr_expect(eq(u64, records[0].position, 3));
}

Test(event, an_id_belongs_to_its_process)
{
    char id[KV_EVENT_ID_SIZE], text[64];
    struct kv_events *next = NULL;
    uint64_t position = 0;
    publish_many(3);
    kv_events_id(events, 3, id);
    cr_expect(eq(int, kv_events_parse_id(events, id, &position), KV_OK));
    cr_expect(eq(u64, position, 3));
    kv_events_id(events, 4, id);
    cr_expect(eq(int, kv_events_parse_id(events, id, &position), KV_E_MISSING), "it has not happened yet");
    kv_events_id(events, 0, id);
    cr_expect(eq(int, kv_events_parse_id(events, id, &position), KV_OK), "before the first");
    cr_assert(eq(int, kv_events_new(&kv_env_system, &one, RING, &next), KV_OK));
    kv_events_id(events, 1, id);
    cr_expect(eq(int, kv_events_parse_id(next, id, &position), KV_E_MISSING));
    kv_events_free(next);
    snprintf(text, sizeof text, "%.16s-9999999999999999999", id);
    cr_expect(eq(int, kv_events_parse_id(events, text, &position), KV_E_MISSING));
    const char *bad[] = {"",
                         "-",
                         "1",
                         "0123456789abcdef",
                         "0123456789abcdef-",
                         "0123456789abcdef-1x",
                         "0123456789ABCDEF-1",
                         "0123456789abcdef-01",
                         "0123456789abcdef--1",
                         "0123456789abcde-1",
                         "0123456789abcdef-10000000000000000000",
                         "0123456789abcdef0-1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, kv_events_parse_id(events, bad[i], &position), KV_E_INVALID_REQUEST), "%s", bad[i]);
    }
}

Test(event, types_have_names)
{
    uint32_t types = 0;
    cr_expect(eq(int, kv_event_types_parse("erasure.state", &types), KV_OK));
    cr_expect(eq(u32, types, 1u << KV_EVENT_ERASURE_STATE));
    cr_expect(eq(int, kv_event_types_parse("session.created,tenant.state", &types), KV_OK));
    cr_expect(eq(u32, types, 1u << KV_EVENT_SESSION_CREATED | 1u << KV_EVENT_TENANT_STATE));
    const char *bad[] = {"", ",", "session", "session.created,", ",session.created", "session.created ,tier.state"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, kv_event_types_parse(bad[i], &types), KV_E_INVALID_REQUEST), "%s", bad[i]);
    }
    for (unsigned type = 0; type < KV_EVENT_TYPES; type++) {
        cr_expect(eq(int, kv_event_types_parse(kv_event_type_name(type), &types), KV_OK));
        cr_expect(eq(u32, types, 1u << type));
    }
}

Test(event, a_wait_ends_with_an_event_a_wake_or_its_time)
{
    uint64_t begun = kv_now_ns(&kv_env_system);
    kv_events_wait(events, 0, begun + 20 * KV_MS_NS);
    cr_expect(ge(u64, kv_now_ns(&kv_env_system), begun + 20 * KV_MS_NS));
    publish_many(1);
    kv_events_wait(events, 0, UINT64_C(60) * KV_S_NS + kv_now_ns(&kv_env_system));
    kv_events_wake(events);
    kv_events_wait(events, 1, UINT64_C(60) * KV_S_NS + kv_now_ns(&kv_env_system));
    cr_expect(lt(u64, kv_now_ns(&kv_env_system), begun + 30 * KV_S_NS));
}

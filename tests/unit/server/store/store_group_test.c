/* Groups mean the sessions that their row says, take each on once, and end once. */
#include "server/store/store_group.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;
static struct kv_pg *pg;
static struct kv_id tenant, sessions[3];

static void set_up(void)
{
    pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    tenant = store_tenant(pg, 5);
    for (unsigned i = 0; i < 3; i++) {
        sessions[i] = store_session(pg, tenant, 100 + i);
    }
    store_session(pg, store_tenant(pg, 6), 200);
}

static void tear_down(void)
{
    kv_pg_close(pg);
}

TestSuite(group, .init = set_up, .fini = tear_down);

static struct kv_store_group all_of_the_tenant(void)
{
    return (struct kv_store_group){.id = store_id(900),
                                   .tenant = tenant,
                                   .scope = KV_GROUP_TENANT,
                                   .cutoff_us = T0 + UINT64_C(86400000000),
                                   .created_us = T0,
                                   .basis = "other",
                                   .requested_role = "tenant_admin"};
}

static uint64_t meant(const struct kv_store_group *group)
{
    uint64_t count = 0;
    struct kv_id ids[8];
    size_t listed = 0;
    cr_assert(eq(int, kv_store_group_match_count(pg, group, &info, &count), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_group_match(pg, group, 8, &info, ids, &listed), KV_OK), "%s", info.text);
    cr_assert(eq(u64, count, listed), "counting and listing agree");
    return count;
}

Test(group, means_active_sessions_of_its_tenant_up_to_the_cutoff)
{
    struct kv_store_group group = all_of_the_tenant();
    cr_assert(eq(u64, meant(&group), 3));
    store_erasure_request(pg, tenant, sessions[0], 300);
    cr_assert(eq(u64, meant(&group), 2), "one is erased already");
    group.cutoff_us = 1;
    cr_assert(eq(u64, meant(&group), 0), "all were made later");
}

Test(group, of_a_label_or_of_an_engine_means_fewer)
{
    struct kv_store_group group = all_of_the_tenant();
    snprintf(group.label, sizeof group.label, "{\"user\":\"7\"}");
    cr_assert(eq(u64, meant(&group), 0), "no session has it");
    group = all_of_the_tenant();
    snprintf(group.requested_role, sizeof group.requested_role, "engine");
    group.requested_by = store_id(77);
    cr_assert(eq(u64, meant(&group), 0), "it made none of them");
    group = all_of_the_tenant();
    group.idle_before_us = 1;
    cr_assert(eq(u64, meant(&group), 0), "none is idle for so long");
}

Test(group, comes_back_as_it_was_written_and_ends_once)
{
    struct kv_store_group group = all_of_the_tenant(), found, list[2];
    size_t count = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_group_insert(pg, &group, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_group_get(pg, &group.id, &info, &found), KV_OK));
    cr_assert(eq(int, found.state, KV_GROUP_EXPANDING));
    cr_assert(eq(u64, found.cutoff_us, group.cutoff_us));
    cr_assert(kv_id_equal(&found.tenant, &tenant));
    cr_assert(eq(int, kv_store_group_list_open(pg, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    group.state = KV_GROUP_CERTIFIED;
    group.sessions = 3;
    group.ended_us = T0 + 5;
    cr_assert(eq(int, IN_TX(pg, kv_store_group_set(pg, &group, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_group_set(pg, &group, &info)), KV_E_STALE), "it has ended");
    cr_assert(eq(int, kv_store_group_list_open(pg, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    struct kv_id nobody = store_id(901);
    cr_assert(eq(int, kv_store_group_get(pg, &nobody, &info, &found), KV_E_NOT_FOUND));
}

/* A group of this tenant, asked for `after` microseconds. */
static struct kv_id open_group(unsigned number, uint64_t after)
{
    struct kv_store_group group = all_of_the_tenant();
    group.id = store_id(number);
    group.created_us = T0 + after;
    cr_assert(eq(int, IN_TX(pg, kv_store_group_insert(pg, &group, &info)), KV_OK), "%s", info.text);
    return group.id;
}

static struct kv_store_erasure take_on(struct kv_id group, struct kv_id session, unsigned number)
{
    struct kv_store_erasure erasure = {.id = store_id(number),
                                       .tenant = tenant,
                                       .session = session,
                                       .state = KV_ERASURE_REQUESTED,
                                       .basis = "other",
                                       .requested_role = "tenant_admin",
                                       .revocation_seq = (int64_t)number,
                                       .group = group};
    erasure.at_us[KV_ERASURE_REQUESTED] = T0 + number;
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_insert(pg, &erasure, &info)), KV_OK), "%s", info.text);
    return erasure;
}

static void run_on(struct kv_id id, uint64_t members)
{
    struct kv_store_group group = {.id = id, .state = KV_GROUP_RUNNING, .sessions = members};
    cr_assert(eq(int, IN_TX(pg, kv_store_group_set(pg, &group, &info)), KV_OK), "%s", info.text);
}

static void fence(const struct kv_store_erasure *erasure)
{
    cr_assert(eq(int,
                 IN_TX(pg, kv_store_erasure_advance(pg, &erasure->id, KV_ERASURE_REQUESTED, KV_ERASURE_FENCED, T0 + 999,
                                                    &info)),
                 KV_OK),
              "%s", info.text);
}

static size_t in_state(const char *state)
{
    struct kv_store_group_status list[4];
    size_t count = 0;
    struct kv_page page = {.limit = 3};
    cr_assert(eq(int, kv_store_group_page(pg, &tenant, state, &page, &info, list, &count), KV_OK), "%s", info.text);
    for (size_t i = 0; i < count; i++) {
        cr_assert(eq(str, (char *)kv_erasure_state_name(list[i].progress.reached), (char *)state),
                  "the filter and what is shown agree");
    }
    return count;
}

Test(group, reached_what_the_last_of_its_erasures_did)
{
    struct kv_id id = open_group(910, 10);
    struct kv_store_erasure first = take_on(id, sessions[0], 300), second = take_on(id, sessions[1], 301);
    run_on(id, 2);
    fence(&first);
    cr_assert(eq(sz, in_state("requested"), 1));
    cr_assert(eq(sz, in_state("fenced"), 0));
    fence(&second);
    cr_assert(eq(sz, in_state("requested"), 0));
    cr_assert(eq(sz, in_state("fenced"), 1));
    cr_assert(eq(int,
                 IN_TX(pg, kv_store_erasure_advance(pg, &second.id, KV_ERASURE_FENCED, KV_ERASURE_QUARANTINED,
                                                    T0 + 1000, &info)),
                 KV_OK));
    struct kv_store_group_progress progress;
    cr_assert(eq(int, kv_store_group_progress(pg, &id, &info, &progress), KV_OK));
    cr_assert(eq(int, progress.reached, KV_ERASURE_FENCED), "the other one is still on its way");
    cr_assert(eq(u64, progress.states[KV_ERASURE_QUARANTINED], 1));
    cr_assert(eq(u64, progress.last_us[KV_ERASURE_FENCED], T0 + 999));
    cr_assert(eq(u64, progress.last_us[KV_ERASURE_STAGED], 0));
}

Test(group, without_a_session_reached_the_end)
{
    struct kv_id id = open_group(910, 10);
    run_on(id, 0);
    cr_assert(eq(sz, in_state("certified"), 1));
}

Test(group, pages_go_both_ways_and_are_the_tenants_own)
{
    struct kv_store_group_status list[4];
    size_t count = 0;
    struct kv_id early = open_group(912, 10), middle = open_group(911, 20), late = open_group(910, 20);
    struct kv_page page = {.limit = 2};
    cr_assert(eq(int, kv_store_group_page(pg, &tenant, NULL, &page, &info, list, &count), KV_OK), "%s", info.text);
    cr_assert(eq(sz, count, 2));
    cr_assert(page.more);
    cr_assert(kv_id_equal(&list[0].group.id, &middle) && kv_id_equal(&list[1].group.id, &late), "by id at one time");
    page.has_after = true;
    page.after_us = list[1].group.created_us;
    page.after = list[1].group.id;
    cr_assert(eq(int, kv_store_group_page(pg, &tenant, NULL, &page, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(not(page.more));
    cr_assert(kv_id_equal(&list[0].group.id, &early));
    page = (struct kv_page){.limit = 3, .ascending = true};
    cr_assert(eq(int, kv_store_group_page(pg, &tenant, "requested", &page, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 3), "expanding is requested");
    cr_assert(kv_id_equal(&list[0].group.id, &early) && kv_id_equal(&list[2].group.id, &middle));
    struct kv_id other = store_id(6);
    cr_assert(eq(int, kv_store_group_page(pg, &other, NULL, &page, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
}

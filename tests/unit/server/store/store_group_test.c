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

/* An approval is decided once, by somebody else, and found again only on the state of things that it was made on. */
#include "server/store/store_approval.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>

TEMP_POSTGRES_HOOKS

#define DAY_US UINT64_C(86400000000)

static struct kv_errinfo info;
static struct kv_pg *pg;
static struct kv_id tenant;

static void set_up(void)
{
    pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    tenant = store_tenant(pg, 5);
}

static void tear_down(void)
{
    kv_pg_close(pg);
}

TestSuite(approval, .init = set_up, .fini = tear_down);

static struct kv_store_approval approval_of(unsigned number)
{
    return (struct kv_store_approval){.id = store_id(number),
                                      .tenant = tenant,
                                      .action = KV_APPROVAL_TENANT_DELETE,
                                      .target = tenant,
                                      .target_rev = 3,
                                      .versions = {1, 2},
                                      .request = "{\"action\":\"tenant.delete\"}",
                                      .request_sha256 = {1, 2, 3},
                                      .rev = 1,
                                      .proposed_by = store_id(70),
                                      .proposed_role = "operator",
                                      .created_us = T0,
                                      .expires_us = T0 + DAY_US};
}

static void insert(const struct kv_store_approval *approval)
{
    cr_assert(eq(int, IN_TX(pg, kv_store_approval_insert(pg, approval, 9, &info)), KV_OK), "%s", info.text);
}

static enum kv_err decide(struct kv_store_approval approval, enum kv_approval_state state, unsigned by)
{
    approval.state = state;
    approval.decided_by = store_id(by);
    approval.decided_us = T0 + 1;
    return IN_TX(pg, kv_store_approval_decide(pg, &approval, &info));
}

Test(approval, comes_back_as_it_was_written)
{
    struct kv_store_approval made = approval_of(200), found;
    insert(&made);
    cr_assert(eq(int, kv_store_approval_get(pg, &made.id, &info, &found), KV_OK), "%s", info.text);
    cr_assert(eq(str, found.request, made.request));
    cr_assert(eq(u64, found.target_rev, 3));
    cr_assert(found.versions[0] == 1 && found.versions[1] == 2);
    cr_assert(eq(int, found.state, KV_APPROVAL_PENDING));
    cr_assert(kv_id_equal(&found.proposed_by, &made.proposed_by));
    struct kv_id nobody = store_id(201);
    cr_assert(eq(int, kv_store_approval_get(pg, &nobody, &info, &found), KV_E_NOT_FOUND));
}

Test(approval, is_decided_once_and_not_by_who_proposed_it)
{
    struct kv_store_approval first = approval_of(200), second = approval_of(201), found;
    insert(&first);
    insert(&second);
    cr_assert(eq(int, decide(first, KV_APPROVAL_APPROVED, 70), KV_E_INVALID_STATE), "the schema knows as well");
    cr_assert(eq(int, decide(first, KV_APPROVAL_APPROVED, 71), KV_OK), "%s", info.text);
    cr_assert(eq(int, decide(first, KV_APPROVAL_REJECTED, 71), KV_E_STALE));
    cr_assert(eq(int, decide(second, KV_APPROVAL_REJECTED, 70), KV_OK), "one may take back one's own");
    cr_assert(eq(int, kv_store_approval_get(pg, &first.id, &info, &found), KV_OK));
    cr_assert(eq(int, found.state, KV_APPROVAL_APPROVED));
    cr_assert(eq(u64, found.rev, 2));
    cr_assert(eq(u64, found.decided_us, T0 + 1));
}

Test(approval, is_found_again_only_where_all_is_as_it_was)
{
    struct kv_store_approval made = approval_of(200), like = made, found;
    insert(&made);
    cr_assert(eq(int, kv_store_approval_find(pg, &like, &info, &found), KV_OK), "%s", info.text);
    cr_assert(kv_id_equal(&found.id, &made.id));
    like.target_rev = 4;
    cr_assert(eq(int, kv_store_approval_find(pg, &like, &info, &found), KV_E_MISSING));
    like = made;
    like.versions[1] = 3;
    cr_assert(eq(int, kv_store_approval_find(pg, &like, &info, &found), KV_E_MISSING));
    like = made;
    like.proposed_by = store_id(71);
    cr_assert(eq(int, kv_store_approval_find(pg, &like, &info, &found), KV_E_MISSING));
    like = made;
    like.request_sha256[0] = 9;
    cr_assert(eq(int, kv_store_approval_find(pg, &like, &info, &found), KV_E_MISSING));
    like = made;
    like.created_us = made.expires_us - 1;
    cr_assert(eq(int, kv_store_approval_find(pg, &like, &info, &found), KV_OK));
    like.created_us = made.expires_us;
    cr_assert(eq(int, kv_store_approval_find(pg, &like, &info, &found), KV_E_MISSING), "its day is over");
}

Test(approval, has_its_number_and_those_past_their_day_do_not_count)
{
    struct kv_store_approval first = approval_of(200), second = approval_of(201);
    cr_assert(eq(int, IN_TX(pg, kv_store_approval_insert(pg, &first, 1, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_approval_insert(pg, &second, 1, &info)), KV_E_LIMIT));
    second.created_us = first.expires_us;
    second.expires_us = second.created_us + 1;
    cr_assert(eq(int, IN_TX(pg, kv_store_approval_insert(pg, &second, 1, &info)), KV_OK), "%s", info.text);
}

static size_t listed(struct kv_id of, const char *state, uint64_t now_us)
{
    struct kv_store_approval list[4];
    struct kv_page page = {.limit = 3};
    const struct kv_store_approval_filter filter = {.tenant = of, .state = state, .now_us = now_us};
    size_t count = 0;
    cr_assert(eq(int, kv_store_approval_page(pg, &filter, &page, &info, list, &count), KV_OK), "%s", info.text);
    return count;
}

Test(approval, is_listed_by_its_state_for_its_tenant_or_for_all)
{
    struct kv_store_approval made = approval_of(200);
    const struct kv_id any = {{0}};
    insert(&made);
    cr_assert(eq(sz, listed(any, NULL, T0), 1));
    cr_assert(eq(sz, listed(tenant, "pending", T0), 1));
    cr_assert(eq(sz, listed(store_id(99), NULL, T0), 0));
    cr_assert(eq(sz, listed(tenant, "expired", made.expires_us - 1), 0));
    cr_assert(eq(sz, listed(tenant, "expired", made.expires_us), 1));
    cr_assert(eq(sz, listed(tenant, "pending", made.expires_us), 0));
}

Test(approval, takes_a_key_that_works)
{
    static const struct {
        bool of_tenant;
        unsigned roles;
        uint64_t revoked_us;
        uint64_t counts, counts_platform;
    } keys[] = {{true, KV_ROLE_TENANT_ADMIN, 0, 0, 0},
                {true, KV_ROLE_SECURITY_OFFICER, 0, 1, 0},
                {false, KV_ROLE_SECURITY_OFFICER, 0, 2, 1},
                {false, KV_ROLE_SECURITY_OFFICER, T0, 2, 1}};
    const struct kv_id platform = {{0}};
    uint64_t count = 9;
    for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        struct kv_store_api_key key = {.id = store_id(300 + i),
                                       .tenant = keys[i].of_tenant ? tenant : platform,
                                       .name = "k",
                                       .roles = keys[i].roles,
                                       .rev = 1,
                                       .created_us = T0,
                                       .expires_us = T0 + DAY_US};
        snprintf(key.kid, sizeof key.kid, "kid0000%u", i);
        cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &key, &info)), KV_OK), "%s", info.text);
        key.revoked_us = keys[i].revoked_us;
        cr_assert(eq(int, IN_TX(pg, kv_store_api_key_update(pg, &key, &info)), KV_OK), "%s", info.text);
        cr_assert(eq(int, kv_store_approvers(pg, &tenant, T0 + 1, &info, &count), KV_OK), "%s", info.text);
        cr_assert(eq(u64, count, keys[i].counts), "%u", i);
        cr_assert(eq(int, kv_store_approvers(pg, &platform, T0 + 1, &info, &count), KV_OK), "%s", info.text);
        cr_assert(eq(u64, count, keys[i].counts_platform), "%u", i);
    }
    cr_assert(eq(int, kv_store_approvers(pg, &tenant, T0 + DAY_US, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 0), "their time is over");
}

/* Sessions: slots are given once, states only go forward. */
#include "server/store/store_session.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;

static struct kv_pg *open_store(void)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    return pg;
}

static struct kv_store_session session(unsigned number, struct kv_id tenant)
{
    return (struct kv_store_session){.id = store_id(number),
                                     .tenant = tenant,
                                     .created_by = store_id(70),
                                     .model_id = "org/model",
                                     .model_revision = "main",
                                     .model_fingerprint = "sha256:00",
                                     .created_us = T0};
}

Test(session, comes_back_with_its_slot_and_its_tenant_s)
{
    struct kv_pg *pg = open_store();
    store_tenant(pg, 4);
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_store_session made = session(100, tenant), got;
    uint32_t slot = 9, directory_slot = 9;
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &made, &info, &slot, &directory_slot)), KV_OK), "%s",
              info.text);
    cr_assert(eq(u32, slot, 0));
    cr_assert(eq(u32, directory_slot, 1));
    cr_assert(eq(int, kv_store_session_get(pg, &made.id, &info, &got), KV_OK), "%s", info.text);
    cr_assert(eq(int, got.state, KV_SESSION_ACTIVE));
    cr_assert(eq(str, got.model_id, "org/model"));
    cr_assert(eq(str, got.model_fingerprint, "sha256:00"));
    cr_assert(eq(u32, got.directory_slot, 1));
    cr_assert(eq(i64, got.revoked_seq, 0));
    cr_assert(kv_id_is_zero(&got.erasure));
    cr_assert(kv_id_equal(&got.created_by, &made.created_by));
    struct kv_id unknown = store_id(999);
    cr_assert(eq(int, kv_store_session_get(pg, &unknown, &info, &got), KV_E_NOT_FOUND));
    kv_pg_close(pg);
}

Test(session, last_slot_is_given_and_the_one_after_it_is_not)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5);
    cr_assert(eq(int, temp_postgres_run(pg, "update tenant set next_slot = 262143"), KV_OK));
    struct kv_store_session last = session(100, tenant), over = session(101, tenant), got;
    uint32_t slot = 0, directory_slot = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &last, &info, &slot, &directory_slot)), KV_OK));
    cr_assert(eq(u32, slot, 262143));
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_session_insert(pg, &over, &info, &slot, &directory_slot), KV_E_TENANT_FULL));
    cr_assert(eq(int, kv_store_session_get(pg, &last.id, &info, &got), KV_OK));
    temp_postgres_end(pg, KV_OK);
    kv_pg_close(pg);
}

Test(session, needs_a_tenant_that_is_there_and_active)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_store_session a = session(100, store_id(99)), b = session(101, tenant);
    uint32_t slot = 0, directory_slot = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &a, &info, &slot, &directory_slot)), KV_E_NOT_FOUND));
    cr_assert(eq(int, temp_postgres_run(pg, "update tenant set state = 'suspended'"), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &b, &info, &slot, &directory_slot)), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

Test(session, many_at_once_get_different_slots_without_gaps)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = temp_postgres_connect(url, "test");
    store_cluster(pg);
    struct kv_id tenant = store_tenant(pg, 5);
    for (unsigned p = 0; p < 4; p++) {
        if (fork() == 0) {
            struct kv_pg *own = temp_postgres_connect(url, "racer");
            for (unsigned i = 0; i < 20; i++) {
                store_session(own, tenant, 1000 + p * 100 + i);
            }
            kv_pg_close(own);
            _exit(0);
        }
    }
    for (unsigned p = 0; p < 4; p++) {
        int status = 0;
        wait(&status);
        cr_assert(eq(int, status, 0));
    }
    static struct kv_store_session list[100];
    struct kv_id after = {{0}};
    size_t count = 0;
    cr_assert(eq(int, kv_store_session_list(pg, &tenant, &after, 100, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 80));
    bool seen[80] = {0};
    for (size_t i = 0; i < count; i++) {
        cr_assert(lt(u32, list[i].slot, 80));
        cr_assert(not(seen[list[i].slot]));
        seen[list[i].slot] = true;
    }
    kv_pg_close(pg);
}

Test(session, states_are_told_in_the_order_asked_unknown_ones_too)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_id a = store_session(pg, tenant, 100), b = store_session(pg, tenant, 101),
                 c = store_session(pg, tenant, 102);
    store_erasure_request(pg, tenant, b, 200);
    store_erasure_request(pg, tenant, c, 201);
    cr_assert(eq(int, IN_TX(pg, kv_store_session_set_erased(pg, &c, &info)), KV_OK));
    struct kv_id ids[] = {c, store_id(999), a, b, a};
    enum kv_session_state states[5];
    cr_assert(eq(int, kv_store_session_states(pg, ids, 5, &info, states), KV_OK), "%s", info.text);
    cr_assert(eq(int, states[0], KV_SESSION_ERASED));
    cr_assert(eq(int, states[1], KV_SESSION_UNKNOWN));
    cr_assert(eq(int, states[2], KV_SESSION_ACTIVE));
    cr_assert(eq(int, states[3], KV_SESSION_ERASING));
    cr_assert(eq(int, states[4], KV_SESSION_ACTIVE));
    cr_assert(eq(int, kv_store_session_states(pg, ids, 0, &info, states), KV_OK));
    kv_pg_close(pg);
}

Test(session, at_most_the_limit_of_ids_is_asked_for_at_once)
{
    struct kv_pg *pg = open_store();
    struct kv_id *ids = calloc(KV_STORE_IDS_MAX + 1, sizeof *ids);
    enum kv_session_state *states = calloc(KV_STORE_IDS_MAX + 1, sizeof *states);
    cr_assert(eq(int, kv_store_session_states(pg, ids, KV_STORE_IDS_MAX, &info, states), KV_OK));
    cr_assert(eq(int, states[KV_STORE_IDS_MAX - 1], KV_SESSION_UNKNOWN));
    cr_assert(eq(int, kv_store_session_states(pg, ids, KV_STORE_IDS_MAX + 1, &info, states), KV_E_LIMIT));
    free(ids);
    free(states);
    kv_pg_close(pg);
}

Test(session, is_erased_only_from_erasing_and_never_goes_back)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5), a = store_session(pg, tenant, 100);
    cr_assert(eq(int, IN_TX(pg, kv_store_session_set_erased(pg, &a, &info)), KV_E_STALE));
    store_erasure_request(pg, tenant, a, 200);
    cr_assert(eq(int, IN_TX(pg, kv_store_session_set_erased(pg, &a, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_session_set_erased(pg, &a, &info)), KV_OK));
    cr_assert(eq(int, temp_postgres_run(pg, "update session set state = 'active'"), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

/* Sessions: slots are given once, states only go forward. */
#include "server/store/store_session.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
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
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &made, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(u32, made.slot, 0));
    cr_assert(eq(u32, made.directory_slot, 1));
    cr_assert(kv_id_equal(&made.tree, &tenant));
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
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &last, &info)), KV_OK));
    cr_assert(eq(u32, last.slot, 262143));
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_session_insert(pg, &over, &info), KV_E_TENANT_FULL));
    cr_assert(eq(int, kv_store_session_get(pg, &last.id, &info, &got), KV_OK));
    temp_postgres_end(pg, KV_OK);
    kv_pg_close(pg);
}

Test(session, needs_a_tenant_that_is_there_and_active)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_store_session a = session(100, store_id(99)), b = session(101, tenant);
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &a, &info)), KV_E_NOT_FOUND));
    cr_assert(eq(int, temp_postgres_run(pg, "update tenant set state = 'suspended'"), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, &b, &info)), KV_E_TENANT_SUSPENDED));
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
    struct kv_store_session_filter filter = {.tenant = tenant};
    struct kv_page page = {.limit = 99};
    size_t count = 0;
    cr_assert(eq(int, kv_store_session_list(pg, &filter, &page, &info, list, &count), KV_OK));
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
    cr_assert(eq(int, IN_TX(pg, kv_store_sessions_set_erased(pg, &(struct kv_store_ids){&c, 1}, &info)), KV_OK));
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
    cr_assert(eq(int, IN_TX(pg, kv_store_sessions_set_erased(pg, &(struct kv_store_ids){&a, 1}, &info)), KV_E_STALE));
    store_erasure_request(pg, tenant, a, 200);
    cr_assert(eq(int, IN_TX(pg, kv_store_sessions_set_erased(pg, &(struct kv_store_ids){&a, 1}, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_sessions_set_erased(pg, &(struct kv_store_ids){&a, 1}, &info)), KV_OK));
    cr_assert(eq(int, temp_postgres_run(pg, "update session set state = 'active'"), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

/* --- what changes on a living one -------------------------------------------------------------------------------- */

static struct kv_store_session got;

static struct kv_label label(const char *name, const char *value)
{
    struct kv_label label = {.remove = false};
    snprintf(label.name, sizeof label.name, "%s", name);
    snprintf(label.value, sizeof label.value, "%s", value);
    return label;
}

static void insert(struct kv_pg *pg, struct kv_store_session *row)
{
    cr_assert(eq(int, IN_TX(pg, kv_store_session_insert(pg, row, &info)), KV_OK), "%s", info.text);
}

static void name(struct kv_pg *pg, struct kv_id id, uint8_t first)
{
    static const uint8_t sealed[KV_EXTERNAL_SEALED_MAX] = {5};
    struct kv_store_external external = {.hmac = {first}, .sealed = sealed, .sealed_len = sizeof sealed};
    cr_assert(eq(int, IN_TX(pg, kv_store_session_set_external(pg, &id, &external, &info)), KV_OK), "%s", info.text);
}

Test(session, forgets_its_client_s_words_when_it_is_erased)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_store_session made = session(100, tenant);
    const uint8_t hmac[32] = {7}, other[32] = {8};
    made.labels = (struct kv_labels){.count = 1, .items = {label("user", "erika")}};
    insert(pg, &made);
    name(pg, made.id, 7);
    cr_assert(eq(int, kv_store_session_find(pg, &tenant, other, &info, &got), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_store_session_find(pg, &tenant, hmac, &info, &got), KV_OK), "%s", info.text);
    cr_assert(eq(sz, got.external_len, KV_EXTERNAL_SEALED_MAX));
    cr_assert(eq(str, got.labels.items[0].value, "erika"));
    cr_assert(eq(str, got.class, "default"));
    store_erasure_request(pg, tenant, made.id, 300);
    cr_assert(eq(int, kv_store_session_find(pg, &tenant, hmac, &info, &got), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_store_session_get(pg, &made.id, &info, &got), KV_OK));
    cr_assert(eq(sz, got.external_len, 0));
    cr_assert(eq(u32, got.labels.count, 0));
    struct kv_store_session next = session(101, tenant); /* the name is free again */
    insert(pg, &next);
    name(pg, next.id, 7);
    kv_pg_close(pg);
}

Test(session, one_name_is_one_session)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5), other = store_tenant(pg, 6);
    struct kv_store_session a = session(100, tenant), b = session(101, tenant), c = session(102, other);
    static const uint8_t sealed[1] = {5};
    struct kv_store_external external = {.hmac = {7}, .sealed = sealed, .sealed_len = 1};
    insert(pg, &a);
    insert(pg, &b);
    insert(pg, &c);
    name(pg, a.id, 7);
    cr_assert(ne(int, IN_TX(pg, kv_store_session_set_external(pg, &b.id, &external, &info)), KV_OK));
    name(pg, c.id, 7); /* another tenant's names are its own */
    kv_pg_close(pg);
}

Test(session, list_is_narrowed_by_each_filter)
{
    struct kv_pg *pg = open_store();
    static struct kv_store_session list[9];
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_store_session a = session(100, tenant), b = session(101, tenant);
    const uint8_t hmac[32] = {7};
    a.labels = (struct kv_labels){.count = 1, .items = {label("user", "erika")}};
    b.created_us = T0 + 50;
    snprintf(b.model_id, sizeof b.model_id, "other");
    insert(pg, &a);
    insert(pg, &b);
    name(pg, a.id, 7);
    struct kv_store_use use = {.id = b.id, .at_us = T0 + 90};
    cr_assert(eq(int, IN_TX(pg, kv_store_session_used(pg, &use, 1, &info)), KV_OK), "%s", info.text);
    const struct {
        struct kv_store_session_filter filter;
        const struct kv_store_session *only; /* NULL: both */
    } cases[] = {
        {{.tenant = tenant}, NULL},
        {{.tenant = tenant, .external_hmac = hmac}, &a},
        {{.tenant = tenant, .label = &a.labels.items[0]}, &a},
        {{.tenant = tenant, .model = "other"}, &b},
        {{.tenant = tenant, .idle_before_us = T0 + 90}, &a},
        {{.tenant = tenant, .created_after_us = T0}, &b},
        {{.tenant = tenant, .state = "active"}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kv_page page = {.limit = 8};
        size_t count = 0;
        cr_assert(eq(int, kv_store_session_list(pg, &cases[i].filter, &page, &info, list, &count), KV_OK), "%s",
                  info.text);
        cr_assert(eq(sz, count, cases[i].only == NULL ? 2 : 1), "case %zu", i);
        cr_assert(cases[i].only == NULL || kv_id_equal(&list[0].id, &cases[i].only->id), "case %zu", i);
    }
    kv_pg_close(pg);
}

static size_t overdue(struct kv_pg *pg, uint64_t now_us, uint64_t grace_us)
{
    struct kv_store_overdue list[8];
    size_t count = 99;
    cr_assert(eq(int, kv_store_session_list_overdue(pg, now_us, grace_us, 8, &info, list, &count), KV_OK), "%s",
              info.text);
    return count;
}

Test(session, is_overdue_at_its_end_and_not_before)
{
    struct kv_pg *pg = open_store();
    const uint64_t second = 1000000;
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_store_session whole = session(100, tenant), idle = session(101, tenant), for_ever = session(102, tenant);
    whole.expires_us = T0 + 100 * second;
    idle.idle_seconds = 10;
    idle.idle_us = T0 + 10 * second;
    insert(pg, &whole);
    insert(pg, &idle);
    insert(pg, &for_ever);
    cr_assert(eq(sz, overdue(pg, T0 + 12 * second - 1, 2 * second), 0));
    cr_assert(eq(sz, overdue(pg, T0 + 12 * second, 2 * second), 1), "idle, and the grace is over");
    struct kv_store_use use = {.id = idle.id, .at_us = T0 + 5 * second};
    cr_assert(eq(int, IN_TX(pg, kv_store_session_used(pg, &use, 1, &info)), KV_OK));
    use.at_us = T0 + 4 * second;
    cr_assert(eq(int, IN_TX(pg, kv_store_session_used(pg, &use, 1, &info)), KV_OK), "an earlier one changes nothing");
    cr_assert(eq(sz, overdue(pg, T0 + 17 * second - 1, 2 * second), 0));
    cr_assert(eq(sz, overdue(pg, T0 + 17 * second, 2 * second), 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_session_lock(pg, &idle.id, &info, &got)), KV_OK));
    got.pinned_until_us = T0 + 50 * second;
    cr_assert(eq(int, IN_TX(pg, kv_store_session_update(pg, &got, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(sz, overdue(pg, T0 + 50 * second - 1, 2 * second), 0), "pinned");
    cr_assert(eq(sz, overdue(pg, T0 + 50 * second, 2 * second), 1));
    cr_assert(eq(sz, overdue(pg, T0 + 100 * second, 2 * second), 2), "no grace for a whole lifetime");
    kv_pg_close(pg);
}

Test(session, update_refuses_a_stale_row_and_an_erased_one)
{
    struct kv_pg *pg = open_store();
    static struct kv_store_session stale;
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_store_session made = session(100, tenant);
    insert(pg, &made);
    cr_assert(eq(int, IN_TX(pg, kv_store_session_lock(pg, &made.id, &info, &got)), KV_OK));
    stale = got;
    got.idle_seconds = 9;
    got.idle_us = T0 + 9;
    cr_assert(eq(int, IN_TX(pg, kv_store_session_update(pg, &got, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(u64, got.rev, 2));
    cr_assert(eq(int, IN_TX(pg, kv_store_session_update(pg, &stale, &info)), KV_E_STALE));
    store_erasure_request(pg, tenant, made.id, 300);
    cr_assert(eq(int, IN_TX(pg, kv_store_session_update(pg, &got, &info)), KV_E_STALE));
    uint64_t counts[KV_SESSION_UNKNOWN];
    cr_assert(eq(int, kv_store_session_count(pg, &tenant, &info, counts), KV_OK));
    cr_assert(eq(u64, counts[KV_SESSION_ACTIVE], 0));
    cr_assert(eq(u64, counts[KV_SESSION_ERASING], 1));
    kv_pg_close(pg);
}

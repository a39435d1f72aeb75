/* A hold covers what its row says, up to its time and no longer; what waits for one goes on when none is left. */
#include "server/store/store_hold.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>

TEMP_POSTGRES_HOOKS

#define SHA "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define HOUR_US UINT64_C(3600000000)

static struct kv_errinfo info;
static struct kv_pg *pg;
static struct kv_id tenant, other, sessions[3];

static void set_up(void)
{
    pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    tenant = store_tenant(pg, 5);
    other = store_tenant(pg, 6);
    for (unsigned i = 0; i < 3; i++) {
        sessions[i] = store_session(pg, tenant, 100 + i);
    }
}

static void tear_down(void)
{
    kv_pg_close(pg);
}

TestSuite(hold, .init = set_up, .fini = tear_down);

static struct kv_store_hold hold_of(unsigned number, enum kv_hold_scope scope)
{
    struct kv_store_hold hold = {.id = store_id(number),
                                 .tenant = tenant,
                                 .scope = scope,
                                 .reason_sha256 = SHA,
                                 .created_us = T0,
                                 .created_by = store_id(77),
                                 .created_role = "tenant_admin",
                                 .expires_us = T0 + HOUR_US};
    hold.session = scope == KV_HOLD_SESSION ? sessions[0] : (struct kv_id){{0}};
    snprintf(hold.label, sizeof hold.label, "%s", scope == KV_HOLD_LABEL ? "{\"user\":\"7\"}" : "");
    return hold;
}

static struct kv_store_hold place(unsigned number, enum kv_hold_scope scope)
{
    struct kv_store_hold hold = hold_of(number, scope);
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &hold, 10, &info)), KV_OK), "%s", info.text);
    return hold;
}

static void end(struct kv_store_hold hold)
{
    hold.ended_us = hold.released_us = T0 + 1;
    hold.released_by = store_id(78);
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_end(pg, &hold, &info)), KV_OK), "%s", info.text);
}

/* A mask of the sessions that are covered. */
static unsigned covered(uint64_t now_us)
{
    const struct kv_store_ids all = {.ids = sessions, .count = 3};
    struct kv_store_held list[3];
    size_t count = 0;
    unsigned mask = 0;
    cr_assert(eq(int, kv_store_held_of(pg, &all, now_us, &info, list, &count), KV_OK), "%s", info.text);
    for (size_t i = 0; i < count; i++) {
        for (unsigned s = 0; s < 3; s++) {
            mask |= kv_id_equal(&list[i].session, &sessions[s]) ? 1u << s : 0;
        }
    }
    return mask;
}

static void label(struct kv_id session)
{
    struct kv_store_session row;
    cr_assert(eq(int, kv_store_session_get(pg, &session, &info, &row), KV_OK));
    row.labels.count = 1;
    snprintf(row.labels.items[0].name, sizeof row.labels.items[0].name, "user");
    snprintf(row.labels.items[0].value, sizeof row.labels.items[0].value, "7");
    cr_assert(eq(int, IN_TX(pg, kv_store_session_update(pg, &row, &info)), KV_OK), "%s", info.text);
}

static struct kv_store_erasure block(unsigned session, unsigned number, struct kv_id hold)
{
    struct kv_store_erasure erasure = {.id = store_id(number),
                                       .tenant = tenant,
                                       .session = sessions[session],
                                       .state = KV_ERASURE_BLOCKED_HOLD,
                                       .hold = hold,
                                       .basis = "other",
                                       .requested_role = "tenant_admin",
                                       .revocation_seq = (int64_t)number};
    erasure.at_us[KV_ERASURE_REQUESTED] = erasure.at_us[KV_ERASURE_BLOCKED_HOLD] = T0;
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_insert(pg, &erasure, &info)), KV_OK), "%s", info.text);
    return erasure;
}

static size_t let_go(uint64_t now_us, size_t max)
{
    struct kv_store_erasure list[4];
    size_t count = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_holds_let_go(pg, now_us, max, &info, list, &count)), KV_OK), "%s", info.text);
    return count;
}

Test(hold, comes_back_as_it_was_written_and_ends_once)
{
    struct kv_store_hold hold = place(200, KV_HOLD_LABEL), found;
    cr_assert(eq(int, kv_store_hold_get(pg, &hold.id, &info, &found), KV_OK), "%s", info.text);
    cr_assert(eq(int, found.scope, KV_HOLD_LABEL));
    cr_assert(eq(str, found.reason_sha256, SHA));
    cr_assert(eq(u64, found.expires_us, hold.expires_us));
    cr_assert(eq(u64, found.rev, 1));
    cr_assert(found.ended_us == 0 && found.released_us == 0 && found.blocked == 0);
    end(hold);
    cr_assert(eq(int, kv_store_hold_get(pg, &hold.id, &info, &found), KV_OK));
    cr_assert(eq(str, found.label, "{\"user\": null}"), "of a label the name stays");
    cr_assert(eq(u64, found.rev, 2));
    cr_assert(eq(u64, found.released_us, T0 + 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_end(pg, &found, &info)), KV_E_STALE));
    struct kv_id nobody = store_id(201);
    cr_assert(eq(int, kv_store_hold_get(pg, &nobody, &info, &found), KV_E_NOT_FOUND));
}

Test(hold, has_its_number)
{
    struct kv_store_hold first = place(200, KV_HOLD_TENANT), second = hold_of(201, KV_HOLD_TENANT);
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &second, 1, &info)), KV_E_LIMIT));
    second.tenant = other;
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &second, 1, &info)), KV_OK), "another tenant's are its own");
    end(first);
    struct kv_store_hold third = hold_of(202, KV_HOLD_TENANT);
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &third, 1, &info)), KV_OK), "what has ended does not count");
}

Test(hold, covers_a_session_a_label_or_a_tenant_until_its_time)
{
    cr_assert(eq(u32, covered(T0), 0));
    struct kv_store_hold one = place(200, KV_HOLD_SESSION);
    cr_assert(eq(u32, covered(T0), 1));
    cr_assert(eq(u32, covered(one.expires_us - 1), 1));
    cr_assert(eq(u32, covered(one.expires_us), 0), "it ends with its time, whether somebody saw that or not");
    struct kv_store_hold user = place(201, KV_HOLD_LABEL);
    cr_assert(eq(u32, covered(T0), 1), "no session has the label");
    label(sessions[1]);
    cr_assert(eq(u32, covered(T0), 3));
    struct kv_store_hold all = place(202, KV_HOLD_TENANT);
    cr_assert(eq(u32, covered(T0), 7));
    uint64_t count = 0;
    const struct kv_store_ids ids = {.ids = sessions, .count = 3}, none = {.ids = sessions, .count = 0};
    cr_assert(eq(int, kv_store_holds_over(pg, &ids, T0, &info, &count), KV_OK), "%s", info.text);
    cr_assert(eq(u64, count, 3));
    cr_assert(eq(int, kv_store_holds_over(pg, &none, T0, &info, &count), KV_OK), "%s", info.text);
    cr_assert(eq(u64, count, 0));
    cr_assert(eq(int, kv_store_hold_sessions(pg, &user.id, T0, &info, &count), KV_OK), "%s", info.text);
    cr_assert(eq(u64, count, 1));
    end(all);
    end(user);
    cr_assert(eq(u32, covered(T0), 1));
}

Test(hold, of_a_tenant_is_found_whatever_it_covers)
{
    struct kv_id found;
    cr_assert(eq(int, kv_store_hold_any(pg, &tenant, T0, &info, &found), KV_E_MISSING));
    struct kv_store_hold hold = place(200, KV_HOLD_LABEL);
    cr_assert(eq(int, kv_store_hold_any(pg, &tenant, T0, &info, &found), KV_OK), "%s", info.text);
    cr_assert(kv_id_equal(&found, &hold.id));
    cr_assert(eq(int, kv_store_hold_any(pg, &other, T0, &info, &found), KV_E_MISSING));
    cr_assert(eq(int, kv_store_hold_any(pg, &tenant, hold.expires_us, &info, &found), KV_E_MISSING));
}

Test(hold, keeps_an_erasure_waiting_and_its_session_s_labels)
{
    struct kv_store_erasure found, list[2];
    struct kv_store_session session;
    size_t count = 0;
    bool over = true;
    label(sessions[1]);
    struct kv_store_hold user = place(200, KV_HOLD_LABEL);
    struct kv_store_erasure erasure = block(1, 300, user.id);
    cr_assert(eq(int, kv_store_holds_over_for(pg, T0, &info, &over), KV_OK), "%s", info.text);
    cr_assert(not(over));
    cr_assert(eq(sz, let_go(T0, 4), 0));
    cr_assert(eq(int, kv_store_session_get(pg, &sessions[1], &info, &session), KV_OK));
    cr_assert(session.held);
    cr_assert(eq(u32, session.labels.count, 1), "it is judged by them");
    end(user);
    cr_assert(eq(int, kv_store_holds_over_for(pg, T0, &info, &over), KV_OK));
    cr_assert(over);
    cr_assert(eq(sz, let_go(T0 + 5, 4), 1));
    cr_assert(eq(sz, let_go(T0 + 5, 4), 0), "once");
    cr_assert(eq(int, kv_store_erasure_get(pg, &erasure.id, &info, &found), KV_OK));
    cr_assert(eq(int, found.state, KV_ERASURE_REQUESTED));
    cr_assert(eq(u64, found.unblocked_us, T0 + 5));
    cr_assert(kv_id_equal(&found.hold, &user.id));
    cr_assert(eq(int, kv_store_session_get(pg, &sessions[1], &info, &session), KV_OK));
    cr_assert(not(session.held));
    cr_assert(eq(u32, session.labels.count, 0));
    cr_assert(eq(int, kv_store_erasure_list_open(pg, true, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
}

Test(hold, that_is_over_hands_what_waits_to_the_next_one)
{
    struct kv_store_hold one = place(200, KV_HOLD_SESSION), all = hold_of(201, KV_HOLD_TENANT), found;
    all.expires_us += HOUR_US;
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &all, 10, &info)), KV_OK));
    struct kv_store_erasure erasure = block(0, 300, one.id), row;
    cr_assert(eq(int, IN_TX(pg, kv_store_holds_hand_over(pg, T0, 4, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_hold_get(pg, &one.id, &info, &found), KV_OK));
    cr_assert(eq(u64, found.blocked, 1), "it is not over");
    cr_assert(eq(sz, let_go(one.expires_us, 4), 0), "the other one covers it");
    cr_assert(eq(int, IN_TX(pg, kv_store_holds_hand_over(pg, one.expires_us, 4, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_erasure_get(pg, &erasure.id, &info, &row), KV_OK));
    cr_assert(kv_id_equal(&row.hold, &all.id));
    cr_assert(eq(sz, let_go(all.expires_us, 4), 1));
}

Test(hold, lets_go_at_most_so_many_at_once)
{
    struct kv_store_hold all = place(200, KV_HOLD_TENANT);
    for (unsigned i = 0; i < 3; i++) {
        (void)block(i, 300 + i, all.id);
    }
    end(all);
    cr_assert(eq(sz, let_go(T0, 2), 2));
    cr_assert(eq(sz, let_go(T0, 2), 1));
}

Test(hold, stops_the_clocks_of_lifetimes_and_of_deletions)
{
    struct kv_store_session row;
    struct kv_store_tenant deleted;
    struct kv_store_overdue list[2];
    struct kv_id due[2];
    size_t count = 0;
    cr_assert(eq(int, kv_store_session_get(pg, &sessions[0], &info, &row), KV_OK));
    row.expires_us = T0 + 1;
    cr_assert(eq(int, IN_TX(pg, kv_store_session_update(pg, &row, &info)), KV_OK));
    cr_assert(eq(int, kv_store_tenant_get(pg, &tenant, &info, &deleted), KV_OK));
    deleted.state = KV_TENANT_DELETING;
    deleted.delete_us = T0 + 1;
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_update(pg, &deleted, &info)), KV_OK), "%s", info.text);
    struct kv_store_hold hold = place(200, KV_HOLD_SESSION);
    cr_assert(eq(int, kv_store_session_list_overdue(pg, T0 + 2, 0, 2, &info, list, &count), KV_OK), "%s", info.text);
    cr_assert(eq(sz, count, 0));
    cr_assert(eq(int, kv_store_tenant_list_due(pg, T0 + 2, 2, &info, due, &count), KV_OK), "%s", info.text);
    cr_assert(eq(sz, count, 0));
    end(hold);
    cr_assert(eq(int, kv_store_session_list_overdue(pg, T0 + 2, 0, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1), "the control");
    cr_assert(eq(int, kv_store_tenant_list_due(pg, T0 + 2, 2, &info, due, &count), KV_OK));
    cr_assert(eq(sz, count, 1), "the control");
}

Test(hold, past_its_time_is_listed_until_it_has_ended)
{
    struct kv_id list[2];
    size_t count = 0;
    struct kv_store_hold hold = place(200, KV_HOLD_SESSION);
    cr_assert(eq(int, kv_store_hold_list_expired(pg, hold.expires_us - 1, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    cr_assert(eq(int, kv_store_hold_list_expired(pg, hold.expires_us, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    end(hold);
    cr_assert(eq(int, kv_store_hold_list_expired(pg, hold.expires_us, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
}

Test(hold, of_a_blocked_erasure_is_named)
{
    struct kv_store_hold hold = place(200, KV_HOLD_SESSION);
    struct kv_store_erasure erasure = {.id = store_id(300),
                                       .tenant = tenant,
                                       .session = sessions[0],
                                       .state = KV_ERASURE_BLOCKED_HOLD,
                                       .basis = "other",
                                       .requested_role = "tenant_admin",
                                       .revocation_seq = 300,
                                       .at_us = {[KV_ERASURE_REQUESTED] = T0, [KV_ERASURE_BLOCKED_HOLD] = T0}};
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_insert(pg, &erasure, &info)), KV_E_INVALID_STATE));
    erasure.hold = hold.id;
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_insert(pg, &erasure, &info)), KV_OK), "%s", info.text);
}

Test(hold, keeps_the_group_of_what_waits_out_of_the_way)
{
    struct kv_store_group group = {.id = store_id(900),
                                   .tenant = tenant,
                                   .scope = KV_GROUP_TENANT,
                                   .cutoff_us = T0,
                                   .created_us = T0,
                                   .basis = "other",
                                   .requested_role = "tenant_admin"},
                          list[2];
    struct kv_store_hold hold = place(200, KV_HOLD_SESSION);
    size_t count = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_group_insert(pg, &group, &info)), KV_OK), "%s", info.text);
    struct kv_store_erasure erasure = {.id = store_id(300),
                                       .tenant = tenant,
                                       .session = sessions[0],
                                       .state = KV_ERASURE_BLOCKED_HOLD,
                                       .hold = hold.id,
                                       .group = group.id,
                                       .basis = "other",
                                       .requested_role = "tenant_admin",
                                       .revocation_seq = 300,
                                       .at_us = {[KV_ERASURE_REQUESTED] = T0, [KV_ERASURE_BLOCKED_HOLD] = T0}};
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_insert(pg, &erasure, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_group_list_open(pg, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1), "it takes sessions on");
    group.state = KV_GROUP_RUNNING;
    group.sessions = 1;
    cr_assert(eq(int, IN_TX(pg, kv_store_group_set(pg, &group, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_group_list_open(pg, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0), "it has nothing to do");
    end(hold);
    cr_assert(eq(sz, let_go(T0, 4), 1));
    cr_assert(eq(int, kv_store_group_list_open(pg, 2, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
}

/*
 * All of a tenant in one step: one erasure, one re-key, one certificate; every session of it is refused and names that
 * one; the tenant goes on with fresh keys, and nobody else notices.
 */
#include "tests/lib/svc_rig.h"

#include "dataplane/base/env.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;

static void open_all(void)
{
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
}

static void close_all(void)
{
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

static struct kv_id session_with(uint32_t blocks)
{
    struct kv_id session = kvt_svc_session(&rig.call);
    if (blocks > 0) {
        cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, blocks, KV_WAIT_DURABLE), KV_OK), "%s",
                  rig.call.info.text);
    }
    return session;
}

static enum kv_err ask(bool dry_run, struct kv_erasure_made *ret_made)
{
    struct kv_erasure_new in = {.scope = KV_SCOPE_TENANT, .tenant = rig.tenant, .basis = "contract"};
    rig.call.dry_run = dry_run;
    enum kv_err rc = kv_svc_erase(&rig.call, &in, ret_made);
    rig.call.dry_run = false;
    return rc;
}

static void await_end(struct kv_id erasure, struct kv_erasure_view *ret_view)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    do {
        usleep(20000);
        cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &erasure, ret_view), KV_OK), "%s", rig.call.info.text);
    } while (!kv_erasure_ended(ret_view) && kv_now_ns(&kv_env_system) < deadline);
}

static struct kv_erasure_view erase_tenant(void)
{
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    struct kv_erasure_view view;
    cr_assert(eq(int, ask(false, made), KV_OK), "%s", rig.call.info.text);
    cr_assert(made->erasure.one_step);
    await_end(made->erasure.id, &view);
    kv_free(made);
    return view;
}

static void check_certified(const struct kv_erasure_view *view)
{
    struct kv_buf bundle;
    cr_assert(eq(int, view->state, KV_ERASURE_CERTIFIED), "%s", view->claim);
    cr_assert(kvt_svc_certificate_good(&rig.call, view->id, &bundle));
    kv_buf_done(&bundle);
}

static json_t *payload_of(struct kv_id erasure)
{
    struct kv_buf payload;
    kv_buf_init(&payload, 1 << 20);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &erasure, KV_CERT_PAYLOAD, &payload), KV_OK), "%s",
              rig.call.info.text);
    json_t *json = json_loadb((char *)payload.data, payload.len, 0, NULL);
    kv_buf_done(&payload);
    cr_assert(json != NULL);
    return json;
}

/* Of the ids in their order, as they are in the database. */
static void check_root(const json_t *subject, struct kv_id *ids, size_t count)
{
    struct kv_hash root;
    char hex[65];
    for (size_t i = 1; i < count; i++) {
        for (size_t j = i; j > 0 && memcmp(&ids[j], &ids[j - 1], sizeof ids[0]) < 0; j--) {
            struct kv_id swap = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = swap;
        }
    }
    cr_assert(eq(int, kv_merkle_root_of((const uint8_t *)ids, sizeof ids[0], count, &root), KV_OK));
    kv_hex_encode(root.b, sizeof root.b, hex);
    cr_assert(eq(str, (char *)json_string_value(json_object_get(subject, "sessions_root")), hex));
}

static void check_alive(struct kv_id session, uint32_t blocks)
{
    uint32_t right = 0;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, blocks, &right), KV_OK), "%s",
              rig.call.info.text);
    cr_assert(eq(u32, right, blocks));
}

Test(tenant, is_erased_by_one_erasure_with_one_certificate_that_counts_its_sessions)
{
    open_all();
    struct kv_id sessions[] = {session_with(3), session_with(2), session_with(0)};
    struct kv_erasure_view view = erase_tenant();
    check_certified(&view);
    cr_assert(eq(int, view.scope, KV_SCOPE_TENANT));
    cr_assert(eq(u64, view.sessions, 3));
    cr_assert(eq(u64, view.sessions_certified, 3));
    cr_assert(eq(i64, kvt_db_number(&rig, "select count(*) from kvrun.erasure"), 1));
    cr_assert(eq(i64, kvt_db_number(&rig, "select count(*) from kvrun.erase_batch"), 1));
    json_t *json = payload_of(view.id);
    const json_t *subject = json_object_get(json, "sub");
    cr_assert(eq(str, (char *)json_string_value(json_object_get(subject, "kind")), "tenant"));
    cr_assert(eq(str, (char *)json_string_value(json_object_get(subject, "sessions")), "3"));
    check_root(subject, sessions, 3);
    const json_t *verification = json_object_get(json, "verification");
    cr_assert(ge(i64, json_integer_value(json_object_get(verification, "control_opened")), 2), "of both with blocks");
    cr_assert(eq(i64, json_integer_value(json_object_get(verification, "opened_after")), 0));
    cr_assert(eq(str, (char *)json_string_value(json_object_get(json_object_get(json, "scope"), "blocks")), "5"));
    json_decref(json);
    struct kv_operation_view *operation = kv_alloc(sizeof *operation);
    cr_assert(eq(int, kv_svc_erasure_prove(&rig.call, &view.id, 4, operation), KV_E_INVALID_STATE), "nothing to try");
    kv_free(operation);
    close_all();
}

Test(tenant, sessions_are_refused_at_once_and_name_the_erasure_also_after_a_restart)
{
    open_all();
    struct kv_id one = session_with(3), never_used = session_with(0);
    struct kv_erasure_view view = erase_tenant();
    cr_assert(kvt_svc_refused(&rig.call, &engine, one, view.id));
    cr_assert(kvt_svc_refused(&rig.call, &engine, never_used, view.id));
    kvt_svc_restart(&rig);
    kvt_engine_close(&engine);
    kvt_engine_open(&rig.call, &engine);
    cr_assert(kvt_svc_refused(&rig.call, &engine, one, view.id));
    /* Asked for alone, the answer is the same erasure. */
    struct kv_erasure_view *again = kv_alloc(sizeof *again);
    bool existed = false;
    cr_assert(eq(int, kvt_svc_ask(&rig.call, one, KVT_WAIT_S, again, &existed), KV_OK), "%s", rig.call.info.text);
    cr_assert(existed && kv_id_equal(&again->id, &view.id));
    kv_free(again);
    close_all();
}

Test(tenant, goes_on_with_fresh_keys_and_another_one_does_not_notice)
{
    open_all();
    session_with(3);
    struct kv_id other = kvt_svc_tenant(&rig, "beside");
    struct kv_principal mine = rig.call.who;
    struct kvt_engine theirs;
    uint32_t right = 0;
    kvt_svc_as(&rig.call, other, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &theirs);
    struct kv_id lives = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &theirs, lives, 0, 2, KV_WAIT_DURABLE), KV_OK));
    struct kv_principal their = rig.call.who;
    rig.call.who = mine;
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    cr_assert(eq(int, ask(false, made), KV_OK), "%s", rig.call.info.text);
    struct kv_id next = session_with(2); /* before the first one's end */
    struct kv_erasure_view view;
    await_end(made->erasure.id, &view);
    check_certified(&view);
    check_alive(next, 2);
    struct kv_erasure_view second = erase_tenant();
    check_certified(&second);
    cr_assert(eq(u64, second.sessions, 1), "only the one that was made since");
    cr_assert(kvt_svc_refused(&rig.call, &engine, next, second.id));
    rig.call.who = their;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &theirs, lives, 0, 2, &right), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u32, right, 2));
    kvt_engine_close(&theirs);
    kv_free(made);
    close_all();
}

Test(tenant, without_a_session_has_nothing_to_erase)
{
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    open_all();
    cr_assert(eq(int, ask(false, made), KV_E_NOT_FOUND));
    struct kv_id only = session_with(0);
    cr_assert(eq(int, ask(true, made), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u64, made->would.sessions, 1));
    cr_assert(eq(i64, kvt_db_number(&rig, "select count(*) from kvrun.erasure"), 0), "a dry run asks only");
    struct kv_erasure_view view = erase_tenant();
    check_certified(&view);
    cr_assert(kvt_svc_refused(&rig.call, &engine, only, view.id));
    cr_assert(eq(int, ask(false, made), KV_E_NOT_FOUND), "all are erased");
    kv_free(made);
    close_all();
}

Test(tenant, counts_no_session_that_has_an_erasure_of_its_own)
{
    open_all();
    struct kv_id alone = session_with(2), rest = session_with(2);
    struct kv_erasure_view first = kvt_svc_erase(&rig.call, alone);
    struct kv_erasure_view view = erase_tenant();
    check_certified(&view);
    cr_assert(eq(u64, view.sessions, 1));
    cr_assert(kvt_svc_refused(&rig.call, &engine, alone, first.id));
    cr_assert(kvt_svc_refused(&rig.call, &engine, rest, view.id));
    close_all();
}

/* Rows that an erasure of a tenant with `sessions` sessions changes until it is certified. */
static void count_changes(unsigned sessions, long long *ret_nodes, long long *ret_rows)
{
    open_all();
    for (unsigned i = 0; i < sessions; i++) {
        session_with(i < 2 ? 2 : 0);
    }
    /* Settling comes afterwards, and goes by rows. */
    kvt_db_run(&rig, "create function kvrun.count_change() returns trigger language plpgsql as $$ begin"
                     " update kvrun.changes set n = n + 1; return null; end $$;"
                     "create table kvrun.changes (n bigint); insert into kvrun.changes values (0);"
                     "create trigger counted after update on kvrun.session for each row when (new.state = old.state)"
                     " execute function kvrun.count_change()");
    long long before = kvt_db_number(&rig, "select sum(node_ver) from kvrun.ktree_node where tree = '\\x" //
                                           "00000000000000000000000000000000'");
    struct kv_erasure_view view = erase_tenant();
    check_certified(&view);
    cr_assert(eq(u64, view.sessions, sessions));
    *ret_nodes = kvt_db_number(&rig, "select sum(node_ver) from kvrun.ktree_node where tree = '\\x" //
                                     "00000000000000000000000000000000'") -
                 before;
    *ret_rows = kvt_db_number(&rig, "select n from kvrun.changes") +
                kvt_db_number(&rig, "select count(*) from kvrun.erasure") +
                kvt_db_number(&rig, "select seq from kvrun.revocation_head") +
                kvt_db_number(&rig, "select count(*) from kvrun.audit_leaf where op like 'erase.%'");
    close_all();
}

Test(tenant, costs_the_same_whatever_its_size)
{
    long long few_nodes = 0, few_rows = 0, many_nodes = 0, many_rows = 0;
    count_changes(2, &few_nodes, &few_rows);
    count_changes(150, &many_nodes, &many_rows);
    cr_assert(eq(i64, few_nodes, KV_TREE_LEVELS), "the path in the directory");
    cr_assert(eq(i64, many_nodes, few_nodes));
    cr_assert(eq(i64, many_rows, few_rows));
}

Test(tenant, rows_of_its_sessions_are_settled_and_forget_what_they_said)
{
    open_all();
    struct kv_session_new in = {.model = {.id = "m", .revision = "1"}, .external_id = "chat-1"};
    struct kv_session_view made, again;
    bool existed = false;
    cr_assert(eq(int, kv_svc_session_create(&rig.call, &in, &made, &existed), KV_OK), "%s", rig.call.info.text);
    kvt_db_run(&rig, "update kvrun.session set labels = '{\"who\": \"me\"}'");
    struct kv_erasure_view view = erase_tenant();
    check_certified(&view);
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (kvt_db_number(&rig, "select count(*) from kvrun.erasure where settled_at is null") > 0 &&
           kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
    }
    cr_assert(eq(i64,
                 kvt_db_number(&rig, "select count(*) from kvrun.session where state = 'erased' and labels = '{}'"
                                     " and external_hmac is null and external_sealed is null"),
                 1));
    cr_assert(kvt_svc_refused(&rig.call, &engine, made.id, view.id));
    cr_assert(eq(int, kv_svc_session_create(&rig.call, &in, &again, &existed), KV_OK), "%s", rig.call.info.text);
    cr_assert_not(existed || kv_id_equal(&again.id, &made.id), "the client's id is free again");
    cr_assert(eq(i64, kvt_db_number(&rig, "select count(distinct tree) from kvrun.ktree_node"), 2),
              "the directory and the fresh tree");
    close_all();
}

#ifdef KV_FAULTS
/* One more is asked for while the first is held up, and all end. */
Test(tenant, with_an_erasure_of_a_session_on_its_way_ends_with_both)
{
    open_all();
    struct kv_id alone = session_with(2), rest = session_with(2);
    struct kv_erasure_view *first = kv_alloc(sizeof *first), view;
    struct kv_erasure_made *made = kv_alloc(sizeof *made);
    bool existed = false;
    kv_fault_set("erase/stage-create=fail@1");
    kvt_svc_ask(&rig.call, alone, 0, first, &existed);
    cr_assert(eq(int, ask(false, made), KV_OK), "%s", rig.call.info.text);
    kv_fault_set(NULL);
    await_end(made->erasure.id, &view);
    check_certified(&view);
    await_end(first->id, first);
    check_certified(first);
    cr_assert(kvt_svc_refused(&rig.call, &engine, alone, first->id));
    cr_assert(kvt_svc_refused(&rig.call, &engine, rest, view.id));
    kv_free(first);
    kv_free(made);
    close_all();
}

Test(tenant, whose_verification_fails_is_quarantined_and_never_certified)
{
    open_all();
    struct kv_id session = session_with(2);
    kv_fault_set("erase/verify-fails=fail@1");
    struct kv_erasure_view view = erase_tenant();
    kv_fault_set(NULL);
    cr_assert(eq(int, view.state, KV_ERASURE_QUARANTINED));
    struct kv_buf bundle;
    kv_buf_init(&bundle, 1 << 20);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &view.id, KV_CERT_BUNDLE, &bundle), KV_E_NOT_YET));
    kv_buf_done(&bundle);
    cr_assert(kvt_svc_refused(&rig.call, &engine, session, view.id));
    close_all();
}

static void erases_despite(const char *fault)
{
    open_all();
    struct kv_id sessions[] = {session_with(2), session_with(1), session_with(0)};
    kv_fault_set(fault);
    struct kv_erasure_view view = erase_tenant();
    kv_fault_set(NULL);
    check_certified(&view);
    for (size_t i = 0; i < sizeof sessions / sizeof sessions[0]; i++) {
        cr_assert(kvt_svc_refused(&rig.call, &engine, sessions[i], view.id));
    }
    struct kv_id next = session_with(2);
    check_alive(next, 2);
    close_all();
}

#define FAILS_ONCE(name, fault)              \
    Test(tenant_step_fails_once, name)       \
    {                                        \
        erases_despite(fault "=fail@1once"); \
    }
FAILS_ONCE(after_fence, "erase/fenced")
FAILS_ONCE(after_stage, "erase/staged")
FAILS_ONCE(in_the_rekey, "store/erase-rekey/commit")
FAILS_ONCE(with_the_rekey_in_doubt, "store/erase-rekey/committed")
FAILS_ONCE(after_rekey, "erase/rekeyed")
FAILS_ONCE(before_destroy, "erase/destroy")
FAILS_ONCE(after_destroy, "erase/destroyed")
FAILS_ONCE(after_purge, "erase/purged")
FAILS_ONCE(after_verify, "erase/verified")
FAILS_ONCE(before_the_bundle, "erase/certificate")
FAILS_ONCE(while_it_settles, "store/erase-settle/commit")
FAILS_ONCE(after_the_certificate, "erase/certified")
FAILS_ONCE(after_settling, "erase/settled")
#endif

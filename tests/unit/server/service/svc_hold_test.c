/*
 * What is held is not erased, whoever asks and whatever the clocks say, and nothing that waits is forgotten. Of a hold
 * and a request for an erasure at the same time one comes first. The clock is moved, not waited for.
 */
#include "server/service/svc_hold.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/janitor.h"
#include "server/service/svc_policy.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

#define DAY_US UINT64_C(86400000000)

static struct kvt_svc rig;
static atomic_ullong ahead_us;
static struct kv_env env;

static uint64_t jumped_us(void *ctx)
{
    return kv_env_system.realtime_us(ctx) + atomic_load(&ahead_us);
}

static void put_policy(const char *text)
{
    struct kv_policy_view view;
    struct kv_principal who = rig.call.who;
    kv_policy_view_init(&view);
    rig.call.who.roles = KV_ROLE_SECURITY_OFFICER;
    cr_assert(eq(int, kv_svc_policy_put(&rig.call, &rig.tenant, KV_BYTES(text, strlen(text)), &view), KV_OK), "%s",
              rig.call.info.text);
    kv_policy_view_done(&view);
    rig.call.who = who;
}

static void open_all(void)
{
    atomic_store(&ahead_us, 0);
    env = kv_env_system;
    env.realtime_us = jumped_us;
    kvt_svc_config(&rig);
    rig.conf.env = &env;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    put_policy("{\"tiers\":{\"dram\":{},\"nvme\":{}},\"hold\":{\"allowed\":true,\"max_days\":10}}");
}

static enum kv_err ask(struct kv_call *call, struct kv_id session, uint64_t days, struct kv_hold_view *ret_hold)
{
    struct kv_hold_new in = {.scope = KV_HOLD_SESSION,
                             .session = session,
                             .reason = "case 17",
                             .expires_us = jumped_us(NULL) + days * DAY_US};
    call->info = (struct kv_errinfo){0};
    return kv_svc_hold_create(call, &in, ret_hold);
}

static struct kv_id place(struct kv_id session, uint64_t days)
{
    struct kv_hold_view hold;
    cr_assert(eq(int, ask(&rig.call, session, days, &hold), KV_OK), "%s", rig.call.info.text);
    return hold.row.id;
}

static enum kv_err release(struct kv_id hold)
{
    struct kv_hold_view view;
    struct kv_approval_view approval;
    return kv_svc_hold_release(&rig.call, &hold, &view, &approval);
}

static struct kv_id blocked(struct kv_id session)
{
    struct kv_erasure_view view;
    bool existed = false;
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &view, &existed), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(int, view.state, KV_ERASURE_BLOCKED_HOLD));
    return view.id;
}

static enum kv_erasure_state state_of(struct kv_id erasure)
{
    static struct kv_erasure_view view;
    cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &erasure, &view), KV_OK), "%s", rig.call.info.text);
    return view.state;
}

static bool comes_to(struct kv_id erasure, enum kv_erasure_state state)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (state_of(erasure) != state && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
    }
    return state_of(erasure) == state;
}

static enum kv_err step(svc_janitor_fn *run)
{
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    bool more = false;
    cr_assert(eq(int, svc_pg_open(rig.svc, "test", &info, &pg), KV_OK));
    enum kv_err rc = run(rig.svc, pg, &info, &more);
    kv_pg_close(pg);
    return rc;
}

Test(hold, keeps_the_key_and_blocks_of_a_session_that_is_refused)
{
    struct kvt_engine engine;
    struct kv_buf bundle;
    open_all();
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 3, KV_WAIT_DURABLE), KV_OK));
    struct kv_id hold = place(session, 9), erasure = blocked(session);
    cr_assert(kvt_svc_refused(&rig.call, &engine, session, erasure));
    kvt_engine_close(&engine);
    kvt_svc_restart(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    cr_assert(eq(int, state_of(erasure), KV_ERASURE_BLOCKED_HOLD), "a start begins nothing");
    cr_assert(eq(int, release(hold), KV_OK), "%s", rig.call.info.text);
    cr_assert(comes_to(erasure, KV_ERASURE_CERTIFIED));
    cr_assert(kvt_svc_certificate_good(&rig.call, erasure, &bundle));
    kv_buf_done(&bundle);
    cr_assert(eq(i64, kvt_db_number(&rig, "SELECT control_opened FROM kvrun.erasure"), 3),
              "its blocks were there, and opened before the re-key");
    kvt_svc_done(&rig);
}

Test(hold, ends_with_its_time_and_what_waited_goes_on)
{
    struct kv_hold_view view;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call), hold = place(session, 2), erasure = blocked(session);
    atomic_fetch_add(&ahead_us, DAY_US);
    cr_assert(eq(int, step(svc_holds_step), KV_OK));
    cr_assert(eq(int, state_of(erasure), KV_ERASURE_BLOCKED_HOLD));
    atomic_fetch_add(&ahead_us, DAY_US);
    cr_assert(comes_to(erasure, KV_ERASURE_CERTIFIED));
    cr_assert(eq(int, kv_svc_hold_get(&rig.call, &hold, &view), KV_OK));
    cr_assert(eq(str, (char *)view.state, "expired"));
    cr_assert(eq(int, release(hold), KV_E_INVALID_STATE));
    kvt_svc_done(&rig);
}

Test(hold, stops_a_lifetime_until_it_ends)
{
    struct kv_session_view view;
    bool existed = false;
    open_all();
    struct kv_session_new in = {.model = {.id = "m", .revision = "1"}, .ttl_seconds = 100};
    cr_assert(eq(int, kv_svc_session_create(&rig.call, &in, &view, &existed), KV_OK), "%s", rig.call.info.text);
    struct kv_id session = view.id;
    cr_assert(eq(int, kv_svc_session_create(&rig.call, &in, &view, &existed), KV_OK), "%s", rig.call.info.text);
    struct kv_id control = view.id, hold = place(session, 9);
    atomic_fetch_add(&ahead_us, 101 * UINT64_C(1000000));
    cr_assert(eq(int, step(svc_expire_step), KV_OK));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, false, &view), KV_OK), "it lives and is used");
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &control, false, &view), KV_E_SESSION_ERASED));
    cr_assert(eq(int, release(hold), KV_OK));
    cr_assert(eq(int, step(svc_expire_step), KV_OK));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, false, &view), KV_E_SESSION_ERASED));
    kvt_svc_done(&rig);
}

Test(hold, is_not_placed_on_what_is_being_erased_and_is_on_what_waits)
{
    struct kv_hold_view view;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call), gone = kvt_svc_session(&rig.call);
    (void)kvt_svc_erase(&rig.call, gone);
    cr_assert(eq(int, ask(&rig.call, gone, 1, &view), KV_E_IRREVERSIBLE));
    struct kv_id first = place(session, 1), erasure = blocked(session), second = place(session, 2);
    cr_assert(eq(int, release(first), KV_OK));
    cr_assert(eq(int, step(svc_holds_step), KV_OK));
    cr_assert(eq(int, state_of(erasure), KV_ERASURE_BLOCKED_HOLD), "the second one keeps it");
    cr_assert(eq(int, release(second), KV_OK));
    cr_assert(comes_to(erasure, KV_ERASURE_CERTIFIED));
    kvt_svc_done(&rig);
}

Test(hold, needs_a_policy_that_has_holds_of_its_length)
{
    struct kv_hold_view view;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, ask(&rig.call, session, 11, &view), KV_E_POLICY_DENIED));
    cr_assert(eq(str, rig.call.info.pointer, "/expires_at"));
    cr_assert(eq(int, ask(&rig.call, session, 10, &view), KV_OK), "%s", rig.call.info.text);
    put_policy("{\"tiers\":{\"dram\":{}},\"hold\":{\"allowed\":false}}");
    cr_assert(eq(int, ask(&rig.call, session, 1, &view), KV_E_POLICY_DENIED));
    put_policy("{\"tiers\":{\"dram\":{}}}");
    cr_assert(eq(int, ask(&rig.call, session, 1, &view), KV_E_POLICY_DENIED), "without a word there are none");
    put_policy(
        "{\"tiers\":{\"dram\":{}},\"hold\":{\"allowed\":true},\"classes\":{\"s\":{\"data_class\":\"special\"}}}");
    cr_assert(eq(int, ask(&rig.call, session, 1, &view), KV_E_INVALID_REQUEST));
    cr_assert(eq(str, rig.call.info.pointer, "/ground"));
    kvt_svc_done(&rig);
}

Test(hold, in_the_grace_time_of_a_deletion_stops_it_until_it_ends)
{
    struct kv_tenant_view tenant;
    struct kv_approval_view approval;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call);
    struct kv_principal admin = rig.call.who, operator= {.roles = KV_ROLE_OPERATOR};
    rig.call.who = operator;
    cr_assert(eq(int, kv_svc_tenant_delete(&rig.call, &rig.tenant, false, &tenant, &approval), KV_OK), "%s",
              rig.call.info.text);
    rig.call.who = admin;
    struct kv_id hold = place(session, 9);
    atomic_fetch_add(&ahead_us, 2 * DAY_US);
    cr_assert(eq(int, step(svc_expire_step), KV_OK));
    rig.call.who = operator;
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &rig.tenant, &tenant), KV_OK));
    cr_assert(eq(str, tenant.state, "deleting"));
    cr_assert(eq(int, kv_svc_tenant_delete(&rig.call, &rig.tenant, true, &tenant, &approval), KV_E_HOLD_ACTIVE));
    rig.call.who = admin;
    cr_assert(eq(int, release(hold), KV_OK));
    cr_assert(eq(int, step(svc_expire_step), KV_OK));
    rig.call.who = operator;
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &rig.tenant, &tenant), KV_OK));
    cr_assert(ne(str, tenant.state, "deleting"));
    kvt_svc_done(&rig);
}

/* --- at the same time -------------------------------------------------------------------------------------------- */

#define RACES 24u

struct race {
    struct kv_call call;
    struct kv_id session;
    pthread_barrier_t *start;
    struct kv_hold_view hold;
    enum kv_err rc;
};

static void *place_main(void *arg)
{
    struct race *race = arg;
    pthread_barrier_wait(race->start);
    race->rc = ask(&race->call, race->session, 5, &race->hold);
    return NULL;
}

Test(hold, and_a_request_for_an_erasure_come_one_after_the_other)
{
    pthread_barrier_t start;
    struct race race = {.start = &start};
    unsigned first = 0;
    open_all();
    race.call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_TENANT_ADMIN);
    pthread_barrier_init(&start, NULL, 2);
    for (unsigned i = 0; i < RACES; i++) {
        struct kv_erasure_view view;
        pthread_t thread;
        bool existed = false;
        race.session = kvt_svc_session(&rig.call);
        cr_assert(eq(int, pthread_create(&thread, NULL, place_main, &race), 0));
        pthread_barrier_wait(&start);
        cr_assert(eq(int, kvt_svc_ask(&rig.call, race.session, 0, &view, &existed), KV_OK), "%s", rig.call.info.text);
        pthread_join(thread, NULL);
        cr_assert(race.rc == KV_OK || race.rc == KV_E_IRREVERSIBLE, "%s", race.call.info.text);
        bool placed = race.rc == KV_OK;
        cr_assert(eq(int, placed, view.state == KV_ERASURE_BLOCKED_HOLD), "a hold that was placed holds");
        first += placed;
    }
    cr_log_info("the hold came first in %u of %u", first, RACES);
    pthread_barrier_destroy(&start);
    kv_call_done(&race.call);
    kvt_svc_done(&rig);
}

#ifdef KV_FAULTS
Test(hold, whose_release_got_no_answer_was_released_or_holds)
{
    static const struct {
        const char *fault;
        bool released;
    } cases[] = {{"store/hold-release/commit=fail@1once", false},
                 {"store/hold-release/committed=fail@1once", true},
                 {"hold/released=fail@1once", true}};
    open_all();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kv_id session = kvt_svc_session(&rig.call), hold = place(session, 9), erasure = blocked(session);
        kv_fault_set(cases[i].fault);
        enum kv_err broken = release(hold);
        kv_fault_set(NULL);
        cr_assert(ne(int, broken, KV_OK), "%s", cases[i].fault);
        cr_assert(eq(int, release(hold), cases[i].released ? KV_E_INVALID_STATE : KV_OK), "%s", cases[i].fault);
        cr_assert(comes_to(erasure, KV_ERASURE_CERTIFIED), "%s", cases[i].fault);
    }
    kvt_svc_done(&rig);
}

Test(hold, lets_go_what_waited_whatever_breaks_on_the_way)
{
    static const char *const faults[] = {"store/hold-let-go/commit=fail@1once",
                                         "store/hold-let-go/committed=fail@1once",
                                         "store/hold-let-go/serialize=fail@1once", "hold/let-go=fail@1once"};
    open_all();
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct kv_id session = kvt_svc_session(&rig.call), hold = place(session, 9), erasure = blocked(session);
        kv_fault_set(faults[i]);
        cr_assert(eq(int, release(hold), KV_OK), "%s", rig.call.info.text);
        cr_assert(comes_to(erasure, KV_ERASURE_CERTIFIED), "%s", faults[i]);
        kv_fault_set(NULL);
    }
    kvt_svc_done(&rig);
}
#endif

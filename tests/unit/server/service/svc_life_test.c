/*
 * Sessions' names, uses and ends: one session a name whatever breaks, no end before its time, and none of a session
 * that was used meanwhile. The clock is moved, not waited for.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/svc_approval.h"
#include "server/service/svc_int.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

#define SECOND_US UINT64_C(1000000)
#define GRACE_US ((uint64_t)KV_MAX_IDLE_GRACE_SECONDS * SECOND_US)

static struct kvt_svc rig;

/* --- a wall clock that jumps ------------------------------------------------------------------------------------- */

static atomic_ullong ahead_us;
static struct kv_env env;

static uint64_t jumped_us(void *ctx)
{
    return kv_env_system.realtime_us(ctx) + atomic_load(&ahead_us);
}

static void open_all(void)
{
    env = kv_env_system;
    env.realtime_us = jumped_us;
    kvt_svc_config(&rig);
    rig.conf.env = &env;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
}

static enum kv_err make(const char *external_id, uint64_t ttl_seconds, uint64_t idle_seconds,
                        struct kv_session_view *ret_session, bool *ret_existed)
{
    struct kv_session_new in = {.model = {.id = "test-model", .revision = "1"},
                                .external_id = external_id,
                                .ttl_seconds = ttl_seconds,
                                .idle_seconds = idle_seconds};
    rig.call.info = (struct kv_errinfo){0};
    return kv_svc_session_create(&rig.call, &in, ret_session, ret_existed);
}

static struct kv_id made(uint64_t ttl_seconds, uint64_t idle_seconds)
{
    struct kv_session_view view;
    bool existed = false;
    cr_assert(eq(int, make(NULL, ttl_seconds, idle_seconds, &view, &existed), KV_OK), "%s", rig.call.info.text);
    return view.id;
}

/* --- names ------------------------------------------------------------------------------------------------------- */

Test(name, is_one_session_and_comes_back_in_plain_text)
{
    struct kv_session_view first, second, got;
    bool existed = true;
    open_all();
    cr_assert(eq(int, make("chat/4711", 0, 0, &first, &existed), KV_OK), "%s", rig.call.info.text);
    cr_assert(not(existed));
    cr_assert(eq(int, make("chat/4711", 0, 0, &second, &existed), KV_OK));
    cr_assert(existed);
    cr_assert(kv_id_equal(&first.id, &second.id));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &first.id, false, &got), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(str, got.external_id, "chat/4711"));
    kvt_svc_done(&rig);
}

Test(name, sealed_for_another_session_does_not_open)
{
    struct kv_session_view a, b, got;
    bool existed = false;
    open_all();
    cr_assert(eq(int, make("a", 0, 0, &a, &existed), KV_OK));
    cr_assert(eq(int, make("b", 0, 0, &b, &existed), KV_OK));
    kvt_db_run(&rig, "WITH one AS (SELECT external_sealed AS sealed FROM kvrun.session ORDER BY id LIMIT 1)"
                     " UPDATE kvrun.session SET external_sealed = one.sealed FROM one");
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &a.id, false, &got), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(str, got.external_id, "a"), "the control");
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &b.id, false, &got), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(str, got.external_id, ""));
    kvt_svc_done(&rig);
}

Test(name, has_its_lengths)
{
    struct kv_session_view view;
    char longest[KV_EXTERNAL_ID_SIZE + 1];
    bool existed = false;
    open_all();
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    cr_assert(eq(int, make(longest, 0, 0, &view, &existed), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, make("", 0, 0, &view, &existed), KV_E_INVALID_REQUEST));
    cr_assert(eq(str, rig.call.info.pointer, "/external_id"));
    longest[sizeof longest - 2] = '\0';
    cr_assert(eq(int, make(longest, 0, 0, &view, &existed), KV_OK), "%s", rig.call.info.text);
    kvt_svc_done(&rig);
}

#ifdef KV_FAULTS
Test(name, is_one_session_when_the_answer_of_the_commit_is_lost)
{
    static const struct {
        const char *fault;
        bool existed;
    } cases[] = {{"store/session-create/commit=fail@1once", false},
                 {"store/session-create/committed=fail@1once", true}};
    struct kv_session_view view;
    open_all();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[8];
        bool existed = false;
        snprintf(name, sizeof name, "n%zu", i);
        kv_fault_set(cases[i].fault);
        enum kv_err broken = make(name, 0, 0, &view, &existed);
        kv_fault_set(NULL);
        cr_assert(ne(int, broken, KV_OK), "%s", cases[i].fault);
        cr_assert(eq(int, make(name, 0, 0, &view, &existed), KV_OK), "%s", rig.call.info.text);
        cr_assert(eq(int, existed, cases[i].existed), "%s", cases[i].fault);
    }
    cr_assert(eq(llong, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.session"), 2));
    kvt_svc_done(&rig);
}

Test(session, that_was_not_opened_when_it_was_made_is_opened_at_its_first_use)
{
    struct kvt_engine engine;
    open_all();
    kvt_engine_open(&rig.call, &engine);
    kv_fault_set("session/open-new=fail");
    struct kv_id session = made(0, 0);
    kv_fault_set(NULL);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK), "%s",
              rig.call.info.text);
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}
#endif

/* --- uses -------------------------------------------------------------------------------------------------------- */

static long long recorded(void)
{
    return kvt_db_number(&rig, "SELECT (extract(epoch FROM max(last_used_at)) * 1000000)::bigint FROM kvrun.session");
}

static bool await_recorded(long long not_this)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (recorded() == not_this && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
    }
    return recorded() != not_this;
}

Test(use, is_recorded_soon_and_then_once_a_minute)
{
    struct kvt_engine engine;
    open_all();
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = made(0, 0);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK));
    cr_assert(await_recorded(-1), "nothing within the last minute is known");
    long long first = recorded();
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 1, 1, KV_WAIT_DRAM), KV_OK));
    cr_assert(gt(u64, svc_use_noted(rig.svc, &session), (uint64_t)first));
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    bool more = false;
    cr_assert(eq(int, svc_pg_open(rig.svc, "test", &info, &pg), KV_OK));
    cr_assert(eq(int, svc_use_step(rig.svc, pg, &info, &more), KV_OK), "%s", info.text);
    cr_assert(eq(llong, recorded(), first), "the minute is not over");
    atomic_fetch_add(&ahead_us, (uint64_t)KV_MAX_USE_RECORD_SECONDS * SECOND_US);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 2, 1, KV_WAIT_DRAM), KV_OK));
    cr_assert(eq(int, svc_use_step(rig.svc, pg, &info, &more), KV_OK), "%s", info.text);
    cr_assert(await_recorded(first));
    kv_pg_close(pg);
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

Test(use, that_is_yet_to_be_written_is_written_at_the_end)
{
    struct kvt_engine engine;
    open_all();
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = made(0, 0);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK));
    cr_assert(await_recorded(-1));
    atomic_fetch_add(&ahead_us, 5 * SECOND_US);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 1, 1, KV_WAIT_DRAM), KV_OK));
    uint64_t noted = svc_use_noted(rig.svc, &session);
    kvt_engine_close(&engine);
    kvt_svc_stop(&rig);
    cr_assert(eq(llong, recorded(), (long long)noted));
    kvt_svc_done(&rig);
}

/* --- ends -------------------------------------------------------------------------------------------------------- */

static const char *state_of(const struct kv_id *session)
{
    static struct kv_session_view view;
    cr_assert(eq(int, kv_svc_session_get(&rig.call, session, true, &view), KV_OK), "%s", rig.call.info.text);
    return view.state;
}

static bool ends(const struct kv_id *session)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (strcmp(state_of(session), "erased") != 0 && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
    }
    return strcmp(state_of(session), "erased") == 0;
}

/* One round of the janitor's step, here and now. */
static enum kv_err expire_now(void)
{
    struct kv_pg *pg = NULL;
    struct kv_errinfo info = {0};
    bool more = false;
    cr_assert(eq(int, svc_pg_open(rig.svc, "test", &info, &pg), KV_OK));
    enum kv_err rc = svc_expire_step(rig.svc, pg, &info, &more);
    kv_pg_close(pg);
    return rc;
}

Test(end, comes_with_the_whole_lifetime_and_says_why)
{
    open_all();
    struct kv_id session = made(100, 0), other = made(0, 0);
    atomic_fetch_add(&ahead_us, 90 * SECOND_US);
    cr_assert(eq(int, expire_now(), KV_OK));
    cr_assert(eq(str, (char *)state_of(&session), "active"));
    atomic_fetch_add(&ahead_us, 11 * SECOND_US);
    cr_assert(eq(int, expire_now(), KV_OK));
    cr_assert(ends(&session));
    cr_assert(eq(str, (char *)state_of(&other), "active"));
    cr_assert(eq(llong,
                 kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure WHERE basis = 'retention'"
                                     " AND requested_role = 'system' AND requested_by IS NULL"),
                 1));
    kvt_svc_done(&rig);
}

Test(end, of_an_idle_one_waits_for_the_grace_and_a_use_puts_it_off)
{
    struct kvt_engine engine;
    open_all();
    kvt_engine_open(&rig.call, &engine);
    struct kv_id idle = made(0, 1000), used = made(0, 1000);
    atomic_fetch_add(&ahead_us, 1000 * SECOND_US + GRACE_US - 20 * SECOND_US);
    cr_assert(eq(int, expire_now(), KV_OK));
    cr_assert(eq(str, (char *)state_of(&idle), "active"), "within the grace");
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, used, 0, 1, KV_WAIT_DRAM), KV_OK));
    atomic_fetch_add(&ahead_us, 21 * SECOND_US);
    cr_assert(eq(int, expire_now(), KV_OK));
    cr_assert(ends(&idle));
    cr_assert(eq(str, (char *)state_of(&used), "active"));
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

Test(end, does_not_come_to_a_pinned_one)
{
    struct kv_session_view view;
    open_all();
    struct kv_id pinned = made(0, 100), control = made(0, 100);
    uint64_t until = jumped_us(NULL) + 1000 * SECOND_US;
    cr_assert(eq(int, kv_svc_session_pin(&rig.call, &pinned, until, &view), KV_OK), "%s", rig.call.info.text);
    atomic_fetch_add(&ahead_us, 990 * SECOND_US);
    cr_assert(eq(int, expire_now(), KV_OK));
    cr_assert(ends(&control));
    cr_assert(eq(str, (char *)state_of(&pinned), "active"));
    atomic_fetch_add(&ahead_us, 11 * SECOND_US);
    cr_assert(eq(int, expire_now(), KV_OK));
    cr_assert(ends(&pinned));
    kvt_svc_done(&rig);
}

Test(tenant, that_is_suspended_transfers_nothing_and_keeps_its_data)
{
    struct kvt_engine engine;
    struct kv_tenant_view tenant;
    uint32_t right = 0;
    open_all();
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = made(0, 0);
    struct kv_principal owner = rig.call.who;
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 2, KV_WAIT_DRAM), KV_OK));
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_tenant_suspend(&rig.call, &rig.tenant, "unpaid", &tenant), KV_OK));
    rig.call.who = owner;
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 2, 1, KV_WAIT_DRAM), KV_E_TENANT_SUSPENDED));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 2, &right), KV_E_TENANT_SUSPENDED));
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_tenant_resume(&rig.call, &rig.tenant, &tenant), KV_OK));
    rig.call.who = owner;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 2, &right), KV_OK));
    cr_assert(eq(u32, right, 2));
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

Test(end, comes_to_a_tenant_when_its_grace_time_is_over)
{
    struct kv_approval_view approval;
    struct kv_tenant_view tenant;
    open_all();
    struct kv_id session = made(0, 0);
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_tenant_delete(&rig.call, &rig.tenant, false, &tenant, &approval), KV_OK), "%s",
              rig.call.info.text);
    atomic_fetch_add(&ahead_us, ((uint64_t)KV_MAX_ERASURE_GRACE_SECONDS - 60) * SECOND_US);
    cr_assert(eq(int, expire_now(), KV_OK));
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &rig.tenant, &tenant), KV_OK));
    cr_assert(eq(str, tenant.state, "deleting"));
    atomic_fetch_add(&ahead_us, 61 * SECOND_US);
    cr_assert(eq(int, kv_svc_tenant_restore(&rig.call, &rig.tenant, &tenant), KV_E_IRREVERSIBLE));
    cr_assert(eq(int, expire_now(), KV_OK));
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    do {
        usleep(50000);
        cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &rig.tenant, &tenant), KV_OK));
    } while (strcmp(tenant.state, "erased") != 0 && kv_now_ns(&kv_env_system) < deadline);
    cr_assert(eq(str, tenant.state, "erased"));
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN);
    cr_assert(eq(str, (char *)state_of(&session), "erased"));
    kvt_svc_done(&rig);
}

#ifdef KV_FAULTS
Test(end, comes_once_whatever_breaks_on_the_way)
{
    static const char *const faults[] = {"store/expire-session/commit=fail@1once",
                                         "store/expire-session/committed=fail@1once", "expire/requested=fail@1once"};
    open_all();
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct kv_id session = made(10, 0);
        kv_fault_set(faults[i]);
        atomic_fetch_add(&ahead_us, 11 * SECOND_US);
        cr_assert(ends(&session), "%s", faults[i]); /* the janitor comes by itself */
        kv_fault_set(NULL);
    }
    cr_assert(eq(llong, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure"), 3));
    kvt_svc_done(&rig);
}
#endif

/* Sessions' views in memory: how long they are good, whose they are, and that a change is never followed by what was
 * read before it. The clock is moved, not waited for. The second half asks the whole service. */
#include "dataplane/base/id.h"
#include "server/service/session_views.h"
#include "server/service/svc_int.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

#define GOOD_NS UINT64_C(1000)

/* --- the cache alone --------------------------------------------------------------------------------------------- */

static uint64_t now_ns = 5000;
static struct kv_env clock_env;
static const struct kv_id ours = {.b = {7}};

static uint64_t moved_ns(void *ctx)
{
    return now_ns;
}

static struct svc_views *fresh(size_t max)
{
    struct svc_views *views = NULL;
    clock_env = kv_env_system;
    clock_env.boottime_ns = moved_ns;
    cr_assert(eq(int, svc_views_new(&clock_env, GOOD_NS, max, &views), KV_OK));
    return views;
}

static struct kv_session_view view_of(unsigned number, uint64_t rev)
{
    return (struct kv_session_view){
        .id = {.b = {1, [14] = (uint8_t)(number >> 8), [15] = (uint8_t)number}}, .tenant = ours, .rev = rev};
}

static void put(struct svc_views *views, unsigned number, uint64_t rev)
{
    struct kv_session_view view = view_of(number, rev);
    struct svc_view_mark mark = svc_views_mark(views, &view.id);
    svc_views_put(views, &mark, &view);
}

/* Its revision; 0: not there. */
static uint64_t rev_of(struct svc_views *views, unsigned number)
{
    struct kv_session_view at = view_of(number, 0), got;
    return svc_views_get(views, &at.id, &ours, &got) ? got.rev : 0;
}

Test(views, are_good_for_their_time_counted_from_the_read)
{
    struct svc_views *views = fresh(8);
    struct kv_session_view view = view_of(1, 3);
    struct svc_view_mark mark = svc_views_mark(views, &view.id);
    now_ns += 10; /* the read takes its time */
    svc_views_put(views, &mark, &view);
    now_ns += GOOD_NS - 11;
    cr_assert(eq(u64, rev_of(views, 1), 3));
    now_ns += 1;
    cr_assert(eq(u64, rev_of(views, 1), 0));
    svc_views_free(views);
}

Test(views, of_another_tenant_are_not_there)
{
    struct svc_views *views = fresh(8);
    struct kv_session_view view = view_of(1, 3), got;
    struct kv_id other = {.b = {8}};
    put(views, 1, 3);
    cr_assert(not(svc_views_get(views, &view.id, &other, &got)));
    cr_assert(eq(u64, rev_of(views, 1), 3), "the control");
    svc_views_free(views);
}

Test(views, read_before_a_change_are_not_kept_after_it)
{
    struct svc_views *views = fresh(8);
    struct kv_session_view view = view_of(1, 3);
    put(views, 1, 3);
    struct svc_view_mark mark = svc_views_mark(views, &view.id);
    svc_views_drop(views, &view.id);
    cr_assert(eq(u64, rev_of(views, 1), 0));
    svc_views_put(views, &mark, &view);
    cr_assert(eq(u64, rev_of(views, 1), 0));
    put(views, 1, 4);
    cr_assert(eq(u64, rev_of(views, 1), 4), "the control");
    svc_views_free(views);
}

Test(views, read_earlier_do_not_replace_those_read_later)
{
    struct svc_views *views = fresh(8);
    struct kv_session_view view = view_of(1, 3);
    struct svc_view_mark mark = svc_views_mark(views, &view.id);
    now_ns += 5;
    put(views, 1, 4);
    svc_views_put(views, &mark, &view);
    cr_assert(eq(u64, rev_of(views, 1), 4));
    svc_views_free(views);
}

Test(views, have_their_bound)
{
    enum { MAX = 64 };
    struct svc_views *views = fresh(MAX);
    for (unsigned i = 0; i < MAX; i++) {
        put(views, i, 1);
    }
    for (unsigned i = 0; i < MAX; i++) {
        cr_assert(eq(u64, rev_of(views, i), 1), "limit");
    }
    for (unsigned i = MAX; i < 5 * MAX; i++) {
        unsigned there = 0;
        put(views, i, 2);
        cr_assert(eq(u64, rev_of(views, i), 2), "the newest is there");
        for (unsigned j = 0; j <= i; j++) {
            there += rev_of(views, j) != 0;
        }
        cr_assert(eq(uint, there, MAX), "limit + 1");
    }
    svc_views_free(views);
}

/* --- the service ------------------------------------------------------------------------------------------------- */

static struct kvt_svc rig;

static bool in_memory(const struct kv_id *session, struct kv_id tenant, struct kv_session_view *ret_view)
{
    struct kv_call call;
    kv_call_from_memory(rig.svc, &call);
    kvt_svc_as(&call, tenant, KV_ROLE_TENANT_ADMIN);
    enum kv_err rc = kv_svc_session_get(&call, session, false, ret_view);
    cr_assert(eq(int, rc == KV_OK, !call.missing));
    return rc == KV_OK;
}

static bool remembered(const struct kv_id *session)
{
    struct kv_session_view view;
    return in_memory(session, rig.tenant, &view);
}

static void read_one(const struct kv_id *session)
{
    struct kv_session_view view;
    cr_assert(eq(int, kv_svc_session_get(&rig.call, session, false, &view), KV_OK), "%s", rig.call.info.text);
    cr_assert(remembered(session));
}

static uint64_t in_an_hour(void)
{
    return kv_env_system.realtime_us(NULL) + UINT64_C(3600000000);
}

Test(service, shows_from_memory_what_it_read)
{
    struct kv_session_view read, got;
    kvt_svc_open(&rig);
    struct kv_id session = kvt_svc_session(&rig.call), other = kvt_svc_tenant(&rig, "other");
    cr_assert(not(remembered(&session)), "not read yet");
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, false, &read), KV_OK));
    cr_assert(in_memory(&session, rig.tenant, &got));
    cr_assert(eq(int, memcmp(&read, &got, sizeof got), 0));
    cr_assert(not(in_memory(&session, other, &got)), "another tenant asks the database, which has no such session");
    kvt_svc_done(&rig);
}

Test(service, forgets_a_session_with_each_change)
{
    struct kv_session_view view;
    struct kvt_engine engine;
    struct kv_session_patch patch = {.labels = {.count = 1, .items = {{.name = "a", .value = "b"}}}};
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    read_one(&session);
    cr_assert(eq(int, kv_svc_session_update(&rig.call, &session, &patch, &view), KV_OK));
    cr_assert(not(remembered(&session)), "update");
    read_one(&session);
    cr_assert(eq(int, kv_svc_session_touch(&rig.call, &session, &view), KV_OK));
    cr_assert(not(remembered(&session)), "touch");
    read_one(&session);
    cr_assert(eq(int, kv_svc_session_pin(&rig.call, &session, in_an_hour(), &view), KV_OK));
    cr_assert(not(remembered(&session)), "pin");
    read_one(&session);
    cr_assert(eq(int, kv_svc_session_pin(&rig.call, &session, 0, &view), KV_OK));
    cr_assert(not(remembered(&session)), "unpin");
    read_one(&session);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 2, KV_WAIT_DRAM), KV_OK));
    cr_assert(not(remembered(&session)), "a transfer");
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

Test(service, never_shows_an_erased_session)
{
    struct kv_session_view view;
    kvt_svc_open(&rig);
    struct kv_id session = kvt_svc_session(&rig.call), beside = kvt_svc_session(&rig.call);
    read_one(&beside);
    read_one(&session);
    struct kv_erasure_view erasure = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, erasure.state, KV_ERASURE_CERTIFIED));
    cr_assert(not(remembered(&session)));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, false, &view), KV_E_SESSION_ERASED));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, true, &view), KV_OK));
    cr_assert(not(remembered(&session)), "what is left of it is not kept either");
    read_one(&beside);
    kvt_svc_done(&rig);
}

Test(service, shows_nothing_from_memory_in_quarantine)
{
    kvt_svc_open(&rig);
    struct kv_id session = kvt_svc_session(&rig.call);
    read_one(&session);
    svc_quarantine(rig.svc, "a test");
    cr_assert(not(remembered(&session)));
    kvt_svc_done(&rig);
}

Test(service, shows_at_once_what_a_tenants_change_makes_of_its_sessions)
{
    struct kv_tenant_view tenant;
    kvt_svc_open(&rig);
    struct kv_id session = kvt_svc_session(&rig.call);
    struct kv_call operator= kvt_svc_call(&rig, (struct kv_id){0}, KV_ROLE_OPERATOR);
    read_one(&session);
    struct svc_view_mark mark = svc_views_mark(rig.svc->views, &session);
    cr_assert(eq(int, kv_svc_tenant_suspend(&operator, & rig.tenant, NULL, &tenant), KV_OK));
    cr_assert(not(remembered(&session)));
    struct kv_session_view stale = {.id = session, .tenant = rig.tenant};
    svc_views_put(rig.svc->views, &mark, &stale);
    cr_assert(not(remembered(&session)), "what was read before it is not kept either");
    read_one(&session);
    kv_call_done(&operator);
    kvt_svc_done(&rig);
}

/* Another instance's change is one that this process does not hear of. */
Test(service, sees_what_others_change_within_the_time)
{
    struct kv_session_view view;
    kvt_svc_open(&rig);
    struct kv_id session = kvt_svc_session(&rig.call);
    read_one(&session);
    kvt_db_run(&rig, "UPDATE kvrun.session SET rev = rev + 1");
    uint64_t read_ns = kv_now_ns(&kv_env_system), until = read_ns + KVT_WAIT_S * KV_S_NS;
    while (remembered(&session) && kv_now_ns(&kv_env_system) < until) {
    }
    cr_assert(lt(u64, kv_now_ns(&kv_env_system), until));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, false, &view), KV_OK));
    cr_assert(eq(u64, view.rev, 2));
    kvt_svc_done(&rig);
}

/*
 * An approval is good for a day, for who did not propose it, and on what was proposed. The clock is moved, not waited
 * for. The interface's side of it is in tests/http/approvals_test.py.
 */
#include "server/service/svc_approval.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/svc_hold.h"
#include "server/service/svc_policy.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdatomic.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

#define SECOND_US UINT64_C(1000000)
#define DAY_US ((uint64_t)KV_MAX_APPROVAL_SECONDS * SECOND_US)

static struct kvt_svc rig;
static atomic_ullong ahead_us;
static struct kv_env env;
static struct kv_principal admin, officer;

static uint64_t jumped_us(void *ctx)
{
    return kv_env_system.realtime_us(ctx) + atomic_load(&ahead_us);
}

/* Keys as the database has them: whether one still works is looked up there. */
static struct kv_principal key_of(unsigned roles, const char *name)
{
    struct kv_key_view key;
    const struct kv_key_new in = {.name = name, .roles = roles, .expires_in_seconds = 30 * 86400};
    kvt_svc_as(&rig.call, (struct kv_id){{0}}, KV_ROLE_OPERATOR);
    cr_assert(eq(int, kv_svc_key_create(&rig.call, &rig.tenant, &in, &key), KV_OK), "%s", rig.call.info.text);
    return (struct kv_principal){.key = key.id, .tenant = rig.tenant, .roles = roles};
}

static void open_all(void)
{
    static const char policy[] = "{\"tiers\":{\"dram\":{},\"nvme\":{}},\"hold\":{\"allowed\":true},"
                                 "\"approvals\":{\"hold_release\":2}}";
    struct kv_policy_view view;
    atomic_store(&ahead_us, 0);
    env = kv_env_system;
    env.realtime_us = jumped_us;
    kvt_svc_config(&rig);
    rig.conf.env = &env;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    admin = key_of(KV_ROLE_TENANT_ADMIN, "admin");
    officer = key_of(KV_ROLE_SECURITY_OFFICER, "officer");
    kv_policy_view_init(&view);
    rig.call.who = officer;
    cr_assert(eq(int, kv_svc_policy_put(&rig.call, &rig.tenant, KV_BYTES(policy, strlen(policy)), &view), KV_OK), "%s",
              rig.call.info.text);
    kv_policy_view_done(&view);
}

static struct kv_id held(void)
{
    struct kv_hold_view hold;
    rig.call.who = admin;
    struct kv_hold_new in = {.scope = KV_HOLD_SESSION,
                             .session = kvt_svc_session(&rig.call),
                             .reason = "r",
                             .expires_us = jumped_us(NULL) + 20 * DAY_US};
    cr_assert(eq(int, kv_svc_hold_create(&rig.call, &in, &hold), KV_OK), "%s", rig.call.info.text);
    return hold.row.id;
}

static struct kv_id propose(struct kv_id hold)
{
    struct kv_hold_view view;
    struct kv_approval_view approval;
    rig.call.who = admin;
    cr_assert(eq(int, kv_svc_hold_release(&rig.call, &hold, &view, &approval), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(str, (char *)view.state, "active"));
    cr_assert(not(kv_id_is_zero(&approval.row.id)));
    return approval.row.id;
}

static enum kv_err approve(struct kv_id approval, struct kv_principal who)
{
    struct kv_approval_view view;
    rig.call.who = who;
    return kv_svc_approval_approve(&rig.call, &approval, &view);
}

static bool released(struct kv_id hold)
{
    struct kv_hold_view view;
    cr_assert(eq(int, kv_svc_hold_get(&rig.call, &hold, &view), KV_OK));
    return strcmp(view.state, "released") == 0;
}

Test(approval, is_good_for_a_day_and_no_longer)
{
    open_all();
    struct kv_id hold = held(), other = held(), first = propose(hold), second = propose(other);
    atomic_fetch_add(&ahead_us, DAY_US - 60 * SECOND_US);
    cr_assert(eq(int, approve(first, officer), KV_OK), "%s", rig.call.info.text);
    cr_assert(released(hold));
    atomic_fetch_add(&ahead_us, 61 * SECOND_US);
    cr_assert(eq(int, approve(second, officer), KV_E_INVALID_STATE));
    cr_assert(not(released(other)));
    cr_assert(eq(int, approve(propose(other), officer), KV_OK), "proposed again it is another one");
    cr_assert(released(other));
    kvt_svc_done(&rig);
}

Test(approval, of_a_hold_that_was_over_before_is_stale)
{
    open_all();
    struct kv_id hold = held(), approval = propose(hold);
    kvt_db_run(&rig, "UPDATE kvrun.hold SET ended_at = now(), rev = rev + 1");
    cr_assert(eq(int, approve(approval, officer), KV_E_STALE));
    kvt_svc_done(&rig);
}

#ifdef KV_FAULTS
Test(approval, whose_answer_was_lost_was_carried_out_or_waits)
{
    static const struct {
        const char *fault;
        bool done;
    } cases[] = {{"store/approval-decide/commit=fail@1once", false},
                 {"store/approval-decide/committed=fail@1once", true},
                 {"approval/decided=fail@1once", true}};
    open_all();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kv_id hold = held(), approval = propose(hold);
        kv_fault_set(cases[i].fault);
        enum kv_err broken = approve(approval, officer);
        kv_fault_set(NULL);
        cr_assert(ne(int, broken, KV_OK), "%s", cases[i].fault);
        cr_assert(eq(int, released(hold), cases[i].done), "%s", cases[i].fault);
        cr_assert(eq(int, approve(approval, officer), cases[i].done ? KV_E_INVALID_STATE : KV_OK), "%s",
                  cases[i].fault);
    }
    kvt_svc_done(&rig);
}
#endif

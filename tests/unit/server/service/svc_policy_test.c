/* Policies through the service: who may change what, the ceiling, what holds at once, and what a lost database leaves.
 */
#include "server/service/svc_policy.h"

#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "server/service/svc_rules.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static const struct kv_id platform;

static const char *const all = "{\"tiers\":{\"dram\":{},\"nvme\":{}}}";
static const char *const dram = "{\"tiers\":{\"dram\":{}}}";

static void start(void)
{
    kvt_svc_open(&rig);
}

static void finish(void)
{
    kvt_svc_done(&rig);
}

TestSuite(svc_policy, .init = start, .fini = finish, .timeout = 120);

static enum kv_err put_as(struct kv_id key_tenant, unsigned roles, const struct kv_id *tenant, const char *text,
                          uint64_t *ret_version)
{
    struct kv_call call = kvt_svc_call(&rig, key_tenant, roles);
    struct kv_policy_view view;
    kv_policy_view_init(&view);
    enum kv_err rc = kv_svc_policy_put(&call, tenant, KV_BYTES(text, strlen(text)), &view);
    if (ret_version != NULL) {
        *ret_version = view.version;
    }
    kv_policy_view_done(&view);
    rig.info = call.info;
    kv_call_done(&call);
    return rc;
}

static enum kv_err put(unsigned roles, const char *text)
{
    return put_as(rig.tenant, roles, &rig.tenant, text, NULL);
}

Test(svc_policy, an_admin_narrows_an_officer_loosens)
{
    uint64_t version = 0;
    cr_assert_eq(put(KV_ROLE_TENANT_ADMIN, dram), KV_OK);
    cr_expect_eq(put(KV_ROLE_TENANT_ADMIN, all), KV_E_FORBIDDEN);
    cr_expect(strstr(rig.info.text, "nvme") != NULL, "%s", rig.info.text);
    cr_expect_eq(put_as(rig.tenant, KV_ROLE_SECURITY_OFFICER, &rig.tenant, all, &version), KV_OK);
    cr_expect_eq(version, 2);
    cr_expect_eq(put_as(platform, KV_ROLE_SECURITY_OFFICER, &rig.tenant, dram, &version), KV_OK, "the platform's, too");
    cr_expect_eq(version, 3);
}

Test(svc_policy, the_platform_is_narrowed_by_the_operator_and_loosened_by_its_officer)
{
    const char *lower = "{\"tiers\":{\"dram\":{},\"nvme\":{}},\"forbid\":[{\"data_classes\":[\"special\"],\"tiers\":"
                        "[\"nvme\"]}]}";
    cr_expect_eq(put_as(platform, KV_ROLE_OPERATOR, &platform, lower, NULL), KV_OK);
    cr_expect_eq(put_as(platform, KV_ROLE_OPERATOR, &platform, all, NULL), KV_E_FORBIDDEN,
                 "it holds for one class of data");
    cr_expect_eq(put_as(rig.tenant, KV_ROLE_SECURITY_OFFICER, &platform, all, NULL), KV_E_NOT_FOUND);
    cr_expect_eq(put_as(platform, KV_ROLE_SECURITY_OFFICER, &platform, all, NULL), KV_OK);
}

Test(svc_policy, nobody_asks_for_more_than_the_platform_allows)
{
    cr_assert_eq(put_as(platform, KV_ROLE_OPERATOR, &platform, dram, NULL), KV_OK);
    cr_expect_eq(put(KV_ROLE_SECURITY_OFFICER, all), KV_E_CEILING);
    cr_expect_str_eq(rig.info.pointer, "/tiers");
    cr_expect_eq(put(KV_ROLE_TENANT_ADMIN, dram), KV_OK);
}

Test(svc_policy, a_dry_run_and_a_failure_leave_nothing)
{
    struct kv_call call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_TENANT_ADMIN);
    struct kv_policy_view view;
    kv_policy_view_init(&view);
    call.dry_run = true;
    cr_expect_eq(kv_svc_policy_put(&call, &rig.tenant, KV_BYTES(dram, strlen(dram)), &view), KV_OK);
    cr_expect_eq(view.version, 1);
    call.dry_run = false;
    call.match = (struct kv_match){.present = true, .rev = 2};
    cr_expect_eq(kv_svc_policy_put(&call, &rig.tenant, KV_BYTES(dram, strlen(dram)), &view), KV_E_PRECONDITION_FAILED);
    call.match = (struct kv_match){.present = true, .rev = 1};
    cr_expect_eq(kv_svc_policy_put(&call, &rig.tenant, KV_BYTES("{", 1), &view), KV_E_POLICY_INVALID);
    cr_expect_eq(kv_svc_policy_get(&call, &rig.tenant, &view), KV_OK);
    cr_expect_eq(view.version, 0);
    cr_expect_eq(kv_svc_policy_put(&call, &rig.tenant, KV_BYTES(dram, strlen(dram)), &view), KV_OK);
    kv_policy_view_done(&view);
    kv_call_done(&call);
}

Test(svc_policy, a_tenant_that_is_not_active_moves_nothing_and_can_still_be_erased)
{
    struct kvt_engine engine;
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert_eq(kvt_svc_offload(&rig.call, &engine, session, 0, 2, KV_WAIT_DRAM), KV_OK);
    kvt_db_run(&rig, "UPDATE tenant SET state = 'suspended'");
    svc_changed(rig.svc);
    cr_expect_eq(kvt_svc_offload(&rig.call, &engine, session, 2, 2, KV_WAIT_DRAM), KV_E_TENANT_SUSPENDED);
    uint32_t count = 0;
    cr_expect_eq(kvt_svc_lookup(&rig.call, &engine, session, 0, 2, &count), KV_E_TENANT_SUSPENDED);
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    cr_expect_eq(view.state, KV_ERASURE_CERTIFIED);
    kvt_engine_close(&engine);
}

Test(svc_policy, with_the_database_gone_what_is_known_holds_for_the_lease_and_nothing_more_is_allowed)
{
    struct kvt_engine engine;
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert_eq(put(KV_ROLE_TENANT_ADMIN, dram), KV_OK);
    cr_assert_eq(kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK);
    svc_changed(rig.svc); /* what is known is stale from here on */
    kvt_db_stop(&rig);
    cr_expect_eq(kvt_svc_offload(&rig.call, &engine, session, 1, 1, KV_WAIT_DURABLE), KV_E_POLICY_DENIED);
    cr_expect_eq(kvt_svc_offload(&rig.call, &engine, session, 1, 1, KV_WAIT_DRAM), KV_OK);
    kvt_db_back(&rig);
    kvt_engine_close(&engine);
}

Test(svc_policy, quotas_count_what_is_there_after_a_restart)
{
    struct kvt_engine engine;
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert_eq(kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DURABLE), KV_OK);
    uint64_t before[KV_ENGINE_TIERS] = {0}, after[KV_ENGINE_TIERS] = {0};
    cr_assert_eq(kv_engine_tenant_bytes(rig.svc->engine, &rig.tenant, before), KV_OK);
    cr_expect_gt(before[KV_TIER_NVME], 0);
    kvt_engine_close(&engine);
    kvt_svc_restart(&rig);
    cr_assert_eq(kv_engine_tenant_bytes(rig.svc->engine, &rig.tenant, after), KV_OK);
    cr_expect_eq(after[KV_TIER_NVME], before[KV_TIER_NVME]);
}

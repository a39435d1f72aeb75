/*
 * The rotation of a tenant's key through the whole service: the old version is destroyed with its root, sessions and
 * their blocks go on, and what fails or is cancelled holds nobody up.
 */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "server/service/svc_tenant_key.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
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

static struct kv_id session_with_blocks(void)
{
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 2, KV_WAIT_DURABLE), KV_OK));
    return session;
}

static void await_end(struct kv_operation_view *view)
{
    for (unsigned i = 0; i < KVT_WAIT_S * 20 && !kv_operation_ended(view); i++) {
        usleep(50000);
        cr_assert(eq(int, kv_svc_operation_get(&rig.call, &view->row.id, view), KV_OK), "%s", rig.call.info.text);
    }
    cr_assert(kv_operation_ended(view), "phase %s", view->row.phase);
}

static struct kv_operation_view rotate(bool compromised)
{
    struct kv_operation_view view;
    cr_assert(eq(int, kv_svc_tenant_key_rotate(&rig.call, &rig.tenant, compromised, &view), KV_OK), "%s",
              rig.call.info.text);
    return view;
}

static struct kv_operation_view rotated(bool compromised)
{
    struct kv_operation_view view = rotate(compromised);
    await_end(&view);
    cr_assert(eq(int, view.row.state, KV_OPERATION_SUCCEEDED), "%s %s", view.row.error_code, view.row.error_text);
    return view;
}

static struct kv_tenant_key_view version(uint32_t number)
{
    struct kv_tenant_key_view list[8], none = {.state = "missing"};
    struct kv_page page = {.limit = 7};
    size_t count = 0;
    cr_assert(eq(int, kv_svc_tenant_key_list(&rig.call, &rig.tenant, &page, list, &count), KV_OK));
    for (size_t i = 0; i < count; i++) {
        if (list[i].row.version == number) {
            return list[i];
        }
    }
    return none;
}

static struct kv_session_key key_of(struct kv_id session)
{
    struct kv_session_view view;
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &session, true, &view), KV_OK), "%s", rig.call.info.text);
    return view.key;
}

static bool restores(struct kv_id session)
{
    uint32_t right = 0;
    return kvt_svc_restore(&rig.call, &engine, session, 0, 2, &right) == KV_OK && right == 2;
}

static uint64_t nvme_bytes(void)
{
    struct kv_tenant_usage usage;
    cr_assert(eq(int, kv_svc_tenant_usage(&rig.call, &rig.tenant, 0, &usage), KV_OK));
    return usage.blocks.nvme_bytes;
}

Test(tenant_key, a_first_session_puts_the_first_version_into_use)
{
    open_all();
    cr_assert(eq(str, (char *)version(1).state, "pre_activation"));
    struct kv_id session = kvt_svc_session(&rig.call);
    struct kv_tenant_key_view first = version(1);
    cr_assert(eq(str, (char *)first.state, "active"));
    cr_assert(first.row.has_fingerprint && first.row.sessions == 1);
    struct kv_session_key key = key_of(session);
    cr_assert(eq(str, key.state, "active"));
    cr_assert(key.version == 1 && key.has_fingerprint);
    cr_assert(memcmp(key.fingerprint, first.row.fingerprint, sizeof key.fingerprint) != 0);
    close_all();
}

/* All that the tenant has, in one step, to its end. */
static void erase_all(void)
{
    struct kv_erasure_new in = {.scope = KV_SCOPE_TENANT, .tenant = rig.tenant, .basis = "other"};
    struct kv_erasure_made *made = calloc(1, sizeof *made);
    cr_assert(eq(int, kv_svc_erase(&rig.call, &in, made), KV_OK), "%s", rig.call.info.text);
    for (unsigned i = 0; i < KVT_WAIT_S * 20 && made->erasure.state != KV_ERASURE_CERTIFIED; i++) {
        usleep(50000);
        cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &made->erasure.id, &made->erasure), KV_OK));
    }
    cr_assert(eq(int, made->erasure.state, KV_ERASURE_CERTIFIED));
    free(made);
}

Test(tenant_key, a_tenant_erased_in_one_step_goes_on_with_the_next_version)
{
    open_all();
    struct kv_id gone = session_with_blocks();
    struct kv_tenant_key_view first = version(1);
    erase_all();
    struct kv_tenant_key_view ended = version(1), next = version(2);
    cr_assert(eq(str, (char *)ended.state, "destroyed"));
    cr_assert(ended.row.destroyed_us > 0);
    for (unsigned i = 0; i < KVT_WAIT_S * 20 && version(1).row.sessions > 0; i++) { /* rows are settled afterwards */
        usleep(50000);
    }
    cr_assert(eq(u64, version(1).row.sessions, 0));
    cr_assert(memcmp(ended.row.fingerprint, first.row.fingerprint, sizeof first.row.fingerprint) == 0);
    cr_assert(eq(str, (char *)next.state, "pre_activation"), "nothing was made in it yet");
    struct kv_session_view view;
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &gone, false, &view), KV_E_SESSION_ERASED));
    cr_assert(eq(u32, key_of(gone).version, 1));
    cr_assert(eq(str, (char *)key_of(gone).state, "destroyed"));

    struct kv_id session = session_with_blocks();
    next = version(2);
    cr_assert(eq(str, (char *)next.state, "active"));
    cr_assert(next.row.has_fingerprint && next.row.sessions == 1);
    cr_assert(memcmp(next.row.fingerprint, first.row.fingerprint, sizeof first.row.fingerprint) != 0);
    cr_assert(eq(u32, key_of(session).version, 2));
    cr_assert(restores(session));

    (void)rotated(false); /* and that one is rotated like any other */
    cr_assert(eq(str, (char *)version(2).state, "destroyed"));
    cr_assert(eq(str, (char *)version(3).state, "active"));
    cr_assert(restores(session));
    erase_all();
    cr_assert(eq(str, (char *)version(3).state, "destroyed"));
    cr_assert(eq(str, (char *)version(4).state, "pre_activation"));
    close_all();
}

Test(tenant_key, between_an_erasure_of_all_and_the_next_session_there_is_nothing_to_rotate)
{
    struct kv_operation_view view;
    open_all();
    (void)session_with_blocks();
    cr_assert(eq(str, (char *)version(1).state, "active"));
    erase_all();
    cr_assert(eq(str, (char *)version(1).state, "destroyed"));
    cr_assert(eq(int, kv_svc_tenant_key_rotate(&rig.call, &rig.tenant, false, &view), KV_E_INVALID_STATE),
              "there is nothing to rotate");
    (void)session_with_blocks();
    (void)rotated(false);
    close_all();
}

/* An older version of this program went on with the same version: its tenants do so too, and rotate. */
Test(tenant_key, a_tenant_that_an_older_version_erased_goes_on_as_it_was)
{
    open_all();
    (void)session_with_blocks();
    kvt_db_run(&rig, "UPDATE kvrun.tenant SET first_slot = next_slot");
    (void)session_with_blocks();
    cr_assert(eq(str, (char *)version(1).state, "active"));
    cr_assert(eq(str, (char *)version(2).state, "missing"));
    close_all();
}

#ifdef KV_FAULTS
Test(tenant_key, a_rotation_that_is_overtaken_by_the_erasure_of_all_fails)
{
    char gate[KVT_PATH_BYTES], spec[KVT_PATH_BYTES + 64];
    open_all();
    (void)session_with_blocks();
    kvt_path_join(gate, rig.folder, "gate");
    snprintf(spec, sizeof spec, "erase/staged=hold:%s@1once", gate);
    kv_fault_set(spec);
    struct kv_operation_view view = rotate(false);
    for (unsigned i = 0; i < KVT_WAIT_S * 50 && access(gate, F_OK) != 0; i++) {
        usleep(20000);
    }
    struct kv_erasure_new in = {.scope = KV_SCOPE_TENANT, .tenant = rig.tenant, .basis = "other"};
    struct kv_erasure_made *made = calloc(1, sizeof *made);
    cr_assert(eq(int, kv_svc_erase(&rig.call, &in, made), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(int, unlink(gate), 0));
    await_end(&view);
    for (unsigned i = 0; i < KVT_WAIT_S * 20 && made->erasure.state != KV_ERASURE_CERTIFIED; i++) {
        usleep(50000);
        cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &made->erasure.id, &made->erasure), KV_OK));
    }
    cr_assert(eq(int, made->erasure.state, KV_ERASURE_CERTIFIED));
    free(made);
    cr_assert(eq(str, (char *)version(1).state, "destroyed"));
    (void)session_with_blocks();
    cr_assert(eq(str, (char *)version(2).state, "active"));
    kv_fault_set(NULL);
    close_all();
}
#endif

Test(tenant_key, a_rotation_destroys_the_old_root_and_touches_no_block)
{
    open_all();
    struct kv_id session = session_with_blocks(), other = session_with_blocks();
    struct kv_session_key before = key_of(session);
    uint64_t bytes = nvme_bytes();
    struct kv_id root = {0}, after = {0};
    cr_assert(kv_ktree_root(rig.svc->tree, &root));
    struct kv_operation_view view = rotated(false);
    cr_assert(kv_ktree_root(rig.svc->tree, &after));
    cr_assert_not(kv_id_equal(&root, &after));
    struct kv_tenant_key_view old = version(1), now = version(2);
    cr_assert(eq(str, (char *)old.state, "destroyed"));
    cr_assert(kv_id_equal(&old.row.ended_by, &view.row.id) && kv_id_equal(&now.row.operation, &view.row.id));
    cr_assert(eq(str, (char *)now.state, "active"));
    cr_assert(memcmp(old.row.fingerprint, now.row.fingerprint, sizeof now.row.fingerprint) != 0);
    cr_assert(old.row.sessions == 2 && now.row.sessions == 0);
    struct kv_session_key same = key_of(session);
    cr_assert(memcmp(&before, &same, sizeof same) == 0, "a session's own key stays");
    cr_assert(restores(session));
    kvt_svc_restart(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_close(&engine);
    kvt_engine_open(&rig.call, &engine);
    cr_assert(restores(session), "from the rows alone");
    cr_assert(eq(u64, nvme_bytes(), bytes), "no block was written again");
    struct kv_id later = kvt_svc_session(&rig.call);
    cr_assert(eq(int, (int)key_of(later).version, 2));
    struct kv_erasure_view erased = kvt_svc_erase(&rig.call, other);
    cr_assert(eq(int, erased.state, KV_ERASURE_CERTIFIED), "erasing works in the new version");
    cr_assert(eq(str, key_of(other).state, "destroyed"));
    cr_assert(eq(str, (char *)version(2).state, "active"), "an erasure ends no version");
    close_all();
}

Test(tenant_key, who_says_compromised_has_it_said_of_the_version_and_its_sessions)
{
    open_all();
    struct kv_id before = session_with_blocks();
    struct kv_operation_view view = rotated(true);
    struct kv_id after = kvt_svc_session(&rig.call);
    cr_assert(version(1).row.compromised_us != 0);
    cr_assert(eq(str, (char *)version(1).state, "destroyed"));
    cr_assert(version(2).row.compromised_us == 0);
    cr_assert(eq(str, key_of(before).state, "compromised"));
    cr_assert(eq(str, key_of(after).state, "active"));
    cr_assert(restores(before), "it goes on until it is erased");
    cr_assert(eq(int, kvt_svc_erase(&rig.call, before).state, KV_ERASURE_CERTIFIED));
    cr_assert(eq(str, key_of(before).state, "destroyed"));
    struct kv_tenant_key_view old = version(1);
    cr_assert(kv_id_equal(&old.row.ended_by, &view.row.id));
    close_all();
}

Test(tenant_key, a_sealed_tenants_keys_are_suspended)
{
    struct kv_tenant_view tenant;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call);
    struct kv_call operator= kvt_svc_call(&rig, (struct kv_id){0}, KV_ROLE_OPERATOR);
    cr_assert(eq(int, kv_svc_tenant_suspend(&operator, & rig.tenant, NULL, &tenant), KV_OK));
    cr_assert(eq(str, key_of(session).state, "suspended"));
    cr_assert(eq(str, (char *)version(1).state, "suspended"));
    rotated(false);
    cr_assert(eq(str, (char *)version(2).state, "suspended"), "it may be rotated all the same");
    cr_assert(eq(int, kv_svc_tenant_resume(&operator, & rig.tenant, &tenant), KV_OK));
    cr_assert(eq(str, key_of(session).state, "active"));
    kv_call_done(&operator);
    close_all();
}

Test(tenant_key, is_its_tenants_and_the_platforms_security_officers)
{
    struct kv_operation_view view;
    struct kv_page page = {.limit = 10};
    struct kv_tenant_key_view list[11];
    size_t count = 0;
    open_all();
    cr_assert(eq(int, kv_svc_tenant_key_rotate(&rig.call, &rig.tenant, false, &view), KV_E_INVALID_STATE),
              "no session was ever made");
    kvt_svc_session(&rig.call);
    struct kv_call stranger = kvt_svc_call(&rig, kvt_svc_tenant(&rig, "other"), KV_ROLE_TENANT_ADMIN);
    struct kv_call operator= kvt_svc_call(&rig, (struct kv_id){0}, KV_ROLE_OPERATOR);
    struct kv_call officer = kvt_svc_call(&rig, (struct kv_id){0}, KV_ROLE_SECURITY_OFFICER);
    struct kv_call *refused[] = {&stranger, &operator};
    for (size_t i = 0; i < 2; i++) {
        cr_assert(eq(int, kv_svc_tenant_key_list(refused[i], &rig.tenant, &page, list, &count), KV_E_NOT_FOUND));
        cr_assert(eq(int, kv_svc_tenant_key_rotate(refused[i], &rig.tenant, false, &view), KV_E_NOT_FOUND));
    }
    cr_assert(eq(int, kv_svc_tenant_key_list(&officer, &rig.tenant, &page, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    struct kv_id nobody = {.b = {1}};
    cr_assert(eq(int, kv_svc_tenant_key_list(&officer, &nobody, &page, list, &count), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_tenant_key_rotate(&officer, &nobody, false, &view), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_tenant_key_rotate(&officer, &rig.tenant, false, &view), KV_OK));
    kv_call_done(&stranger);
    kv_call_done(&operator);
    kv_call_done(&officer);
    close_all();
}

#ifdef KV_FAULTS
static void rotates_despite(const char *fault)
{
    open_all();
    struct kv_id session = session_with_blocks();
    kv_fault_set(fault);
    rotated(false);
    kv_fault_set(NULL);
    cr_assert(eq(str, (char *)version(1).state, "destroyed"));
    cr_assert(eq(str, (char *)version(2).state, "active"));
    cr_assert(restores(session));
    cr_assert(eq(int, kvt_svc_erase(&rig.call, session).state, KV_ERASURE_CERTIFIED));
    close_all();
}

#define FAILS_ONCE(name, fault)               \
    Test(rotation_step_fails_once, name)      \
    {                                         \
        rotates_despite(fault "=fail@1once"); \
    }
FAILS_ONCE(after_stage, "erase/staged")
FAILS_ONCE(after_rekey, "erase/rekeyed")
FAILS_ONCE(before_the_old_key_is_destroyed, "erase/destroy")
FAILS_ONCE(after_destroy, "erase/destroyed")
FAILS_ONCE(after_purge, "erase/purged")
FAILS_ONCE(after_verify, "erase/verified")

Test(tenant_key, a_tree_that_cannot_be_rotated_holds_nobody_up)
{
    open_all();
    struct kv_id session = session_with_blocks(), other = session_with_blocks();
    kv_fault_set("erase/rotate-damaged=fail");
    struct kv_operation_view view = rotate(false);
    cr_assert(eq(int, kvt_svc_erase(&rig.call, other).state, KV_ERASURE_CERTIFIED));
    await_end(&view);
    cr_assert(eq(int, view.row.state, KV_OPERATION_FAILED));
    cr_assert(eq(str, view.row.error_code, "corrupt"));
    cr_assert(eq(str, (char *)version(1).state, "active"));
    kv_fault_set(NULL);
    rotated(false);
    cr_assert(eq(str, (char *)version(1).state, "destroyed"), "the next one goes on in its place");
    cr_assert(restores(session));
    close_all();
}

Test(tenant_key, one_rotation_at_a_time_and_a_cancelled_one_changes_nothing)
{
    struct kv_operation_view view, more;
    open_all();
    struct kv_id session = session_with_blocks();
    kv_fault_set("erase/stage-create=fail");
    view = rotate(false);
    cr_assert(eq(int, kv_svc_tenant_key_rotate(&rig.call, &rig.tenant, false, &more), KV_E_INVALID_STATE));
    cr_assert(eq(str, (char *)version(2).state, "pre_activation"));
    cr_assert(eq(int, kv_svc_operation_cancel(&rig.call, &view.row.id, &view), KV_OK));
    await_end(&view);
    kv_fault_set(NULL);
    cr_assert(eq(int, view.row.state, KV_OPERATION_CANCELED));
    usleep(500000);
    cr_assert(eq(str, (char *)version(1).state, "active"));
    cr_assert(eq(str, (char *)version(2).state, "pre_activation"));
    rotated(false);
    cr_assert(eq(str, (char *)version(2).state, "active"));
    cr_assert(restores(session));
    close_all();
}
#endif

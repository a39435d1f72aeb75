/*
 * After a certificate: what the erased session left is dropped, and a statement says so when all have dropped it that
 * may have had some. While one has not, for whatever reason, there is none, and the certificate's view says who.
 */
#include "audit/upgrade.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/event.h"
#include "tests/lib/soft_token.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

#define LOOKS (KVT_WAIT_S * 20)
#define LOOK_US (50 * 1000)

static struct kvt_svc rig;
static struct kvt_engine engine;
static struct kv_id session, erasure;

static void open_all(void)
{
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
}

static void close_all(void)
{
    kv_fault_set(NULL);
    kvt_svc_done(&rig);
    kvt_engine_close(&engine);
}

TestSuite(upgrade, .init = open_all, .fini = close_all);

static void erase_one(void)
{
    session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DURABLE), KV_OK));
    erasure = kvt_svc_erase(&rig.call, session).id;
}

static struct kv_upgrade_view view_now(void)
{
    struct kv_upgrade_view view;
    struct kv_buf payload KV_CLEANUP(kv_buf_done);
    kv_buf_init(&payload, 65536);
    cr_assert(eq(int, kv_svc_upgrade_get(&rig.call, &erasure, &view, &payload), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(int, payload.len > 0, view.gone));
    return view;
}

static bool await_gone(void)
{
    for (unsigned i = 0; i < LOOKS && !view_now().gone; i++) {
        usleep(LOOK_US);
    }
    return view_now().gone;
}

/* Until this one alone is missing. */
static bool await_missing(const char *why)
{
    for (unsigned i = 0; i < LOOKS; i++) {
        const struct kv_upgrade_view view = view_now();
        if (view.missing_count == 1 && strcmp(view.missing[0].why, why) == 0) {
            return true;
        }
        usleep(LOOK_US);
    }
    return false;
}

/* Time in which it would have been made several times over; the control of each use is that it is made afterwards. */
static bool stays_pending(void)
{
    for (unsigned i = 0; i < 60; i++) {
        if (view_now().gone) {
            return false;
        }
        usleep(LOOK_US);
    }
    return true;
}

static enum kv_err bundle_of(const struct kv_id *by, bool certificate, struct kv_buf *bundle)
{
    kv_buf_init(bundle, 262144);
    return kv_svc_upgrade_bundle(&rig.call, certificate ? NULL : by, certificate ? by : NULL, bundle);
}

/* It verifies, follows from its certificate, and has this text in it. */
static void check_statement(const char *has)
{
    char detail[160];
    bool is_bundle = false;
    struct kv_cert_report a, b;
    struct kv_buf statement KV_CLEANUP(kv_buf_done), certificate KV_CLEANUP(kv_buf_done);
    kv_buf_init(&certificate, 262144);
    cr_assert(eq(int, bundle_of(&erasure, false, &statement), KV_OK));
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &erasure, KV_CERT_BUNDLE, &certificate), KV_OK));
    cr_assert(
        eq(int, kv_svc_certificate_verify(rig.svc, kv_buf_bytes(&statement), &rig.call.info, &a, &is_bundle), KV_OK));
    cr_assert(
        eq(int, kv_svc_certificate_verify(rig.svc, kv_buf_bytes(&certificate), &rig.call.info, &b, &is_bundle), KV_OK));
    cr_assert(a.ok && a.upgrade && b.ok);
    cr_assert(kv_upgrade_follows(&a, &b, detail), "%s", detail);
    cr_assert(memmem(a.payload.data, a.payload.len, has, strlen(has)) != NULL, "%.*s", (int)a.payload.len,
              (char *)a.payload.data);
    kv_buf_done(&a.payload);
    kv_buf_done(&b.payload);
}

Test(upgrade, follows_the_certificate_of_a_session)
{
    struct kv_buf first KV_CLEANUP(kv_buf_done), again KV_CLEANUP(kv_buf_done);
    struct kv_certificate_view certificate;
    struct kv_buf payload KV_CLEANUP(kv_buf_done);
    kv_buf_init(&payload, 65536);
    erase_one();
    cr_assert(await_gone());
    check_statement("\"assurance\":\"E2\"");
    check_statement("\"tiers\":\"dram, nvme\"");
    cr_assert(
        eq(int, kv_svc_certificate_get(&rig.call, &erasure, NULL, KV_CERT_PAYLOAD, &certificate, &payload), KV_OK));
    cr_assert(gt(u64, view_now().log_index, certificate.log_index));
    cr_assert(eq(int, bundle_of(&erasure, false, &first), KV_OK));
    kvt_svc_restart(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    cr_assert(eq(int, bundle_of(&certificate.id, true, &again), KV_OK));
    cr_assert(first.len == again.len && memcmp(first.data, again.data, first.len) == 0, "the same bytes");
    cr_assert(eq(int, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.audit_leaf WHERE op = 'upgrade'"), 1));
}

Test(upgrade, follows_the_certificate_of_a_whole_tenant)
{
    struct kv_erasure_new in = {.scope = KV_SCOPE_TENANT, .tenant = rig.tenant, .basis = "other"};
    struct kv_erasure_made *made = calloc(1, sizeof *made);
    session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DURABLE), KV_OK));
    cr_assert(eq(int, kv_svc_erase(&rig.call, &in, made), KV_OK), "%s", rig.call.info.text);
    erasure = made->erasure.id;
    for (unsigned i = 0; i < LOOKS && made->erasure.state != KV_ERASURE_CERTIFIED; i++) {
        usleep(LOOK_US);
        cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &erasure, &made->erasure), KV_OK));
    }
    free(made);
    cr_assert(await_gone());
    check_statement("\"sub\":{\"kind\":\"tenant\",\"sessions\":\"1\"");
}

Test(upgrade, belongs_to_the_tenant_and_to_a_certificate)
{
    static const struct kv_id nobody = {.b = {1}};
    struct kv_buf bundle KV_CLEANUP(kv_buf_done);
    erase_one();
    cr_assert(await_gone());
    struct kv_id other = kvt_svc_tenant(&rig, "other");
    cr_assert(eq(int, bundle_of(&nobody, false, &bundle), KV_E_NOT_FOUND));
    kvt_svc_as(&rig.call, other, KV_ROLE_TENANT_ADMIN);
    kv_buf_done(&bundle);
    cr_assert(eq(int, bundle_of(&erasure, false, &bundle), KV_E_NOT_FOUND));
}

/* --- who is missing ----------------------------------------------------------------------------------------------- */

#define OTHER "decode('0190000000007000800000000000000a', 'hex')"
#define FOLDER "decode('0190000000007000800000000000000b', 'hex')"

Test(upgrade, waits_for_an_instance_that_is_away_and_says_so)
{
    struct kv_buf bundle KV_CLEANUP(kv_buf_done);
    kvt_db_run(&rig, "INSERT INTO kvrun.instance (id, incarnation, lease_until, lease_ctr, started_at)"
                     " VALUES (" OTHER ", 1, now(), 1, now())");
    erase_one();
    cr_assert(await_missing("waiting"));
    cr_assert(eq(int, bundle_of(&erasure, false, &bundle), KV_E_NOT_YET));
    kvt_db_run(&rig, "UPDATE kvrun.instance SET expired_at = now() WHERE id = " OTHER);
    cr_assert(await_missing("lease_over"));
    kvt_db_run(&rig, "UPDATE kvrun.instance SET ended_at = now() WHERE id = " OTHER);
    cr_assert(await_missing("left"), "of a version that did not say which folder it has");
    cr_assert(stays_pending());
    kvt_db_run(&rig, "UPDATE kvrun.instance SET folder_known = true WHERE id = " OTHER);
    cr_assert(await_gone());
}

Test(upgrade, waits_for_a_folder_that_was_put_away)
{
    kvt_db_run(&rig, "INSERT INTO kvrun.nvme_folder (id, instance_id) VALUES (" FOLDER ", " OTHER ")");
    erase_one();
    cr_assert(await_missing("folder"));
    cr_assert(stays_pending());
    kvt_db_run(&rig, "UPDATE kvrun.nvme_folder SET left_at = now() WHERE id = " FOLDER);
    cr_assert(stays_pending(), "it was in use when the session was there");
    kvt_db_run(&rig, "UPDATE kvrun.nvme_folder SET left_at = now() - interval '1 hour' WHERE id = " FOLDER);
    cr_assert(await_gone());
}

/* The same place with another folder in it, as after it was emptied: what lay in the old one nobody can ask. */
Test(upgrade, a_folder_that_was_exchanged_is_missed)
{
    char command[2 * KVT_PATH_BYTES];
    session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DURABLE), KV_OK));
    kvt_svc_stop(&rig);
    snprintf(command, sizeof command, "%s.old", rig.nvme_path);
    cr_assert(eq(int, rename(rig.nvme_path, command), 0));
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    erasure = kvt_svc_erase(&rig.call, session).id;
    cr_assert(await_missing("folder"));
    cr_assert(stays_pending());
    kvt_svc_stop(&rig);
    kvt_folder_remove(rig.nvme_path);
    cr_assert(eq(int, rename(command, rig.nvme_path), 0));
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    cr_assert(await_gone(), "each of the two confirmed while it was there");
    cr_assert(eq(i64, kvt_db_number(&rig, "SELECT count(DISTINCT folder_id) FROM kvrun.erasure_clean"), 2));
    check_statement("\"ciphertext\":\"gone\"");
}

#ifdef KV_FAULTS
Test(upgrade, a_block_that_is_left_behind_is_no_block_that_is_gone)
{
    kv_fault_set("engine/undropped=fail@1");
    erase_one();
    cr_assert(await_missing("waiting") || view_now().missing_count == 2);
    cr_assert(stays_pending());
    cr_assert(eq(int, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure_clean"), 0));
    kv_fault_set(NULL);
    cr_assert(await_gone());
}

Test(upgrade, a_drop_that_is_not_durable_is_none)
{
    session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DURABLE), KV_OK));
    kv_fault_set("tier/nvme/log-sync=fail@1,tier/nvme/ckpt-write=fail@1");
    erasure = kvt_svc_erase(&rig.call, session).id;
    cr_assert(stays_pending());
    cr_assert(eq(int, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure_clean"), 0));
    kv_fault_set(NULL);
    cr_assert(await_gone());
}

static void fails_once(const char *spec)
{
    kv_fault_set(spec);
    erase_one();
    cr_assert(await_gone(), "%s", spec);
    check_statement("\"ciphertext\":\"gone\"");
    cr_assert(eq(int, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.audit_leaf WHERE op = 'upgrade'"), 1));
}

#define FAILS_ONCE(name, fault)          \
    Test(upgrade, name)                  \
    {                                    \
        fails_once(fault "=fail@1once"); \
    }
FAILS_ONCE(is_made_when_a_step_fails_before_it_is_said, "erase/cleaned")
FAILS_ONCE(is_made_when_a_step_fails_after_signing, "erase/upgrade-signed")
FAILS_ONCE(is_made_when_a_step_fails_after_bundling, "erase/upgraded")
FAILS_ONCE(is_made_when_the_commit_is_lost, "store/cleaned/commit")
FAILS_ONCE(is_made_when_the_answer_to_the_commit_is_lost, "store/cleaned/committed")
FAILS_ONCE(is_made_once_when_the_commit_of_the_signing_is_lost, "store/upgrade-sign/commit")
FAILS_ONCE(is_made_once_when_the_answer_of_the_signing_is_lost, "store/upgrade-sign/committed")
FAILS_ONCE(is_made_once_when_the_commit_of_the_bundle_is_lost, "store/upgrade-bundle/commit")
FAILS_ONCE(is_made_once_when_the_answer_of_the_bundle_is_lost, "store/upgrade-bundle/committed")
#endif

/* --- hardware ------------------------------------------------------------------------------------------------------
 */

static char serial[17];

/* The token says itself which device it is. */
static void declare(struct kvt_token *token)
{
    struct kv_roe_conf conf = {.provider = "pkcs11", .env = &kv_env_system, .pkcs11 = token->conf};
    struct kv_roe *roe = NULL;
    struct kv_errinfo info = {.text = ""};
    cr_assert(eq(int, kv_roe_open(&conf, &info, &roe), KV_OK), "%s", info.text);
    const char *at = strstr(roe->ops->describe(roe), "serial ");
    cr_assert(at != NULL);
    snprintf(serial, sizeof serial, "%s", at + 7);
    roe->ops->close(roe);
    token->conf.manufacturer = "SoftHSM project";
    token->conf.model = "SoftHSM v2";
    token->conf.serial = serial;
}

Test(upgrade_hardware, rises_to_e4)
{
    struct kvt_token token;
    kvt_svc_config(&rig);
    if (!kvt_token_make(rig.folder, &token)) {
        kvt_folder_remove(rig.folder);
        cr_skip("SoftHSM is not installed");
    }
    kvt_token_shim(&token);
    declare(&token);
    setenv("KVT_SHIM", "C_GetSlotInfo=hardware", 1);
    rig.conf.root_provider = "pkcs11";
    rig.conf.root_pkcs11 = token.conf;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &engine);
    erase_one();
    cr_assert(await_gone());
    check_statement("{\"assurance\":\"E4\"");
    check_statement("\"certificate\":{\"assurance\":\"E3\"");
    close_all();
}

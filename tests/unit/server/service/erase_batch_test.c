/* Erasures that share one change of the root: how many there may be, how long the first waits, and that one which fails
 * holds no other up. */
#include "dataplane/base/env.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "server/service/svc_root.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <unistd.h>

#ifdef KV_FAULTS
TEMP_POSTGRES_HOOKS

#define GROUP 1000
#define HELD "store/erase-take/commit=fail" /* nobody gets past the start of a round */
#define WINDOW_US UINT64_C(2000000)

static struct kvt_svc rig;
static struct kvt_engine engine;

static void open_with(unsigned batch_max, uint64_t window_us)
{
    kvt_svc_config(&rig);
    rig.conf.erase_batch_max = batch_max;
    rig.conf.erase_batch_window_us = window_us;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &engine);
}

static void close_all(void)
{
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

static struct kv_erasure_view ask(void)
{
    struct kv_erasure_view view;
    bool existed = false;
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DURABLE), KV_OK));
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &view, &existed), KV_OK));
    return view;
}

static struct kv_erasure_view end_of(const struct kv_id *erasure)
{
    struct kv_erasure_view view = {.state = KV_ERASURE_REQUESTED};
    for (int i = 0; i < 600 && !kv_erasure_ended(&view); i++) {
        usleep(i == 0 ? 0 : 100000);
        cr_assert(eq(int, kv_svc_erasure_get(&rig.call, erasure, &view), KV_OK));
    }
    return view;
}

static void check_certified(const struct kv_id *erasure)
{
    struct kv_buf bundle;
    cr_assert(eq(int, end_of(erasure).state, KV_ERASURE_CERTIFIED));
    cr_assert(kvt_svc_certificate_good(&rig.call, *erasure, &bundle));
    kv_buf_done(&bundle);
}

static int batches(void)
{
    return (int)kvt_db_number(&rig, "SELECT count(DISTINCT batch_id) FROM kvrun.erasure");
}

/* So many wait together; all are certified, and the view tells which batch each was in. */
static void erase_together(size_t count)
{
    struct kv_erasure_view views[8];
    kv_fault_set(HELD);
    for (size_t i = 0; i < count; i++) {
        views[i] = ask();
        cr_assert(kv_id_is_zero(&views[i].batch));
    }
    kv_fault_set(NULL);
    for (size_t i = 0; i < count; i++) {
        check_certified(&views[i].id);
        struct kv_erasure_view view = end_of(&views[i].id);
        cr_assert_not(kv_id_is_zero(&view.batch));
    }
}

Test(erase_batch, takes_as_many_as_it_may)
{
    open_with(3, 0);
    erase_together(3);
    cr_assert(eq(int, batches(), 1));
    close_all();
}

Test(erase_batch, takes_one_more_in_a_second_one)
{
    open_with(3, 0);
    erase_together(4);
    cr_assert(eq(int, batches(), 2));
    cr_assert(eq(int,
                 (int)kvt_db_number(&rig, "SELECT max(n) FROM (SELECT count(*) n FROM kvrun.erasure"
                                          " GROUP BY batch_id) s"),
                 3));
    close_all();
}

Test(erase_batch, waits_for_its_window)
{
    open_with(0, WINDOW_US);
    struct kv_erasure_view first = ask(), second = ask();
    check_certified(&first.id);
    check_certified(&second.id);
    first = end_of(&first.id);
    cr_assert(ge(u64, first.step_us[KV_ERASURE_FENCED] - first.requested_us, WINDOW_US));
    close_all();
}

Test(erase_batch, that_is_full_does_not_wait)
{
    open_with(2, 60 * 1000000);
    struct kv_erasure_view first = ask(), second = ask();
    check_certified(&first.id);
    check_certified(&second.id);
    first = end_of(&first.id);
    cr_assert(lt(u64, first.step_us[KV_ERASURE_FENCED] - first.requested_us, 60 * UINT64_C(1000000)));
    cr_assert(eq(int, batches(), 1));
    close_all();
}

Test(erase_batch, of_which_one_fails_its_verification_certifies_the_others)
{
    struct kv_erasure_view views[3];
    open_with(0, 0);
    kv_fault_set(HELD);
    for (int i = 0; i < 3; i++) {
        views[i] = ask();
    }
    kv_fault_set("erase/verify-fails=fail@1once");
    cr_assert(eq(int, end_of(&views[0].id).state, KV_ERASURE_QUARANTINED));
    kv_fault_set(NULL);
    check_certified(&views[1].id);
    check_certified(&views[2].id);
    cr_assert(eq(int, batches(), 1));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erase_batch WHERE state = 'done'"), 1));
    close_all();
}

/* The database refuses one row's step: that one is put off, and goes on when it is let. */
static void refuse_one(const char *state, unsigned batch_max)
{
    struct kv_erasure_view views[3];
    char sql[640];
    open_with(batch_max, 0);
    kv_fault_set(HELD);
    for (int i = 0; i < 3; i++) {
        views[i] = ask();
    }
    snprintf(
        sql, sizeof sql,
        "CREATE FUNCTION kvrun.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE check_violation; END $$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON kvrun.erasure FOR EACH ROW WHEN (NEW.state = '%s'"
        " AND NEW.revocation_seq = (%lld)) EXECUTE FUNCTION kvrun.refuse()",
        state, kvt_db_number(&rig, "SELECT min(revocation_seq) + 1 FROM kvrun.erasure"));
    kvt_db_run(&rig, sql);
    kv_fault_set(NULL);
    check_certified(&views[0].id);
    check_certified(&views[2].id);
    struct kv_erasure_view stuck;
    cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &views[1].id, &stuck), KV_OK));
    cr_assert_not(kv_erasure_ended(&stuck));
    kvt_db_run(&rig, "DROP TRIGGER refuse ON kvrun.erasure");
    check_certified(&views[1].id);
    close_all();
}

Test(erase_batch, goes_on_without_one_that_cannot_be_fenced)
{
    refuse_one("fenced", 0);
}

Test(erase_batch, goes_on_without_one_that_cannot_be_verified)
{
    refuse_one("verified", 0);
}

Test(erase_batch, goes_on_without_one_that_cannot_be_certified)
{
    refuse_one("certified", 0);
}

/* Also when one fills a batch. */
Test(erase_batch, is_not_filled_by_one_that_cannot_be_fenced)
{
    refuse_one("fenced", 1);
}

Test(erase_batch, is_not_filled_by_one_that_cannot_be_certified)
{
    refuse_one("certified", 1);
}

/* Nor does a window hold up what somebody asked for. */
Test(erase_batch, does_not_wait_when_the_root_is_unwanted)
{
    open_with(0, 60 * UINT64_C(1000000));
    struct kv_erasure_view first = ask();
    struct kv_root_view root;
    cr_assert(eq(int, kv_svc_root_get(&rig.call, &root), KV_OK), "%s", rig.call.info.text);
    svc_root_replace(rig.svc, &root.root, NULL);
    check_certified(&first.id);
    first = end_of(&first.id);
    cr_assert(lt(u64, first.step_us[KV_ERASURE_FENCED] - first.requested_us, 60 * UINT64_C(1000000)));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erase_batch WHERE state = 'done'"), 1));
    close_all();
}

Test(erase_batch, is_left_by_no_cancel)
{
    struct kv_erasure_view views[2];
    open_with(0, 0);
    kv_fault_set(HELD);
    views[0] = ask();
    views[1] = ask();
    cr_assert(eq(int, kv_svc_erasure_cancel(&rig.call, &views[0].id), KV_E_IRREVERSIBLE));
    kv_fault_set(NULL);
    check_certified(&views[0].id);
    check_certified(&views[1].id);
    cr_assert(eq(int, kv_svc_erasure_cancel(&rig.call, &views[0].id), KV_E_IRREVERSIBLE));
    close_all();
}

/* A session, then all of its tenant, and a session of the tenant's fresh tree: the re-key drops the whole tree first.
 */
Test(erase_batch, takes_a_tenant_and_sessions_before_and_after_it)
{
    struct kv_erasure_view views[3];
    struct kv_erasure_made *made = calloc(1, sizeof *made);
    open_with(0, 0);
    const struct kv_erasure_new in = {.scope = KV_SCOPE_TENANT, .tenant = rig.tenant, .basis = "contract"};
    struct kv_id stays = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, stays, 0, 1, KV_WAIT_DURABLE), KV_OK));
    kv_fault_set(HELD);
    views[0] = ask();
    cr_assert(eq(int, kv_svc_erase(&rig.call, &in, made), KV_OK), "%s", rig.call.info.text);
    views[1] = made->erasure;
    views[2] = ask();
    kv_fault_set(NULL);
    for (int i = 0; i < 3; i++) {
        check_certified(&views[i].id);
    }
    cr_assert(eq(int, batches(), 1));
    cr_assert(eq(u64, end_of(&views[1].id).sessions_certified, 1), "not the one with an erasure of its own");
    cr_assert(kvt_svc_refused(&rig.call, &engine, stays, views[1].id));
    close_all();
    free(made);
}

/* Whatever step fails: each gets one certificate, and they are one batch, unless the first was given up. */
Test(erase_batch, ends_despite_a_step_that_fails, .timeout = 300)
{
    static const char *const steps[] = {"erase/fenced",
                                        "erase/staged",
                                        "erase/rekeyed",
                                        "erase/destroyed",
                                        "erase/purged",
                                        "erase/verified",
                                        "erase/certificate",
                                        "erase/certified",
                                        "store/certificate/committed",
                                        "store/bundle/commit",
                                        "store/erase-verified/committed"};
    open_with(0, 0);
    for (size_t step = 0; step < sizeof steps / sizeof steps[0]; step++) {
        struct kv_erasure_view views[3];
        char fault[80];
        kv_fault_set(HELD);
        for (int i = 0; i < 3; i++) {
            views[i] = ask();
        }
        snprintf(fault, sizeof fault, "%s=fail@1once", steps[step]);
        kv_fault_set(fault);
        for (int i = 0; i < 3; i++) {
            check_certified(&views[i].id);
        }
        kv_fault_set(NULL);
    }
    cr_assert(eq(int,
                 (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.audit_leaf WHERE ref IS NOT NULL"
                                          " AND get_byte(ref, 0) = ascii('c')"),
                 (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure WHERE state = 'certified'")));
    close_all();
}

Test(erase_batch, of_a_thousand_is_certified_in_one_chain, .timeout = 300)
{
    struct kv_erasure_made *made = calloc(1, sizeof *made);
    open_with(0, 0);
    for (int i = 0; i < GROUP; i++) {
        kvt_svc_session(&rig.call);
    }
    const struct kv_erasure_new in = {
        .scope = KV_SCOPE_IDLE, .idle_before_us = kv_env_system.realtime_us(kv_env_system.ctx), .basis = "other"};
    cr_assert(eq(int, kv_svc_erase(&rig.call, &in, made), KV_OK), "%s", rig.call.info.text);
    struct kv_erasure_view view = end_of(&made->erasure.id);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    cr_assert(eq(u64, view.sessions_certified, GROUP));
    cr_assert(le(int, batches(), 8));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(DISTINCT cert_leaf_index) FROM kvrun.erasure"), GROUP));
    cr_assert(
        eq(int, (int)kvt_db_number(&rig, "SELECT count(DISTINCT previous_sha256) FROM kvrun.erasure"), GROUP - 1));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.session WHERE state = 'erased'"), GROUP));
    close_all();
    free(made);
}
#endif

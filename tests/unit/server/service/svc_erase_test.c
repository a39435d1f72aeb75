/* Erasures from the request to the certificate, with everything real in one process. */
#include "server/store/store_erasure.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/metric.h"
#include "tests/lib/nvme_damage.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>
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

static struct kv_id session_with(uint32_t blocks)
{
    struct kv_id session = kvt_svc_session(&rig.call);
    if (blocks > 0) {
        cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, blocks, KV_WAIT_DURABLE), KV_OK), "%s",
                  rig.call.info.text);
    }
    return session;
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

/* "a.b" */
static json_t *member(json_t *json, const char *path)
{
    char part[64];
    for (const char *at = path; *at != '\0';) {
        size_t len = strcspn(at, ".");
        snprintf(part, sizeof part, "%.*s", (int)len, at);
        json = json_object_get(json, part);
        at += len + (at[len] == '.');
    }
    cr_assert(json != NULL, "no %s", path);
    return json;
}

static void check_certified(const struct kv_erasure_view *view)
{
    struct kv_buf bundle;
    cr_assert(eq(int, view->state, KV_ERASURE_CERTIFIED), "%s", view->claim);
    cr_assert(kvt_svc_certificate_good(&rig.call, view->id, &bundle));
    kv_buf_done(&bundle);
}

static void check_refused(struct kv_id session, struct kv_id erasure)
{
    cr_assert(kvt_svc_refused(&rig.call, &engine, session, erasure));
}

/* --- the way ----------------------------------------------------------------------------------------------------- */

Test(erasure, goes_through_its_states_in_order_and_ends_with_a_certificate_that_verifies)
{
    open_all();
    struct kv_id session = session_with(5);
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    check_certified(&view);
    for (int state = KV_ERASURE_REQUESTED; state <= KV_ERASURE_CERTIFIED; state++) {
        cr_assert(gt(u64, view.step_us[state], 0), "state %d", state);
        cr_assert(state == 0 || view.step_us[state] >= view.step_us[state - 1], "state %d", state);
    }
    cr_assert(eq(u64, view.requested_us, view.step_us[KV_ERASURE_REQUESTED]));
    cr_assert(kv_id_equal(&view.session, &session) && kv_id_equal(&view.tenant, &rig.tenant));
    json_t *json = payload_of(view.id);
    cr_assert(strstr(json_string_value(member(json, "iss")), "kvrun:clu_") != NULL);
    json_decref(json);
    close_all();
}

Test(erasure, refuses_the_session_from_then_on_and_names_itself)
{
    uint32_t count = 0;
    open_all();
    struct kv_id session = session_with(4), other = session_with(4);
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    check_refused(session, view.id);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, other, 0, 4, &count), KV_OK), "a session beside it lives");
    cr_assert(eq(u32, count, 4));
    /* The same after a restart, when nothing is in memory. */
    kvt_svc_restart(&rig);
    kvt_engine_close(&engine);
    kvt_engine_open(&rig.call, &engine);
    check_refused(session, view.id);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, other, 0, 4, &count), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u32, count, 4));
    close_all();
}

Test(erasure, leaves_no_block_of_the_session_in_the_tiers)
{
    open_all();
    struct kv_id session = session_with(6);
    kvt_svc_erase(&rig.call, session);
    long long deadline = 200;
    struct kv_engine_stats stats;
    do {
        kv_svc_stats(rig.svc, &stats);
    } while (stats.dram.objects + stats.nvme.objects > 0 && deadline-- > 0 && usleep(10000) == 0);
    cr_assert(eq(u64, stats.dram.objects, 0));
    cr_assert(eq(u64, stats.nvme.objects, 0));
    close_all();
}

Test(erasure, asked_for_again_is_the_same_one_with_the_same_bytes)
{
    struct kv_buf first, second;
    struct kv_erasure_view again;
    bool existed = false;
    open_all();
    struct kv_id session = session_with(2);
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    cr_assert(kvt_svc_certificate_good(&rig.call, view.id, &first));
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &again, &existed), KV_OK));
    cr_assert(existed);
    cr_assert(kv_id_equal(&again.id, &view.id));
    cr_assert(eq(int, again.state, KV_ERASURE_CERTIFIED));
    kvt_svc_restart(&rig);
    cr_assert(kvt_svc_certificate_good(&rig.call, view.id, &second));
    cr_assert(eq(sz, first.len, second.len));
    cr_assert(eq(int, memcmp(first.data, second.data, first.len), 0));
    kv_buf_done(&first);
    kv_buf_done(&second);
    /* A request that changed nothing takes no number of revocation with it that nobody explains. */
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure"), 1));
    close_all();
}

Test(erasure, of_a_session_without_blocks_says_so)
{
    open_all();
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session_with(0));
    check_certified(&view);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT samples FROM kvrun.erasure"), 0));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT blocks FROM kvrun.erasure"), 0));
    close_all();
}

Test(erasure, samples_open_before_and_not_after)
{
    open_all();
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session_with(12));
    check_certified(&view);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT blocks FROM kvrun.erasure"), 12));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT samples FROM kvrun.erasure"), 8));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT control_opened FROM kvrun.erasure"), 8));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT opened_after FROM kvrun.erasure"), 0));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT checks FROM kvrun.erasure"), 7));
    close_all();
}

Test(erasure, one_after_the_other_chains_certificates)
{
    struct kv_buf bundle;
    open_all();
    struct kv_id one = session_with(2), two = session_with(2);
    struct kv_erasure_view first = kvt_svc_erase(&rig.call, one), second = kvt_svc_erase(&rig.call, two);
    check_certified(&first);
    check_certified(&second);
    cr_assert(eq(int,
                 (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure a JOIN kvrun.erasure b ON "
                                          "b.previous_sha256 = encode(sha256(a.cert_jws), 'hex')"),
                 1));
    cr_assert(kvt_svc_certificate_good(&rig.call, first.id, &bundle), "the first one still verifies");
    kv_buf_done(&bundle);
    close_all();
}

Test(erasure, with_a_root_in_memory_works_the_same)
{
    uint32_t count = 0;
    kvt_svc_config(&rig);
    rig.conf.root_provider = "memory";
    rig.conf.root_path = NULL;
    kvt_svc_start(&rig);
    rig.tenant = kvt_svc_tenant(&rig, "acme");
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = session_with(3), other = session_with(3);
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    check_certified(&view);
    check_refused(session, view.id);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, other, 0, 3, &count), KV_OK));
    cr_assert(eq(u32, count, 3));
    close_all();
}

/* --- who may ----------------------------------------------------------------------------------------------------- */

Test(erasure, engine_keys_erase_what_they_made_and_nothing_else)
{
    struct kv_erasure_view view;
    bool existed = false;
    open_all();
    struct kv_call engine_call = kvt_svc_call(&rig, rig.tenant, KV_ROLE_ENGINE);
    struct kv_call auditor = kvt_svc_call(&rig, rig.tenant, KV_ROLE_AUDITOR);
    struct kv_id admins = kvt_svc_session(&rig.call), own = kvt_svc_session(&engine_call);
    cr_assert(eq(int, kvt_svc_ask(&engine_call, admins, 0, &view, &existed), KV_E_FORBIDDEN));
    cr_assert(eq(int, kvt_svc_ask(&auditor, own, 0, &view, &existed), KV_E_FORBIDDEN));
    cr_assert(eq(int, kvt_svc_ask(&engine_call, own, KVT_WAIT_S, &view, &existed), KV_OK));
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    json_t *json = payload_of(view.id);
    char *text = json_dumps(json, JSON_COMPACT);
    cr_assert(strstr(text, "\"engine\"") != NULL, "the role is in the certificate: %s", text);
    free(text);
    json_decref(json);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure"), 1));
    /* The refused request left the session as it was. */
    struct kv_session_view session_view;
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &admins, false, &session_view), KV_OK));
    /* An auditor sees erasure and certificate. */
    struct kv_buf bytes;
    kv_buf_init(&bytes, 1 << 20);
    cr_assert(eq(int, kv_svc_erasure_get(&auditor, &view.id, &view), KV_OK));
    cr_assert(eq(int, kv_svc_certificate(&auditor, &view.id, KV_CERT_JWS, &bytes), KV_OK));
    kv_buf_done(&bytes);
    kv_call_done(&auditor);
    kv_call_done(&engine_call);
    close_all();
}

/* --- when something fails ---------------------------------------------------------------------------------------- */

/* Damages the headers of `count` of the session's blocks on nvme; dram copies are gone. */
static unsigned damage(struct kv_id session, unsigned count)
{
    struct kv_call operator_call = kvt_svc_call(&rig, (struct kv_id){0}, KV_ROLE_OPERATOR);
    unsigned damaged = 0;
    cr_assert(eq(int, kvt_svc_drain(&operator_call), KV_OK), "%s", operator_call.info.text);
    kv_call_done(&operator_call);
    struct kv_buf ids;
    kv_buf_init(&ids, 65536);
    kvt_svc_block_ids(&rig, session, &ids);
    for (size_t i = 0; i < ids.len / 32 && damaged < count; i++) {
        struct kv_block_id id;
        memcpy(id.b, ids.data + 32 * i, 32);
        damaged += kvt_nvme_flip(rig.nvme_path, &id, 150);
    }
    kv_buf_done(&ids);
    return damaged;
}

Test(erasure, damaged_sample_does_not_hold_it_up)
{
    open_all();
    struct kv_id session = session_with(4);
    cr_assert(eq(uint, damage(session, 2), 2));
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    check_certified(&view);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT control_opened FROM kvrun.erasure"), 2));
    close_all();
}

/* With no sample that opened before, "does not open after" would say nothing: no certificate is built on it. */
Test(erasure, whose_samples_are_all_damaged_is_quarantined)
{
    open_all();
    struct kv_id session = session_with(4);
    cr_assert(eq(uint, damage(session, 4), 4));
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT control_opened FROM kvrun.erasure"), 0));
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT samples FROM kvrun.erasure"), 4));
    cr_assert(eq(int, view.state, KV_ERASURE_QUARANTINED));
    check_refused(session, view.id);
    close_all();
}

Test(erasure, without_the_database_is_refused)
{
    struct kv_erasure_view view;
    bool existed = false;
    open_all();
    struct kv_id session = session_with(1);
    kvt_db_stop(&rig);
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &view, &existed), KV_E_DB_UNAVAILABLE));
    kvt_db_back(&rig);
    cr_assert(kvt_svc_await_check(&rig, "db", true));
    close_all();
}

#ifdef KV_FAULTS
/* --- by idleness ------------------------------------------------------------------------------------------------- */

static enum kv_err erase_idle(uint64_t before_us, bool dry_run, struct kv_erasure_made *ret_made)
{
    struct kv_erasure_new in = {.scope = KV_SCOPE_IDLE, .idle_before_us = before_us, .basis = "retention"};
    rig.call.dry_run = dry_run;
    enum kv_err rc = kv_svc_erase(&rig.call, &in, ret_made);
    rig.call.dry_run = false;
    return rc;
}

static uint64_t now_us(void)
{
    return kv_env_system.realtime_us(kv_env_system.ctx);
}

/* Of the two that lay unused for an hour as far as the rows know, only the one that was not used since is erased. */
static void check_only_the_idle_one(struct kv_id idle, struct kv_id used, uint64_t before_us)
{
    static struct kv_erasure_made made;
    uint32_t count = 0;
    kvt_db_run(&rig, "UPDATE kvrun.session SET created_at = created_at - interval '2 hours', last_used_at = now() -"
                     " interval '1 hour'");
    cr_assert(eq(int, erase_idle(before_us, true, &made), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u64, made.would.sessions, 1));
    cr_assert(eq(int, erase_idle(before_us, false, &made), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u64, made.erasure.sessions, 1));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, used, 0, 1, &count), KV_OK));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, idle, 0, 1, &count), KV_E_SESSION_ERASED));
}

Test(idle, one_that_was_used_since_as_only_memory_knows_is_spared)
{
    open_all();
    struct kv_id idle = session_with(1), used = session_with(1);
    uint64_t before_us = now_us();
    uint32_t count = 0;
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, used, 0, 1, &count), KV_OK)); /* leaves no entry in the log */
    check_only_the_idle_one(idle, used, before_us);
    close_all();
}

Test(idle, one_that_was_used_since_as_only_the_log_knows_is_spared)
{
    open_all();
    struct kv_id idle = session_with(1), used = session_with(1);
    uint64_t before_us = now_us();
    uint32_t count = 0;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, used, 0, 1, &count), KV_OK));
    kvt_engine_close(&engine);
    kvt_svc_restart(&rig); /* memory forgets it */
    kvt_engine_open(&rig.call, &engine);
    check_only_the_idle_one(idle, used, before_us);
    close_all();
}

/* --- with fault points: a round of the eraser is held at its start, or its verification fails -----------------------
 */

/* Two that wait together share one change of the root. */
Test(erasure, several_that_wait_are_one_batch)
{
    enum { SESSIONS = 5 };
    struct kv_id sessions[SESSIONS];
    struct kv_erasure_view views[SESSIONS];
    bool existed = false;
    open_all();
    kv_fault_set("store/erase-take/commit=fail"); /* nobody gets past the start of a round */
    for (int i = 0; i < SESSIONS; i++) {
        sessions[i] = session_with(1);
        cr_assert(eq(int, kvt_svc_ask(&rig.call, sessions[i], 0, &views[i], &existed), KV_OK));
        cr_assert(not(existed));
        check_refused(sessions[i], views[i].id);
    }
    kv_fault_set(NULL);
    for (int i = 0; i < SESSIONS; i++) {
        views[i] = kvt_svc_erase(&rig.call, sessions[i]);
        check_certified(&views[i]);
    }
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(DISTINCT batch_id) FROM kvrun.erasure"), 1));
    close_all();
}

Test(erasure, of_two_tenants_in_one_batch_has_a_certificate_in_each_log)
{
    bool existed = false;
    struct kv_erasure_view mine, theirs;
    struct kv_buf bundle;
    open_all();
    struct kv_id other = kvt_svc_tenant(&rig, "other");
    struct kv_call call = kvt_svc_call(&rig, other, KV_ROLE_TENANT_ADMIN);
    struct kv_id my_session = session_with(1), their_session = kvt_svc_session(&call);
    kv_fault_set("store/erase-take/commit=fail");
    cr_assert(eq(int, kvt_svc_ask(&rig.call, my_session, 0, &mine, &existed), KV_OK));
    cr_assert(eq(int, kvt_svc_ask(&call, their_session, 0, &theirs, &existed), KV_OK));
    kv_fault_set(NULL);
    theirs = kvt_svc_erase(&call, their_session);
    mine = kvt_svc_erase(&rig.call, my_session);
    check_certified(&mine);
    cr_assert(eq(int, theirs.state, KV_ERASURE_CERTIFIED));
    cr_assert(kvt_svc_certificate_good(&call, theirs.id, &bundle));
    kv_buf_done(&bundle);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(DISTINCT batch_id) FROM kvrun.erasure"), 1));
    kv_call_done(&call);
    close_all();
}

Test(erasure, without_its_end_has_no_certificate)
{
    struct kv_erasure_view view;
    struct kv_buf bytes;
    bool existed = false;
    open_all();
    struct kv_id session = session_with(1), nobody = {.b = {1}};
    kv_fault_set("store/erase-take/commit=fail");
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &view, &existed), KV_OK));
    kv_buf_init(&bytes, 1 << 20);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &view.id, KV_CERT_BUNDLE, &bytes), KV_E_NOT_YET));
    cr_assert(strstr(rig.call.info.text, "not certified yet") != NULL, "%s", rig.call.info.text);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &nobody, KV_CERT_BUNDLE, &bytes), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &nobody, &view), KV_E_NOT_FOUND));
    kv_buf_done(&bytes);
    close_all();
}

static bool is_counted(const char *line)
{
    struct kv_buf text;
    kv_buf_init(&text, 8 << 20);
    kv_metric_print(&text, KV_METRIC_TEXT);
    cr_assert(eq(int, kv_buf_check(&text), KV_OK));
    bool found = memmem(text.data, text.len, line, strlen(line)) != NULL;
    kv_buf_done(&text);
    return found;
}

Test(erasure, whose_verification_fails_is_quarantined_and_never_certified)
{
    struct kv_buf bytes;
    open_all();
    struct kv_id session = session_with(3), other = session_with(1);
    kv_fault_set("erase/verify-fails=fail@1once");
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_QUARANTINED));
    cr_assert(is_counted("kvrun_erasures_total{scope=\"session\",outcome=\"quarantined\"} 1\n"));
    cr_assert(gt(sz, strlen(view.quarantine_reason), 0));
    cr_assert(strstr(view.claim, "nothing is claimed") != NULL);
    kv_buf_init(&bytes, 1 << 20);
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &view.id, KV_CERT_BUNDLE, &bytes), KV_E_NOT_YET));
    cr_assert(eq(int, kv_svc_certificate(&rig.call, &view.id, KV_CERT_JWS, &bytes), KV_E_NOT_YET));
    kv_buf_done(&bytes);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure WHERE cert_jws IS NOT NULL"), 0));
    check_refused(session, view.id);
    /* Asking again does not talk it into a certificate, and neither does a restart. */
    view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_QUARANTINED));
    kvt_svc_restart(&rig);
    kvt_engine_close(&engine);
    kvt_engine_open(&rig.call, &engine);
    check_refused(session, view.id);
    /* Its scope is the one job: others go on. */
    view = kvt_svc_erase(&rig.call, other);
    check_certified(&view);
    close_all();
}

/* The database goes away in the middle; the request stands and is carried out when it is back. */
Test(erasure, goes_on_when_the_database_is_back)
{
    struct kv_erasure_view view;
    bool existed = false;
    open_all();
    struct kv_id session = session_with(2);
    kv_fault_set("store/erase-take/commit=fail");
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &view, &existed), KV_OK));
    kvt_db_stop(&rig);
    kv_fault_set(NULL);
    uint32_t count = 0;
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 1, &count), KV_E_SESSION_ERASED), "from memory");
    cr_assert(kvt_svc_await_check(&rig, "db", false));
    kvt_db_back(&rig);
    cr_assert(kvt_svc_await_check(&rig, "db", true));
    cr_assert(kvt_svc_await_check(&rig, "lease", true));
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    enum kv_err rc = KV_OK;
    do { /* this thread's own connection heals at its own pace */
        rc = kvt_svc_ask(&rig.call, session, KVT_WAIT_S, &view, &existed);
    } while (rc == KV_E_DB_UNAVAILABLE && kv_now_ns(&kv_env_system) < deadline);
    cr_assert(eq(int, rc, KV_OK), "%s", rig.call.info.text);
    cr_assert(existed);
    check_certified(&view);
    close_all();
}
#endif

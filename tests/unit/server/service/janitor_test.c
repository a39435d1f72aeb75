/* The janitor's steps run at the start, on a signal and again after a failure. */
#include "dataplane/base/fault.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <time.h>

TEMP_POSTGRES_HOOKS

static void keep_an_answer(struct kvt_svc *rig, const char *expires)
{
    char sql[512];
    snprintf(sql, sizeof sql,
             "INSERT INTO kvrun.idempotency (principal, scope, key, fingerprint, status, request_id, created_at,"
             " expires_at) VALUES (decode(md5(random()::text), 'hex'), decode(repeat('ab', 32), 'hex'), 'k',"
             " decode(repeat('cd', 32), 'hex'), 201, 'req', now() - interval '2 days', now() + interval '%s')",
             expires);
    kvt_db_run(rig, sql);
}

static bool await_answers(struct kvt_svc *rig, long long count)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    for (unsigned i = 0; i < KVT_WAIT_S * 50; i++) {
        if (kvt_db_number(rig, "SELECT count(*) FROM kvrun.idempotency") == count) {
            return true;
        }
        nanosleep(&pause, NULL);
    }
    return false;
}

Test(janitor, a_start_deletes_answers_past_their_time_and_no_others)
{
    struct kvt_svc rig;
    kvt_svc_open(&rig);
    kvt_svc_stop(&rig);
    keep_an_answer(&rig, "-1 second");
    keep_an_answer(&rig, "1 hour");
    kvt_svc_start(&rig);
    cr_assert(await_answers(&rig, 1));
    cr_assert_eq(kvt_db_number(&rig, "SELECT count(*) FROM kvrun.idempotency WHERE expires_at > now()"), 1);
    kvt_svc_done(&rig);
}

/* One that a window of the longest kind may still begin with is kept. */
Test(janitor, a_start_deletes_hours_of_usage_past_their_time_and_no_others)
{
    struct kvt_svc rig;
    kvt_svc_open(&rig);
    kvt_svc_stop(&rig);
    kvt_db_run(&rig, "INSERT INTO kvrun.tenant_usage_hour SELECT decode(repeat('11', 16), 'hex'),"
                     " date_trunc('hour', now(), 'UTC') - n * interval '1 hour', 1, 2, 3, 4 FROM"
                     " generate_series(24 * 90 - 3, 24 * 90 + 2003) AS n");
    kvt_svc_start(&rig);
    bool gone = false;
    for (int tries = 0; tries < 2000 && !gone; tries++) {
        const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
        nanosleep(&pause, NULL);
        gone = kvt_db_number(&rig, "SELECT count(*) FROM kvrun.tenant_usage_hour") <= 6;
    }
    cr_expect(gone, "in several rounds");
    cr_expect_geq(kvt_db_number(&rig, "SELECT count(*) FROM kvrun.tenant_usage_hour WHERE hour > now() -"
                                      " interval '90 days 1 hour'"),
                  4);
    kvt_svc_done(&rig);
}

#ifdef KV_FAULTS
Test(janitor, a_step_that_failed_runs_again)
{
    struct kvt_svc rig;
    kvt_svc_open(&rig);
    kvt_svc_stop(&rig);
    keep_an_answer(&rig, "-1 second");
    kv_fault_set("store/once-expire/commit=fail@1once");
    kvt_svc_start(&rig);
    cr_assert(await_answers(&rig, 0));
    kv_fault_set(NULL);
    kvt_svc_done(&rig);
}
#endif

Test(janitor, is_quiet_in_quarantine)
{
    struct kvt_svc rig;
    kvt_svc_open(&rig);
    kvt_svc_stop(&rig);
    keep_an_answer(&rig, "-1 second");
    kvt_db_run(&rig, "UPDATE kvrun.kroot SET root_id = decode(repeat('77', 16), 'hex')");
    kvt_svc_start(&rig);
    cr_assert_not(kvt_svc_check_ok(&rig, "root_key"));
    const struct timespec pause = {.tv_nsec = 300 * 1000 * 1000};
    nanosleep(&pause, NULL);
    cr_assert_eq(kvt_db_number(&rig, "SELECT count(*) FROM kvrun.idempotency"), 1);
    kvt_svc_done(&rig);
}

Test(janitor, deletes_operations_whose_time_is_over_and_no_others)
{
    struct kvt_svc rig;
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    kvt_svc_open(&rig);
    kvt_svc_as(&rig.call, (struct kv_id){0}, KV_ROLE_OPERATOR);
    cr_assert_eq(kvt_svc_drain(&rig.call), KV_OK, "%s", rig.call.info.text);
    rig.conf.operation_keep_us = 1;
    kvt_svc_restart(&rig);
    kvt_svc_as(&rig.call, (struct kv_id){0}, KV_ROLE_OPERATOR);
    enum kv_err rc = kvt_svc_drain(&rig.call);
    cr_assert(rc == KV_OK || rc == KV_E_NOT_FOUND, "its time may be over before anybody looks: %s", rig.call.info.text);
    kvt_svc_restart(&rig);
    for (unsigned i = 0; i < KVT_WAIT_S * 50 && kvt_db_number(&rig, "SELECT count(*) FROM kvrun.operation") > 1; i++) {
        nanosleep(&pause, NULL);
    }
    cr_assert_eq(kvt_db_number(&rig, "SELECT count(*) FROM kvrun.operation"), 1);
    cr_assert_eq(
        kvt_db_number(&rig, "SELECT count(*) FROM kvrun.operation WHERE expires_at = ended_at + interval '1 hour'"), 1);
    kvt_svc_done(&rig);
}

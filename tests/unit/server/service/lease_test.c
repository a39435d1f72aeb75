/* The instance's lease: what works without the database and how long, clones, a second instance. */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;

static void open_with_lease(uint64_t lease_ns)
{
    kvt_svc_config(&rig);
    rig.conf.lease_ns = lease_ns;
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

static bool stamp_moves(unsigned long long before, uint64_t within_ns)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + within_ns;
    while (atomic_load(&rig.svc->change_stamp) == before && kv_now_ns(&kv_env_system) < deadline) {
        usleep(5000);
    }
    return atomic_load(&rig.svc->change_stamp) != before;
}

Test(lease, transfers_go_on_without_the_database_until_it_ends_and_then_heal)
{
    uint32_t count = 0;
    unsigned good = 0, parts = 0;
    open_with_lease(2 * KV_S_NS);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 4, KV_WAIT_DRAM), KV_OK));
    kvt_db_stop(&rig);
    uint64_t since = kv_now_ns(&kv_env_system), first_refusal = 0;
    enum kv_err rc = KV_OK;
    while (rc == KV_OK && kv_now_ns(&kv_env_system) < since + KVT_WAIT_S * KV_S_NS) {
        rc = kvt_svc_restore(&rig.call, &engine, session, 0, 4, &count);
        good += rc == KV_OK && count == 4;
        parts += rc == KV_OK && count < 4; /* the lease may end between two blocks of one call; then it has ended */
        first_refusal = kv_now_ns(&kv_env_system);
        usleep(10000);
    }
    cr_assert(eq(int, rc, KV_E_LEASE_EXPIRED), "%s", rig.call.info.text);
    cr_assert(le(u32, parts, 1));
    cr_assert(first_refusal - since > KV_S_NS ? good > 0 : true, "none before it ended");
    cr_assert(lt(u64, first_refusal - since, 4 * KV_S_NS));
    cr_assert(kvt_svc_await_check(&rig, "lease", false));
    cr_assert(not(kvt_svc_check_ok(&rig, "db")));
    /* Keys are wiped by now; it is the same answer. */
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 4, &count), KV_E_LEASE_EXPIRED), "%s",
              rig.call.info.text);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 4, 1, KV_WAIT_DRAM), KV_E_LEASE_EXPIRED));
    kvt_db_back(&rig);
    cr_assert(kvt_svc_await_check(&rig, "lease", true));
    cr_assert(kvt_svc_await_check(&rig, "db", true));
    since = kv_now_ns(&kv_env_system);
    do { /* this thread's connection heals at its own pace */
        rc = kvt_svc_restore(&rig.call, &engine, session, 0, 4, &count);
    } while ((rc == KV_E_DB_UNAVAILABLE || rc == KV_E_LEASE_EXPIRED) &&
             kv_now_ns(&kv_env_system) < since + KVT_WAIT_S * KV_S_NS);
    cr_assert(eq(int, rc, KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u32, count, 4));
    close_all();
}

Test(lease, is_renewed_while_the_database_answers)
{
    uint32_t count = 0;
    open_with_lease(KV_S_NS);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK));
    long long first = kvt_db_number(&rig, "SELECT lease_ctr FROM kvrun.instance"), now = first;
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (now < first + 5 && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
        now = kvt_db_number(&rig, "SELECT lease_ctr FROM kvrun.instance");
    }
    cr_assert(ge(llong, now, first + 5));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 1, &count), KV_OK));
    close_all();
}

/* Requests that run when the stop begins still need their keys. */
Test(lease, service_is_alive_while_its_thread_turns)
{
    open_with_lease(2 * KV_S_NS);
    cr_assert(kv_svc_alive(rig.svc));
    svc_lease_stop(rig.svc);
    atomic_store(&rig.svc->lease_turn_ns, kv_now_ns(&kv_env_system) - 44 * KV_S_NS); /* a database may be that slow */
    cr_assert(kv_svc_alive(rig.svc));
    atomic_store(&rig.svc->lease_turn_ns, kv_now_ns(&kv_env_system) - 46 * KV_S_NS);
    cr_assert(not(kv_svc_alive(rig.svc)));
    close_all();
}

/* Nobody told anything, as behind a pooler: the renewal compares the number. */
Test(lease, change_by_another_is_seen_at_the_next_renewal)
{
    open_with_lease(2 * KV_S_NS);
    unsigned long long before = atomic_load(&rig.svc->change_stamp);
    kvt_db_run(&rig, "update kvrun.change_head set seq = seq + 1");
    cr_assert(stamp_moves(before, 2 * KV_S_NS));
    /* And nothing is read again for nothing: without a change the stamp stays over several renewals, once the listener
     * has begun to listen. */
    bool stays = false;
    for (int tries = 0; !stays && tries < 5; tries++) {
        before = atomic_load(&rig.svc->change_stamp);
        stays = !stamp_moves(before, 2 * KV_S_NS);
    }
    cr_assert(stays);
    close_all();
}

Test(lease, notification_is_heard_long_before_the_next_renewal)
{
    open_with_lease(60 * KV_S_NS);
    unsigned long long before = atomic_load(&rig.svc->change_stamp);
    kvt_db_run(&rig, "notify kvrun, '1'");
    cr_assert(stamp_moves(before, 5 * KV_S_NS));
    /* A listener that was cut off is back at once, and takes everything for changed. */
    before = atomic_load(&rig.svc->change_stamp);
    kvt_db_run(&rig, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'kvrun/listener'"
                     " and datname = current_database()");
    cr_assert(stamp_moves(before, 2 * KV_S_NS));
    before = atomic_load(&rig.svc->change_stamp);
    kvt_db_run(&rig, "notify kvrun, '2'");
    cr_assert(stamp_moves(before, 2 * KV_S_NS));
    close_all();
}

Test(lease, is_kept_up_while_a_stop_is_under_way_and_ends_with_it)
{
    open_with_lease(KV_S_NS);
    kv_svc_begin_stop(rig.svc);
    long long first = kvt_db_number(&rig, "SELECT lease_ctr FROM kvrun.instance"), now = first;
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (now < first + 3 && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
        now = kvt_db_number(&rig, "SELECT lease_ctr FROM kvrun.instance");
    }
    cr_assert(ge(llong, now, first + 3));
    kvt_svc_stop(&rig);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.instance WHERE lease_until > now()"), 0));
    close_all();
}

Test(lease, that_somebody_else_renewed_quarantines_the_clone)
{
    uint32_t count = 0;
    open_with_lease(KV_S_NS);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK));
    kvt_db_run(&rig, "UPDATE kvrun.instance SET lease_ctr = lease_ctr + 1");
    cr_assert(kvt_svc_await_check(&rig, "root_key", false));
    cr_assert(strstr(kvt_svc_check_detail(&rig, "root_key"), "copied") != NULL);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 1, &count), KV_E_QUARANTINED));
    cr_assert(eq(u32, count, 0));
    /* It stays so: only a new start, of one of the two, ends it. */
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 1, 1, KV_WAIT_DRAM), KV_E_QUARANTINED));
    kvt_svc_restart(&rig);
    kvt_engine_close(&engine);
    kvt_engine_open(&rig.call, &engine);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 1, 1, KV_WAIT_DRAM), KV_OK), "%s",
              rig.call.info.text);
    close_all();
}

#ifdef KV_FAULTS
static void await_counter(long long wanted)
{
    long long now = 0;
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (now < wanted && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
        now = kvt_db_number(&rig, "SELECT lease_ctr FROM kvrun.instance");
    }
    cr_assert(ge(llong, now, wanted));
}

/* Three in a row whose answers are lost: all of them counted, or none did. */
static void renewals_in_doubt(const char *step)
{
    char spec[256];
    uint32_t count = 0;
    open_with_lease(2 * KV_S_NS);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK));
    long long first = kvt_db_number(&rig, "SELECT lease_ctr FROM kvrun.instance");
    snprintf(spec, sizeof spec,
             "store/lease-renew/%s=x@1once,store/lease-renew/%s=x@2once,store/lease-renew/%s=x@3once", step, step,
             step);
    kv_fault_set(spec);
    await_counter(first + 5);
    kv_fault_set(NULL);
    cr_assert(kvt_svc_await_check(&rig, "lease", true));
    cr_assert(kvt_svc_check_ok(&rig, "root_key"), "%s", kvt_svc_check_detail(&rig, "root_key"));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 1, &count), KV_OK), "%s", rig.call.info.text);
    /* And a clone is still noticed. */
    kvt_db_run(&rig, "UPDATE kvrun.instance SET lease_ctr = lease_ctr + 1");
    cr_assert(kvt_svc_await_check(&rig, "root_key", false));
    close_all();
}

Test(lease, renewals_that_counted_without_an_answer_are_no_clone)
{
    renewals_in_doubt("committed");
}

Test(lease, renewals_that_were_lost_before_their_commit_are_no_clone)
{
    renewals_in_doubt("commit");
}
#endif

static void second_on_the_same_database(struct kvt_svc *second)
{
    kvt_svc_config(second);
    snprintf(second->url, sizeof second->url, "%s", rig.url);
}

Test(lease, second_live_instance_is_refused_at_its_start)
{
    struct kvt_svc second;
    uint32_t count = 0;
    open_with_lease(2 * KV_S_NS);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 2, KV_WAIT_DRAM), KV_OK));
    second_on_the_same_database(&second);
    cr_assert(eq(int, kvt_svc_try_start(&second), KV_E_INVALID_STATE));
    cr_assert(strstr(second.info.text, "another kvrun instance") != NULL, "%s", second.info.text);
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.instance"), 1));
    /* With the same root, the root's own lock is met first. */
    snprintf(second.root_path, sizeof second.root_path, "%s", rig.root_path);
    cr_assert(eq(int, kvt_svc_try_start(&second), KV_E_BUSY), "%s", second.info.text);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 2, &count), KV_OK),
              "the first one is not touched");
    /* When the first has ended, its place is free at once, and the sessions are the second's. */
    kvt_svc_stop(&rig);
    kvt_svc_start(&second);
    kvt_svc_as(&second.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    cr_assert(kvt_svc_check_ok(&second, "root_key"), "%s", kvt_svc_check_detail(&second, "root_key"));
    struct kv_erasure_view view = kvt_svc_erase(&second.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    kvt_svc_done(&second);
    close_all();
}

Test(lease, of_an_instance_that_died_is_waited_for)
{
    struct kvt_svc second;
    open_with_lease(2 * KV_S_NS);
    kvt_svc_stop(&rig);
    kvt_db_run(&rig, "UPDATE kvrun.instance SET lease_until = now() + interval '1500 milliseconds'");
    second_on_the_same_database(&second);
    snprintf(second.root_path, sizeof second.root_path, "%s", rig.root_path);
    uint64_t since = kv_now_ns(&kv_env_system);
    enum kv_err rc = kvt_svc_try_start(&second);
    while (rc == KV_E_INVALID_STATE && kv_now_ns(&kv_env_system) < since + KVT_WAIT_S * KV_S_NS) {
        usleep(100000);
        rc = kvt_svc_try_start(&second);
    }
    cr_assert(eq(int, rc, KV_OK), "%s", second.info.text);
    kvt_svc_done(&second);
    close_all();
}

Test(lease, revocation_by_another_is_applied_before_it_is_acknowledged)
{
    uint32_t count = 0;
    open_with_lease(KV_S_NS);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK));
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, session);
    /* The number may be acknowledged a renewal before the new root is. */
    const char *both = "SELECT count(*) FROM kvrun.instance i JOIN kvrun.kroot k ON i.acked_root = k.root_id"
                       " WHERE i.acked_seq = 1";
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (kvt_db_number(&rig, both) < 1 && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
    }
    cr_assert(eq(llong, kvt_db_number(&rig, both), 1));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 1, &count), KV_E_SESSION_ERASED));
    /* One that is applied again at the next start, when memory knows of nothing, still names its erasure. */
    kvt_svc_stop(&rig);
    kvt_db_run(&rig, "UPDATE kvrun.instance SET acked_seq = 0");
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_close(&engine);
    kvt_engine_open(&rig.call, &engine);
    while (kvt_db_number(&rig, "SELECT acked_seq FROM kvrun.instance") < 1 && kv_now_ns(&kv_env_system) < deadline) {
        usleep(50000);
    }
    cr_assert(kvt_svc_refused(&rig.call, &engine, session, view.id));
    close_all();
}

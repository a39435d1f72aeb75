/* The service under several threads: requests of all kinds beside each other, a stop while some wait. */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

TEMP_POSTGRES_HOOKS

#define CALLERS 4
#define SESSIONS 6

static struct kvt_svc rig;

struct caller {
    pthread_t thread;
    struct kv_id tenant;
    unsigned number;
    atomic_uint *ready;
    unsigned erased, wrong;
    enum kv_err rc;
};

/* One session's life: blocks in, out, erased, refused. Every second caller shares its tenant with another. */
static void live(struct kv_call *call, const struct kvt_engine *engine, struct caller *caller)
{
    uint32_t count = 0;
    struct kv_id session = kvt_svc_session(call), beside = kvt_svc_session(call);
    caller->wrong += kvt_svc_offload(call, engine, session, 0, 6, KV_WAIT_DRAM) != KV_OK;
    caller->wrong += kvt_svc_offload(call, engine, beside, 10, 2, KV_WAIT_DURABLE) != KV_OK;
    caller->wrong += kvt_svc_restore(call, engine, session, 0, 6, &count) != KV_OK || count != 6;
    caller->wrong += kvt_svc_lookup(call, engine, session, 0, 8, &count) != KV_OK || count != 6;
    struct kv_erasure_view view = kvt_svc_erase(call, session);
    caller->wrong += view.state != KV_ERASURE_CERTIFIED;
    caller->wrong += !kvt_svc_refused(call, engine, session, view.id);
    caller->wrong += kvt_svc_restore(call, engine, beside, 10, 2, &count) != KV_OK || count != 2;
    caller->erased++;
}

static void *run_caller(void *arg)
{
    struct caller *caller = arg;
    struct kvt_engine engine;
    struct kv_call call = kvt_svc_call(&rig, caller->tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&call, &engine);
    for (unsigned i = 0; i < SESSIONS; i++) {
        live(&call, &engine, caller);
    }
    caller->wrong += kv_svc_engine_remove(&call, &engine.engine) != KV_OK;
    kvt_engine_close(&engine);
    kv_call_done(&call);
    return NULL;
}

/* What probes and metrics do all the time. */
static void *run_probes(void *arg)
{
    atomic_bool *stop = arg;
    while (!atomic_load(stop)) {
        struct kv_ready_check checks[KV_READY_CHECKS];
        struct kv_engine_stats stats;
        struct kv_about about;
        (void)kv_svc_ready(rig.svc, checks);
        kv_svc_stats(rig.svc, &stats);
        kv_svc_about(rig.svc, &about);
    }
    return NULL;
}

Test(service, requests_of_all_kinds_run_beside_each_other)
{
    struct caller callers[CALLERS] = {0};
    struct kv_buf bundle;
    pthread_t probes;
    atomic_bool stop = false;
    kvt_svc_open(&rig);
    struct kv_id other = kvt_svc_tenant(&rig, "other");
    cr_assert(eq(int, pthread_create(&probes, NULL, run_probes, &stop), 0));
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.tenant = i % 2 == 0 ? rig.tenant : other, .number = i};
        cr_assert(eq(int, pthread_create(&callers[i].thread, NULL, run_caller, &callers[i]), 0));
    }
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        cr_assert(eq(uint, callers[i].wrong, 0));
        cr_assert(eq(uint, callers[i].erased, SESSIONS));
    }
    atomic_store(&stop, true);
    pthread_join(probes, NULL);
    cr_assert(eq(llong, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure WHERE state = 'certified'"),
                 CALLERS * SESSIONS));
    kvt_svc_restart(&rig);
    struct kv_erasure_view view = kvt_svc_erase(&rig.call, kvt_svc_session(&rig.call));
    cr_assert(kvt_svc_certificate_good(&rig.call, view.id, &bundle));
    kv_buf_done(&bundle);
    kvt_svc_done(&rig);
}

/* --- a stop in the middle ---------------------------------------------------------------------------------------- */

/* Works until it is told to stop; every other answer is a fault. */
static void *run_until_stopped(void *arg)
{
    struct caller *caller = arg;
    struct kvt_engine engine;
    struct kv_call call = kvt_svc_call(&rig, caller->tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&call, &engine);
    struct kv_id session = kvt_svc_session(&call);
    enum kv_err rc = KV_OK;
    uint32_t count = 0;
    for (uint32_t i = 0; rc == KV_OK; i++) {
        rc = kvt_svc_offload(&call, &engine, session, i % 64, 2, KV_WAIT_DRAM);
        if (i == 4) {
            atomic_fetch_add(caller->ready, 1);
        }
        if (rc == KV_OK) {
            rc = kvt_svc_restore(&call, &engine, session, i % 64, 2, &count);
            caller->wrong += rc == KV_OK && count != 2;
        }
    }
    caller->rc = rc;
    kvt_engine_close(&engine);
    kv_call_done(&call);
    return NULL;
}

static void await_ready(atomic_uint *ready, unsigned count)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (atomic_load(ready) < count && kv_now_ns(&kv_env_system) < deadline) {
        struct timespec pause = {.tv_nsec = 2000000};
        nanosleep(&pause, NULL);
    }
    cr_assert(ge(uint, atomic_load(ready), count));
}

Test(service, stop_refuses_new_work_and_ends_with_everything_answered)
{
    struct caller callers[CALLERS] = {0};
    atomic_uint ready = 0;
    kvt_svc_open(&rig);
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.tenant = rig.tenant, .number = i, .ready = &ready};
        cr_assert(eq(int, pthread_create(&callers[i].thread, NULL, run_until_stopped, &callers[i]), 0));
    }
    await_ready(&ready, CALLERS);
    kv_svc_begin_stop(rig.svc);
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        cr_assert(eq(int, callers[i].rc, KV_E_SHUTTING_DOWN));
        cr_assert(eq(uint, callers[i].wrong, 0));
    }
    kvt_svc_stop(&rig);
    kvt_svc_start(&rig);
    kvt_svc_done(&rig);
}

#ifdef KV_FAULTS
static void *run_asker(void *arg)
{
    struct caller *caller = arg;
    struct kv_erasure_view view;
    bool existed = false;
    struct kv_call call = kvt_svc_call(&rig, caller->tenant, KV_ROLE_TENANT_ADMIN);
    struct kv_id session = kvt_svc_session(&call);
    caller->rc = kvt_svc_ask(&call, session, 0, &view, &existed);
    caller->wrong += caller->rc == KV_OK && view.state != KV_ERASURE_REQUESTED && view.state != KV_ERASURE_FENCED;
    kv_call_done(&call);
    return NULL;
}

/* The requests are durable: a stop does not wait for their ends, and the next start carries them out. */
Test(service, stop_leaves_open_erasures_to_the_next_start)
{
    struct caller callers[CALLERS] = {0};
    kvt_svc_open(&rig);
    kv_fault_set("store/erase-take/commit=fail");
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.tenant = rig.tenant, .number = i};
        cr_assert(eq(int, pthread_create(&callers[i].thread, NULL, run_asker, &callers[i]), 0));
    }
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        cr_assert(eq(int, callers[i].rc, KV_OK));
        cr_assert(eq(uint, callers[i].wrong, 0));
    }
    kvt_svc_stop(&rig);
    kv_fault_set(NULL);
    kvt_svc_start(&rig);
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure WHERE state = 'certified'") < CALLERS &&
           kv_now_ns(&kv_env_system) < deadline) {
    }
    cr_assert(eq(llong, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure WHERE state = 'certified'"), CALLERS));
    kvt_svc_done(&rig);
}
#endif

/* Two that ask for the same erasure at once get the same one. */
static struct kv_id shared_session;
static struct kv_id answers[CALLERS];

static void *run_same(void *arg)
{
    struct caller *caller = arg;
    struct kv_call call = kvt_svc_call(&rig, caller->tenant, KV_ROLE_TENANT_ADMIN);
    struct kv_erasure_view view = kvt_svc_erase(&call, shared_session);
    answers[caller->number] = view.id;
    caller->wrong += view.state != KV_ERASURE_CERTIFIED;
    kv_call_done(&call);
    return NULL;
}

Test(service, one_session_erased_by_all_at_once_has_one_erasure)
{
    struct caller callers[CALLERS] = {0};
    kvt_svc_open(&rig);
    shared_session = kvt_svc_session(&rig.call);
    for (unsigned i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.tenant = rig.tenant, .number = i};
        cr_assert(eq(int, pthread_create(&callers[i].thread, NULL, run_same, &callers[i]), 0));
    }
    for (unsigned i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        cr_assert(eq(uint, callers[i].wrong, 0));
        cr_assert(kv_id_equal(&answers[i], &answers[0]));
    }
    cr_assert(eq(llong, kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure"), 1));
    kvt_svc_done(&rig);
}

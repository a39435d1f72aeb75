/* A change of the root, and what runs beside it: calls that hold the old one, commits under way, another database. */
#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/keys/ktree_int.h"
#include "server/service/svc_int.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;

static struct kv_id open_one(void)
{
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 2, KV_WAIT_DURABLE), KV_OK));
    return session;
}

static void close_all(void)
{
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

#ifdef KV_FAULTS
static bool await_number(const char *sql, long long wanted)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (kvt_db_number(&rig, sql) != wanted && kv_now_ns(&kv_env_system) < deadline) {
        usleep(20000);
    }
    return kvt_db_number(&rig, sql) == wanted;
}

/* A call that began under the old root still has it in memory: no purge is claimed before it ended. */
Test(root_change, is_not_purged_while_a_call_holds_what_the_old_root_opened)
{
    struct kv_erasure_view view;
    struct ktree_use use;
    bool existed = false;
    struct kv_id session = open_one();
    kv_fault_set("erase/staged=fail");
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &view, &existed), KV_OK));
    cr_assert(await_number("SELECT count(*) FROM kvrun.erasure WHERE state = 'staged'", 1));
    cr_assert(eq(int, ktree_use_begin(rig.svc->tree, &use), KV_OK));
    kv_fault_set(NULL);
    cr_assert(await_number("SELECT count(*) FROM kvrun.erasure WHERE state = 'destroyed'", 1));
    sleep(6); /* longer than a change of the root waits for such calls */
    cr_assert(eq(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erasure WHERE state = 'destroyed'"), 1));
    cr_assert(eq(int, ktree_use_end(rig.svc->tree, &use), KV_E_STALE));
    view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    close_all();
}

static void *commit_slowly(void *arg)
{
    kvt_db_run(&rig, "UPDATE kvrun.kroot SET root_id = (SELECT new_root FROM kvrun.erase_batch WHERE state = 'staged');"
                     " SELECT pg_sleep(1)");
    return arg;
}

/* The commit of a killed process may end after the next one began. What was staged for it must not be discarded. */
Test(root_change, whose_commit_is_under_way_is_waited_for_at_a_start)
{
    struct kv_erasure_view view;
    pthread_t thread;
    bool existed = false;
    struct kv_id session = open_one();
    kv_fault_set("erase/staged=fail");
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 0, &view, &existed), KV_OK));
    cr_assert(await_number("SELECT count(*) FROM kvrun.erasure WHERE state = 'staged'", 1));
    kvt_svc_stop(&rig);
    cr_assert(eq(int, pthread_create(&thread, NULL, commit_slowly, NULL), 0));
    cr_assert(await_number("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(1)' AND state = 'active'"
                           " AND pid <> pg_backend_pid()",
                           1));
    /* The row has the new id and the old secret, which is how this test knows that the new id was seen. */
    cr_assert(eq(int, kvt_svc_try_start(&rig), KV_E_WRONG_KEY), "%s", rig.info.text);
    pthread_join(thread, NULL);
    kvt_db_run(&rig,
               "UPDATE kvrun.kroot SET root_id = (SELECT old_root FROM kvrun.erase_batch WHERE state = 'staged')");
    kv_fault_set(NULL);
    kvt_svc_start(&rig);
    kvt_svc_as(&rig.call, rig.tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    close_all();
}
#endif

/* A failover to a database that is behind: seen while running, and nothing is discarded or destroyed for it. */
Test(root_change, that_the_database_lost_is_noticed_while_running)
{
    struct kv_id active, staged, again, none = {0};
    uint32_t count = 0;
    struct kv_id session = open_one();
    cr_assert(eq(int, rig.svc->roe->ops->list(rig.svc->roe, &active, &staged), KV_OK));
    kvt_db_run(&rig, "UPDATE kvrun.kroot SET root_id = decode('00112233445566778899aabbccddeeff', 'hex')");
    cr_assert(kvt_svc_await_check(&rig, "root_key", false));
    cr_assert(strstr(kvt_svc_check_detail(&rig, "root_key"), "do not belong together") != NULL);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 2, &count), KV_E_QUARANTINED));
    cr_assert(eq(int, rig.svc->roe->ops->list(rig.svc->roe, &again, &staged), KV_OK));
    cr_assert(kv_id_equal(&active, &again) && kv_id_equal(&staged, &none));
    close_all();
}

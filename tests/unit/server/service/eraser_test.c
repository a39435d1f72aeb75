/* Erasures beside one that cannot go on, and a purge beside an opening. */
#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;

static struct kv_id session_with_blocks(struct kv_call *call)
{
    struct kv_id session = kvt_svc_session(call);
    cr_assert(eq(int, kvt_svc_offload(call, &engine, session, 0, 2, KV_WAIT_DURABLE), KV_OK));
    return session;
}

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

Test(eraser, erases_beside_a_session_whose_key_is_still_in_use)
{
    struct kv_scope_keys keys;
    struct kv_erasure_view stuck, view;
    bool existed = false;
    open_all();
    struct kv_id used = session_with_blocks(&rig.call), other = session_with_blocks(&rig.call);
    cr_assert(eq(int, kv_keyring_borrow(rig.svc->keyring, &used, &keys), KV_OK));
    cr_assert(eq(int, kvt_svc_ask(&rig.call, used, 0, &stuck, &existed), KV_OK));
    view = kvt_svc_erase(&rig.call, other);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &stuck.id, &stuck), KV_OK));
    cr_assert(eq(int, stuck.state, KV_ERASURE_REQUESTED));
    kv_keyring_return(rig.svc->keyring, &keys);
    stuck = kvt_svc_erase(&rig.call, used);
    cr_assert(eq(int, stuck.state, KV_ERASURE_CERTIFIED));
    close_all();
}

/* One tenant's leaf is damaged: its session is not erased, nothing is claimed, and the other tenant's goes on. */
Test(eraser, erases_beside_a_session_whose_way_through_the_tree_is_damaged)
{
    struct kv_erasure_view damaged, view;
    bool existed = false;
    open_all();
    struct kv_id tenant = kvt_svc_tenant(&rig, "other");
    struct kv_call call = kvt_svc_call(&rig, tenant, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    struct kv_id broken = session_with_blocks(&rig.call), other = kvt_svc_session(&call);
    kvt_db_run(&rig, "CREATE TABLE kvrun.kept AS SELECT * FROM kvrun.ktree_node;"
                     "UPDATE kvrun.ktree_node SET sealed = set_byte(sealed, 300, 255 - get_byte(sealed, 300)),"
                     " node_id = decode('00112233445566778899aabbccddeeff', 'hex')"
                     " WHERE level = 0 AND tree = (SELECT id FROM kvrun.tenant WHERE name = 'acme')");
    cr_assert(eq(int, kvt_svc_ask(&rig.call, broken, 0, &damaged, &existed), KV_OK));
    view = kvt_svc_erase(&call, other);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    cr_assert(eq(int, kv_svc_erasure_get(&rig.call, &damaged.id, &damaged), KV_OK));
    cr_assert(eq(int, damaged.state, KV_ERASURE_FENCED));
    cr_assert(le(int, (int)kvt_db_number(&rig, "SELECT count(*) FROM kvrun.erase_batch"), 1), "no root for nothing");
    kvt_db_run(&rig, "UPDATE kvrun.ktree_node n SET sealed = k.sealed, node_id = k.node_id FROM kvrun.kept k"
                     " WHERE n.tree = k.tree AND n.level = k.level AND n.idx = k.idx AND n.level = 0"
                     " AND n.node_ver = k.node_ver");
    damaged = kvt_svc_erase(&rig.call, broken);
    cr_assert(eq(int, damaged.state, KV_ERASURE_CERTIFIED));
    kv_call_done(&call);
    close_all();
}

static void set_openings(int change)
{
    pthread_mutex_lock(&rig.svc->registry_mutex);
    rig.svc->opening[0] = (unsigned)((int)rig.svc->opening[0] + change);
    pthread_cond_broadcast(&rig.svc->opening_ended);
    pthread_mutex_unlock(&rig.svc->registry_mutex);
}

/* Who opens a session holds its secret for a moment outside of tree and keyring. */
Test(eraser, purges_only_after_openings_that_began_before_have_ended)
{
    struct kv_erasure_view view;
    bool existed = false;
    open_all();
    struct kv_id session = session_with_blocks(&rig.call), live = session_with_blocks(&rig.call);
    uint32_t count = 0;
    set_openings(1);
    cr_assert(eq(int, kvt_svc_ask(&rig.call, session, 2, &view, &existed), KV_OK));
    cr_assert(eq(int, view.state, KV_ERASURE_DESTROYED));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, live, 0, 2, &count), KV_OK));
    set_openings(-1);
    view = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, view.state, KV_ERASURE_CERTIFIED));
    close_all();
}

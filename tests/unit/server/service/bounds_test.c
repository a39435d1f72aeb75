/* What the service remembers has an end: revocations of earlier processes, revoked sessions, unclaimed descriptors. */
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

static struct kvt_svc rig;
static struct kvt_engine engine;

static size_t sessions_known(void)
{
    pthread_mutex_lock(&rig.svc->registry_mutex);
    size_t count = rig.svc->sessions.count;
    pthread_mutex_unlock(&rig.svc->registry_mutex);
    return count;
}

/* However many were erased before, a start does not go through them again: nothing of them is open in it. */
Test(bounds, start_acknowledges_earlier_revocations_without_repeating_them)
{
    struct kv_session_view view;
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id erased = kvt_svc_session(&rig.call);
    struct kv_erasure_view erasure = kvt_svc_erase(&rig.call, erased);
    cr_assert(eq(int, erasure.state, KV_ERASURE_CERTIFIED));
    kvt_svc_restart(&rig);
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    static const char acked[] = "SELECT count(*) FROM kvrun.instance, kvrun.revocation_head WHERE acked_seq = seq";
    while (kvt_db_number(&rig, acked) != 1 && kv_now_ns(&kv_env_system) < deadline) {
        usleep(20000);
    }
    cr_assert(eq(int, (int)kvt_db_number(&rig, acked), 1));
    cr_assert(eq(sz, sessions_known(), 0));
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &erased, false, &view), KV_E_SESSION_ERASED),
              "it is refused all the same");
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

static void know_revoked(size_t count)
{
    pthread_mutex_lock(&rig.svc->registry_mutex);
    for (size_t i = 0; i < count; i++) {
        struct svc_session *session = kv_alloc(sizeof *session);
        cr_assert(session != NULL);
        cr_assert(eq(int, kv_id_new(&kv_env_system, &session->id), KV_OK));
        session->revoked = true;
        cr_assert(eq(int, kv_idmap_put(&rig.svc->sessions, &session->id, session), KV_OK));
    }
    pthread_mutex_unlock(&rig.svc->registry_mutex);
}

Test(bounds, revoked_sessions_are_forgotten_before_the_registry_grows)
{
    struct kv_heartbeat_view beat;
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    know_revoked((size_t)KV_MAX_SESSIONS_OPEN);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_OK));
    struct kv_erasure_view erasure = kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, erasure.state, KV_ERASURE_CERTIFIED));
    cr_assert(kvt_svc_refused(&rig.call, &engine, session, erasure.id));
    cr_assert(eq(sz, sessions_known(), (size_t)KV_MAX_SESSIONS_OPEN));
    /* The engine is told whatever the registry still knows. */
    cr_assert(eq(int, kv_svc_engine_heartbeat(&rig.call, &engine.engine, &beat), KV_OK));
    cr_assert(eq(sz, beat.revoked_count, 1));
    cr_assert(kv_id_equal(&beat.revoked[0], &session));
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

/* More sessions than there is room for keys: all work, those used last are open, and an erasure has memory for its own.
 */
Test(bounds, sessions_beyond_the_room_for_keys_are_opened_again_when_used)
{
    enum { SESSIONS = 60, ARENA_BYTES = 330000 };
    struct kv_id sessions[SESSIONS];
    uint32_t count = 0;
    cr_assert(eq(int, kv_secret_arena_init(ARENA_BYTES), KV_OK));
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    cr_assert(lt(sz, rig.svc->keys_max, SESSIONS / 2));
    for (int i = 0; i < SESSIONS; i++) {
        sessions[i] = kvt_svc_session(&rig.call);
        cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, sessions[i], 0, 1, KV_WAIT_DRAM), KV_OK), "session %d",
                  i);
    }
    for (int i = 0; i < SESSIONS; i++) {
        cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, sessions[i], 0, 1, &count), KV_OK), "session %d", i);
        cr_assert(eq(u32, count, 1));
        cr_assert(le(sz, kv_keyring_count(rig.svc->keyring), rig.svc->keys_max));
    }
    cr_assert(eq(int, kvt_svc_erase(&rig.call, sessions[0]).state, KV_ERASURE_CERTIFIED));
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}

static void end_tokens(void)
{
    pthread_mutex_lock(&rig.svc->registry_mutex);
    for (size_t i = 0; i < SVC_FD_TOKENS; i++) {
        rig.svc->fd_tokens[i].expires_ns = 1;
    }
    pthread_mutex_unlock(&rig.svc->registry_mutex);
}

/* Whether the pipe has lost its other end. The number of that end says nothing: another thread may have been given it
 * for a file of its own. */
static bool other_end_closed(int end)
{
    struct pollfd writer = {.fd = end};
    return poll(&writer, 1, 0) == 1 && (writer.revents & POLLERR) != 0;
}

Test(bounds, descriptor_that_nobody_claims_is_closed)
{
    char token[48];
    int ends[2];
    kvt_svc_open(&rig);
    cr_assert(eq(int, pipe2(ends, O_CLOEXEC), 0));
    cr_assert(eq(int, kv_svc_fd_offer(rig.svc, ends[0], getpid(), token), KV_OK));
    cr_assert(not(other_end_closed(ends[1])));
    end_tokens();
    uint64_t deadline = kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS;
    while (!other_end_closed(ends[1]) && kv_now_ns(&kv_env_system) < deadline) {
        usleep(20000);
    }
    cr_assert(other_end_closed(ends[1]));
    close(ends[1]);
    kvt_svc_done(&rig);
}

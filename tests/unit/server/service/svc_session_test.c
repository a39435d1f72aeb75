/* Tenants, sessions and transfers: everything real in one process. */
#include "dataplane/base/id.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
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

static enum kv_err make_tenant(const char *name, const char *display_name, struct kv_tenant_view *ret_tenant)
{
    struct kv_tenant_new in = {.name = name, .display_name = display_name};
    return kv_svc_tenant_create(&rig.call, &in, ret_tenant);
}

/* --- tenants ----------------------------------------------------------------------------------------------------- */

Test(tenant, is_made_once_and_read_back)
{
    struct kv_tenant_view made, got;
    kvt_svc_config(&rig);
    kvt_svc_start(&rig);
    cr_assert(eq(int, make_tenant("acme-1", "Acme Inc.", &made), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(str, made.name, "acme-1"));
    cr_assert(eq(str, made.display_name, "Acme Inc."));
    cr_assert(eq(str, made.state, "active"));
    cr_assert(gt(u64, made.created_us, 0));
    cr_assert(eq(int, make_tenant("acme-1", NULL, &got), KV_E_TENANT_EXISTS));
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &made.id, &got), KV_OK));
    cr_assert(kv_id_equal(&made.id, &got.id));
    cr_assert(eq(str, got.display_name, "Acme Inc."));
    cr_assert(eq(u64, got.created_us, made.created_us));
    kvt_svc_done(&rig);
}

Test(tenant, name_has_its_characters_and_lengths)
{
    struct kv_tenant_view view;
    char longest[65];
    static const char *const bad[] = {"", "a", "Acme", "acme_1", "acme 1", "acme.1", "acm\xc3\xa9"};
    kvt_svc_config(&rig);
    kvt_svc_start(&rig);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert(eq(int, make_tenant(bad[i], NULL, &view), KV_E_INVALID_REQUEST), "\"%s\"", bad[i]);
        cr_assert(eq(str, rig.call.info.pointer, "/name"));
    }
    memset(longest, 'a', 64);
    longest[64] = '\0';
    cr_assert(eq(int, make_tenant(longest, NULL, &view), KV_E_INVALID_REQUEST));
    longest[63] = '\0';
    cr_assert(eq(int, make_tenant(longest, NULL, &view), KV_OK));
    cr_assert(eq(int, make_tenant("ab", NULL, &view), KV_OK));
    kvt_svc_done(&rig);
}

Test(tenant, is_seen_by_operators_and_its_own_keys_only)
{
    struct kv_tenant_view view;
    kvt_svc_open(&rig);
    struct kv_id other = kvt_svc_tenant(&rig, "other"), nobody = {.b = {1}};
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &rig.tenant, &view), KV_OK));
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &other, &view), KV_E_NOT_FOUND));
    rig.call.who = (struct kv_principal){.roles = KV_ROLE_OPERATOR};
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &other, &view), KV_OK));
    cr_assert(eq(int, kv_svc_tenant_get(&rig.call, &nobody, &view), KV_E_NOT_FOUND));
    kvt_svc_done(&rig);
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

Test(session, is_made_and_read_back_with_its_use)
{
    struct kv_session_view made, got;
    struct kv_model model = {.id = "m/7b", .revision = "r1", .fingerprint = {1, 2, 3}};
    bool existed = true;
    open_all();
    cr_assert(
        eq(int, kv_svc_session_create(&rig.call, &(struct kv_session_new){.model = model}, &made, &existed), KV_OK),
        "%s", rig.call.info.text);
    cr_assert(not(existed));
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, made.id, 0, 3, KV_WAIT_DRAM), KV_OK), "%s",
              rig.call.info.text);
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &made.id, false, &got), KV_OK));
    cr_assert(eq(str, got.state, "active"));
    cr_assert(eq(str, got.model.id, "m/7b"));
    cr_assert(eq(int, memcmp(&got.model, &made.model, sizeof got.model), 0));
    cr_assert(eq(u64, got.usage.blocks, 3));
    cr_assert(eq(u64, got.usage.plaintext_bytes, 3 * KVT_SVC_REGIONS * KVT_SVC_RUN_BYTES));
    close_all();
}

Test(session, of_an_unknown_id_is_not_found)
{
    struct kv_session_view view;
    struct kv_id nobody = {.b = {1}};
    uint32_t count = 0;
    open_all();
    cr_assert(eq(int, kv_svc_session_get(&rig.call, &nobody, false, &view), KV_E_NOT_FOUND));
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, nobody, 0, 1, KV_WAIT_DRAM), KV_E_NOT_FOUND));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, nobody, 0, 1, &count), KV_E_NOT_FOUND));
    close_all();
}

/* A guessed or leaked id of another tenant must answer like one that does not exist, whatever is asked. */
Test(session, of_another_tenant_is_not_found_everywhere)
{
    struct kv_session_view session_view;
    struct kv_erasure_view erasure;
    struct kvt_engine theirs;
    bool existed = false;
    uint32_t count = 0;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call), erased = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 2, KV_WAIT_DRAM), KV_OK));
    struct kv_erasure_view done = kvt_svc_erase(&rig.call, erased);
    cr_assert(eq(int, done.state, KV_ERASURE_CERTIFIED));

    struct kv_id other = kvt_svc_tenant(&rig, "other");
    struct kv_call call = kvt_svc_call(&rig, other, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&call, &theirs);
    struct kv_id targets[] = {session, erased};
    for (size_t i = 0; i < 2; i++) {
        cr_assert(eq(int, kv_svc_session_get(&call, &targets[i], false, &session_view), KV_E_NOT_FOUND));
        cr_assert(eq(int, kvt_svc_offload(&call, &theirs, targets[i], 0, 1, KV_WAIT_DRAM), KV_E_NOT_FOUND));
        cr_assert(eq(int, kvt_svc_restore(&call, &theirs, targets[i], 0, 1, &count), KV_E_NOT_FOUND));
        cr_assert(eq(int, kvt_svc_lookup(&call, &theirs, targets[i], 0, 1, &count), KV_E_NOT_FOUND));
        cr_assert(eq(int, kvt_svc_ask(&call, targets[i], 0, &erasure, &existed), KV_E_NOT_FOUND));
        cr_assert(kv_id_is_zero(&call.erasure), "not even that it was erased");
    }
    struct kv_buf bytes;
    kv_buf_init(&bytes, 1 << 20);
    cr_assert(eq(int, kv_svc_erasure_get(&call, &done.id, &erasure), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_certificate(&call, &done.id, KV_CERT_BUNDLE, &bytes), KV_E_NOT_FOUND));
    kv_buf_done(&bytes);
    /* Nothing of this reached the session. */
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 2, &count), KV_OK));
    cr_assert(eq(u32, count, 2));
    kvt_engine_close(&theirs);
    kv_call_done(&call);
    close_all();
}

/* --- transfers --------------------------------------------------------------------------------------------------- */

Test(transfer, blocks_come_back_as_they_were)
{
    uint32_t count = 0;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, session, 0, 8, &count), KV_OK));
    cr_assert(eq(u32, count, 0));
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 8, KV_WAIT_DURABLE), KV_OK), "%s",
              rig.call.info.text);
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, session, 0, 12, &count), KV_OK));
    cr_assert(eq(u32, count, 8));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 12, &count), KV_OK));
    cr_assert(eq(u32, count, 8));
    close_all();
}

Test(transfer, same_hashes_in_two_sessions_are_two_blocks)
{
    uint32_t count = 0;
    open_all();
    struct kv_id one = kvt_svc_session(&rig.call), two = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, one, 0, 4, KV_WAIT_DRAM), KV_OK));
    cr_assert(eq(int, kvt_svc_lookup(&rig.call, &engine, two, 0, 4, &count), KV_OK));
    cr_assert(eq(u32, count, 0));
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, two, 0, 4, &count), KV_OK));
    cr_assert(eq(u32, count, 0));
    close_all();
}

Test(transfer, survives_a_restart_of_the_server)
{
    uint32_t count = 0;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 8, KV_WAIT_DURABLE), KV_OK));
    kvt_svc_restart(&rig);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 8, &count), KV_E_NOT_FOUND), "the pool went");
    kvt_engine_close(&engine);
    kvt_engine_open(&rig.call, &engine);
    cr_assert(eq(int, kvt_svc_restore(&rig.call, &engine, session, 0, 8, &count), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(u32, count, 8));
    close_all();
}

Test(transfer, slot_outside_of_the_pool_is_refused)
{
    uint8_t hashes[1][32] = {{1}}, tier = 0;
    enum kv_block_result result = KV_BLOCK_PENDING;
    uint32_t slot = KVT_SVC_SLOTS;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call);
    struct kv_blocks_in in = {
        .session = session, .pool = engine.pool, .count = 1, .hashes = (const uint8_t(*)[32])hashes, .slots = &slot};
    struct kv_blocks_out out = {.results = &result, .tiers = &tier};
    cr_assert(eq(int, kv_svc_offload(&rig.call, &in, &out), KV_E_INVALID_REQUEST));
    cr_assert(eq(str, rig.call.info.pointer, "/slots"));
    slot--;
    cr_assert(eq(int, kv_svc_offload(&rig.call, &in, &out), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(int, result, KV_BLOCK_STORED));
    close_all();
}

Test(transfer, pool_of_another_tenant_is_not_found)
{
    open_all();
    struct kv_id other = kvt_svc_tenant(&rig, "other");
    struct kv_call call = kvt_svc_call(&rig, other, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    struct kv_id session = kvt_svc_session(&call);
    cr_assert(eq(int, kvt_svc_offload(&call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_E_NOT_FOUND));
    cr_assert(eq(str, call.info.pointer, "/pool_id"));
    cr_assert(eq(int, kv_svc_pool_remove(&call, &engine.pool), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_engine_remove(&call, &engine.engine), KV_E_NOT_FOUND));
    kv_call_done(&call);
    close_all();
}

/* --- engines ----------------------------------------------------------------------------------------------------- */

Test(engine, that_is_removed_takes_its_pools_along)
{
    struct kv_heartbeat_view heartbeat;
    open_all();
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kv_svc_engine_heartbeat(&rig.call, &engine.engine, &heartbeat), KV_OK));
    cr_assert(eq(sz, heartbeat.revoked_count, 0));
    cr_assert(eq(int, kv_svc_engine_remove(&rig.call, &engine.engine), KV_OK));
    cr_assert(eq(int, kv_svc_engine_heartbeat(&rig.call, &engine.engine, &heartbeat), KV_E_ENGINE_UNKNOWN));
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 0, 1, KV_WAIT_DRAM), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_svc_engine_remove(&rig.call, &engine.engine), KV_E_NOT_FOUND));
    close_all();
}

Test(engine, registering_again_is_the_same_one_unless_its_facts_changed)
{
    struct kv_engine_new in = {.name = "e",
                               .kind = "sim",
                               .engine_version = "1",
                               .boot_id = "b",
                               .pid = 77,
                               .model = {.id = "m", .revision = "1"}};
    struct kv_engine_view first, again;
    kvt_svc_open(&rig);
    cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &first), KV_OK));
    cr_assert(not(first.existed));
    cr_assert(eq(u32, first.lease_seconds, 5));
    cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &again), KV_OK));
    cr_assert(again.existed && kv_id_equal(&first.id, &again.id));
    in.model.revision[0] = '2';
    cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &again), KV_E_ENGINE_CONFLICT));
    in.pid = 78;
    cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &again), KV_OK));
    cr_assert(not(again.existed));
    kvt_svc_done(&rig);
}

Test(engine, sixty_four_fit_and_one_more_is_refused)
{
    struct kv_engine_new in = {.name = "e", .kind = "sim", .engine_version = "1", .boot_id = "b"};
    struct kv_engine_view view;
    kvt_svc_open(&rig);
    for (in.pid = 1; in.pid <= KV_MAX_ENGINES; in.pid++) {
        cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &view), KV_OK));
    }
    cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &view), KV_E_BUSY));
    kvt_svc_done(&rig);
}

Test(engine, is_told_of_revoked_sessions_of_its_tenant_once)
{
    struct kv_heartbeat_view heartbeat;
    struct kvt_engine theirs;
    open_all();
    struct kv_id other = kvt_svc_tenant(&rig, "other");
    struct kv_call call = kvt_svc_call(&rig, other, KV_ROLE_TENANT_ADMIN | KV_ROLE_ENGINE);
    kvt_engine_open(&call, &theirs);
    struct kv_id session = kvt_svc_session(&rig.call);
    kvt_svc_erase(&rig.call, session);
    cr_assert(eq(int, kv_svc_engine_heartbeat(&rig.call, &engine.engine, &heartbeat), KV_OK));
    cr_assert(eq(sz, heartbeat.revoked_count, 1));
    cr_assert(kv_id_equal(&heartbeat.revoked[0], &session));
    cr_assert(eq(int, kv_svc_engine_heartbeat(&rig.call, &engine.engine, &heartbeat), KV_OK));
    cr_assert(eq(sz, heartbeat.revoked_count, 0));
    cr_assert(eq(int, kv_svc_engine_heartbeat(&call, &theirs.engine, &heartbeat), KV_OK));
    cr_assert(eq(sz, heartbeat.revoked_count, 0));
    cr_assert(eq(int, kv_svc_engine_heartbeat(&call, &engine.engine, &heartbeat), KV_E_ENGINE_UNKNOWN));
    kvt_engine_close(&theirs);
    kv_call_done(&call);
    close_all();
}

/* --- descriptors ------------------------------------------------------------------------------------------------- */

static enum kv_err register_with(const char *token, int64_t pid, struct kvt_pool_plan *plan)
{
    struct kv_engine_new in = {.name = "fd", .kind = "sim", .engine_version = "1", .boot_id = "b", .pid = pid};
    struct kv_engine_view registered;
    struct kv_pool_view view;
    cr_assert(eq(int, kv_svc_engine_register(&rig.call, &in, &registered), KV_OK));
    struct kv_pool_new pool = {.engine = registered.id, .spec = plan->spec};
    strncpy(pool.fd_token, token, sizeof pool.fd_token - 1);
    return kv_svc_pool_register(&rig.call, &pool, &view);
}

Test(descriptor, token_is_good_once_and_for_its_process)
{
    struct kvt_pool_plan plan;
    char token[48];
    kvt_svc_open(&rig);
    kvt_pool_plan(&plan, 2, 4, 4096);
    cr_assert(eq(int, kv_svc_fd_offer(rig.svc, plan.spec.fd, 1234, token), KV_OK));
    cr_assert(eq(sz, strlen(token), 36));
    cr_assert(eq(int, strncmp(token, "tok_", 4), 0));
    cr_assert(eq(int, register_with("tok_00000000000000000000000000000000", 1234, &plan), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, register_with("", 1234, &plan), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, register_with(token, 1235, &plan), KV_E_PEER_MISMATCH));
    cr_assert(eq(int, register_with(token, 1234, &plan), KV_OK), "%s", rig.call.info.text);
    cr_assert(eq(int, register_with(token, 1234, &plan), KV_E_INVALID_REQUEST));
    kvt_svc_done(&rig);
}

Test(descriptor, sixty_four_wait_and_one_more_is_refused)
{
    char token[48];
    kvt_svc_open(&rig);
    for (int i = 0; i < KV_MAX_FD_TOKENS; i++) {
        cr_assert(eq(int, kv_svc_fd_offer(rig.svc, kvt_memfd(4096, 0, 0), 1, token), KV_OK));
    }
    int fd = kvt_memfd(4096, 0, 0);
    cr_assert(eq(int, kv_svc_fd_offer(rig.svc, fd, 1, token), KV_E_BUSY));
    close(fd);
    kvt_svc_done(&rig);
}

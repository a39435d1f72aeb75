/* What `kvrun bench erase` measures on: a server of its own, a tenant, sessions with blocks, and erasing them. */
#include "server/bench/bench_erase_int.h"

#include "dataplane/base/env.h"
#include "server/cli/client.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAIT_S 20 /* for a certificate, in one call: less than the engine's lease */
#define WAITS 12

static KV_RC ask(struct erase_world *world, const char *method, const char *path, const char *key, const char *body)
{
    const struct kv_client_call call = {
        .method = method, .path = path, .key = key, .body = body, .wait_seconds = key == world->key ? WAIT_S : 0};
    kv_buf_reset(&world->out);
    return kv_client_do(world->client, &call, world->info, &world->out);
}

static KV_RC take_text(struct erase_world *world, const char *name, char *text, size_t size)
{
    bool found = kv_client_text(&world->out, name, text, size);
    return found ? KV_OK : kv_fail(world->info, KV_E_CORRUPT, "the server's answer has no %s", name);
}

static KV_RC make_key(struct erase_world *world, const char *role, char *ret_key, size_t size)
{
    char path[128], body[96];
    snprintf(path, sizeof path, "/v1/tenants/%s/api-keys", world->tenant);
    snprintf(body, sizeof body, "{\"name\":\"bench\",\"roles\":[\"%s\"]}", role);
    KV_TRY(ask(world, "POST", path, world->operator_key, body));
    KV_TRY(take_text(world, "secret", ret_key, size));
    explicit_bzero(world->out.data, world->out.len);
    return KV_OK;
}

static KV_RC make_tenant(struct erase_world *world)
{
    KV_TRY(kv_scratch_read_key(&world->scratch, "server/operator.key", world->operator_key, sizeof world->operator_key,
                               world->info));
    KV_TRY(ask(world, "POST", "/v1/tenants", world->operator_key, "{\"name\":\"bench\"}"));
    KV_TRY(take_text(world, "id", world->tenant, sizeof world->tenant));
    KV_TRY(make_key(world, "tenant_admin", world->key, sizeof world->key));
    return make_key(world, "engine", world->engine_key, sizeof world->engine_key);
}

static KV_RC serve(struct erase_world *world)
{
    /* Room in the index for 100,000 blocks comes with this arena. */
    static const char *const settings[] = {"--tiers.dram.bytes=9GiB", "--rate.default=1000000", "--rate.erase=1000000",
                                           NULL};
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) {
        return kv_fail(world->info, KV_E_IO, "cannot find this program: /proc is not there");
    }
    exe[n] = '\0';
    kv_scratch_clean_environment();
    KV_TRY(kv_scratch_make(&world->scratch, "kvrun-bench", world->info));
    return kv_scratch_serve(&world->scratch, exe, settings, world->info);
}

KV_RC erase_world_open(struct erase_world *world)
{
    char address[40];
    kv_buf_init(&world->out, 1u << 20);
    kv_child_catch_signals();
    KV_TRY(serve(world));
    snprintf(address, sizeof address, "127.0.0.1:%u", world->scratch.port);
    KV_TRY(kv_client_new(address, world->info, &world->client));
    KV_TRY(make_tenant(world));
    snprintf(world->state, sizeof world->state, "%s/server", world->scratch.folder);
    const struct bench_engine_place place = {
        .state = world->state, .key = world->engine_key, .slots = ERASE_FILL, .page_bytes = ERASE_PAGE_BYTES};
    world->has_filler = true;
    enum kv_err rc = bench_engine_open(&world->filler, &place);
    if (rc != KV_OK) {
        *world->info = world->filler.info;
    }
    return rc;
}

enum kv_err erase_world_close(struct erase_world *world)
{
    struct kv_errinfo why = {0};
    if (world->has_filler) {
        bench_engine_close(&world->filler);
    }
    kv_client_free(world->client);
    enum kv_err rc = kv_scratch_end(&world->scratch, &why);
    if (!kv_scratch_remove(&world->scratch)) {
        rc = kv_fail(&why, KV_E_IO, "not all of %s could be removed", world->scratch.folder);
    }
    kv_buf_done(&world->out);
    if (rc != KV_OK && world->info->text[0] == '\0') {
        *world->info = why;
    }
    explicit_bzero(world, sizeof *world);
    return rc;
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

static KV_RC fill(struct erase_world *world, const char *session, unsigned blocks)
{
    KV_TRY(bench_engine_beat(&world->filler));
    for (unsigned first = 0; first < blocks; first += ERASE_FILL) {
        unsigned count = blocks - first < ERASE_FILL ? blocks - first : ERASE_FILL;
        const struct bench_blocks some = {.session = session, .first = first, .count = count};
        uint64_t bytes = 0;
        KV_TRY(bench_engine_offload(&world->filler, &some, &bytes));
        if (bytes != (uint64_t)count * ERASE_PAGE_BYTES) {
            return kv_fail(&world->filler.info, KV_E_LIMIT, "the server took %llu bytes of %u blocks",
                           (unsigned long long)bytes, count);
        }
    }
    return KV_OK;
}

KV_RC erase_session(struct erase_world *world, const char *label, unsigned blocks, char ret_session[BENCH_ID_SIZE])
{
    enum kv_err rc = bench_engine_session(&world->filler, label, ret_session);
    if (rc == KV_OK) {
        rc = fill(world, ret_session, blocks);
    }
    if (rc != KV_OK) {
        *world->info = world->filler.info;
    }
    return rc;
}

/* --- erasing ----------------------------------------------------------------------------------------------------- */

/* From the request to the certificate; an erasure of many takes longer than one call waits. */
static KV_RC erase(struct erase_world *world, const char *body, double *ret_ms)
{
    char state[32] = "", id[BENCH_ID_SIZE], path[128];
    uint64_t begun = kv_now_ns(&kv_env_system);
    KV_TRY(ask(world, "POST", "/v1/erasures", world->key, body));
    KV_TRY(take_text(world, "id", id, sizeof id));
    snprintf(path, sizeof path, "/v1/erasures/%s", id);
    KV_TRY(take_text(world, "state", state, sizeof state));
    for (int i = 0; i < WAITS && strcmp(state, "certified") != 0; i++) {
        enum kv_err rc = bench_engine_beat(&world->filler);
        if (rc != KV_OK) {
            *world->info = world->filler.info;
            return rc;
        }
        KV_TRY(ask(world, "GET", path, world->key, NULL));
        KV_TRY(take_text(world, "state", state, sizeof state));
    }
    *ret_ms = (double)(kv_now_ns(&kv_env_system) - begun) / 1e6;
    return strcmp(state, "certified") == 0
               ? KV_OK
               : kv_fail(world->info, KV_E_CORRUPT, "an erasure did not end with a certificate: %s", state);
}

KV_RC erase_one(struct erase_world *world, const char *session, double *ret_ms)
{
    char body[160];
    snprintf(body, sizeof body, "{\"scope\":{\"session_id\":\"%s\"},\"basis\":\"other\"}", session);
    return erase(world, body, ret_ms);
}

KV_RC erase_label(struct erase_world *world, const char *label, double *ret_ms)
{
    char body[160];
    snprintf(body, sizeof body, "{\"scope\":{\"label\":{\"purpose\":\"%s\"}},\"basis\":\"other\"}", label);
    return erase(world, body, ret_ms);
}

/*
 * The whole product as a pipeline: a server of our own, its state, journal, database and nvme on a file system in
 * memory, and two engines that offload new blocks over its socket and wait until they are durable. Two, so that one's
 * blocks are sealed while the other's call is on its way.
 */
#include "server/bench/bench_pipeline_int.h"

#include "dataplane/base/mem.h"
#include "server/bench/bench_engine.h"
#include "server/child/scratch.h"
#include "server/cli/client.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define IN_MEMORY "/dev/shm"
#define TMPFS 0x01021994
#define ENGINES 2u
#define CALLS 2u               /* of each engine in a round */
#define CALL_BYTES (64u << 20) /* a whole pool of pages */
#define ROUND_BYTES (ENGINES * CALLS * (uint64_t)CALL_BYTES)
#define HEADER_SHARE 8u         /* sealed blocks of 64 KiB are an eighth longer, rounded up */
#define DRAM_BYTES (384u << 20) /* less than the rounds that warm up move, so that all of it was touched by then */
#define BESIDE_BYTES (UINT64_C(2) << 30) /* the database, and what the bare pipeline has at the same time */
#define KEY_SIZE 96

struct offloader {
    struct bench_engine engine;
    char session[BENCH_ID_SIZE];
    uint64_t next;
    enum kv_err rc;
    pthread_t thread;
};

struct pipe_server {
    struct kv_scratch scratch;
    struct kv_client *client;
    struct kv_buf out;
    char state[300], tenant[BENCH_ID_SIZE], operator_key[KEY_SIZE], engine_key[KEY_SIZE];
    struct offloader offloaders[ENGINES];
    unsigned open; /* of them */
};

/* ---- the server ---- */

static KV_RC check_room(uint64_t bytes, struct kv_errinfo *info)
{
    struct statfs fs = {0};
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), free_pages = (uint64_t)sysconf(_SC_AVPHYS_PAGES);
    if (statfs(IN_MEMORY, &fs) != 0 || fs.f_type != TMPFS || (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < bytes ||
        free_pages * page < bytes + DRAM_BYTES) {
        return kv_fail(info, KV_E_UNSUPPORTED, "needs %llu MiB of free memory and as much room in " IN_MEMORY,
                       (unsigned long long)((bytes + DRAM_BYTES) >> 20));
    }
    return KV_OK;
}

static KV_RC ask(struct pipe_server *server, const char *path, const char *body, struct kv_errinfo *info)
{
    const struct kv_client_call call = {.method = "POST", .path = path, .key = server->operator_key, .body = body};
    kv_buf_reset(&server->out);
    return kv_client_do(server->client, &call, info, &server->out);
}

static KV_RC make_tenant(struct pipe_server *server, struct kv_errinfo *info)
{
    char path[128];
    KV_TRY(kv_scratch_read_key(&server->scratch, "server/operator.key", server->operator_key,
                               sizeof server->operator_key, info));
    KV_TRY(ask(server, "/v1/tenants", "{\"name\":\"bench\"}", info));
    if (!kv_client_text(&server->out, "id", server->tenant, sizeof server->tenant)) {
        return kv_fail(info, KV_E_CORRUPT, "the server's answer has no id");
    }
    snprintf(path, sizeof path, "/v1/tenants/%s/api-keys", server->tenant);
    KV_TRY(ask(server, path, "{\"name\":\"bench\",\"roles\":[\"engine\"]}", info));
    bool found = kv_client_text(&server->out, "secret", server->engine_key, sizeof server->engine_key);
    explicit_bzero(server->out.data, server->out.len);
    return found ? KV_OK : kv_fail(info, KV_E_CORRUPT, "the server's answer has no secret");
}

static KV_RC serve(struct pipe_server *server, uint64_t nvme_bytes, struct kv_errinfo *info)
{
    char exe[PATH_MAX], dram[48], nvme[48], address[40];
    snprintf(dram, sizeof dram, "--tiers.dram.bytes=%u", DRAM_BYTES);
    snprintf(nvme, sizeof nvme, "--tiers.nvme.bytes=%llu", (unsigned long long)nvme_bytes);
    const char *const settings[] = {dram, nvme, "--rate.default=1000000", NULL};
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) {
        return kv_fail(info, KV_E_IO, "cannot find this program: /proc is not there");
    }
    exe[n] = '\0';
    kv_scratch_clean_environment();
    if (setenv("TMPDIR", IN_MEMORY, 1) != 0) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_scratch_make(&server->scratch, "kvrun-bench", info));
    KV_TRY(kv_scratch_serve(&server->scratch, exe, settings, info));
    snprintf(server->state, sizeof server->state, "%s/server", server->scratch.folder);
    snprintf(address, sizeof address, "127.0.0.1:%u", server->scratch.port);
    KV_TRY(kv_client_new(address, info, &server->client));
    return make_tenant(server, info);
}

KV_RC pipe_server_open(unsigned rounds, struct kv_errinfo *info, struct pipe_server **ret_server)
{
    uint64_t sealed = ROUND_BYTES * rounds / HEADER_SHARE * (HEADER_SHARE + 1);
    uint64_t nvme_bytes = sealed + ROUND_BYTES; /* slabs that are cut for one size are not full */
    struct pipe_server *server = kv_alloc(sizeof *server);
    if (server == NULL) {
        return KV_E_NO_MEMORY;
    }
    kv_buf_init(&server->out, 1u << 20);
    kv_child_catch_signals();
    enum kv_err rc = check_room(nvme_bytes + BESIDE_BYTES, info);
    rc = rc == KV_OK ? serve(server, nvme_bytes, info) : rc;
    if (rc != KV_OK) {
        struct kv_errinfo ignored = {0};
        KV_IGNORE(pipe_server_close(server, &ignored), "why it did not open is what is told");
        return rc;
    }
    *ret_server = server;
    return KV_OK;
}

KV_RC pipe_server_close(struct pipe_server *server, struct kv_errinfo *info)
{
    pipe_server_disconnect(server);
    kv_client_free(server->client);
    enum kv_err rc = kv_scratch_end(&server->scratch, info);
    if (!kv_scratch_remove(&server->scratch)) {
        rc = kv_fail(info, KV_E_IO, "not all of %s could be removed", server->scratch.folder);
    }
    kv_buf_done(&server->out);
    explicit_bzero(server, sizeof *server);
    kv_free(server);
    return rc;
}

/* ---- the engines ---- */

KV_RC pipe_server_connect(struct pipe_server *server, unsigned page_bytes, struct kv_errinfo *info)
{
    const struct bench_engine_place place = {
        .state = server->state, .key = server->engine_key, .slots = CALL_BYTES / page_bytes, .page_bytes = page_bytes};
    for (unsigned i = 0; i < ENGINES; i++) {
        struct offloader *offloader = &server->offloaders[i];
        server->open = i + 1;
        enum kv_err rc = bench_engine_open(&offloader->engine, &place);
        rc = rc == KV_OK ? bench_engine_session(&offloader->engine, "bench", offloader->session) : rc;
        if (rc != KV_OK) {
            *info = offloader->engine.info;
            return rc;
        }
    }
    return KV_OK;
}

void pipe_server_disconnect(struct pipe_server *server)
{
    for (unsigned i = 0; i < server->open; i++) {
        bench_engine_close(&server->offloaders[i].engine);
    }
    server->open = 0;
}

static KV_RC offload_once(struct offloader *offloader)
{
    struct bench_engine *engine = &offloader->engine;
    uint64_t bytes = 0;
    const struct bench_blocks blocks = {
        .session = offloader->session, .first = offloader->next, .count = engine->place.slots, .durable = true};
    KV_TRY(bench_engine_beat(engine));
    KV_TRY(bench_engine_offload(engine, &blocks, &bytes));
    offloader->next += blocks.count;
    return bytes == CALL_BYTES ? KV_OK
                               : kv_fail(&engine->info, KV_E_LIMIT, "the server took %llu bytes of %u",
                                         (unsigned long long)bytes, CALL_BYTES);
}

static void *offload(void *arg)
{
    struct offloader *offloader = arg;
    offloader->rc = KV_OK;
    for (unsigned i = 0; i < CALLS && offloader->rc == KV_OK; i++) {
        offloader->rc = offload_once(offloader);
    }
    return NULL;
}

static double cpu_seconds(pid_t server)
{
    clockid_t clock;
    struct timespec t = {0};
    if (clock_getcpuclockid(server, &clock) == 0) {
        clock_gettime(clock, &t);
    }
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static KV_RC both(struct pipe_server *server, struct kv_errinfo *info)
{
    unsigned started = 0;
    while (started < ENGINES &&
           pthread_create(&server->offloaders[started].thread, NULL, offload, &server->offloaders[started]) == 0) {
        started++;
    }
    enum kv_err rc = started == ENGINES ? KV_OK : KV_E_NO_MEMORY;
    for (unsigned i = 0; i < started; i++) {
        const struct offloader *offloader = &server->offloaders[i];
        pthread_join(offloader->thread, NULL);
        if (offloader->rc != KV_OK && rc == KV_OK) {
            *info = offloader->engine.info;
            rc = offloader->rc;
        }
    }
    return rc;
}

KV_RC pipe_server_run(struct pipe_server *server, struct kv_errinfo *info, struct pipe_time *ret_time)
{
    double gb = (double)ROUND_BYTES / 1e9, cpu = cpu_seconds(server->scratch.server);
    uint64_t begun = kv_now_ns(&kv_env_system);
    KV_TRY(both(server, info));
    ret_time->gb_per_s = gb / ((double)(kv_now_ns(&kv_env_system) - begun) / 1e9);
    ret_time->core_s_per_gb = (cpu_seconds(server->scratch.server) - cpu) / gb;
    return KV_OK;
}

/* The engine of the benchmarks that move blocks: one pool, calls over the socket, and a lease that is kept. */
#include "server/bench/bench_engine.h"

#include "dataplane/base/check.h"
#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"
#include "server/cli/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_S 10
#define HEARTBEAT_NS (15 * KV_S_NS) /* a quarter of the lease */

static size_t pool_bytes(const struct bench_engine *engine)
{
    return (size_t)engine->place.slots * engine->place.page_bytes;
}

static KV_RC post(struct bench_engine *engine, const char *path, const char *body)
{
    const struct kv_client_call call = {.method = "POST", .path = path, .key = engine->place.key, .body = body};
    return kv_client_do(engine->client, &call, &engine->info, &engine->out);
}

static KV_RC take_text(struct bench_engine *engine, const char *name, char *text, size_t size)
{
    return kv_client_text(&engine->out, name, text, size)
               ? KV_OK
               : kv_fail(&engine->info, KV_E_CORRUPT, "the server's answer has no %s", name);
}

/* --- the pool ---------------------------------------------------------------------------------------------------- */

static KV_RC make_pool(struct bench_engine *engine)
{
    size_t bytes = pool_bytes(engine);
    engine->pool_fd = memfd_create("kvrun-bench-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (engine->pool_fd < 0 || ftruncate(engine->pool_fd, (off_t)bytes) != 0 ||
        fcntl(engine->pool_fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        return kv_fail(&engine->info, KV_E_IO, "no memory to share: %s", strerror(errno));
    }
    void *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, engine->pool_fd, 0);
    if (pool == MAP_FAILED) {
        return kv_fail(&engine->info, KV_E_IO, "cannot map the pool: %s", strerror(errno));
    }
    engine->pool = pool;
    memset(engine->pool, 0x5a, bytes); /* all pages are there before anything is timed */
    return KV_OK;
}

static KV_RC send_descriptor(struct bench_engine *engine, int to)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = (char[]){'F'}, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &engine->pool_fd, sizeof(int));
    return sendmsg(to, &message, MSG_NOSIGNAL) == 1
               ? KV_OK
               : kv_fail(&engine->info, KV_E_IO, "the pool cannot be handed over: %s", strerror(errno));
}

/* The server answers a line with a token that stands for the descriptor. */
static KV_RC hand_over(struct bench_engine *engine, char ret_token[BENCH_ID_SIZE])
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = PATIENCE_S};
    if (snprintf(at.sun_path, sizeof at.sun_path, "%s/engine-fd.sock", engine->place.state) >=
        (int)sizeof at.sun_path) {
        return kv_fail(&engine->info, KV_E_IO, "the path of the descriptor socket is too long");
    }
    int to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (to < 0 || setsockopt(to, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        connect(to, (const struct sockaddr *)&at, sizeof at) != 0) {
        enum kv_err rc = kv_fail(&engine->info, KV_E_IO, "no descriptor socket: %s", strerror(errno));
        if (to >= 0) {
            close(to);
        }
        return rc;
    }
    enum kv_err rc = send_descriptor(engine, to);
    ssize_t len = rc == KV_OK ? recv(to, ret_token, BENCH_ID_SIZE - 1, 0) : 0; /* one short line, sent in one piece */
    close(to);
    KV_TRY(rc);
    ret_token[len > 0 ? len : 0] = '\0';
    ret_token[strcspn(ret_token, "\n")] = '\0';
    return strncmp(ret_token, "tok_", 4) == 0
               ? KV_OK
               : kv_fail(&engine->info, KV_E_IO, "the server did not take the pool: %s", ret_token);
}

/* --- life -------------------------------------------------------------------------------------------------------- */

static KV_RC register_engine(struct bench_engine *engine)
{
    char body[640], path[96], token[BENCH_ID_SIZE];
    snprintf(
        body, sizeof body,
        "{\"name\":\"bench\",\"kind\":\"sim\",\"engine_version\":\"1\",\"pid\":%d,\"boot_id\":\"bench\"," BENCH_MODEL
        ",\"lease_seconds\":60}",
        (int)getpid());
    KV_TRY(post(engine, "/v1/engines", body));
    KV_TRY(take_text(engine, "id", engine->id, sizeof engine->id));
    KV_TRY(hand_over(engine, token));
    snprintf(path, sizeof path, "/v1/engines/%s/pools", engine->id);
    snprintf(body, sizeof body,
             "{\"memory\":{\"kind\":\"memfd\",\"fd_token\":\"%s\",\"size_bytes\":%zu},\"layout\":{\"kind\":\"opaque\","
             "\"format\":\"bench\",\"engine_version\":\"1\",\"tokens_per_block\":16,\"slots\":%u,\"page_bytes\":%u}}",
             token, pool_bytes(engine), engine->place.slots, engine->place.page_bytes);
    KV_TRY(post(engine, path, body));
    return take_text(engine, "id", engine->pool_id, sizeof engine->pool_id);
}

KV_RC bench_engine_open(struct bench_engine *engine, const struct bench_engine_place *place)
{
    char address[320];
    *engine = (struct bench_engine){.place = *place, .pool_fd = -1};
    kv_buf_init(&engine->out, 1u << 22);
    kv_buf_init(&engine->body, 1u << 20);
    snprintf(address, sizeof address, "unix://%s/engine.sock", place->state);
    KV_TRY(kv_client_new(address, &engine->info, &engine->client));
    KV_TRY(make_pool(engine));
    return register_engine(engine);
}

void bench_engine_close(struct bench_engine *engine)
{
    kv_client_free(engine->client);
    if (engine->pool != NULL) {
        munmap(engine->pool, pool_bytes(engine));
        close(engine->pool_fd);
    }
    kv_buf_done(&engine->out);
    kv_buf_done(&engine->body);
    engine->client = NULL;
    engine->pool = NULL;
}

KV_RC bench_engine_session(struct bench_engine *engine, const char *label, char ret_session[BENCH_ID_SIZE])
{
    char body[160];
    snprintf(body, sizeof body, "{" BENCH_MODEL ",\"labels\":{\"purpose\":\"%s\"}}", label);
    KV_TRY(post(engine, "/v1/sessions", body));
    return take_text(engine, "id", ret_session, BENCH_ID_SIZE);
}

KV_RC bench_engine_beat(struct bench_engine *engine)
{
    char body[48], path[96];
    if (kv_now_ns(&kv_env_system) < engine->beat_due_ns) {
        return KV_OK;
    }
    engine->beat_due_ns = kv_now_ns(&kv_env_system) + HEARTBEAT_NS;
    snprintf(path, sizeof path, "/v1/engines/%s:heartbeat", engine->id);
    snprintf(body, sizeof body, "{\"seq\":%" PRIu64 "}", ++engine->beats);
    return post(engine, path, body);
}

/* --- moving ------------------------------------------------------------------------------------------------------ */

/* The first word of a block says which it is. */
static uint64_t *word_of(struct bench_engine *engine, unsigned slot)
{
    return (uint64_t *)(void *)(engine->pool + (size_t)slot * engine->place.page_bytes);
}

static KV_RC call_with(struct bench_engine *engine, const char *path, const struct bench_blocks *blocks,
                       const char *more)
{
    struct kv_buf *body = &engine->body;
    KV_ASSERT(blocks->count <= engine->place.slots);
    kv_buf_reset(body);
    kv_buf_printf(body, "{\"session_id\":\"%s\",\"pool_id\":\"%s\",\"hashes\":[", blocks->session, engine->pool_id);
    for (unsigned i = 0; i < blocks->count; i++) {
        kv_buf_printf(body, "%s\"%064" PRIx64 "\"", i == 0 ? "" : ",", blocks->first + i);
    }
    kv_buf_text(body, "],\"slots\":[");
    for (unsigned i = 0; i < blocks->count; i++) {
        kv_buf_printf(body, "%s%u", i == 0 ? "" : ",", i);
    }
    kv_buf_printf(body, "]%s}", more);
    KV_TRY(kv_buf_check(body));
    return post(engine, path, (const char *)body->data);
}

KV_RC bench_engine_offload(struct bench_engine *engine, const struct bench_blocks *blocks, uint64_t *ret_bytes)
{
    for (unsigned i = 0; i < blocks->count; i++) {
        *word_of(engine, i) = blocks->first + i;
    }
    KV_TRY(call_with(engine, "/v1/offloads", blocks, blocks->durable ? ",\"wait\":\"durable\"" : ""));
    *ret_bytes = kv_client_number(&engine->out, "bytes");
    return KV_OK;
}

KV_RC bench_engine_restore(struct bench_engine *engine, const struct bench_blocks *blocks, unsigned *ret_found)
{
    unsigned found = 0;
    for (unsigned i = 0; i < blocks->count; i++) {
        *word_of(engine, i) = UINT64_MAX;
    }
    KV_TRY(call_with(engine, "/v1/restores", blocks, ""));
    uint64_t bytes = kv_client_number(&engine->out, "bytes");
    for (unsigned i = 0; i < blocks->count; i++) {
        found += *word_of(engine, i) == blocks->first + i ? 1 : 0;
    }
    if ((uint64_t)found * engine->place.page_bytes != bytes) {
        return kv_fail(&engine->info, KV_E_CORRUPT, "%u blocks came back, the server says %" PRIu64 " bytes", found,
                       bytes);
    }
    *ret_found = found;
    return KV_OK;
}

/*
 * An engine that does nothing but move blocks: a pool in shared memory whose blocks go to the server and come back,
 * one call after the other, over the engine's socket. Must never count a block that did not come back as it went.
 */
#include "server/bench/bench_rest_int.h"

#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"
#include "server/cli/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BLOCKS 8u /* in one call, and in the pool */
#define BLOCK_BYTES (2u << 20)
#define POOL_BYTES ((size_t)BLOCKS * BLOCK_BYTES)
#define PATIENCE_S 10
#define HEARTBEAT_NS (15 * KV_S_NS) /* a quarter of the lease */
#define MODEL "\"model\":{\"id\":\"bench\",\"revision\":\"1\"}"

struct rest_engine {
    struct rest_engine_place place;
    struct kv_client *client;
    struct kv_buf out, body;
    uint8_t *pool; /* mapped */
    int pool_fd;
    char id[64], pool_id[64], session[64], heartbeat_path[96];
    uint64_t next; /* the number of the next block: its hash, and what its bytes begin with */
    pthread_t thread;
    atomic_bool stopping;
    enum kv_err rc; /* of the thread, read after it ended */
    struct kv_errinfo info;
    struct rest_moved moved;
};

static KV_RC post(struct rest_engine *engine, const char *path, const char *body)
{
    const struct kv_client_call call = {.method = "POST", .path = path, .key = engine->place.key, .body = body};
    return kv_client_do(engine->client, &call, &engine->info, &engine->out);
}

static KV_RC take_text(struct rest_engine *engine, const char *name, char *text, size_t size)
{
    return kv_client_text(&engine->out, name, text, size)
               ? KV_OK
               : kv_fail(&engine->info, KV_E_CORRUPT, "the server's answer has no %s", name);
}

/* --- the pool ---------------------------------------------------------------------------------------------------- */

static KV_RC make_pool(struct rest_engine *engine)
{
    engine->pool_fd = memfd_create("kvrun-bench-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (engine->pool_fd < 0 || ftruncate(engine->pool_fd, (off_t)POOL_BYTES) != 0 ||
        fcntl(engine->pool_fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        return kv_fail(&engine->info, KV_E_IO, "no memory to share: %s", strerror(errno));
    }
    void *pool = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, engine->pool_fd, 0);
    if (pool == MAP_FAILED) {
        return kv_fail(&engine->info, KV_E_IO, "cannot map the pool: %s", strerror(errno));
    }
    engine->pool = pool;
    memset(engine->pool, 0x5a, POOL_BYTES); /* all pages are there before anything is timed */
    return KV_OK;
}

static KV_RC send_descriptor(struct rest_engine *engine, int to)
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
static KV_RC hand_over(struct rest_engine *engine, char ret_token[64])
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
    ssize_t len = rc == KV_OK ? recv(to, ret_token, 63, 0) : 0; /* one short line, sent in one piece */
    close(to);
    KV_TRY(rc);
    ret_token[len > 0 ? len : 0] = '\0';
    ret_token[strcspn(ret_token, "\n")] = '\0';
    return strncmp(ret_token, "tok_", 4) == 0
               ? KV_OK
               : kv_fail(&engine->info, KV_E_IO, "the server did not take the pool: %s", ret_token);
}

static KV_RC register_all(struct rest_engine *engine)
{
    char body[640], path[96], token[64];
    snprintf(body, sizeof body,
             "{\"name\":\"bench\",\"kind\":\"sim\",\"engine_version\":\"1\",\"pid\":%d,\"boot_id\":\"bench\"," MODEL
             ",\"lease_seconds\":60}",
             (int)getpid());
    KV_TRY(post(engine, "/v1/engines", body));
    KV_TRY(take_text(engine, "id", engine->id, sizeof engine->id));
    snprintf(engine->heartbeat_path, sizeof engine->heartbeat_path, "/v1/engines/%s:heartbeat", engine->id);
    KV_TRY(hand_over(engine, token));
    snprintf(path, sizeof path, "/v1/engines/%s/pools", engine->id);
    snprintf(body, sizeof body,
             "{\"memory\":{\"kind\":\"memfd\",\"fd_token\":\"%s\",\"size_bytes\":%zu},\"layout\":{\"kind\":\"opaque\","
             "\"format\":\"bench\",\"engine_version\":\"1\",\"tokens_per_block\":16,\"slots\":%u,\"page_bytes\":%u}}",
             token, POOL_BYTES, BLOCKS, BLOCK_BYTES);
    KV_TRY(post(engine, path, body));
    KV_TRY(take_text(engine, "id", engine->pool_id, sizeof engine->pool_id));
    KV_TRY(post(engine, "/v1/sessions", "{" MODEL "}"));
    return take_text(engine, "id", engine->session, sizeof engine->session);
}

/* --- moving ------------------------------------------------------------------------------------------------------ */

/* The first word of a block says which it is. */
static uint64_t *word_of(struct rest_engine *engine, unsigned slot)
{
    return (uint64_t *)(void *)(engine->pool + (size_t)slot * BLOCK_BYTES);
}

static KV_RC call_with_blocks(struct rest_engine *engine, const char *path)
{
    struct kv_buf *body = &engine->body;
    kv_buf_reset(body);
    kv_buf_printf(body, "{\"session_id\":\"%s\",\"pool_id\":\"%s\",\"hashes\":[", engine->session, engine->pool_id);
    for (unsigned i = 0; i < BLOCKS; i++) {
        kv_buf_printf(body, "%s\"%064" PRIx64 "\"", i == 0 ? "" : ",", engine->next + i);
    }
    kv_buf_text(body, "],\"slots\":[");
    for (unsigned i = 0; i < BLOCKS; i++) {
        kv_buf_printf(body, "%s%u", i == 0 ? "" : ",", i);
    }
    kv_buf_text(body, "]}");
    KV_TRY(kv_buf_check(body));
    return post(engine, path, (const char *)body->data);
}

/* New blocks there, and the same ones back. One that the server had no room for is a miss, as it is for any engine. */
static KV_RC move_once(struct rest_engine *engine)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        *word_of(engine, i) = engine->next + i;
    }
    KV_TRY(call_with_blocks(engine, "/v1/offloads"));
    uint64_t there = kv_client_number(&engine->out, "bytes");
    for (unsigned i = 0; i < BLOCKS; i++) {
        *word_of(engine, i) = UINT64_MAX;
    }
    KV_TRY(call_with_blocks(engine, "/v1/restores"));
    uint64_t back = kv_client_number(&engine->out, "bytes"), found = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        found += *word_of(engine, i) == engine->next + i ? 1 : 0;
    }
    if (found * BLOCK_BYTES != back) {
        return kv_fail(&engine->info, KV_E_CORRUPT, "%" PRIu64 " blocks came back, the server says %" PRIu64 " bytes",
                       found, back);
    }
    engine->next += BLOCKS;
    engine->moved.offloaded_bytes += there;
    engine->moved.restored_bytes += back;
    engine->moved.missed_blocks += BLOCKS - found;
    return KV_OK;
}

static KV_RC beat(struct rest_engine *engine, uint64_t *due_ns)
{
    char body[48];
    if (kv_now_ns(&kv_env_system) < *due_ns) {
        return KV_OK;
    }
    *due_ns = kv_now_ns(&kv_env_system) + HEARTBEAT_NS;
    snprintf(body, sizeof body, "{\"seq\":%" PRIu64 "}", engine->next);
    return post(engine, engine->heartbeat_path, body);
}

static void *move_on(void *arg)
{
    struct rest_engine *engine = arg;
    uint64_t begun = kv_now_ns(&kv_env_system), due = 0;
    while (engine->rc == KV_OK && !atomic_load(&engine->stopping)) {
        engine->rc = beat(engine, &due);
        engine->rc = engine->rc == KV_OK ? move_once(engine) : engine->rc;
    }
    engine->moved.seconds = (double)(kv_now_ns(&kv_env_system) - begun) / 1e9;
    return NULL;
}

/* --- life -------------------------------------------------------------------------------------------------------- */

static void engine_free(struct rest_engine *engine)
{
    kv_client_free(engine->client);
    if (engine->pool != NULL) {
        munmap(engine->pool, POOL_BYTES);
    }
    if (engine->pool_fd >= 0) {
        close(engine->pool_fd);
    }
    kv_buf_done(&engine->out);
    kv_buf_done(&engine->body);
    kv_free(engine);
}

static KV_RC start(struct rest_engine *engine)
{
    char address[320];
    snprintf(address, sizeof address, "unix://%s/engine.sock", engine->place.state);
    KV_TRY(kv_client_new(address, &engine->info, &engine->client));
    KV_TRY(make_pool(engine));
    KV_TRY(register_all(engine));
    KV_TRY(move_once(engine)); /* the first use opens the session's keys */
    engine->moved = (struct rest_moved){0};
    return pthread_create(&engine->thread, NULL, move_on, engine) == 0 ? KV_OK : KV_E_NO_MEMORY;
}

KV_RC rest_engine_start(const struct rest_engine_place *place, struct kv_errinfo *info, struct rest_engine **ret_engine)
{
    struct rest_engine *engine = kv_alloc(sizeof *engine);
    if (engine == NULL) {
        return KV_E_NO_MEMORY;
    }
    engine->place = *place;
    engine->pool_fd = -1;
    kv_buf_init(&engine->out, 1u << 16);
    kv_buf_init(&engine->body, 1u << 16);
    enum kv_err rc = start(engine);
    if (rc != KV_OK) {
        *info = engine->info;
        engine_free(engine);
        return rc;
    }
    *ret_engine = engine;
    return KV_OK;
}

KV_RC rest_engine_stop(struct rest_engine *engine, struct kv_errinfo *info, struct rest_moved *ret_moved)
{
    atomic_store(&engine->stopping, true);
    pthread_join(engine->thread, NULL);
    enum kv_err rc = engine->rc;
    if (rc == KV_OK) {
        *ret_moved = engine->moved;
    } else {
        *info = engine->info;
    }
    engine_free(engine);
    return rc;
}

/*
 * An engine that does nothing but move blocks: a thread sends new ones to the server and takes them back, one call
 * after the other, over the engine's socket.
 */
#include "server/bench/bench_engine.h"
#include "server/bench/bench_rest_int.h"

#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"

#include <pthread.h>
#include <stdatomic.h>

#define BLOCKS 8u /* in one call, and in the pool */
#define BLOCK_BYTES (2u << 20)

struct rest_engine {
    struct bench_engine engine;
    char session[BENCH_ID_SIZE];
    uint64_t next; /* the number of the next block: its hash, and what its bytes begin with */
    pthread_t thread;
    atomic_bool stopping;
    enum kv_err rc; /* of the thread, read after it ended */
    struct rest_moved moved;
};

/* New blocks there, and the same ones back. One that the server had no room for is a miss, as it is for any engine. */
static KV_RC move_once(struct rest_engine *engine)
{
    const struct bench_blocks blocks = {.session = engine->session, .first = engine->next, .count = BLOCKS};
    uint64_t there = 0;
    unsigned found = 0;
    KV_TRY(bench_engine_offload(&engine->engine, &blocks, &there));
    KV_TRY(bench_engine_restore(&engine->engine, &blocks, &found));
    engine->next += BLOCKS;
    engine->moved.offloaded_bytes += there;
    engine->moved.restored_bytes += (uint64_t)found * BLOCK_BYTES;
    engine->moved.missed_blocks += BLOCKS - found;
    return KV_OK;
}

static void *move_on(void *arg)
{
    struct rest_engine *engine = arg;
    uint64_t begun = kv_now_ns(&kv_env_system);
    while (engine->rc == KV_OK && !atomic_load(&engine->stopping)) {
        engine->rc = bench_engine_beat(&engine->engine);
        engine->rc = engine->rc == KV_OK ? move_once(engine) : engine->rc;
    }
    engine->moved.seconds = (double)(kv_now_ns(&kv_env_system) - begun) / 1e9;
    return NULL;
}

static KV_RC start(struct rest_engine *engine, const struct rest_engine_place *place)
{
    const struct bench_engine_place at = {
        .state = place->state, .key = place->key, .slots = BLOCKS, .page_bytes = BLOCK_BYTES};
    KV_TRY(bench_engine_open(&engine->engine, &at));
    KV_TRY(bench_engine_session(&engine->engine, "bench", engine->session));
    KV_TRY(move_once(engine)); /* the first use opens the session's keys */
    engine->moved = (struct rest_moved){0};
    return pthread_create(&engine->thread, NULL, move_on, engine) == 0 ? KV_OK : KV_E_NO_MEMORY;
}

static void engine_free(struct rest_engine *engine)
{
    bench_engine_close(&engine->engine);
    kv_free(engine);
}

KV_RC rest_engine_start(const struct rest_engine_place *place, struct kv_errinfo *info, struct rest_engine **ret_engine)
{
    struct rest_engine *engine = kv_alloc(sizeof *engine);
    if (engine == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = start(engine, place);
    if (rc != KV_OK) {
        *info = engine->engine.info;
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
        *info = engine->engine.info;
    }
    engine_free(engine);
    return rc;
}

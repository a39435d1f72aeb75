/*
 * Another session's restores while erasures run: a thread that takes blocks back at a steady pace. Each restore counts
 * from when it was due, so that one that is held up does not hide the next.
 */
#include "server/bench/bench_erase_int.h"

#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define BLOCKS 8u
#define PAGE_BYTES 65536u
#define PACE_NS (2 * KV_MS_NS)
#define KEPT 8192u /* restores between two looks: 16 s */

struct erase_reader {
    struct bench_engine engine;
    struct bench_blocks blocks;
    char session[BENCH_ID_SIZE];
    pthread_t thread;
    atomic_bool stopping;
    pthread_mutex_t mutex; /* guards the next two */
    double ms[KEPT];
    size_t count;
    enum kv_err rc; /* of the thread, read after it ended */
};

static KV_RC restore(struct erase_reader *reader)
{
    unsigned found = 0;
    KV_TRY(bench_engine_beat(&reader->engine));
    KV_TRY(bench_engine_restore(&reader->engine, &reader->blocks, &found));
    return found == BLOCKS ? KV_OK
                           : kv_fail(&reader->engine.info, KV_E_CORRUPT, "blocks of a session that lives are gone");
}

static void note(struct erase_reader *reader, uint64_t due_ns)
{
    double ms = (double)(kv_now_ns(&kv_env_system) - due_ns) / 1e6;
    pthread_mutex_lock(&reader->mutex);
    if (reader->count < KEPT) {
        reader->ms[reader->count++] = ms;
    }
    pthread_mutex_unlock(&reader->mutex);
}

static void await(uint64_t due_ns)
{
    uint64_t now = kv_now_ns(&kv_env_system);
    if (now < due_ns) {
        nanosleep(&(struct timespec){.tv_nsec = (long)(due_ns - now)}, NULL);
    }
}

static void *read_on(void *arg)
{
    struct erase_reader *reader = arg;
    uint64_t due = kv_now_ns(&kv_env_system);
    while (reader->rc == KV_OK && !atomic_load(&reader->stopping)) {
        await(due);
        reader->rc = restore(reader);
        note(reader, due);
        due += PACE_NS;
        uint64_t now = kv_now_ns(&kv_env_system);
        due = due + KV_S_NS < now ? now : due; /* a machine that cannot keep the pace does not run after it for ever */
    }
    return NULL;
}

static KV_RC start(struct erase_reader *reader, struct erase_world *world)
{
    const struct bench_engine_place place = {
        .state = world->state, .key = world->engine_key, .slots = BLOCKS, .page_bytes = PAGE_BYTES};
    uint64_t bytes = 0;
    KV_TRY(bench_engine_open(&reader->engine, &place));
    KV_TRY(bench_engine_session(&reader->engine, "lives", reader->session));
    reader->blocks = (struct bench_blocks){.session = reader->session, .count = BLOCKS};
    KV_TRY(bench_engine_offload(&reader->engine, &reader->blocks, &bytes));
    KV_TRY(restore(reader));
    return pthread_create(&reader->thread, NULL, read_on, reader) == 0 ? KV_OK : KV_E_NO_MEMORY;
}

static void reader_free(struct erase_reader *reader)
{
    bench_engine_close(&reader->engine);
    pthread_mutex_destroy(&reader->mutex);
    kv_free(reader);
}

KV_RC erase_reader_start(struct erase_world *world, struct erase_reader **ret_reader)
{
    struct erase_reader *reader = kv_alloc(sizeof *reader);
    if (reader == NULL) {
        return KV_E_NO_MEMORY;
    }
    pthread_mutex_init(&reader->mutex, NULL);
    enum kv_err rc = start(reader, world);
    if (rc != KV_OK) {
        *world->info = reader->engine.info;
        reader_free(reader);
        return rc;
    }
    *ret_reader = reader;
    return KV_OK;
}

size_t erase_reader_take(struct erase_reader *reader, double *ret_ms, size_t max)
{
    pthread_mutex_lock(&reader->mutex);
    size_t count = reader->count < max ? reader->count : max;
    memcpy(ret_ms, reader->ms, count * sizeof ret_ms[0]);
    reader->count = 0;
    pthread_mutex_unlock(&reader->mutex);
    return count;
}

KV_RC erase_reader_stop(struct erase_reader *reader, struct kv_errinfo *info)
{
    atomic_store(&reader->stopping, true);
    pthread_join(reader->thread, NULL);
    enum kv_err rc = reader->rc;
    if (rc != KV_OK) {
        *info = reader->engine.info;
    }
    reader_free(reader);
    return rc;
}

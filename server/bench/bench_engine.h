/*
 * An engine of a bench's own server: a pool of equal pages in shared memory, and blocks that go from there to the
 * server and back. Must never count a block that did not come back as it went. Thread: one an engine.
 */
#ifndef KV_BENCH_ENGINE_H
#define KV_BENCH_ENGINE_H

#include "dataplane/base/buf.h"

#define BENCH_ID_SIZE 64
#define BENCH_MODEL "\"model\":{\"id\":\"bench\",\"revision\":\"1\"}"

struct kv_client;

struct bench_engine_place {
    const char *state;          /* the server's state folder; borrowed until close */
    const char *key;            /* with the role engine; the same */
    unsigned slots, page_bytes; /* of the pool; a block is a page */
};

struct bench_engine {
    struct bench_engine_place place;
    struct kv_client *client;
    struct kv_buf out, body;
    uint8_t *pool; /* mapped */
    int pool_fd;
    char id[BENCH_ID_SIZE], pool_id[BENCH_ID_SIZE];
    uint64_t beat_due_ns, beats;
    struct kv_errinfo info; /* of the call that failed */
};

/* Close it in any case. */
KV_RC bench_engine_open(struct bench_engine *engine, const struct bench_engine_place *place);
void bench_engine_close(struct bench_engine *engine);

/* A new session of this engine's key; `label`: the value of its label "purpose". */
KV_RC bench_engine_session(struct bench_engine *engine, const char *label, char ret_session[BENCH_ID_SIZE]);
/* Blocks with the numbers from `first` on, in slots 0…; *ret_bytes: what the server says it took. */
struct bench_blocks {
    const char *session;
    uint64_t first;
    unsigned count; /* at most place.slots */
    bool durable;   /* offload: the call lasts until they are on nvme */
};
KV_RC bench_engine_offload(struct bench_engine *engine, const struct bench_blocks *blocks, uint64_t *ret_bytes);
/* The pages are overwritten first; *ret_found: how many hold their block again. */
KV_RC bench_engine_restore(struct bench_engine *engine, const struct bench_blocks *blocks, unsigned *ret_found);
/* Renews the engine's lease when it is time to. */
KV_RC bench_engine_beat(struct bench_engine *engine);

#endif

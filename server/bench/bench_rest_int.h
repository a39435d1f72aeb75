/* The parts of `kvrun bench rest`: the generator of requests, the bare daemon that is compared with, and the engine
 * that moves blocks meanwhile. */
#ifndef KV_BENCH_REST_INT_H
#define KV_BENCH_REST_INT_H

#include "dataplane/base/buf.h"

#define REST_CONNECTIONS 16u

/* One request, sent again and again over keep-alive connections on 127.0.0.1. */
struct rest_target {
    unsigned port;
    char request[1024];
    size_t request_len;
};

struct rest_load {
    uint64_t answers;
    double seconds;
    double cpu_share;    /* of one core, that the generator's thread took */
    size_t answer_bytes; /* of the last answer, head and body */
};

/* Each connection has one request under way, for `ns`. Any answer but 200 ends it: KV_E_IO. */
KV_RC rest_closed_loop(const struct rest_target *target, uint64_t ns, struct kv_errinfo *info,
                       struct rest_load *ret_load);
/* `count` requests at their times, `per_second` of them, whatever became of those before: each one's latency counts
 * from the time at which it was due. */
KV_RC rest_open_loop(const struct rest_target *target, unsigned per_second, unsigned count, struct kv_errinfo *info,
                     double *ret_us, struct rest_load *ret_load);

/* A libmicrohttpd daemon with the server's flags whose whole work is one answer from constant memory. */
struct rest_bare;
KV_RC rest_bare_start(struct kv_errinfo *info, struct rest_bare **ret_bare);
void rest_bare_size(struct rest_bare *bare, size_t body_bytes); /* while no request is under way */
unsigned rest_bare_port(const struct rest_bare *bare);
void rest_bare_stop(struct rest_bare *bare);

/* An engine of the server whose state is in the folder `state`: a thread moves blocks there and back until it is
 * stopped. */
struct rest_engine_place {
    const char *state, *key; /* a key with the role engine; both borrowed until stop */
};
struct rest_moved {
    uint64_t offloaded_bytes, restored_bytes;
    uint64_t missed_blocks; /* that the server could not keep or give back */
    double seconds;
};
struct rest_engine;
KV_RC rest_engine_start(const struct rest_engine_place *place, struct kv_errinfo *info,
                        struct rest_engine **ret_engine);
/* Frees it in any case. The error is that of the call that failed. */
KV_RC rest_engine_stop(struct rest_engine *engine, struct kv_errinfo *info, struct rest_moved *ret_moved);

#endif

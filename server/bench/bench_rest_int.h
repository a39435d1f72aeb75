/* The parts of `kvrun bench rest`: the generator of requests, and the bare daemon that is compared with. */
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

#endif

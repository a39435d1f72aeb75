/*
 * Inside of `kvrun bench pipeline`: blocks that are sealed or copied and written, or read and opened or copied back, by
 * one thread over one ring (bench_pipeline_bare.c); and the same bytes through a whole server
 * (bench_pipeline_server.c). Thread: main.
 */
#ifndef KV_BENCH_PIPELINE_INT_H
#define KV_BENCH_PIPELINE_INT_H

#include "dataplane/io/io.h"
#include "server/bench/bench_seal_int.h"

#define PIPE_DEPTH_MAX 32u

struct pipe_shape {
    struct seal_shape seal;
    unsigned depth; /* requests at the file at once, each with a slot of its own */
};

struct pipe;
struct pipe_time {
    double gb_per_s; /* of plaintext, by the clock on the wall: part of it is the kernel's */
    double core_s_per_gb;
};

/* KV_E_UNSUPPORTED: no io_uring, or no O_DIRECT on a file in memory. */
KV_RC pipe_open(const struct pipe_shape *shape, struct kv_errinfo *info, struct pipe **ret_pipe);
void pipe_close(struct pipe *pipe);
/* SEAL_COPY, SEAL_SEAL: writes the shape's blocks. SEAL_SCATTER, SEAL_OPEN: reads what those two wrote. */
KV_RC pipe_run(struct pipe *pipe, enum seal_arm arm, struct pipe_time *ret_time);

/* bench_pipeline_server.c: a server of our own with all its files in memory, and engines that offload to it. */
struct pipe_server;
KV_RC pipe_server_open(struct kv_errinfo *info, struct pipe_server **ret_server);
enum kv_err pipe_server_close(struct pipe_server *server, struct kv_errinfo *info);
/* New blocks of `page_bytes`, as many as make a round, until all of them are on nvme and on record. */
KV_RC pipe_server_run(struct pipe_server *server, unsigned page_bytes, struct kv_errinfo *info, double *ret_gb_per_s);

#endif

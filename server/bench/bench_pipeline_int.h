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
    unsigned depth;   /* requests at the file at once */
    unsigned targets; /* slots that are taken in turn, more than `depth` of them: as a dram tier keeps what it wrote */
    unsigned file_blocks; /* a multiple of a round's blocks: each round goes on where the last one ended */
    bool only_sealed;     /* SEAL_COPY and SEAL_SCATTER will not run: no memory for their file */
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

/* bench_pipeline_server.c: a server of our own with all its files in memory, and engines that offload to it.
 * `rounds`: how many there will be, of all page sizes. KV_E_UNSUPPORTED: too little memory, or no PostgreSQL. */
struct pipe_server;
KV_RC pipe_server_open(unsigned rounds, struct kv_errinfo *info, struct pipe_server **ret_server);
KV_RC pipe_server_close(struct pipe_server *server, struct kv_errinfo *info);
/* Engines with pages of this size; disconnect them before the next. */
KV_RC pipe_server_connect(struct pipe_server *server, unsigned page_bytes, struct kv_errinfo *info);
void pipe_server_disconnect(struct pipe_server *server);
/* A round of new blocks, until all of them are on nvme and on record. The core-seconds are the server's own. */
KV_RC pipe_server_run(struct pipe_server *server, struct kv_errinfo *info, struct pipe_time *ret_time);

#endif

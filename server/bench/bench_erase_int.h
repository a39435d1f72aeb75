/* The parts of `kvrun bench erase`: a server of its own with sessions to erase, and the engine that restores
 * meanwhile. */
#ifndef KV_BENCH_ERASE_INT_H
#define KV_BENCH_ERASE_INT_H

#include "server/bench/bench_engine.h"
#include "server/child/scratch.h"

#define ERASE_FILL 4000u       /* blocks in one call */
#define ERASE_PAGE_BYTES 1024u /* of a block */

struct erase_world {
    struct kv_errinfo *info;
    struct kv_scratch scratch;
    struct kv_client *client;
    struct kv_buf out;
    char operator_key[128], key[128], engine_key[128], tenant[BENCH_ID_SIZE], state[300];
    struct bench_engine filler;
    bool has_filler;
};

KV_RC erase_world_open(struct erase_world *world);
enum kv_err erase_world_close(struct erase_world *world); /* in any case */

/* A session with so many blocks, all in the server. */
KV_RC erase_session(struct erase_world *world, const char *label, unsigned blocks, char ret_session[BENCH_ID_SIZE]);
/* From the request to the certificate. KV_E_CORRUPT: it ended without one. */
KV_RC erase_one(struct erase_world *world, const char *session, double *ret_ms);
KV_RC erase_label(struct erase_world *world, const char *label, double *ret_ms);

/* A thread that restores blocks of one session at a steady pace until it is stopped. */
struct erase_reader;
KV_RC erase_reader_start(struct erase_world *world, struct erase_reader **ret_reader);
KV_RC erase_reader_stop(struct erase_reader *reader, struct kv_errinfo *info); /* frees it in any case */
/* How long each restore took that ended since the last call, in ms; at most `max`. */
size_t erase_reader_take(struct erase_reader *reader, double *ret_ms, size_t max);

/* Of the processors, by a process and all below it that live. */
double erase_cpu_seconds(pid_t top);
/* Other processes take as much in so many seconds; returns when they have ended. */
KV_RC erase_control_run(double cpu_seconds, double seconds);

#endif

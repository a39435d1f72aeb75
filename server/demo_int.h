/* One run of the demo, as its files share it: demo.c (the story), demo_attack.c (the thief), demo_certificate.c (the
 * proof), demo_place.c (its folder and environment). */
#ifndef KV_DEMO_INT_H
#define KV_DEMO_INT_H

#include "server/child/scratch.h"
#include "server/cli/client.h"

#include <limits.h>

#define PATH_SIZE KV_SCRATCH_PATH_SIZE
#define OUTPUT_MAX (512u << 20) /* the arena is read whole */
#define KEY_SIZE 128
#define ID_SIZE 48

struct demo {
    struct kv_scratch scratch; /* everything of this run; removed at the end */
    char bin[PATH_MAX];        /* where kvrun and its sister programs are */
    char certificate[PATH_SIZE];
    struct kv_errinfo info;
    struct kv_buf out; /* of the last program or request */
    struct kv_client *client;
    char operator_key[KEY_SIZE], admin_key[KEY_SIZE], engine_key[KEY_SIZE];
    char tenant[ID_SIZE], session[ID_SIZE], erasure[ID_SIZE];
    unsigned copies;
    bool keep;
};

/* A path in the run's folder; a sister program's path. Into the caller's buffer. */
const char *demo_at(const struct demo *demo, const char *name, char path[PATH_SIZE]);
const char *demo_program(const struct demo *demo, const char *name, char path[PATH_SIZE]);
KV_RC demo_lie(struct demo *demo, const char *what); /* a step did not show what it says */
KV_RC demo_program_run(struct demo *demo, char *const argv[], unsigned timeout_s, bool echo);
KV_RC demo_call(struct demo *demo, const struct kv_client_call *request);

KV_RC demo_prepare(struct demo *demo);
void demo_print_log(struct demo *demo); /* the end of the server's log */

/* The steps. */
KV_RC demo_steal(struct demo *demo);
KV_RC demo_attack_before(struct demo *demo);
KV_RC demo_attack_after(struct demo *demo);
KV_RC demo_attack_backup(struct demo *demo);
KV_RC demo_check_certificate(struct demo *demo);

#endif

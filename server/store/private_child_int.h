/*
 * Inside server/store: how the private cluster's programs are found and run, as which user. Knows nothing of clusters.
 */
#ifndef KV_STORE_PRIVATE_CHILD_INT_H
#define KV_STORE_PRIVATE_CHILD_INT_H

#include "dataplane/base/err.h"

#include <sys/types.h>

#define KV_PRIVATE_PATH_SIZE 1024

/* Whom PostgreSQL runs as: it refuses root, so root gives way to the user `postgres`. */
struct kv_private_user {
    bool switch_user; /* we are root */
    uid_t uid;
    gid_t gid;
};
KV_RC kv_private_user_find(struct kv_errinfo *info, struct kv_private_user *ret_user);

struct kv_private_program {
    const char *const *argv; /* argv[0] is the absolute path; NULL at the end */
    const char *log;         /* stdout and stderr are appended there; NULL: to nowhere */
    bool bound;              /* SIGINT to it when the calling thread ends */
    bool (*cancelled)(void); /* NULL: never. Asked while its end is waited for; it is killed then */
};
/* Starts it with an environment of its own, no inherited descriptors, default signals, its own session. */
KV_RC kv_private_spawn(const struct kv_private_user *user, const struct kv_private_program *program,
                       struct kv_errinfo *info, pid_t *ret_pid);
/* Runs it to its end, at most `timeout_ms`. KV_E_IO unless it exits with 0; KV_E_TIMEOUT or KV_E_SHUTTING_DOWN
 * when it was killed because the time was over or the wait was cancelled. */
KV_RC kv_private_run(const struct kv_private_user *user, const struct kv_private_program *program, uint32_t timeout_ms,
                     struct kv_errinfo *info);
/* Waits for the child's end; false when the time is over. */
bool kv_private_wait(pid_t pid, uint32_t timeout_ms);
bool kv_private_wait_well(pid_t pid, uint32_t timeout_ms); /* and it exited with 0; else it is killed */
bool kv_private_ended(pid_t pid);                          /* and reaped */
/* The user can reach this folder and create something in it. */
bool kv_private_can_use(const struct kv_private_user *user, const char *folder);

/* The folder with initdb and postgres: `given`, else of the version `version` (0: any) what pg_config says, else the
 * newest installed. */
KV_RC kv_private_find_bin(const char *given, unsigned version, struct kv_errinfo *info,
                          char ret_folder[KV_PRIVATE_PATH_SIZE]);
void kv_private_pause(void); /* 20 ms */

#endif

/*
 * A server of our own for a while: a folder that holds everything of it, the server as a child with a private
 * PostgreSQL, and the end of both. Must never remove what the run did not make. Thread: main.
 */
#ifndef KV_SCRATCH_H
#define KV_SCRATCH_H

#include "server/child/child.h"

#define KV_SCRATCH_PATH_SIZE 4300
#define KV_SCRATCH_ARGS_MAX 16

struct kv_scratch {
    char folder[256]; /* "": none */
    pid_t server;     /* 0: none */
    unsigned port;    /* of its API on 127.0.0.1 */
};

/* Of the environment counts only how the server computes, not what names another server, database or place. */
void kv_scratch_clean_environment(void);
/* A new folder "<TMPDIR or /tmp>/<name>-XXXXXX" that the database's user may search, too. */
KV_RC kv_scratch_make(struct kv_scratch *scratch, const char *name, struct kv_errinfo *info);
/* A path in the folder, into the caller's buffer. */
const char *kv_scratch_at(const struct kv_scratch *scratch, const char *name, char path[KV_SCRATCH_PATH_SIZE]);
/* Starts `exe` as a server on loopback with the settings `more` (ended by NULL) and waits until it is ready.
 * KV_E_UNSUPPORTED: PostgreSQL's programs are not there. Its log is "server.log", its state "server/", the first
 * operator key "server/operator.key". */
KV_RC kv_scratch_serve(struct kv_scratch *scratch, const char *exe, const char *const more[], struct kv_errinfo *info);
/* Ends the server. KV_E_IO: it did not end as it should. */
KV_RC kv_scratch_end(struct kv_scratch *scratch, struct kv_errinfo *info);
/* The folder, and the private database where it had to lie elsewhere. False: errno says why not all. */
bool kv_scratch_remove(struct kv_scratch *scratch);
/* A file that holds one key; the buffer it went through is wiped. */
KV_RC kv_scratch_read_key(const struct kv_scratch *scratch, const char *name, char *ret_key, size_t size,
                          struct kv_errinfo *info);

#endif

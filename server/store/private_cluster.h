/*
 * A PostgreSQL of our own, a child of this process, for when no database is configured. It listens on a UNIX socket in
 * a short private folder only, ends when this process ends, however that happens, and heals at the next start. Never
 * takes over a cluster that another live server uses.
 *
 * Thread: start and stop only from the main thread: the child is ended when the *thread* that started it ends.
 */
#ifndef KV_STORE_PRIVATE_CLUSTER_H
#define KV_STORE_PRIVATE_CLUSTER_H

#include "dataplane/base/env.h"

#include <sys/types.h>

struct kv_private_cluster;

struct kv_private_cluster_conf {
    const char *folder; /* the cluster lies in <folder>/postgres; when the database user cannot get there, in a state
                           folder that the log names and <folder>/postgres.path remembers */
    const char *bin_folder;  /* NULL: pg_config --bindir, else the newest /usr/lib/postgresql/N/bin */
    uint32_t start_ms;       /* longest wait for readiness after initdb; 0: 30,000 */
    bool existing;           /* KV_E_NOT_FOUND instead of making one */
    bool (*cancelled)(void); /* NULL: never. Asked while the start waits: KV_E_SHUTTING_DOWN */
    bool throwaway;          /* no fsync at all: for tests, where a crash of the machine may lose it */
    const struct kv_env *env;
};

/* Creates the cluster when there is none (initdb), starts it, waits until it answers. KV_E_UNSUPPORTED: no PostgreSQL
 * server programs here. KV_E_INVALID_STATE: a live server has this cluster. KV_E_DB_UNAVAILABLE, KV_E_IO, KV_E_TIMEOUT:
 * the text and the log say why. */
KV_RC kv_private_cluster_start(const struct kv_private_cluster_conf *conf, struct kv_errinfo *info,
                               struct kv_private_cluster **ret_cluster);
/* The url of the cluster that a live server, another process, has in `folder`; `size` for at least 128 characters.
 * KV_E_NOT_FOUND: no server has it. Thread: any. */
KV_RC kv_private_cluster_running(const char *folder, char *ret_url, size_t size);
/* For kv_pg_conf.url; borrowed until stop. */
const char *kv_private_cluster_url(const struct kv_private_cluster *cluster);
pid_t kv_private_cluster_pid(const struct kv_private_cluster *cluster);
bool kv_private_cluster_alive(struct kv_private_cluster *cluster); /* false: the child has ended */
#define KV_PRIVATE_STOP_MS 10000u                                  /* for an orderly end where nothing hurries */
/* To be called now and then: an ended child is started again in the same place and under the same url, so that
 * connections heal. Waits for nothing that takes longer than two seconds, and tries less often the longer it fails.
 * KV_E_BUSY: nothing to tell. KV_OK: it has come back just now; else why it has not, with the errors of start, and it
 * goes on trying. Thread: the one that called start. */
KV_RC kv_private_cluster_tend(struct kv_private_cluster *cluster, struct kv_errinfo *info);
/* Asks it to end, and ends it when it has not in `wait_ms`; takes at most about four seconds longer. What was committed
 * survives either way. Removes the socket folder, frees. NULL is fine. */
void kv_private_cluster_stop(struct kv_private_cluster *cluster, uint32_t wait_ms);

#endif

/*
 * Inside server/store: what the parts of the private cluster share: its record, its place on disk, small files.
 */
#ifndef KV_STORE_PRIVATE_CLUSTER_INT_H
#define KV_STORE_PRIVATE_CLUSTER_INT_H

#include "server/store/private_child_int.h"
#include "server/store/private_cluster.h"

#define KV_PRIVATE_FOLDER_SIZE (KV_PRIVATE_PATH_SIZE - 32)
#define KV_PRIVATE_SOCKET_MAX 80 /* the kernel's limit for a socket's path is 107 bytes */
#define KV_PRIVATE_SUB_SIZE (KV_PRIVATE_PATH_SIZE + 32)

struct kv_private_cluster {
    const struct kv_env *env;
    struct kv_private_user user;
    bool throwaway;
    uint32_t start_ms;
    uint64_t answer_by_ns; /* a child that was started again has to answer until then; 0: there is none */
    uint64_t again_ns;     /* not before is one started */
    uint32_t failures;     /* in a row */
    bool (*cancelled)(void);
    int lock_fd;
    pid_t pid; /* 0: no child */
    char folder[KV_PRIVATE_FOLDER_SIZE], base[KV_PRIVATE_PATH_SIZE], bin[KV_PRIVATE_PATH_SIZE];
    char socket[KV_PRIVATE_SOCKET_MAX + 1];
    char url[256];
};

/* "<folder>/<name>" in `path`, which is returned. */
const char *kv_private_sub(const char *folder, const char *name, char path[KV_PRIVATE_SUB_SIZE]);
/* First line of a small file without its end; false when there is none. */
bool kv_private_read_line(const char *path, char *ret_line, size_t size);

void kv_private_sync_folder(const char *folder); /* so that a name in it survives */

/* Sets cluster->base: in the data folder, or where the database user gets to. */
KV_RC kv_private_place_find(struct kv_private_cluster *cluster, struct kv_errinfo *info);
/* Sets cluster->socket, after the one of the start before is cleared away. */
KV_RC kv_private_socket_make(struct kv_private_cluster *cluster, struct kv_errinfo *info);
void kv_private_socket_clear(const char *folder);

#endif

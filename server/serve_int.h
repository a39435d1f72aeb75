/*
 * One running server, as serve.c (its start), serve_run.c (its life and end) and serve_place.c (where it keeps what it
 * has) share it. Thread: main.
 */
#ifndef KV_SERVE_INT_H
#define KV_SERVE_INT_H

#include "server/config/conf.h"
#include "server/http/httpd.h"
#include "server/serve.h"
#include "server/serve_notify.h"
#include "server/service/svc.h"
#include "server/store/private_cluster.h"

#include <pthread.h>

struct server {
    struct kv_conf *conf;
    const struct kv_serve_conf *serve;
    struct serve_notify notify;
    pthread_mutex_t conf_mutex; /* texts of conf, between a reload and handlers that show them */
    struct kv_http_facts facts;
    char database_folder[KV_CONF_TEXT_SIZE + 32];
    const struct kv_env *env;
    struct kv_errinfo info;
    struct kv_private_cluster *cluster;
    struct kv_httpd *httpd;
    struct kv_svc *svc;
    char root_path[KV_CONF_TEXT_SIZE + 16], nvme_path[KV_CONF_TEXT_SIZE + 16];
    char socket[KV_CONF_TEXT_SIZE + 32], fd_socket[KV_CONF_TEXT_SIZE + 32], socket_folder[64];
    char state[4096]; /* absolute */
    int lock_fd;      /* of the state folder; -1: not taken */
    bool dev;
};

/* Folders, sockets, and the lock that keeps a second server out. Nothing in the folder is touched before it is ours. */
KV_RC serve_choose_places(struct server *server);
void serve_leave_places(struct server *server);
/* Keeps a server out of the folder until the descriptor is closed; `given` is what its owner calls it.
 * KV_E_INVALID_STATE: one runs there. */
KV_RC serve_lock_state(const char *state, const char *given, const struct kv_env *env, struct kv_errinfo *info,
                       int *ret_fd);
/* root.path, or where the root lies without it. */
void serve_root_path(const struct kv_conf *conf, const char *state, char ret_path[KV_CONF_TEXT_SIZE + 16]);
/* The providers' configuration, as texts of `conf`. */
struct kv_roe_conf serve_roe_conf(const struct kv_conf *conf, const char *root_path);
/* The operator's key into `state`/operator.key, which only this user reads: whole, and durable with its name. */
KV_RC serve_keep_key(const char *state, const char *secret, struct kv_errinfo *info);
/* Where the private database lies when its user does not get to the state folder; false: in there. */
bool serve_database_elsewhere(const struct server *server, char ret_folder[KV_CONF_TEXT_SIZE]);

/* serve_facts.c: what the API tells of this process; before the listeners open. */
void serve_know_facts(struct server *server);

/* serve_run.c */
int serve_block_signals(void); /* the descriptor that they are read from */
/* Until somebody asks for the end. */
void serve_run(struct server *server, int signals);
/* The orderly end of whatever was started; from its begin on another signal ends the process at once. `ready`: it
 * served. KV_E_TIMEOUT: something was cut off, and the log says what. */
KV_RC serve_stop(struct server *server, bool ready);

#endif

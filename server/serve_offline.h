/*
 * Commands for the owner of the data folder and its database, without a server's interface: finding both, and letting
 * go of them. Thread: main.
 */
#ifndef KV_SERVE_OFFLINE_H
#define KV_SERVE_OFFLINE_H

#include "server/serve_int.h"
#include "server/store/pg.h"

#include <limits.h>

struct offline {
    const struct kv_conf *conf;
    bool alone; /* no server may run on the folder meanwhile */
    char state[PATH_MAX], url[KV_CONF_TEXT_SIZE];
    struct kv_private_cluster *cluster; /* NULL: somebody else's */
    struct kv_pg *pg;
    int lock_fd; /* -1: none */
    struct kv_errinfo info;
};
/* The folder, which is this user's, and a connection to the database, which has this program's schema. Close it in any
 * case. KV_E_NOT_FOUND, KV_E_FORBIDDEN, KV_E_INVALID_STATE: as the text says. */
KV_RC serve_offline_open(struct offline *offline, const char *name, uint32_t statement_timeout_ms);
void serve_offline_close(struct offline *offline);
/* Says what went wrong; an exit code. */
int serve_offline_failed(const struct offline *offline, enum kv_err rc);

#endif

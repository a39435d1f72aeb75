/*
 * One running server: database, service and listeners, built bottom-up and taken down in reverse. Wiring only.
 * Thread: main (a private database is a child of the thread that starts it).
 */
#ifndef KV_SERVE_H
#define KV_SERVE_H

#include "server/config/conf.h"

struct kv_serve_conf {
    struct kv_conf *conf;               /* a reload changes it */
    const enum kv_conf_origin *origins; /* of the start */
    /* Reads file, environment and flags anew, as at the start. */
    KV_RC (*load)(struct kv_conf *ret_conf, enum kv_conf_origin *ret_origins, struct kv_errinfo *info);
    bool dev; /* prints how to use the server */
};

/* Runs until SIGTERM or SIGINT; a second one ends the process at once. SIGHUP reloads, SIGUSR1 logs how things stand.
 * Exit code: 0, 1 when the end had to cut something off, 2 when the start failed. */
int kv_serve(const struct kv_serve_conf *serve);

/* Tries what a start would need: addresses, folders, the database. One line each; exit code 1 when one is bad. */
int kv_serve_check(const struct kv_conf *conf);

/* Brings the schema of db.url to this binary's version. Exit code. */
int kv_serve_migrate(const struct kv_conf *conf);

/* Makes an operator key and puts it into state.dir/operator.key, with or without a server that runs. Exit code. */
int kv_serve_recover(const struct kv_conf *conf);

/* Gives up the sessions of a root that is gone. Exit code. */
int kv_serve_accept_loss(const struct kv_conf *conf, int argc, char **argv);

#endif

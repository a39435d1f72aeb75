/*
 * One running server: database, service and listeners, built bottom-up and taken down in reverse. Wiring only.
 * Thread: main (a private database is a child of the thread that starts it).
 */
#ifndef KV_SERVE_H
#define KV_SERVE_H

#include "server/config/conf.h"

/* Runs until SIGTERM or SIGINT; a second one ends the process at once. `dev`: prints how to use the server. Exit code.
 */
int kv_serve(const struct kv_conf *conf, bool dev);

/* Brings the schema of db.url to this binary's version. Exit code. */
int kv_serve_migrate(const struct kv_conf *conf);

#endif

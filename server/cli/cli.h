/*
 * The subcommands of kvrun that do not serve: they read the configuration, speak to a server over HTTP, or show the
 * whole product once. Exit codes: 0 ok · 1 failed check or negative answer · 2 usage · 6 unavailable, retry.
 */
#ifndef KV_CLI_H
#define KV_CLI_H

#include "server/config/conf.h"

int kv_cli_config(const struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv);
/* Asks a server's /readyz or /livez on its admin listener: for container health checks. */
int kv_cli_healthcheck(const struct kv_conf *conf);

#endif

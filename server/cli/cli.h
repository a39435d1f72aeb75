/*
 * The command line of kvrun: picks a row of the table of commands and runs it. main.c calls kv_cli_main and brings the
 * commands that are more than a caller of the interface. Exit codes: exit_code.h.
 */
#ifndef KV_CLI_H
#define KV_CLI_H

#include "server/config/conf.h"

/* A command that lives outside of server/cli. argv: what is left after the command's words and configuration flags. */
struct kv_cli_hook {
    const char *name; /* as in the table: "db migrate"; ends an array when NULL */
    int (*run)(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv);
};

int kv_cli_main(int argc, char **argv, char *const *environment, const struct kv_cli_hook *hooks);

/* The configuration's file: --config FILE, taken out of argv, else $KVRUN_CONFIG, else the usual places; NULL: none. */
const char *kv_cli_config_file(int *argc, char **argv);

/* For tests, and for rows of the table. */
int kv_cli_config(const struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv);
/* Asks a server's /livez on its admin listener: for container health checks. */
int kv_cli_healthcheck(const struct kv_conf *conf);

#endif

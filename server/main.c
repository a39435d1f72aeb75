/*
 * kvrun: one binary, server and command line. The table of commands is in server/cli; here is what it cannot reach.
 */
#include "server/cli/cli.h"
#include "server/demo.h"
#include "server/serve.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int serve(struct kv_conf *conf, enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    (void)argc;
    (void)argv;
    return kv_serve(conf, false);
}

/* Puts what is to be played with in the place of the defaults. */
static int dev(struct kv_conf *conf, enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    (void)argc;
    (void)argv;
    if (strcmp(conf->state_dir, "/var/lib/kvrun") == 0) {
        snprintf(conf->state_dir, sizeof conf->state_dir, "kvrun-dev");
    }
    if (conf->nvme_bytes == 0) {
        conf->nvme_bytes = UINT64_C(1) << 30;
    }
    return kv_serve(conf, true);
}

static int demo(struct kv_conf *conf, enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)conf;
    (void)origins;
    return kv_demo(argc, argv);
}

static int migrate(struct kv_conf *conf, enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    (void)argc;
    (void)argv;
    return kv_serve_migrate(conf);
}

static const struct kv_cli_hook hooks[] = {
    {"serve", serve}, {"dev", dev}, {"demo", demo}, {"db migrate", migrate}, {NULL, NULL},
};

int main(int argc, char **argv)
{
    return kv_cli_main(argc, argv, environ, hooks);
}

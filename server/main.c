/*
 * kvrun: one binary, server and command line. Picks the command, loads the configuration, hands over.
 */
#include "dataplane/base/mem.h"
#include "kv_version.h"
#include "server/cli/cli.h"
#include "server/demo.h"
#include "server/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXIT_USAGE 2

static const char usage[] =
    "usage: kvrun COMMAND [--key=value …]\n"
    "\n"
    "  demo         show everything once, with a private database and real blocks; leaves nothing running\n"
    "  dev          a server to play with, in ./kvrun-dev\n"
    "  serve        the server\n"
    "  db migrate   bring the schema of db.url to this version\n"
    "  config       show | check | docs\n"
    "  healthcheck  exit 0 when the server on http.admin_listen is alive\n"
    "  version\n"
    "\n"
    "configuration: --key=value, KVRUN_KEY in the environment, or a file (--config FILE, $KVRUN_CONFIG, ./kvrun.conf,\n"
    "/etc/kvrun/kvrun.conf); `kvrun config docs` lists the keys\n";

static const char *config_file(int *argc, char **argv)
{
    static const char *const places[] = {"./kvrun.conf", "/etc/kvrun/kvrun.conf"};
    for (int i = 1; i + 1 < *argc; i++) {
        if (strcmp(argv[i], "--config") == 0) {
            const char *file = argv[i + 1];
            memmove(&argv[i], &argv[i + 2], (size_t)(*argc - i - 1) * sizeof *argv);
            *argc -= 2;
            return file;
        }
    }
    const char *named = getenv("KVRUN_CONFIG");
    for (size_t i = 0; named == NULL && i < sizeof places / sizeof places[0]; i++) {
        named = access(places[i], F_OK) == 0 ? places[i] : NULL;
    }
    return named;
}

/* What `dev` puts in the place of the defaults. */
static void dev_defaults(struct kv_conf *conf)
{
    if (strcmp(conf->state_dir, "/var/lib/kvrun") == 0) {
        snprintf(conf->state_dir, sizeof conf->state_dir, "kvrun-dev");
    }
    if (conf->nvme_bytes == 0) {
        conf->nvme_bytes = UINT64_C(1) << 30;
    }
}

static int unknown_command(int argc, char **argv)
{
    fprintf(stderr, "kvrun: \"%.40s%s%.40s\" is no command\n\n", argv[1], argc > 2 ? " " : "", argc > 2 ? argv[2] : "");
    fputs(usage, stderr);
    return EXIT_USAGE;
}

static int other_command(const struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    const char *command = argv[1];
    if (strcmp(command, "demo") == 0) {
        return kv_demo(argc - 2, argv + 2);
    }
    if (strcmp(command, "config") == 0) {
        return kv_cli_config(conf, origins, argc - 2, argv + 2);
    }
    if (strcmp(command, "healthcheck") == 0 && argc == 2) {
        return kv_cli_healthcheck(conf);
    }
    if (strcmp(command, "db") == 0 && argc == 3 && strcmp(argv[2], "migrate") == 0) {
        return kv_serve_migrate(conf);
    }
    if (strcmp(command, "version") == 0 || strcmp(command, "--version") == 0) {
        printf("kvrun %s (%s)\n", KV_VERSION, KV_REVISION);
        return 0;
    }
    return unknown_command(argc, argv);
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return argc == 2 && strcmp(argv[1], "help") == 0;
}

int main(int argc, char **argv)
{
    extern char **environ;
    static struct kv_conf conf;
    struct kv_errinfo info = {0};
    enum kv_conf_origin *origins = kv_alloc_array(kv_conf_count(), sizeof *origins);
    const char *file = config_file(&argc, argv);
    enum kv_err rc = origins == NULL ? KV_E_NO_MEMORY : kv_conf_load(file, environ, &argc, argv, &info, &conf, origins);
    int code = EXIT_USAGE;
    if (rc != KV_OK) {
        fprintf(stderr, "kvrun: %s\n", info.text);
    } else if (argc < 2) {
        fputs(usage, stderr);
    } else if (asks_for_help(argc, argv)) {
        fputs(usage, stdout);
        code = 0;
    } else if ((strcmp(argv[1], "serve") == 0 || strcmp(argv[1], "dev") == 0) && argc == 2) {
        bool dev = strcmp(argv[1], "dev") == 0;
        if (dev) {
            dev_defaults(&conf);
        }
        code = kv_serve(&conf, dev);
    } else {
        code = other_command(&conf, origins, argc, argv);
    }
    kv_free(origins);
    return code;
}

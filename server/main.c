/*
 * kvrun: one binary, server and command line. The table of commands is in server/cli; here is what it cannot reach.
 */
#include "dataplane/base/mem.h"
#include "dataplane/crypto/heap.h"
#include "server/bench/bench.h"
#include "server/cli/cli.h"
#include "server/demo.h"
#include "server/doctor.h"
#include "server/serve.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* As given, kept for a reload: loading takes the flags out of argv. */
static struct {
    char **argv;
    int argc;
    bool dev;
} given;

/* Puts what is to be played with in the place of the defaults. */
static void dev_defaults(struct kv_conf *conf)
{
    if (strcmp(conf->state_dir, "/var/lib/kvrun") == 0) {
        snprintf(conf->state_dir, sizeof conf->state_dir, "kvrun-dev");
    }
    if (conf->nvme_bytes == 0) {
        conf->nvme_bytes = UINT64_C(1) << 30;
    }
}

static char **copy_argv(int argc, char *const *argv)
{
    char **copy = kv_alloc_array((size_t)argc + 1, sizeof *copy);
    if (copy != NULL) {
        memcpy(copy, argv, (size_t)argc * sizeof *copy);
    }
    return copy;
}

static KV_RC load(struct kv_conf *ret_conf, enum kv_conf_origin *ret_origins, struct kv_errinfo *info)
{
    int argc = given.argc;
    char **argv = copy_argv(argc, given.argv);
    if (argv == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the configuration");
    }
    const char *file = kv_cli_config_file(&argc, argv);
    enum kv_err rc = kv_conf_load(file, environ, &argc, argv, info, ret_conf, ret_origins);
    kv_free(argv);
    if (rc == KV_OK && given.dev) {
        dev_defaults(ret_conf);
    }
    return rc;
}

static int serve(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    struct kv_serve_conf how = {.conf = conf, .origins = origins, .load = load, .dev = given.dev};
    return kv_serve(&how);
}

static int dev(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    given.dev = true;
    dev_defaults(conf);
    return serve(conf, origins, argc, argv);
}

static int check(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    (void)argc;
    (void)argv;
    return kv_serve_check(conf);
}

static int demo(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)conf;
    (void)origins;
    return kv_demo(argc, argv);
}

static int migrate(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    (void)argc;
    (void)argv;
    return kv_serve_migrate(conf);
}

static int recover(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    (void)argc;
    (void)argv;
    return kv_serve_recover(conf);
}

static int accept_loss(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    return kv_serve_accept_loss(conf, argc, argv);
}

static int doctor(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)origins;
    return kv_doctor(conf, argc, argv);
}

static int bench(struct kv_conf *conf, const enum kv_conf_origin *origins, int argc, char **argv)
{
    (void)conf;
    (void)origins;
    return kv_bench_main(argc, argv);
}

static const struct kv_cli_hook hooks[] = {
    {"serve", serve},
    {"dev", dev},
    {"demo", demo},
    {"config check", check},
    {"db migrate", migrate},
    {"doctor", doctor},
    {"bench", bench},
    {"keys recover", recover},
    {"root accept-loss", accept_loss},
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    /* Before anything that could make OpenSSL allocate. */
    if (kv_crypto_heap_init() != KV_OK) {
        fprintf(stderr, "kvrun: no memory can be set aside for keys (64 MiB of address space)\n");
        return 1;
    }
    given.argc = argc;
    given.argv = copy_argv(argc, argv);
    int code = given.argv == NULL ? 1 : kv_cli_main(argc, argv, environ, hooks);
    kv_free(given.argv);
    return code;
}

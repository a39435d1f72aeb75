/*
 * `kvrun keys recover`: a new operator key for whoever owns the data folder, whether the server runs or not. It speaks
 * to the database alone, the private one where there is no db.url. Must never make a database, or touch a folder that
 * is another user's.
 */
#include "server/serve_int.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "server/cli/exit_code.h"
#include "server/service/svc_key.h"
#include "server/store/migrate.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct recovery {
    const struct kv_conf *conf;
    char state[PATH_MAX], url[KV_CONF_TEXT_SIZE];
    struct kv_private_cluster *cluster; /* NULL: somebody else's */
    struct kv_errinfo info;
};

static KV_RC find_folder(struct recovery *recovery)
{
    struct stat folder;
    if (realpath(recovery->conf->state_dir, recovery->state) == NULL || stat(recovery->state, &folder) != 0) {
        return kv_fail(&recovery->info, KV_E_NOT_FOUND,
                       "there is no folder %.100s: set state.dir to the server's; the first start makes the first key",
                       recovery->conf->state_dir);
    }
    if (folder.st_uid != geteuid()) {
        return kv_fail(&recovery->info, KV_E_FORBIDDEN, "%.100s is another user's: run this as the user %u",
                       recovery->conf->state_dir, (unsigned)folder.st_uid);
    }
    return KV_OK;
}

/* A running server's private database is used as it is; that of a stopped one is started for the moment. */
static KV_RC find_database(struct recovery *recovery)
{
    if (recovery->conf->db_url[0] != '\0') {
        snprintf(recovery->url, sizeof recovery->url, "%s", recovery->conf->db_url);
        return KV_OK;
    }
    enum kv_err rc = kv_private_cluster_running(recovery->state, recovery->url, sizeof recovery->url);
    if (rc != KV_E_NOT_FOUND) {
        return rc;
    }
    struct kv_private_cluster_conf conf = {.folder = recovery->state, .existing = true, .env = &kv_env_system};
    KV_TRY(kv_private_cluster_start(&conf, &recovery->info, &recovery->cluster));
    snprintf(recovery->url, sizeof recovery->url, "%s", kv_private_cluster_url(recovery->cluster));
    return KV_OK;
}

static KV_RC keep(void *ctx, const char *secret, struct kv_errinfo *info)
{
    return serve_keep_key(ctx, secret, info);
}

static KV_RC recover(struct recovery *recovery)
{
    struct kv_pg *pg = NULL;
    KV_TRY(find_folder(recovery));
    KV_TRY(find_database(recovery));
    struct kv_pg_conf pg_conf = {
        .url = recovery->url, .application_name = "kvrun/recover", .prepare = KV_PG_PREPARE_OFF, .env = &kv_env_system};
    KV_TRY(kv_pg_open(&pg_conf, &recovery->info, &pg));
    enum kv_err rc = kv_migrate(pg, KV_MIGRATE_CHECK, &recovery->info, NULL);
    if (rc == KV_OK) {
        rc = kv_svc_key_recover(pg, &kv_env_system, keep, recovery->state, &recovery->info);
    }
    kv_pg_close(pg);
    return rc;
}

int kv_serve_recover(const struct kv_conf *conf)
{
    struct recovery recovery = {.conf = conf};
    kv_log_set_level(KV_LOG_WARN);
    umask(0077);
    enum kv_err rc = recover(&recovery);
    kv_private_cluster_stop(recovery.cluster, KV_PRIVATE_STOP_MS);
    if (rc != KV_OK) {
        fprintf(stderr, "kvrun: %s\n", recovery.info.text[0] == '\0' ? kv_err_title(rc) : recovery.info.text);
        return cli_exit_of(rc);
    }
    printf("A new operator key is in %s/operator.key. It works for 90 days, in a running server from now on.\n"
           "Revoke the one that was lost: kvrun keys ls, kvrun keys revoke <key>\n",
           recovery.state);
    return CLI_OK;
}

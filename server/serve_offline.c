/*
 * Commands for the owner of the data folder and its database, without a server's interface. See serve_offline.h. Must
 * never make a database, or touch a folder that is another user's.
 */
#include "server/serve_offline.h"

#include "dataplane/base/env.h"
#include "server/cli/exit_code.h"
#include "server/store/migrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static KV_RC find_folder(struct offline *offline)
{
    struct stat folder;
    if (realpath(offline->conf->state_dir, offline->state) == NULL || stat(offline->state, &folder) != 0) {
        return kv_fail(&offline->info, KV_E_NOT_FOUND,
                       "there is no folder %.100s: set state.dir to the server's; the first start makes the first key",
                       offline->conf->state_dir);
    }
    if (folder.st_uid != geteuid()) {
        return kv_fail(&offline->info, KV_E_FORBIDDEN, "%.100s is another user's: run this as the user %u",
                       offline->conf->state_dir, (unsigned)folder.st_uid);
    }
    return KV_OK;
}

/* A running server's private database is used as it is; that of a stopped one is started for the moment. */
static KV_RC find_database(struct offline *offline)
{
    if (offline->conf->db_url[0] != '\0') {
        snprintf(offline->url, sizeof offline->url, "%s", offline->conf->db_url);
        return KV_OK;
    }
    enum kv_err rc = kv_private_cluster_running(offline->state, offline->url, sizeof offline->url);
    if (rc != KV_E_NOT_FOUND) {
        return rc;
    }
    struct kv_private_cluster_conf conf = {.folder = offline->state, .existing = true, .env = &kv_env_system};
    KV_TRY(kv_private_cluster_start(&conf, &offline->info, &offline->cluster));
    snprintf(offline->url, sizeof offline->url, "%s", kv_private_cluster_url(offline->cluster));
    return KV_OK;
}

KV_RC serve_offline_open(struct offline *offline, const char *name, uint32_t statement_timeout_ms)
{
    offline->lock_fd = -1;
    KV_TRY(find_folder(offline));
    KV_TRY(offline->alone ? serve_lock_state(offline->state, offline->conf->state_dir, &kv_env_system, &offline->info,
                                             &offline->lock_fd)
                          : KV_OK);
    KV_TRY(find_database(offline));
    struct kv_pg_conf conf = {.url = offline->url,
                              .application_name = name,
                              .statement_timeout_ms = statement_timeout_ms,
                              .prepare = KV_PG_PREPARE_OFF,
                              .env = &kv_env_system};
    KV_TRY(kv_pg_open(&conf, &offline->info, &offline->pg));
    return kv_migrate(offline->pg, KV_MIGRATE_CHECK, &offline->info, NULL);
}

void serve_offline_close(struct offline *offline)
{
    kv_pg_close(offline->pg);
    kv_private_cluster_stop(offline->cluster, KV_PRIVATE_STOP_MS);
    if (offline->lock_fd >= 0) {
        close(offline->lock_fd);
    }
}

int serve_offline_failed(const struct offline *offline, enum kv_err rc)
{
    const struct kv_errinfo *info = &offline->info;
    fprintf(stderr, "kvrun: %s\n", info->text[0] == '\0' ? kv_err_title(rc) : info->text);
    return cli_exit_of(rc);
}

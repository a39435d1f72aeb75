/*
 * The runner starts a private cluster (without fsync) in a temporary folder and names it in the environment, which the
 * test processes inherit. The schema is put into a template once, so that a fresh database is one copy.
 */
#include "tests/lib/temp_postgres.h"

#include "server/store/migrate.h"
#include "server/store/pg_int.h"
#include "server/store/private_cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VARIABLE "KV_TEST_POSTGRES"

static struct kv_private_cluster *cluster;
static char folder[128];
static pid_t owner;

/* At exit; test processes are copies of the runner and leave its cluster alone. */
static void stop(void)
{
    if (getpid() != owner) {
        return;
    }
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    cluster = NULL;
    if (folder[0] != '\0') {
        char command[400];
        snprintf(command, sizeof command, "rm -rf -- \"$(cat '%s/postgres.path' 2>/dev/null)\" '%s'", folder, folder);
        if (system(command) != 0) {
            fprintf(stderr, "temp_postgres: %s is left behind\n", folder);
        }
        folder[0] = '\0';
    }
}

static void give_up(const char *what, const struct kv_errinfo *info)
{
    fprintf(stderr, "temp_postgres: %s: %s\n", what, info->text);
    exit(info->code == KV_E_UNSUPPORTED ? 77 : 1);
}

struct kv_pg *temp_postgres_connect(const char *url, const char *name)
{
    struct kv_errinfo info = {0};
    struct kv_pg *pg = NULL;
    struct kv_pg_conf conf = {.url = url, .application_name = name, .env = &kv_env_system};
    if (kv_pg_open(&conf, &info, &pg) != KV_OK || kv_pg_ping(pg, &info) != KV_OK) {
        fprintf(stderr, "temp_postgres: %s\n", info.text);
        abort();
    }
    return pg;
}

enum kv_err temp_postgres_run(struct kv_pg *pg, const char *sql)
{
    PGresult *result = NULL;
    struct kv_errinfo info = {0};
    enum kv_err rc = kv_pg_script(pg, sql, 30000, &info, &result);
    PQclear(result);
    return rc;
}

void temp_postgres_begin(struct kv_pg *pg)
{
    if (temp_postgres_run(pg, "BEGIN") != KV_OK) {
        abort();
    }
    pg->in_tx = true;
}

enum kv_err temp_postgres_end(struct kv_pg *pg, enum kv_err rc)
{
    enum kv_err ended = temp_postgres_run(pg, rc == KV_OK ? "COMMIT" : "ROLLBACK");
    pg->in_tx = false;
    return rc != KV_OK ? rc : ended;
}

static void make_template(void)
{
    char url[512];
    struct kv_errinfo info = {0};
    struct kv_pg *pg = temp_postgres_connect(getenv(VARIABLE), "template");
    enum kv_err rc = temp_postgres_run(pg, "CREATE DATABASE kv_template");
    kv_pg_close(pg);
    snprintf(url, sizeof url, "%s dbname=kv_template", getenv(VARIABLE));
    pg = temp_postgres_connect(url, "template");
    if (rc != KV_OK || kv_migrate(pg, KV_MIGRATE_AUTO, &info, NULL) != KV_OK) {
        kv_pg_close(pg);
        give_up("migration", &info);
    }
    kv_pg_close(pg);
}

void temp_postgres_start(void)
{
    const char *tmpdir = getenv("TMPDIR");
    /* A folder that the database user can reach, as root, too. */
    snprintf(folder, sizeof folder, "%s/kvtest-pg-XXXXXX", tmpdir != NULL && strlen(tmpdir) < 80 ? tmpdir : "/tmp");
    if (mkdtemp(folder) == NULL || chmod(folder, 0755) != 0) {
        perror("temp_postgres");
        exit(1);
    }
    owner = getpid();
    atexit(stop);
    struct kv_errinfo info = {0};
    struct kv_private_cluster_conf conf = {
        .folder = folder, .bin_folder = getenv("KV_TEST_POSTGRES_BIN"), .throwaway = true, .env = &kv_env_system};
    if (kv_private_cluster_start(&conf, &info, &cluster) != KV_OK) {
        give_up("start", &info);
    }
    setenv(VARIABLE, kv_private_cluster_url(cluster), 1);
    make_template();
}

static const char *fresh_database(const char *template)
{
    static unsigned count;
    static char urls[8][512];
    char name[64], sql[160];
    char *url = urls[count % 8];
    snprintf(name, sizeof name, "kv_%d_%u", (int)getpid(), count++);
    snprintf(sql, sizeof sql, "CREATE DATABASE %s TEMPLATE %s STRATEGY file_copy", name, template);
    struct kv_pg *pg = temp_postgres_connect(getenv(VARIABLE), "fresh");
    if (temp_postgres_run(pg, sql) != KV_OK) {
        fprintf(stderr, "temp_postgres: no fresh database\n");
        abort();
    }
    kv_pg_close(pg);
    snprintf(url, sizeof urls[0], "%s dbname=%s", getenv(VARIABLE), name);
    return url;
}

const char *temp_postgres_url(void)
{
    return fresh_database("kv_template");
}

const char *temp_postgres_empty_url(void)
{
    return fresh_database("template0");
}

/*
 * `kvrun config check`: what a start would need, tried without starting. Each line says ok, warn or fail, which key it
 * is about, and what to do. Must leave nothing behind and change nothing.
 */
#include "server/serve.h"

#include "dataplane/base/env.h"
#include "server/http/listen.h"
#include "server/store/migrate.h"
#include "server/store/pg.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum finding { FINE, WARN, FAIL };

struct check {
    const struct kv_conf *conf;
    bool failed;
};

static void say(struct check *check, enum finding finding, const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void say(struct check *check, enum finding finding, const char *key, const char *format, ...)
{
    static const char *const words[] = {"ok", "warn", "fail"};
    va_list arguments;
    printf("%-4s  %-18s  ", words[finding], key);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    check->failed = check->failed || finding == FAIL;
}

/* --- addresses --------------------------------------------------------------------------------------------------- */

static void check_address(struct check *check, const char *key, const char *address, bool secret_keys)
{
    struct kv_errinfo info = {0};
    int fd = -1;
    unsigned port = 0;
    bool local = true;
    enum kv_err rc = kv_listen_tcp(address, &info, &fd, &port, &local);
    if (rc == KV_OK) {
        close(fd);
    }
    bool clear = check->conf->tls_cert_file[0] == '\0' && strcmp(check->conf->http_insecure_listen, "true") != 0;
    if (rc != KV_OK && strstr(info.text, strerror(EADDRINUSE)) != NULL) {
        say(check, WARN, key, "%.60s is in use: fine if that is this server, else choose another port", address);
    } else if (rc != KV_OK) {
        say(check, FAIL, key, "%s", info.text);
    } else if (!local && secret_keys && clear) {
        say(check, FAIL, key, "%.60s is not loopback and has no TLS: set http.tls.cert_file and http.tls.key_file",
            address);
    } else {
        say(check, FINE, key, "%.60s can be listened on", address);
    }
}

static void check_file(struct check *check, const char *key, const char *path)
{
    if (path[0] != '\0' && access(path, R_OK) != 0) {
        say(check, FAIL, key, "%.200s cannot be read: %s", path, strerror(errno));
    } else if (path[0] != '\0') {
        say(check, FINE, key, "%.200s can be read", path);
    }
}

static void check_listeners(struct check *check)
{
    const struct kv_conf *conf = check->conf;
    check_address(check, "http.listen", conf->http_listen, true);
    check_address(check, "http.admin_listen", conf->http_admin_listen, false);
    check_file(check, "http.tls.cert_file", conf->tls_cert_file);
    check_file(check, "http.tls.key_file", conf->tls_key_file);
    check_file(check, "http.tls.client_ca_file", conf->tls_client_ca_file);
}

/* --- folders ----------------------------------------------------------------------------------------------------- */

/* The folder itself or, where it is not yet there, the nearest one above it that is. */
static void nearest_folder(const char *path, char ret_folder[KV_CONF_TEXT_SIZE])
{
    snprintf(ret_folder, KV_CONF_TEXT_SIZE, "%s", path);
    while (access(ret_folder, F_OK) != 0 && strrchr(ret_folder, '/') != NULL) {
        char *slash = strrchr(ret_folder, '/');
        slash[slash == ret_folder ? 1 : 0] = '\0';
    }
    if (access(ret_folder, F_OK) != 0) {
        snprintf(ret_folder, KV_CONF_TEXT_SIZE, ".");
    }
}

static void check_folder(struct check *check, const char *key, const char *path, uint64_t bytes)
{
    char folder[KV_CONF_TEXT_SIZE];
    struct statvfs disk;
    nearest_folder(path, folder);
    struct stat there;
    if (stat(folder, &there) != 0 || !S_ISDIR(there.st_mode)) {
        say(check, FAIL, key, "%.200s: %.200s is no folder", path, folder);
        return;
    }
    if (access(folder, W_OK | X_OK) != 0) {
        say(check, FAIL, key, "%.200s: this user may not write in %.200s: %s", path, folder, strerror(errno));
        return;
    }
    uint64_t available = statvfs(folder, &disk) == 0 ? (uint64_t)disk.f_bavail * disk.f_frsize : UINT64_MAX;
    if (available < bytes) {
        say(check, WARN, key, "%.200s: %llu MiB are free there, %llu MiB are asked for", path,
            (unsigned long long)(available >> 20), (unsigned long long)(bytes >> 20));
    } else {
        say(check, FINE, key, "%.200s can be written", path);
    }
}

static bool on_one_device(const char *a, const char *b)
{
    char one[KV_CONF_TEXT_SIZE], two[KV_CONF_TEXT_SIZE];
    struct stat first, second;
    nearest_folder(a, one);
    nearest_folder(b, two);
    return stat(one, &first) == 0 && stat(two, &second) == 0 && first.st_dev == second.st_dev;
}

static void check_anchor(struct check *check)
{
    const struct kv_conf *conf = check->conf;
    const char *root = conf->root_path[0] != '\0' ? conf->root_path : conf->state_dir;
    bool file = strcmp(conf->root_provider, "file") == 0;
    if (access(conf->anchor_file, R_OK | W_OK) != 0) {
        say(check, FAIL, "anchor.file", "%.200s: %s; mount what it lies on, or make an empty file for a new anchor",
            conf->anchor_file, strerror(errno));
    } else if (on_one_device(conf->anchor_file, conf->state_dir) || (file && on_one_device(conf->anchor_file, root))) {
        say(check, WARN, "anchor.file",
            "it is on the file system of state.dir or of the root: what puts that back "
            "puts the anchor back, too");
    } else {
        say(check, FINE, "anchor.file", "%.200s can be written", conf->anchor_file);
    }
}

static void check_places(struct check *check)
{
    const struct kv_conf *conf = check->conf;
    check_folder(check, "state.dir", conf->state_dir, 0);
    if (strcmp(conf->root_provider, "file") == 0 && conf->root_path[0] == '\0') {
        say(check, WARN, "root.path", "the root lies in state.dir: a backup of that folder must leave it out");
    } else if (strcmp(conf->root_provider, "file") == 0) {
        check_folder(check, "root.path", conf->root_path, 0);
    }
    if (conf->anchor_file[0] != '\0') {
        check_anchor(check);
    }
    if (conf->nvme_bytes > 0) {
        check_folder(check, "tiers.nvme.path", conf->nvme_path[0] != '\0' ? conf->nvme_path : conf->state_dir,
                     conf->nvme_bytes);
    }
}

static void check_memory(struct check *check)
{
    uint64_t most = kv_conf_dram_default("") * 3;
    unsigned long long wanted = check->conf->dram_bytes >> 20;
    if (check->conf->dram_bytes > most) {
        say(check, WARN, "tiers.dram.bytes", "%llu MiB are more than three quarters of what this process may have",
            wanted);
    } else {
        say(check, FINE, "tiers.dram.bytes", "%llu MiB", wanted);
    }
}

/* --- database ---------------------------------------------------------------------------------------------------- */

static void check_schema(struct check *check, struct kv_pg *pg)
{
    struct kv_errinfo info = {0};
    enum kv_err rc = kv_migrate(pg, KV_MIGRATE_CHECK, &info, NULL);
    if (rc == KV_OK) {
        say(check, FINE, "db.migrate", "the schema is at version %u", kv_schema_version());
    } else if (rc == KV_E_INVALID_STATE && strcmp(check->conf->db_migrate, "auto") == 0) {
        say(check, FINE, "db.migrate", "the start will bring the schema to version %u", kv_schema_version());
    } else {
        say(check, FAIL, "db.migrate", "%s", info.text[0] == '\0' ? kv_err_title(rc) : info.text);
    }
}

static void check_database(struct check *check)
{
    const struct kv_conf *conf = check->conf;
    if (conf->db_url[0] == '\0') {
        say(check, FINE, "db.url", "empty: a private PostgreSQL in state.dir");
        return;
    }
    struct kv_errinfo info = {0};
    struct kv_pg *pg = NULL;
    struct kv_pg_conf pg_conf = {
        .url = conf->db_url,
        .application_name = "kvrun/check",
        .prepare = strcmp(conf->db_prepare, "off") == 0 ? KV_PG_PREPARE_OFF : KV_PG_PREPARE_AUTO,
        .env = &kv_env_system,
    };
    enum kv_err rc = kv_pg_open(&pg_conf, &info, &pg);
    rc = rc == KV_OK ? kv_pg_ping(pg, &info) : rc;
    if (rc != KV_OK) {
        say(check, FAIL, "db.url", "%s",
            rc == KV_E_DB_UNAVAILABLE ? "no PostgreSQL answers there; the database_unreachable line above says why"
                                      : info.text);
    } else {
        bool pooled = kv_pg_pooled(pg);
        say(check, FINE, "db.url", "PostgreSQL answers%s",
            pooled ? ", through a pooler: nothing is prepared, and nobody can listen for changes" : "");
        if (pooled && strcmp(conf->db_prepare, "on") == 0) {
            say(check, FAIL, "db.prepare", "on does not work behind a pooler; set it to auto");
        }
        check_schema(check, pg);
    }
    kv_pg_close(pg);
}

int kv_serve_check(const struct kv_conf *conf)
{
    struct check check = {.conf = conf};
    check_listeners(&check);
    check_places(&check);
    check_memory(&check);
    check_database(&check);
    puts(check.failed ? "a start would fail" : "configuration ok");
    return check.failed ? 1 : 0;
}

/*
 * `kvrun config check`: what a start would need, tried without starting. Each line says ok, warn or fail, which key it
 * is about, and what to do. Must leave nothing behind and change nothing.
 */
#include "server/serve.h"

#include "dataplane/base/env.h"
#include "server/store/migrate.h"
#include "server/store/pg.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

static bool parse_address(const char *text, struct sockaddr_in *ret_at)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    if (colon == NULL || (size_t)(colon - text) >= sizeof host) {
        return false;
    }
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    char *end = NULL;
    unsigned long port = strtoul(colon + 1, &end, 10);
    *ret_at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return colon[1] != '\0' && *end == '\0' && port <= 65535 && inet_pton(AF_INET, host, &ret_at->sin_addr) == 1;
}

static void check_address(struct check *check, const char *key, const char *text)
{
    struct sockaddr_in at;
    if (!parse_address(text, &at)) {
        say(check, FAIL, key, "%.60s is no address; write 127.0.0.1:7433", text);
        return;
    }
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
                 bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    int error = errno;
    close(fd);
    if (bound) {
        say(check, FINE, key, "%.60s can be listened on", text);
    } else if (error == EADDRINUSE) {
        say(check, WARN, key, "%.60s is in use: fine if that is this server, else choose another port", text);
    } else {
        say(check, FAIL, key, "%.60s: %s", text, strerror(error));
    }
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

static void check_places(struct check *check)
{
    const struct kv_conf *conf = check->conf;
    check_folder(check, "state.dir", conf->state_dir, 0);
    if (strcmp(conf->root_provider, "file") == 0 && conf->root_path[0] == '\0') {
        say(check, WARN, "root.path", "the root lies in state.dir: a backup of that folder must leave it out");
    } else if (strcmp(conf->root_provider, "file") == 0) {
        check_folder(check, "root.path", conf->root_path, 0);
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
    check_address(&check, "http.listen", conf->http_listen);
    check_address(&check, "http.admin_listen", conf->http_admin_listen);
    check_places(&check);
    check_memory(&check);
    check_database(&check);
    puts(check.failed ? "a start would fail" : "configuration ok");
    return check.failed ? 1 : 0;
}

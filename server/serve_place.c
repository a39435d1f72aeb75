/*
 * Where a server keeps what it has: the state folder with its lock, the root, the nvme tier, the engines' sockets. Must
 * never touch anything in a state folder that another server uses.
 */
#include "server/serve_int.h"

#include "dataplane/base/env.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SOCKET_PATH_MAX 100 /* the kernel allows 107 bytes, and the second socket's name is longer */
#define SOCKET_FOLDER "/tmp/kvrun-XXXXXX"
#define LOCK_WAIT_MS 3000u

static KV_RC make_folders(const char *path, struct kv_errinfo *info)
{
    char part[KV_CONF_TEXT_SIZE];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1; *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            if (mkdir(part, 0755) != 0 && errno != EEXIST) {
                break; /* the last mkdir reports it */
            }
            *p = '/';
        }
    }
    /* Others may pass through, to the database that runs as another user, and may list nothing; every file inside is
     * closed to them. */
    if ((mkdir(path, 0711) == 0 ? chmod(path, 0711) != 0 : errno != EEXIST)) {
        return kv_fail(info, KV_E_IO, "cannot make state.dir: %s; set it to a folder that this user may write",
                       strerror(errno));
    }
    return KV_OK;
}

/* The name in the state folder, which a program whose working folder is near can use; the socket is elsewhere. */
static KV_RC link_socket(struct server *server, const char *name)
{
    char link_path[PATH_MAX], target[PATH_MAX], old[PATH_MAX];
    snprintf(link_path, sizeof link_path, "%.1000s/%s", server->state, name);
    snprintf(target, sizeof target, "%s/%s", server->socket_folder, name);
    ssize_t n = readlink(link_path, old, sizeof old - 1);
    if (n > 0) { /* what a server that was killed left behind; the folder goes with its last socket */
        old[n] = '\0';
        if (strncmp(old, SOCKET_FOLDER, strlen(SOCKET_FOLDER) - 6) == 0 && unlink(old) == 0) {
            rmdir(dirname(old));
        }
    }
    if ((unlink(link_path) != 0 && errno != ENOENT) || symlink(target, link_path) != 0) {
        return kv_fail(&server->info, KV_E_IO, "cannot name the sockets in state.dir: %s", strerror(errno));
    }
    return KV_OK;
}

/* A path that is too long for a socket gets a short private folder instead. */
static KV_RC make_socket_folder(struct server *server)
{
    snprintf(server->socket_folder, sizeof server->socket_folder, "%s", SOCKET_FOLDER);
    if (mkdtemp(server->socket_folder) == NULL) {
        server->socket_folder[0] = '\0';
        return kv_fail(&server->info, KV_E_IO, "no folder for the sockets can be made in /tmp: %s; set http.socket",
                       strerror(errno));
    }
    KV_TRY(link_socket(server, "engine.sock"));
    return link_socket(server, "engine-fd.sock");
}

static KV_RC choose_sockets(struct server *server)
{
    const char *wanted = server->conf->http_socket;
    char folder[KV_CONF_TEXT_SIZE + 32];
    if (wanted[0] != '\0') {
        snprintf(folder, sizeof folder, "%s", wanted);
        snprintf(server->socket, sizeof server->socket, "%s", wanted);
        snprintf(server->fd_socket, sizeof server->fd_socket, "%.1000s/engine-fd.sock", dirname(folder));
        return KV_OK;
    }
    snprintf(folder, sizeof folder, "%.1000s", server->state);
    if (strlen(server->state) + strlen("/engine-fd.sock") > SOCKET_PATH_MAX) {
        KV_TRY(make_socket_folder(server));
        snprintf(folder, sizeof folder, "%s", server->socket_folder);
    }
    snprintf(server->socket, sizeof server->socket, "%.1000s/engine.sock", folder);
    snprintf(server->fd_socket, sizeof server->fd_socket, "%.1000s/engine-fd.sock", folder);
    return KV_OK;
}

/* Before anything in the folder is touched: a second server would take the first one's sockets away. It goes with the
 * process, however that ends. */
KV_RC serve_lock_state(const char *state, const char *given, const struct kv_env *env, struct kv_errinfo *info,
                       int *ret_fd)
{
    char path[KV_CONF_TEXT_SIZE + 32];
    snprintf(path, sizeof path, "%.1000s/lock", state);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return kv_fail(info, KV_E_IO, "cannot write in state.dir: %s; set it to a folder of this user",
                       strerror(errno));
    }
    uint64_t deadline = kv_now_ns(env) + LOCK_WAIT_MS * KV_MS_NS;
    bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    while (!locked && kv_now_ns(env) < deadline) { /* one that was killed takes a moment to be gone */
        struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
        nanosleep(&pause, NULL);
        locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
    }
    if (!locked) {
        close(fd);
        return kv_fail(info, KV_E_INVALID_STATE,
                       "another kvrun runs on %.60s: stop it, or set state.dir to another folder", given);
    }
    *ret_fd = fd;
    return KV_OK;
}

void serve_root_path(const struct kv_conf *conf, const char *state, char ret_path[KV_CONF_TEXT_SIZE + 16])
{
    bool given = conf->root_path[0] != '\0';
    snprintf(ret_path, KV_CONF_TEXT_SIZE + 16, "%.1000s%s", given ? conf->root_path : state, given ? "" : "/root");
}

KV_RC serve_choose_places(struct server *server)
{
    const struct kv_conf *conf = server->conf;
    KV_TRY(make_folders(conf->state_dir, &server->info));
    if (realpath(conf->state_dir, server->state) == NULL || strlen(server->state) > KV_CONF_TEXT_SIZE - 64) {
        return kv_fail(&server->info, KV_E_CONFIG, "state.dir cannot be resolved, or its path is too long");
    }
    KV_TRY(serve_lock_state(server->state, conf->state_dir, server->env, &server->info, &server->lock_fd));
    serve_root_path(conf, server->state, server->root_path);
    snprintf(server->nvme_path, sizeof server->nvme_path, "%.1000s%s",
             conf->nvme_path[0] != '\0' ? conf->nvme_path : server->state, conf->nvme_path[0] != '\0' ? "" : "/nvme");
    return choose_sockets(server);
}

static bool write_line(int fd, const char *text)
{
    size_t len = strlen(text);
    return fchmod(fd, 0600) == 0 && write(fd, text, len) == (ssize_t)len && write(fd, "\n", 1) == 1 && fsync(fd) == 0;
}

KV_RC serve_keep_key(const char *state, const char *secret, struct kv_errinfo *info)
{
    static const char name[] = "operator.key", fresh[] = "operator.key.new";
    int folder = open(state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = openat(folder, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool kept = fd >= 0 && write_line(fd, secret) && renameat(folder, fresh, folder, name) == 0 && fsync(folder) == 0;
    enum kv_err rc =
        kept ? KV_OK : kv_fail(info, KV_E_IO, "cannot write operator.key in state.dir: %s", strerror(errno));
    if (fd >= 0) {
        close(fd);
    }
    if (folder >= 0) {
        close(folder);
    }
    return rc;
}

void serve_leave_places(struct server *server)
{
    static const char *const names[] = {"engine.sock", "engine-fd.sock"};
    for (size_t i = 0; server->socket_folder[0] != '\0' && i < 2; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.1000s/%s", server->state, names[i]);
        unlink(path);
    }
    if (server->socket_folder[0] != '\0') {
        rmdir(server->socket_folder);
    }
    if (server->lock_fd >= 0) {
        close(server->lock_fd);
    }
}

bool serve_database_elsewhere(const struct server *server, char ret_folder[KV_CONF_TEXT_SIZE])
{
    char path[KV_CONF_TEXT_SIZE + 32];
    snprintf(path, sizeof path, "%.1000s/postgres.path", server->state);
    FILE *file = server->cluster == NULL ? NULL : fopen(path, "re");
    bool there = file != NULL && fgets(ret_folder, KV_CONF_TEXT_SIZE, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (there) {
        ret_folder[strcspn(ret_folder, "\n")] = '\0';
    }
    return there;
}

/*
 * Where the private cluster lies: in the data folder, or, when its user cannot get in there, in a folder of its own;
 * and the short folder of its socket. Uses nothing that somebody else put there, and as root writes nothing into the
 * database user's folder.
 */
#include "server/store/private_cluster_int.h"

#include "dataplane/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *kv_private_sub(const char *folder, const char *name, char path[KV_PRIVATE_SUB_SIZE])
{
    snprintf(path, KV_PRIVATE_SUB_SIZE, "%s/%s", folder, name);
    return path;
}

bool kv_private_read_line(const char *path, char *ret_line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool got = fgets(ret_line, (int)size, file) != NULL;
    fclose(file);
    if (got) {
        ret_line[strcspn(ret_line, "\n")] = '\0';
    }
    return got;
}

void kv_private_sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        /* Some file systems cannot; the names are as durable there as they get. */
        if (fsync(fd) != 0) {
            kv_log(KV_LOG_DEBUG, "store", "folder_not_synced", KV_FT("folder", folder));
        }
        close(fd);
    }
}

/* Durable and whole: written beside and renamed. */
static KV_RC write_line(const char *path, const char *line, struct kv_errinfo *info)
{
    char fresh[KV_PRIVATE_SUB_SIZE + 8];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "we");
    if (file == NULL) {
        return kv_fail(info, KV_E_IO, "a file of the private cluster cannot be written: %s", strerror(errno));
    }
    bool ok = fprintf(file, "%s\n", line) > 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    ok = fclose(file) == 0 && ok;
    if (!ok || rename(fresh, path) != 0) {
        return kv_fail(info, KV_E_IO, "a file of the private cluster cannot be written: %s", strerror(errno));
    }
    return KV_OK;
}

/* Ours, a folder, closed to others. What somebody else put there is not used. */
static KV_RC own_folder(const struct kv_private_cluster *cluster, const char *path, struct kv_errinfo *info)
{
    if (mkdir(path, 0700) == 0) {
        if (cluster->user.switch_user && chown(path, cluster->user.uid, cluster->user.gid) != 0) {
            return kv_fail(info, KV_E_IO, "a folder cannot be given to the database user: %s", strerror(errno));
        }
        return KV_OK;
    }
    struct stat st;
    if (errno != EEXIST || lstat(path, &st) != 0) {
        return kv_fail(info, KV_E_IO, "the private cluster's folder cannot be made: %s", strerror(errno));
    }
    if (!S_ISDIR(st.st_mode) || st.st_uid != cluster->user.uid || (st.st_mode & 077) != 0) {
        return kv_fail(info, KV_E_FOREIGN_FILE,
                       "the private cluster's folder is not the database user's own (mode 0700): move it away");
    }
    return KV_OK;
}

/* Somewhere the database user gets to, when it cannot get into the data folder. */
static KV_RC make_state_folder(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    const char *const parents[] = {"/var/lib", "/var/tmp", "/tmp"};
    for (size_t i = 0; i < sizeof parents / sizeof parents[0]; i++) {
        snprintf(cluster->base, sizeof cluster->base, "%s/kvrun-postgres-XXXXXX", parents[i]);
        if (mkdtemp(cluster->base) == NULL) {
            continue;
        }
        if (chown(cluster->base, cluster->user.uid, cluster->user.gid) == 0 &&
            kv_private_can_use(&cluster->user, cluster->base)) {
            char path[KV_PRIVATE_SUB_SIZE];
            KV_TRY(write_line(kv_private_sub(cluster->folder, "postgres.path", path), cluster->base, info));
            kv_private_sync_folder(cluster->folder);
            return KV_OK;
        }
        rmdir(cluster->base);
    }
    return kv_fail(info, KV_E_IO, "no folder was found that the database user can use: set db.url");
}

KV_RC kv_private_place_find(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    char path[KV_PRIVATE_SUB_SIZE];
    if (kv_private_read_line(kv_private_sub(cluster->folder, "postgres.path", path), cluster->base,
                             sizeof cluster->base)) {
        struct stat st;
        if (lstat(cluster->base, &st) != 0) {
            return kv_fail(
                info, KV_E_INVALID_STATE,
                "postgres.path in the data folder names a folder that is gone: put it back or remove the file");
        }
        return own_folder(cluster, cluster->base, info);
    }
    snprintf(cluster->base, sizeof cluster->base, "%s/postgres", cluster->folder);
    struct stat st;
    bool was_there = lstat(cluster->base, &st) == 0;
    KV_TRY(own_folder(cluster, cluster->base, info));
    if (kv_private_can_use(&cluster->user, cluster->base)) {
        return KV_OK;
    }
    if (!was_there) {
        rmdir(cluster->base);
    }
    KV_TRY(make_state_folder(cluster, info));
    kv_log(KV_LOG_WARN, "store", "private_cluster_elsewhere",
           KV_FT("why", "the database user cannot reach the data folder"), KV_FT("folder", cluster->base));
    return KV_OK;
}

void kv_private_socket_clear(const char *folder)
{
    char path[KV_PRIVATE_SUB_SIZE];
    unlink(kv_private_sub(folder, ".s.PGSQL.5432", path));
    unlink(kv_private_sub(folder, ".s.PGSQL.5432.lock", path));
    rmdir(folder);
}

/* What a server that was killed left in the temporary folder. */
static void clear_old_socket_folder(const struct kv_private_cluster *cluster)
{
    char path[KV_PRIVATE_SUB_SIZE], old[KV_PRIVATE_SOCKET_MAX + 2];
    if (kv_private_read_line(kv_private_sub(cluster->folder, "postgres.socket", path), old, sizeof old) &&
        strstr(old, "/kvrun-db-") != NULL) {
        kv_private_socket_clear(old);
    }
}

/* A short path: the kernel allows 107 bytes, and TMPDIR may be long or closed. */
KV_RC kv_private_socket_make(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    clear_old_socket_folder(cluster);
    const char *tmpdir = getenv("TMPDIR");
    const char *const parents[] = {tmpdir != NULL && strlen(tmpdir) <= 60 ? tmpdir : "/tmp", "/tmp"};
    char path[KV_PRIVATE_SUB_SIZE];
    for (size_t i = 0; i < 2; i++) {
        snprintf(cluster->socket, sizeof cluster->socket, "%s/kvrun-db-XXXXXX", parents[i]);
        if (mkdtemp(cluster->socket) == NULL) {
            cluster->socket[0] = '\0';
            continue;
        }
        if (chown(cluster->socket, cluster->user.uid, cluster->user.gid) == 0 &&
            kv_private_can_use(&cluster->user, cluster->socket)) {
            return write_line(kv_private_sub(cluster->folder, "postgres.socket", path), cluster->socket, info);
        }
        rmdir(cluster->socket);
        cluster->socket[0] = '\0';
    }
    return kv_fail(info, KV_E_IO, "no folder for the database's socket can be made in /tmp: %s", strerror(errno));
}

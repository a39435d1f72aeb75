/*
 * The private cluster's life: a place that its user can reach, initdb once, a child that answers, an orderly end.
 *
 *   <folder>/postgres.lock   held while a server uses the cluster
 *   <folder>/postgres.path   where the cluster is, when it could not be here
 *   <folder>/postgres.socket the socket folder of the last start, to be cleared away
 *   <base>/data              the cluster; data.new while initdb works on it
 *   <base>/postgres.log
 *
 * <base> belongs to the database user: as root nothing is ever opened for writing in it.
 */
#include "server/store/private_cluster_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <libpq-fe.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define OLD_POSTGRES_MS 10000
#define INITDB_MS 120000
#define HARDER_MS 2000u
#define AGAIN_MS 500 /* doubled for each failure in a row */
#define AGAIN_DOUBLINGS 4u
#define LOG_BYTES_MAX (1024 * 1024)
#define URL_FORMAT "host=%s port=5432 user=kvrun dbname=postgres connect_timeout=2"
#define CLUSTER_BYTES (UINT64_C(56) << 20) /* a new one, and its first WAL segment */

static KV_RC take_lock(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    char path[KV_PRIVATE_SUB_SIZE];
    cluster->lock_fd = open(kv_private_sub(cluster->folder, "postgres.lock", path), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (cluster->lock_fd < 0) {
        return kv_fail(info, KV_E_IO, "the data folder cannot be written: %s", strerror(errno));
    }
    if (flock(cluster->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        return kv_fail(info, KV_E_INVALID_STATE,
                       "another kvrun runs on this data folder: stop it, or use another folder");
    }
    return KV_OK;
}

/* ---- the old one ---- */

static pid_t postmaster_pid(const struct kv_private_cluster *cluster)
{
    char path[KV_PRIVATE_SUB_SIZE], line[32];
    if (!kv_private_read_line(kv_private_sub(cluster->base, "data/postmaster.pid", path), line, sizeof line)) {
        return 0;
    }
    return (pid_t)strtol(line, NULL, 10);
}

/* R, S, … of a process that is called postgres; 0 for any other, and for none. */
static char postgres_state(pid_t pid)
{
    char path[64], line[256], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (pid <= 1 || !kv_private_read_line(path, line, sizeof line) || sscanf(line, "%*d (postgres) %c", &state) != 1) {
        return 0;
    }
    return state;
}

static bool is_dead(char state)
{
    return state == 0 || state == 'Z' || state == 'X';
}

/* Where nobody reaps orphans the old one stays as a zombie, and PostgreSQL, which only asks whether the process exists,
 * would refuse to start for ever. It is dead, so its file can go; the shared memory that it may have left guards
 * itself. */
static KV_RC remove_pid_file_of_zombie(struct kv_private_cluster *cluster, pid_t pid, struct kv_errinfo *info)
{
    char state = postgres_state(pid), file[KV_PRIVATE_SUB_SIZE];
    if (state == 0) {
        return KV_OK;
    }
    const char *const argv[] = {"/bin/rm", "-f", "--", kv_private_sub(cluster->base, "data/postmaster.pid", file),
                                NULL};
    struct kv_private_program program = {.argv = argv, .cancelled = cluster->cancelled};
    return kv_private_run(&cluster->user, &program, OLD_POSTGRES_MS, info);
}

static KV_RC check_wanted(const struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    return cluster->cancelled != NULL && cluster->cancelled()
               ? kv_fail(info, KV_E_SHUTTING_DOWN, "asked to end while the database started")
               : KV_OK;
}

/* We hold the lock, so a PostgreSQL that still runs belongs to a server that was killed, and is on its way out. */
static KV_RC wait_for_old(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    uint64_t deadline_ns = kv_now_ns(cluster->env) + (uint64_t)OLD_POSTGRES_MS * KV_MS_NS;
    pid_t pid = postmaster_pid(cluster);
    while (pid != 0 && !is_dead(postgres_state(pid))) {
        KV_TRY(check_wanted(cluster, info));
        if (kv_now_ns(cluster->env) >= deadline_ns) {
            return kv_fail(info, KV_E_INVALID_STATE,
                           "a PostgreSQL of an earlier server still runs (process %d): stop it", (int)pid);
        }
        kv_private_pause();
        pid = postmaster_pid(cluster);
    }
    return remove_pid_file_of_zombie(cluster, pid, info);
}

/* ---- initdb ---- */

static KV_RC find_programs(struct kv_private_cluster *cluster, const char *given, struct kv_errinfo *info)
{
    char path[KV_PRIVATE_SUB_SIZE], version[16];
    bool there = kv_private_read_line(kv_private_sub(cluster->base, "data/PG_VERSION", path), version, sizeof version);
    return kv_private_find_bin(given, there ? (unsigned)strtoul(version, NULL, 10) : 0, info, cluster->bin);
}

static KV_RC remove_half_made(struct kv_private_cluster *cluster, const char *fresh, struct kv_errinfo *info)
{
    const char *const argv[] = {"/bin/rm", "-rf", "--", fresh, NULL};
    struct kv_private_program program = {.argv = argv, .cancelled = cluster->cancelled};
    return kv_private_run(&cluster->user, &program, INITDB_MS, info);
}

/* Before initdb, whose own words about a full disk would not fit on it. */
static KV_RC check_room(const struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    struct statvfs disk;
    if (statvfs(cluster->base, &disk) == 0 && disk.f_bavail * disk.f_frsize < CLUSTER_BYTES) {
        return kv_fail(info, KV_E_NO_SPACE, "a private PostgreSQL needs %u MiB in %.90s: free space, or set db.url",
                       (unsigned)(CLUSTER_BYTES >> 20), cluster->base);
    }
    return KV_OK;
}

/* Made beside and renamed, so that an initdb that was cut off is never taken for a cluster. */
static KV_RC init_cluster(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    char data[KV_PRIVATE_SUB_SIZE], fresh[KV_PRIVATE_SUB_SIZE], initdb[KV_PRIVATE_SUB_SIZE], log[KV_PRIVATE_SUB_SIZE];
    kv_private_sub(cluster->base, "data", data);
    if (access(data, F_OK) == 0) {
        return KV_OK;
    }
    kv_private_sub(cluster->base, "data.new", fresh);
    KV_TRY(remove_half_made(cluster, fresh, info));
    KV_TRY(check_room(cluster, info));
    const char *const argv[] = {kv_private_sub(cluster->bin, "initdb", initdb),
                                "-D",
                                fresh,
                                "-U",
                                "kvrun",
                                "--auth-local=trust",
                                "--auth-host=reject",
                                "-E",
                                "UTF8",
                                "--locale=C",
                                "--data-checksums",
                                "--no-instructions",
                                cluster->throwaway ? "--no-sync" : NULL,
                                NULL};
    struct kv_private_program program = {.argv = argv,
                                         .log = kv_private_sub(cluster->base, "postgres.log", log),
                                         .bound = true,
                                         .cancelled = cluster->cancelled};
    enum kv_err rc = kv_private_run(&cluster->user, &program, INITDB_MS, info);
    if (rc == KV_E_SHUTTING_DOWN) {
        return rc;
    }
    if (rc != KV_OK) {
        kv_log(KV_LOG_ERROR, "store", "initdb_failed", KV_FT("log", log),
               KV_FT("text", info == NULL ? "" : info->text));
        return kv_fail(info, rc, "initdb failed: %.150s says why", log);
    }
    if (KV_FAULT("store/private/initdb") || rename(fresh, data) != 0) {
        return kv_fail(info, KV_E_IO, "the new cluster cannot be put in its place: %s", strerror(errno));
    }
    kv_private_sync_folder(cluster->base);
    kv_log(KV_LOG_INFO, "store", "private_cluster_made", KV_FT("folder", cluster->base));
    return KV_OK;
}

/* ---- the child ---- */

static void shorten_log(const char *log)
{
    struct stat st;
    if (lstat(log, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > LOG_BYTES_MAX) {
        unlink(log);
    }
}

static KV_RC spawn_postgres(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    char postgres[KV_PRIVATE_SUB_SIZE], data[KV_PRIVATE_SUB_SIZE], log[KV_PRIVATE_SUB_SIZE],
        sockets[KV_PRIVATE_SOCKET_MAX + 40];
    snprintf(sockets, sizeof sockets, "unix_socket_directories=%s", cluster->socket);
    shorten_log(kv_private_sub(cluster->base, "postgres.log", log));
    const char *sync = cluster->throwaway ? "fsync=off" : "fsync=on";
    const char *pages = cluster->throwaway ? "full_page_writes=off" : "full_page_writes=on";
    const char *const argv[] = {kv_private_sub(cluster->bin, "postgres", postgres),
                                "-D",
                                kv_private_sub(cluster->base, "data", data),
                                "-c",
                                "listen_addresses=",
                                "-c",
                                "port=5432",
                                "-c",
                                sockets,
                                "-c",
                                "unix_socket_permissions=0700",
                                "-c",
                                "shared_buffers=64MB",
                                "-c",
                                "max_connections=64",
                                "-c",
                                "logging_collector=off",
                                "-c",
                                "log_checkpoints=off",
                                "-c",
                                "log_destination=stderr",
                                "-c",
                                sync,
                                "-c",
                                pages,
                                NULL};
    struct kv_private_program program = {.argv = argv, .log = log, .bound = true};
    return kv_private_spawn(&cluster->user, &program, info, &cluster->pid);
}

/* An answer alone proves nothing: it could be another PostgreSQL's. The pid file must name our child, and it must live.
 * KV_E_BUSY: not yet. */
static KV_RC is_ready(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    if (kv_private_ended(cluster->pid)) {
        cluster->pid = 0;
        kv_log(KV_LOG_ERROR, "store", "private_cluster_ended", KV_FT("folder", cluster->base));
        return kv_fail(info, KV_E_DB_UNAVAILABLE, "PostgreSQL ended while it started; %.110s/postgres.log says why",
                       cluster->base);
    }
    return postmaster_pid(cluster) == cluster->pid && PQping(cluster->url) == PQPING_OK ? KV_OK : KV_E_BUSY;
}

static KV_RC fail_late(const struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    return kv_fail(info, KV_E_TIMEOUT, "PostgreSQL did not answer in %u ms; %.110s/postgres.log says why",
                   cluster->start_ms, cluster->base);
}

static KV_RC wait_until_ready(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    uint64_t deadline_ns = kv_now_ns(cluster->env) + (uint64_t)cluster->start_ms * KV_MS_NS;
    while (kv_now_ns(cluster->env) < deadline_ns) {
        enum kv_err rc = is_ready(cluster, info);
        if (rc != KV_E_BUSY) {
            return rc;
        }
        KV_TRY(check_wanted(cluster, info));
        kv_private_pause();
    }
    return fail_late(cluster, info);
}

static KV_RC start(struct kv_private_cluster *cluster, const char *bin_folder, struct kv_errinfo *info)
{
    KV_TRY(take_lock(cluster, info));
    KV_TRY(kv_private_user_find(info, &cluster->user));
    KV_TRY(kv_private_place_find(cluster, info));
    KV_TRY(wait_for_old(cluster, info));
    KV_TRY(find_programs(cluster, bin_folder, info));
    KV_TRY(init_cluster(cluster, info));
    KV_TRY(kv_private_socket_make(cluster, info));
    snprintf(cluster->url, sizeof cluster->url, URL_FORMAT, cluster->socket);
    KV_TRY(spawn_postgres(cluster, info));
    return wait_until_ready(cluster, info);
}

/* Touches nothing. */
static bool is_there(const char *folder)
{
    char path[KV_PRIVATE_SUB_SIZE], base[KV_PRIVATE_PATH_SIZE], data[KV_PRIVATE_SUB_SIZE];
    if (!kv_private_read_line(kv_private_sub(folder, "postgres.path", path), base, sizeof base)) {
        snprintf(base, sizeof base, "%.*s/postgres", KV_PRIVATE_FOLDER_SIZE, folder);
    }
    return access(kv_private_sub(base, "data", data), F_OK) == 0;
}

KV_RC kv_private_cluster_running(const char *folder, char *ret_url, size_t size)
{
    char path[KV_PRIVATE_SUB_SIZE], socket[KV_PRIVATE_SOCKET_MAX + 2];
    int lock = open(kv_private_sub(folder, "postgres.lock", path), O_RDWR | O_CLOEXEC);
    bool running = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0;
    if (lock >= 0) {
        close(lock);
    }
    if (!running || !kv_private_read_line(kv_private_sub(folder, "postgres.socket", path), socket, sizeof socket)) {
        return KV_E_NOT_FOUND;
    }
    snprintf(ret_url, size, URL_FORMAT, socket);
    return KV_OK;
}

KV_RC kv_private_cluster_start(const struct kv_private_cluster_conf *conf, struct kv_errinfo *info,
                               struct kv_private_cluster **ret_cluster)
{
    char folder[PATH_MAX];
    if (realpath(conf->folder, folder) == NULL || strlen(folder) >= KV_PRIVATE_FOLDER_SIZE) {
        return kv_fail(info, KV_E_IO, "the data folder is not there or its path is too long");
    }
    if (conf->existing && !is_there(folder)) {
        return kv_fail(info, KV_E_NOT_FOUND, "there is no private database in the data folder");
    }
    struct kv_private_cluster *cluster = kv_alloc(sizeof *cluster);
    if (cluster == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the private cluster");
    }
    cluster->env = conf->env;
    cluster->throwaway = conf->throwaway;
    cluster->cancelled = conf->cancelled;
    cluster->start_ms = conf->start_ms != 0 ? conf->start_ms : 30000;
    cluster->lock_fd = -1;
    memcpy(cluster->folder, folder, strlen(folder) + 1);
    enum kv_err rc = start(cluster, conf->bin_folder, info);
    if (rc != KV_OK) {
        kv_private_cluster_stop(cluster, rc == KV_E_SHUTTING_DOWN ? HARDER_MS : KV_PRIVATE_STOP_MS);
        return rc;
    }
    kv_log(KV_LOG_INFO, "store", "private_cluster_started", KV_FI("pid", cluster->pid), KV_FT("folder", cluster->base));
    *ret_cluster = cluster;
    return KV_OK;
}

const char *kv_private_cluster_url(const struct kv_private_cluster *cluster)
{
    return cluster->url;
}

pid_t kv_private_cluster_pid(const struct kv_private_cluster *cluster)
{
    return cluster->pid;
}

bool kv_private_cluster_alive(struct kv_private_cluster *cluster)
{
    if (cluster->pid != 0 && kv_private_ended(cluster->pid)) {
        cluster->pid = 0;
    }
    return cluster->pid != 0;
}

/* It is not waited for: whoever tends a server has signals to read. */
static KV_RC start_again(struct kv_private_cluster *cluster, uint64_t now_ns, struct kv_errinfo *info)
{
    uint64_t pause_ns = (uint64_t)AGAIN_MS
                        << (cluster->failures < AGAIN_DOUBLINGS ? cluster->failures : AGAIN_DOUBLINGS);
    cluster->again_ns = now_ns + pause_ns * KV_MS_NS;
    cluster->failures++; /* until it answers */
    KV_TRY(spawn_postgres(cluster, info));
    cluster->answer_by_ns = now_ns + (uint64_t)cluster->start_ms * KV_MS_NS;
    return KV_E_BUSY;
}

KV_RC kv_private_cluster_tend(struct kv_private_cluster *cluster, struct kv_errinfo *info)
{
    uint64_t now_ns = kv_now_ns(cluster->env);
    if (cluster->answer_by_ns == 0) {
        bool fine = kv_private_cluster_alive(cluster) || now_ns < cluster->again_ns;
        return fine ? KV_E_BUSY : start_again(cluster, now_ns, info);
    }
    enum kv_err rc = is_ready(cluster, info);
    if (rc == KV_E_BUSY && now_ns >= cluster->answer_by_ns) {
        rc = fail_late(cluster, info); /* it lives, and is not hurried by starting another */
    }
    cluster->answer_by_ns = rc == KV_E_BUSY ? cluster->answer_by_ns : 0;
    cluster->failures = rc == KV_OK ? 0 : cluster->failures;
    return rc;
}

static void end_child(struct kv_private_cluster *cluster, uint32_t wait_ms)
{
    /* Fast, immediate, none: each loses less than the next, and all are safe for what was committed. */
    const int signals[] = {SIGINT, SIGQUIT, SIGKILL};
    for (size_t i = 0; i < 3 && cluster->pid != 0; i++) {
        kill(cluster->pid, signals[i]);
        if (kv_private_wait(cluster->pid, i == 0 ? wait_ms : HARDER_MS)) {
            cluster->pid = 0;
        }
    }
}

void kv_private_cluster_stop(struct kv_private_cluster *cluster, uint32_t wait_ms)
{
    if (cluster == NULL) {
        return;
    }
    end_child(cluster, wait_ms);
    if (cluster->socket[0] != '\0') {
        kv_private_socket_clear(cluster->socket);
    }
    if (cluster->lock_fd >= 0) {
        close(cluster->lock_fd);
    }
    kv_free(cluster);
}

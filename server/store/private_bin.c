/*
 * Where the server programs of PostgreSQL are. They are rarely on PATH, and several versions may be there.
 */
#include "server/store/private_child_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_programs(const char *folder)
{
    char path[KV_PRIVATE_PATH_SIZE + 16];
    snprintf(path, sizeof path, "%s/initdb", folder);
    bool initdb = access(path, X_OK) == 0;
    snprintf(path, sizeof path, "%s/postgres", folder);
    return initdb && access(path, X_OK) == 0;
}

/* The newest of Debian's folders, or exactly `version`; 0 when there is none. */
static unsigned newest_installed(unsigned version)
{
    DIR *dir = opendir("/usr/lib/postgresql");
    unsigned newest = 0;
    const struct dirent *entry = NULL;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        unsigned found = (unsigned)strtoul(entry->d_name, NULL, 10);
        char folder[KV_PRIVATE_PATH_SIZE];
        snprintf(folder, sizeof folder, "/usr/lib/postgresql/%u/bin", found);
        if (found > newest && (version == 0 || found == version) && has_programs(folder)) {
            newest = found;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return newest;
}

/* pg_config with its answer in a pipe and its complaints nowhere. -1: it is not there. */
static pid_t spawn_pg_config(const char *question, int answer_fd)
{
    static char program[] = "pg_config";
    char argument[32];
    snprintf(argument, sizeof argument, "%s", question);
    char *argv[] = {program, argument, NULL};
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0) {
        return -1;
    }
    pid_t pid = -1;
    if (posix_spawn_file_actions_adddup2(&actions, answer_fd, 1) != 0 ||
        posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0) != 0 ||
        posix_spawnp(&pid, program, &actions, NULL, argv, environ) != 0) {
        pid = -1;
    }
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static bool ask_pg_config(const char *question, char *ret_line, size_t size)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return false;
    }
    pid_t pid = spawn_pg_config(question, fds[1]);
    close(fds[1]);
    /* A path is shorter than what a pipe takes in one piece. */
    bool ended_well = pid > 0 && kv_private_wait_well(pid, 5000);
    ssize_t len = ended_well ? read(fds[0], ret_line, size - 1) : 0;
    close(fds[0]);
    if (len <= 0) {
        return false;
    }
    ret_line[len] = '\0';
    ret_line[strcspn(ret_line, "\n")] = '\0';
    return true;
}

static bool pg_config_fits(unsigned version, char ret_folder[KV_PRIVATE_PATH_SIZE])
{
    char text[64];
    if (version != 0 && (!ask_pg_config("--version", text, sizeof text) || strncmp(text, "PostgreSQL ", 11) != 0 ||
                         strtoul(text + 11, NULL, 10) != version)) {
        return false;
    }
    return ask_pg_config("--bindir", ret_folder, KV_PRIVATE_PATH_SIZE) && has_programs(ret_folder);
}

KV_RC kv_private_find_bin(const char *given, unsigned version, struct kv_errinfo *info,
                          char ret_folder[KV_PRIVATE_PATH_SIZE])
{
    if (given != NULL) {
        if (strlen(given) >= KV_PRIVATE_PATH_SIZE || !has_programs(given)) {
            return kv_fail(info, KV_E_UNSUPPORTED, "the folder named for PostgreSQL's programs has no initdb in it");
        }
        snprintf(ret_folder, KV_PRIVATE_PATH_SIZE, "%s", given);
        return KV_OK;
    }
    if (pg_config_fits(version, ret_folder)) {
        return KV_OK;
    }
    unsigned newest = newest_installed(version);
    if (newest != 0) {
        snprintf(ret_folder, KV_PRIVATE_PATH_SIZE, "/usr/lib/postgresql/%u/bin", newest);
        return KV_OK;
    }
    if (version != 0) {
        return kv_fail(info, KV_E_UNSUPPORTED,
                       "the private cluster was made by PostgreSQL %u, which is not installed here", version);
    }
    return kv_fail(info, KV_E_UNSUPPORTED,
                   "PostgreSQL's server programs are not installed: install postgresql or set db.url");
}

/* The private cluster: made once, ended with its server however that ends, never shared. */
#include "server/store/private_cluster.h"

#include "dataplane/base/fault.h"
#include "server/store/pg_int.h"
#include "server/store/private_child_int.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[64];
static struct kv_errinfo info;

static void set_up(void)
{
    char bin[KV_PRIVATE_PATH_SIZE];
    if (kv_private_find_bin(NULL, 0, &info, bin) != KV_OK) {
        cr_skip_test("no PostgreSQL");
    }
    snprintf(folder, sizeof folder, "/tmp/kvtest-pc-XXXXXX");
    cr_assert(ne(ptr, mkdtemp(folder), NULL));
    cr_assert(eq(int, chmod(folder, 0755), 0));
}

static void run_shell(const char *format)
{
    char command[256];
    snprintf(command, sizeof command, format, folder, folder);
    cr_assert(eq(int, system(command), 0));
}

static void tear_down(void)
{
    run_shell("test ! -e %s/postgres.path || rm -rf \"$(cat %s/postgres.path)\"");
    run_shell("rm -rf %s");
}

TestSuite(private_cluster, .init = set_up, .fini = tear_down);

static enum kv_err start(struct kv_private_cluster **ret)
{
    struct kv_private_cluster_conf conf = {.folder = folder, .throwaway = true, .env = &kv_env_system};
    return kv_private_cluster_start(&conf, &info, ret);
}

static bool exists(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void socket_of(const struct kv_private_cluster *cluster, char ret_folder[96])
{
    cr_assert(eq(int, sscanf(kv_private_cluster_url(cluster), "host=%95s", ret_folder), 1));
}

Test(private_cluster, keeps_its_data_over_a_stop_and_leaves_no_socket)
{
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    char sockets[96];
    socket_of(cluster, sockets);
    struct stat st;
    cr_assert(eq(int, stat(sockets, &st), 0));
    cr_assert(eq(int, (int)(st.st_mode & 0777), 0700));
    struct kv_pg *pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
    cr_assert(eq(int, temp_postgres_run(pg, "create table public.kept (x integer)"), KV_OK));
    kv_pg_close(pg);
    cr_assert(kv_private_cluster_alive(cluster));
    pid_t pid = kv_private_cluster_pid(cluster);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    cr_assert(eq(int, kill(pid, 0), -1));
    cr_assert(ne(int, stat(sockets, &st), 0));
    cr_assert(not(exists("postgres/data/postmaster.pid")));

    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
    cr_assert(eq(int, temp_postgres_run(pg, "select * from public.kept"), KV_OK));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, listens_on_no_port_and_syncs_when_it_is_for_keeps)
{
    struct kv_private_cluster *cluster = NULL;
    struct kv_private_cluster_conf conf = {.folder = folder, .env = &kv_env_system};
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_OK), "%s", info.text);
    struct kv_pg *pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
    cr_assert(eq(int,
                 temp_postgres_run(pg, "do $$ begin assert current_setting('listen_addresses') = '';"
                                       " assert current_setting('fsync') = 'on';"
                                       " assert current_setting('full_page_writes') = 'on';"
                                       " assert current_setting('data_checksums') = 'on';"
                                       " assert current_setting('server_encoding') = 'UTF8'; end $$"),
                 KV_OK));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, second_server_on_the_same_folder_is_refused_at_once)
{
    struct kv_private_cluster *first = NULL, *second = NULL;
    cr_assert(eq(int, start(&first), KV_OK), "%s", info.text);
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    pid_t child = fork();
    if (child == 0) {
        struct kv_errinfo own = {0};
        struct kv_private_cluster_conf conf = {.folder = folder, .throwaway = true, .env = &kv_env_system};
        _exit(kv_private_cluster_start(&conf, &own, &second) == KV_E_INVALID_STATE ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    cr_assert(eq(int, status, 0));
    cr_assert(le(long, (long)(after.tv_sec - before.tv_sec), 3L));
    cr_assert(kv_private_cluster_alive(first));
    struct kv_pg *pg = temp_postgres_connect(kv_private_cluster_url(first), "test");
    kv_pg_close(pg);
    kv_private_cluster_stop(first, KV_PRIVATE_STOP_MS);
}

/* A server in a process of its own, which is killed once it has said that it is ready. */
static pid_t server_to_kill(pid_t *ret_postgres, char ret_socket[96])
{
    int pipe_fds[2];
    cr_assert(eq(int, pipe(pipe_fds), 0));
    pid_t server = fork();
    if (server == 0) {
        struct kv_private_cluster *cluster = NULL;
        struct {
            pid_t pid;
            char socket[96];
        } ready = {0};
        if (start(&cluster) == KV_OK) {
            ready.pid = kv_private_cluster_pid(cluster);
            socket_of(cluster, ready.socket);
        }
        if (write(pipe_fds[1], &ready, sizeof ready) != (ssize_t)sizeof ready) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    struct {
        pid_t pid;
        char socket[96];
    } ready = {0};
    cr_assert(eq(int, (int)read(pipe_fds[0], &ready, sizeof ready), (int)sizeof ready));
    cr_assert(gt(int, ready.pid, 0));
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    *ret_postgres = ready.pid;
    memcpy(ret_socket, ready.socket, sizeof ready.socket);
    return server;
}

/* Ended; that nobody has reaped it yet does not count. */
static bool has_ended(pid_t pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file != NULL && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) {
        state = 'Z';
    }
    if (file != NULL) {
        fclose(file);
    }
    return state == 'Z' || state == 'X';
}

Test(private_cluster, killed_server_takes_postgres_along_and_the_next_start_recovers)
{
    pid_t postgres = 0;
    char sockets[96];
    pid_t server = server_to_kill(&postgres, sockets);
    char old_url[160];
    snprintf(old_url, sizeof old_url, "host=%s user=kvrun dbname=postgres", sockets);
    struct kv_pg *pg = temp_postgres_connect(old_url, "test");
    cr_assert(eq(int, temp_postgres_run(pg, "create table public.kept (x integer)"), KV_OK));
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    /* At once: the old one may still be ending. */
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    cr_assert(ne(int, kv_private_cluster_pid(cluster), postgres));
    cr_assert(has_ended(postgres));
    struct stat st;
    cr_assert(ne(int, stat(sockets, &st), 0));
    kv_pg_close(pg);
    pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
    cr_assert(eq(int, temp_postgres_run(pg, "select * from public.kept"), KV_OK));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, killed_postgres_that_nobody_reaps_does_not_stop_the_next_start)
{
    /* Orphans come to us, and we do not reap this one. */
    cr_assert(eq(int, prctl(PR_SET_CHILD_SUBREAPER, 1), 0));
    pid_t postgres = 0;
    char sockets[96];
    pid_t server = server_to_kill(&postgres, sockets);
    kill(server, SIGSTOP);
    kill(postgres, SIGKILL);
    for (int i = 0; i < 250 && !has_ended(postgres); i++) {
        kv_private_pause();
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    cr_assert(eq(int, kill(postgres, 0), 0));
    cr_assert(exists("postgres/data/postmaster.pid"));
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    waitpid(postgres, NULL, 0);
}

Test(private_cluster, postgres_that_was_killed_itself_is_noticed_and_revived_under_the_same_url)
{
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    struct kv_pg *pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
    pid_t first = kv_private_cluster_pid(cluster);
    cr_assert(eq(int, kv_private_cluster_tend(cluster, &info), KV_E_BUSY));
    cr_assert(eq(int, kv_private_cluster_pid(cluster), first));
    kill(first, SIGKILL);
    for (int i = 0; i < 250 && kv_private_cluster_alive(cluster); i++) {
        kv_private_pause();
    }
    cr_assert(not(kv_private_cluster_alive(cluster)));
    /* The killed one's children may hold its memory a moment longer; then it is tried again, as the server does. */
    enum kv_err rc = KV_E_BUSY;
    for (int i = 0; i < 1500 && rc != KV_OK; i++) {
        kv_private_pause();
        rc = kv_private_cluster_tend(cluster, &info);
    }
    cr_assert(eq(int, rc, KV_OK), "%s", info.text);
    for (int i = 0; i < 250 && kv_pg_ping(pg, &info) != KV_OK; i++) {
        kv_private_pause();
    }
    cr_assert(kv_pg_connected(pg));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

static uint64_t seconds_since(const struct timespec *begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)(now.tv_sec - begun->tv_sec);
}

/* Its tender has signals to read: once it waited half a minute here. */
Test(private_cluster, one_that_comes_back_and_does_not_answer_is_not_waited_for)
{
    char bin[KV_PRIVATE_PATH_SIZE], ours[96], command[2 * KV_PRIVATE_PATH_SIZE + 256];
    cr_assert(eq(int, kv_private_find_bin(NULL, 0, &info, bin), KV_OK));
    snprintf(ours, sizeof ours, "%s/bin", folder);
    snprintf(command, sizeof command, "mkdir %s && ln -s %s/postgres %s/initdb %s", ours, bin, bin, ours);
    cr_assert(eq(int, system(command), 0));
    struct kv_private_cluster *cluster = NULL;
    struct kv_private_cluster_conf conf = {
        .folder = folder, .bin_folder = ours, .throwaway = true, .env = &kv_env_system};
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_OK), "%s", info.text);
    snprintf(command, sizeof command,
             "rm %s/postgres && printf '#!/bin/sh\nexec sleep 100\n' >%s/postgres && chmod 755 %s/postgres", ours, ours,
             ours);
    cr_assert(eq(int, system(command), 0));
    kill(kv_private_cluster_pid(cluster), SIGKILL);
    for (int i = 0; i < 250 && kv_private_cluster_alive(cluster); i++) {
        kv_private_pause();
    }
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (int i = 0; i < 10; i++) {
        cr_assert(eq(int, kv_private_cluster_tend(cluster, &info), KV_E_BUSY));
    }
    cr_assert(kv_private_cluster_pid(cluster) > 0);
    cr_assert(lt(u64, seconds_since(&begun), 10));
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, one_that_does_not_obey_is_ended_in_time)
{
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    pid_t pid = kv_private_cluster_pid(cluster);
    kill(pid, SIGSTOP);
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    kv_private_cluster_stop(cluster, 100);
    cr_assert(lt(u64, seconds_since(&begun), 10)); /* 2.1 s where nobody else runs */
    cr_assert(eq(int, kill(pid, 0), -1));
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

static bool wanted_no_more(void)
{
    return true;
}

Test(private_cluster, start_that_is_called_off_leaves_nothing_that_runs_or_is_half_made)
{
    struct kv_private_cluster *cluster = NULL;
    struct kv_private_cluster_conf conf = {
        .folder = folder, .throwaway = true, .cancelled = wanted_no_more, .env = &kv_env_system};
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_E_SHUTTING_DOWN), "%s", info.text);
    cr_assert(not(exists("postgres/data")));
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_E_SHUTTING_DOWN), "%s", info.text);
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, one_that_has_to_exist_is_not_made_and_one_that_runs_is_found)
{
    char url[256] = "";
    struct kv_private_cluster *cluster = NULL;
    struct kv_private_cluster_conf conf = {
        .folder = folder, .existing = true, .throwaway = true, .env = &kv_env_system};
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_E_NOT_FOUND));
    cr_assert(not(exists("postgres")));
    cr_assert(not(exists("postgres.lock")));
    cr_assert(eq(int, kv_private_cluster_running(folder, url, sizeof url), KV_E_NOT_FOUND));
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_private_cluster_running(folder, url, sizeof url), KV_OK));
    cr_assert(eq(str, url, (char *)(uintptr_t)kv_private_cluster_url(cluster)));
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    cr_assert(eq(int, kv_private_cluster_running(folder, url, sizeof url), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_OK), "%s", info.text);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, initdb_that_was_cut_off_is_begun_anew)
{
    struct kv_private_cluster *cluster = NULL;
    kv_fault_set("store/private/initdb=fail@1once");
    cr_assert(eq(int, start(&cluster), KV_E_IO));
    kv_fault_set(NULL);
    cr_assert(exists("postgres/data.new"));
    run_shell("rm %s/postgres/data.new/global/pg_control");
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    cr_assert(not(exists("postgres/data.new")));
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, broken_cluster_is_an_error_with_a_text)
{
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    run_shell("rm %s/postgres/data/global/pg_control");
    cr_assert(eq(int, start(&cluster), KV_E_DB_UNAVAILABLE));
    cr_assert(ne(ptr, strstr(info.text, "postgres.log"), NULL), "%s", info.text);
}

Test(private_cluster, folder_of_somebody_else_is_not_used)
{
    char path[128];
    snprintf(path, sizeof path, "%s/postgres", folder);
    cr_assert(eq(int, mkdir(path, 0755), 0));
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_E_FOREIGN_FILE));
    cr_assert(eq(int, rmdir(path), 0));
    cr_assert(eq(int, symlink("/tmp", path), 0));
    cr_assert(eq(int, start(&cluster), KV_E_FOREIGN_FILE));
    cr_assert(eq(int, unlink(path), 0));
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, data_folder_closed_to_the_database_user_gets_a_state_folder)
{
    if (geteuid() != 0) {
        cr_skip_test("only root changes the user");
    }
    cr_assert(eq(int, chmod(folder, 0700), 0));
    struct kv_private_cluster *cluster = NULL;
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    struct kv_pg *pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
    cr_assert(eq(int, temp_postgres_run(pg, "create table public.kept (x integer)"), KV_OK));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    cr_assert(exists("postgres.path"));
    cr_assert(not(exists("postgres")));
    /* The same one the next time. */
    cr_assert(eq(int, start(&cluster), KV_OK), "%s", info.text);
    pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
    cr_assert(eq(int, temp_postgres_run(pg, "select * from public.kept"), KV_OK));
    kv_pg_close(pg);
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
    /* Gone: said, not silently begun anew. */
    run_shell("rm -rf \"$(cat %s/postgres.path)\"");
    cr_assert(eq(int, start(&cluster), KV_E_INVALID_STATE));
}

Test(private_cluster, long_data_path_does_not_make_a_long_socket_path)
{
    char deep[200];
    snprintf(deep, sizeof deep, "%s/%0100d", folder, 7);
    cr_assert(eq(int, mkdir(deep, 0755), 0));
    struct kv_private_cluster *cluster = NULL;
    struct kv_private_cluster_conf conf = {.folder = deep, .throwaway = true, .env = &kv_env_system};
    setenv("TMPDIR", deep, 1);
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_OK), "%s", info.text);
    char sockets[96];
    socket_of(cluster, sockets);
    cr_assert(lt(sz, strlen(sockets), 80));
    kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, missing_folder_and_missing_programs_are_errors)
{
    struct kv_private_cluster *cluster = NULL;
    struct kv_private_cluster_conf conf = {.folder = "/nonexistent", .env = &kv_env_system};
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_E_IO));
    conf = (struct kv_private_cluster_conf){.folder = folder, .bin_folder = "/usr", .env = &kv_env_system};
    cr_assert(eq(int, kv_private_cluster_start(&conf, &info, &cluster), KV_E_UNSUPPORTED));
    char bin[KV_PRIVATE_PATH_SIZE];
    cr_assert(eq(int, kv_private_find_bin(NULL, 7, &info, bin), KV_E_UNSUPPORTED));
    kv_private_cluster_stop(NULL, KV_PRIVATE_STOP_MS);
}

Test(private_cluster, works_without_being_root)
{
    if (geteuid() != 0) {
        cr_skip_test("the other tests of this suite are this one");
    }
    const struct passwd *nobody = getpwnam("nobody");
    cr_assert(ne(ptr, (void *)nobody, NULL));
    cr_assert(eq(int, chown(folder, nobody->pw_uid, nobody->pw_gid), 0));
    pid_t child = fork();
    if (child == 0) {
        struct kv_private_cluster *cluster = NULL;
        if (setgid(nobody->pw_gid) != 0 || setuid(nobody->pw_uid) != 0 || start(&cluster) != KV_OK) {
            _exit(1);
        }
        struct kv_pg *pg = temp_postgres_connect(kv_private_cluster_url(cluster), "test");
        kv_pg_close(pg);
        kv_private_cluster_stop(cluster, KV_PRIVATE_STOP_MS);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    cr_assert(eq(int, status, 0));
}

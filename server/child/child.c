/*
 * Child programs and files of a program that shows or measures the product. Every child gets a death signal of its own,
 * so that none outlives it, however it ends.
 */
#include "server/child/child.h"

#include "dataplane/base/env.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FILE_MAX (256u << 20)
#define TAIL_BYTES 120u /* of a failed program's output in the error */

/* --- signals ----------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t caught;

static void catch_one(int signal_number)
{
    caught = signal_number;
}

void kv_child_catch_signals(void)
{
    /* Without SA_RESTART: a wait ends when somebody asks for the end. SIGPIPE: nobody reads what is said. */
    const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = catch_one};
    sigemptyset(&action.sa_mask);
    struct sigaction before;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        if (signals[i] == SIGHUP && sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler == SIG_IGN) {
            continue; /* nohup */
        }
        sigaction(signals[i], &action, NULL);
    }
}

int kv_child_caught_signal(void)
{
    return caught;
}

/* --- programs ---------------------------------------------------------------------------------------------------- */

static void child(char *const argv[], int out)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nothing of ours outlives us */
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    execvp(argv[0], argv);
    dprintf(2, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static void show(const char *data, size_t len, bool *at_start)
{
    for (size_t i = 0; i < len; i++) {
        if (*at_start) {
            fputs("   | ", stdout);
        }
        putchar(data[i]);
        *at_start = data[i] == '\n';
    }
    fflush(stdout);
}

/* Reads until the other end closes or the time is over. */
static bool drain(int fd, uint64_t deadline_ns, bool echo, struct kv_buf *output)
{
    bool at_start = true;
    for (;;) {
        char chunk[4096];
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        uint64_t now = kv_now_ns(&kv_env_system);
        int wait_ms = now >= deadline_ns ? 0 : (int)((deadline_ns - now) / KV_MS_NS) + 1;
        int ready = poll(&poll_fd, 1, wait_ms);
        if (ready < 0 && errno == EINTR && caught == 0) {
            continue;
        }
        if (ready <= 0) {
            return false;
        }
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n <= 0) {
            return n == 0;
        }
        kv_buf_append(output, chunk, (size_t)n);
        if (echo) {
            show(chunk, (size_t)n, &at_start);
        }
    }
}

static int reap(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

KV_RC kv_child_run(char *const argv[], unsigned timeout_s, bool echo, struct kv_errinfo *info,
                   struct kv_buf *ret_output)
{
    int fds[2], status = 0;
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return kv_fail(info, KV_E_IO, "no pipe: %s", strerror(errno));
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        child(argv, fds[1]);
    }
    close(fds[1]);
    bool ended = pid > 0 && drain(fds[0], kv_now_ns(&kv_env_system) + timeout_s * KV_S_NS, echo, ret_output);
    close(fds[0]);
    if (!ended && pid > 0) {
        kill(pid, SIGKILL);
    }
    if (pid > 0) {
        status = reap(pid);
    }
    if (!ended || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        const char *slash = strrchr(argv[0], '/');
        size_t len = ret_output->len;
        while (len > 0 && ret_output->data[len - 1] == '\n') {
            len--;
        }
        size_t from = len > TAIL_BYTES ? len - TAIL_BYTES : 0;
        return kv_fail(info, KV_E_IO, "%s failed: %.*s", slash == NULL ? argv[0] : slash + 1, (int)(len - from),
                       len == 0 ? "" : (const char *)ret_output->data + from);
    }
    return KV_OK;
}

KV_RC kv_child_spawn(char *const argv[], const char *log, struct kv_errinfo *info, pid_t *ret_pid)
{
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    fflush(stdout);
    pid_t pid = fd < 0 ? -1 : fork();
    if (pid == 0) {
        /* A Ctrl-C at the terminal is for us, who then end this one in order. */
        setpgid(0, 0);
        child(argv, fd);
    }
    close(fd);
    if (pid < 0) {
        return kv_fail(info, KV_E_IO, "cannot start %s: %s", argv[0], strerror(errno));
    }
    *ret_pid = pid;
    return KV_OK;
}

bool kv_child_alive(pid_t pid)
{
    siginfo_t state = {0};
    return waitid(P_PID, (id_t)pid, &state, WEXITED | WNOHANG | WNOWAIT) == 0 && state.si_pid == 0;
}

KV_RC kv_child_end(pid_t pid, unsigned timeout_s, struct kv_errinfo *info)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + timeout_s * KV_S_NS;
    kill(pid, SIGTERM);
    while (kv_child_alive(pid) && kv_now_ns(&kv_env_system) < deadline) {
        struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    if (kv_child_alive(pid)) {
        kill(pid, SIGKILL);
    }
    int status = reap(pid);
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return ok ? KV_OK : kv_fail(info, KV_E_IO, "the server did not end as it should");
}

/* --- files ------------------------------------------------------------------------------------------------------- */

KV_RC kv_child_read_file(const char *path, struct kv_buf *ret_bytes)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return KV_E_IO;
    }
    char chunk[65536];
    size_t n = 0;
    while ((n = fread(chunk, 1, sizeof chunk, file)) > 0) {
        kv_buf_append(ret_bytes, chunk, n);
    }
    fclose(file);
    return kv_buf_check(ret_bytes);
}

KV_RC kv_child_write_file(const char *path, struct kv_bytes bytes, struct kv_errinfo *info)
{
    FILE *file = fopen(path, "we");
    bool ok = file != NULL && fwrite(bytes.data, 1, bytes.len, file) == bytes.len;
    if (file != NULL && fclose(file) != 0) {
        ok = false;
    }
    return ok ? KV_OK : kv_fail(info, KV_E_IO, "cannot write a file: %s", strerror(errno));
}

KV_RC kv_child_copy_file(const char *from, const char *to, struct kv_errinfo *info)
{
    struct kv_buf bytes;
    kv_buf_init(&bytes, FILE_MAX);
    enum kv_err rc = kv_child_read_file(from, &bytes);
    if (rc == KV_OK) {
        rc = kv_child_write_file(to, kv_buf_bytes(&bytes), info);
    }
    explicit_bzero(bytes.data, bytes.len);
    kv_buf_done(&bytes);
    return rc;
}

static struct stat give_to; /* nftw passes no argument */

static int give_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return lchown(path, give_to.st_uid, give_to.st_gid);
}

KV_RC kv_child_give(const char *path, const char *like, struct kv_errinfo *info)
{
    if (stat(like, &give_to) != 0 || nftw(path, give_one, 16, FTW_PHYS) != 0) {
        return kv_fail(info, KV_E_IO, "cannot give files to the database user: %s", strerror(errno));
    }
    return KV_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

bool kv_child_remove_tree(const char *path)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0;
}

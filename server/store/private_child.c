/*
 * Starting PostgreSQL's programs as the right user. Between fork and exec nothing here allocates or locks, because
 * other threads may have held a lock when the process was copied.
 */
#include "server/store/private_child_int.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

KV_RC kv_private_user_find(struct kv_errinfo *info, struct kv_private_user *ret_user)
{
    if (geteuid() != 0) {
        *ret_user = (struct kv_private_user){.uid = geteuid(), .gid = getegid()};
        return KV_OK;
    }
    const struct passwd *entry = getpwnam("postgres");
    if (entry == NULL || entry->pw_uid == 0) {
        return kv_fail(info, KV_E_UNSUPPORTED,
                       "PostgreSQL refuses root and there is no user `postgres`: run as another user or set db.url");
    }
    *ret_user = (struct kv_private_user){.switch_user = true, .uid = entry->pw_uid, .gid = entry->pw_gid};
    return KV_OK;
}

static bool become(const struct kv_private_user *user)
{
    if (!user->switch_user) {
        return true;
    }
    return setgroups(0, NULL) == 0 && setgid(user->gid) == 0 && setuid(user->uid) == 0;
}

static void reset_signals(void)
{
    for (int signal_number = 1; signal_number < NSIG; signal_number++) {
        if (signal_number != SIGKILL && signal_number != SIGSTOP) {
            signal(signal_number, SIG_DFL);
        }
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool redirect(const char *log)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(log != NULL ? log : "/dev/null", O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return in >= 0 && out >= 0 && dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(out, 2) == 2;
}

/* execve takes pointers to char and changes nothing behind them. */
static char *const *argv_of(const struct kv_private_program *program)
{
    union {
        const char *const *constant;
        char *const *plain;
    } argv = {.constant = program->argv};
    return argv.plain;
}

static _Noreturn void be_child(const struct kv_private_user *user, const struct kv_private_program *program,
                               pid_t parent)
{
    static char path[] = "PATH=/usr/local/bin:/usr/bin:/bin", locale[] = "LC_ALL=C", zone[] = "TZ=UTC";
    char *const environment[] = {path, locale, zone, NULL};
    reset_signals();
    /* Its own session: a Ctrl-C at the terminal is for the server, which then stops PostgreSQL in order. */
    setsid();
    umask(077);
    if (!become(user) || chdir("/") != 0 || !redirect(program->log)) {
        _exit(126);
    }
    /* After the change of user, which clears it. The parent may have ended in between. */
    if (program->bound && (prctl(PR_SET_PDEATHSIG, SIGINT) != 0 || getppid() != parent)) {
        _exit(125);
    }
    if (close_range(3, ~0U, 0) != 0) {
        _exit(124);
    }
    execve(program->argv[0], argv_of(program), environment);
    _exit(127);
}

KV_RC kv_private_spawn(const struct kv_private_user *user, const struct kv_private_program *program,
                       struct kv_errinfo *info, pid_t *ret_pid)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        return kv_fail(info, KV_E_IO, "no process can be started: %s", strerror(errno));
    }
    if (pid == 0) {
        be_child(user, program, parent);
    }
    *ret_pid = pid;
    return KV_OK;
}

void kv_private_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000000L}, NULL);
}

/* -1: still running; else the wait status. A child that somebody else reaped counts as failed. */
static int poll_child(pid_t pid)
{
    int status = 0;
    pid_t got = waitpid(pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR)) {
        return -1;
    }
    return got == pid ? status : 0x7f00;
}

bool kv_private_ended(pid_t pid)
{
    return poll_child(pid) != -1;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int wait_status(pid_t pid, uint32_t timeout_ms)
{
    uint64_t end = now_ms() + timeout_ms;
    int status = poll_child(pid);
    while (status == -1 && now_ms() < end) {
        kv_private_pause();
        status = poll_child(pid);
    }
    return status;
}

bool kv_private_wait(pid_t pid, uint32_t timeout_ms)
{
    return wait_status(pid, timeout_ms) != -1;
}

bool kv_private_wait_well(pid_t pid, uint32_t timeout_ms)
{
    int status = wait_status(pid, timeout_ms);
    if (status == -1) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return status == 0;
}

KV_RC kv_private_run(const struct kv_private_user *user, const struct kv_private_program *program, uint32_t timeout_ms,
                     struct kv_errinfo *info)
{
    pid_t pid = 0;
    KV_TRY(kv_private_spawn(user, program, info, &pid));
    uint64_t end = now_ms() + timeout_ms;
    int status = poll_child(pid);
    bool cancelled = false;
    while (status == -1 && now_ms() < end && !cancelled) {
        kv_private_pause();
        cancelled = program->cancelled != NULL && program->cancelled();
        status = poll_child(pid);
    }
    if (status == -1) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return cancelled ? kv_fail(info, KV_E_SHUTTING_DOWN, "asked to end while %s ran", program->argv[0])
                         : kv_fail(info, KV_E_TIMEOUT, "%s did not end in %u ms", program->argv[0], timeout_ms);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        return kv_fail(info, KV_E_IO, "%s failed (status %d)", program->argv[0], status);
    }
    return KV_OK;
}

bool kv_private_can_use(const struct kv_private_user *user, const char *folder)
{
    pid_t pid = fork();
    if (pid < 0) {
        return false;
    }
    if (pid == 0) {
        _exit(become(user) && access(folder, W_OK | X_OK) == 0 ? 0 : 1);
    }
    return wait_status(pid, 5000) == 0;
}

/* ptrace(2): every thread stops where a system call begins and where it ends. */
#include "tests/crash/calls.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

#define THREADS_MAX 256
#define AT_CALL (SIGTRAP | 0x80)
#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)

struct thread {
    pid_t id;
    bool touches, torn; /* the call it is in */
    struct calls_call call;
};

struct watch {
    pid_t pid;
    const struct calls_plan *plan;
    struct calls_end end;
    struct thread threads[THREADS_MAX];
    size_t thread_count;
    char folder[PATH_MAX];
};

const char *calls_moment_name(enum calls_moment moment)
{
    static const char *const names[CALLS_MOMENTS] = {"before", "after", "head", "tail"};
    return names[moment];
}

/* --- which calls touch the file ---------------------------------------------------------------------------------- */

/* Calls with a descriptor as their first argument, and with a path as their first or second. */
static const struct {
    uint64_t number;
    const char *name;
    int fd_at, path_at; /* -1: none */
} known[] = {
    {SYS_read, "read", 0, -1},           {SYS_write, "write", 0, -1},       {SYS_pread64, "pread", 0, -1},
    {SYS_pwrite64, "pwrite", 0, -1},     {SYS_fsync, "fsync", 0, -1},       {SYS_fdatasync, "fdatasync", 0, -1},
    {SYS_ftruncate, "ftruncate", 0, -1}, {SYS_fcntl, "fcntl", 0, -1},       {SYS_fstat, "fstat", 0, -1},
    {SYS_fstatfs, "fstatfs", 0, -1},     {SYS_fadvise64, "fadvise", 0, -1}, {SYS_close, "close", 0, -1},
    {SYS_openat, "openat", -1, 1},       {SYS_newfstatat, "fstatat", 0, 1}, {SYS_statx, "statx", 0, 1},
    {SYS_renameat2, "renameat2", -1, 3},
#ifdef SYS_open /* architectures that came later have none of these */
    {SYS_open, "open", -1, 0},           {SYS_stat, "stat", -1, 0},         {SYS_lstat, "lstat", -1, 0},
    {SYS_rename, "rename", -1, 1},
#endif
};

static bool is_at(const struct stat *found, const char *path)
{
    struct stat named;
    return stat(path, &named) == 0 && named.st_dev == found->st_dev && named.st_ino == found->st_ino;
}

static bool names_fd(const struct watch *watch, uint64_t fd)
{
    char link[64];
    struct stat found;
    if ((int)fd < 0) {
        return false; /* AT_FDCWD */
    }
    snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)watch->pid, (int)fd);
    return stat(link, &found) == 0 && (is_at(&found, watch->plan->path) || is_at(&found, watch->folder));
}

static bool names_path(const struct watch *watch, uint64_t address)
{
    char text[PATH_MAX] = "";
    size_t wanted = strlen(watch->plan->path) + 1;
    struct iovec here = {.iov_base = text, .iov_len = wanted},
                 there = {.iov_base = (void *)(uintptr_t)address, .iov_len = wanted}; /* NOLINT: not our memory */
    if (process_vm_readv(watch->pid, &here, 1, &there, 1, 0) <= 0) {
        return false;
    }
    return strcmp(text, watch->plan->path) == 0 || strcmp(text, watch->folder) == 0;
}

static bool touches(const struct watch *watch, const struct __ptrace_syscall_info *info, struct calls_call *ret_call)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].number != info->entry.nr) {
            continue;
        }
        bool found = (known[i].fd_at >= 0 && names_fd(watch, info->entry.args[known[i].fd_at])) ||
                     (known[i].path_at >= 0 && names_path(watch, info->entry.args[known[i].path_at]));
        bool written = info->entry.nr == SYS_pwrite64;
        *ret_call = (struct calls_call){.name = known[i].name,
                                        .sectors = written ? (uint32_t)(info->entry.args[2] / CALLS_SECTOR) : 0};
        return found;
    }
    return false;
}

/* --- a write of which only a part gets onto the medium ----------------------------------------------------------- */

/* pwrite(fd, buffer, length, offset), begun and not carried out yet, with other arguments. */
static bool set_write(pid_t thread, uint64_t buffer, uint64_t length, uint64_t offset)
{
#if defined(__x86_64__)
    struct user_regs_struct regs;
    struct iovec all = {.iov_base = &regs, .iov_len = sizeof regs};
    if (ptrace(PTRACE_GETREGSET, thread, (void *)NT_PRSTATUS, &all) != 0) {
        return false;
    }
    regs.rsi = buffer;
    regs.rdx = length;
    regs.r10 = offset;
#elif defined(__aarch64__)
    struct user_regs_struct regs;
    struct iovec all = {.iov_base = &regs, .iov_len = sizeof regs};
    if (ptrace(PTRACE_GETREGSET, thread, (void *)NT_PRSTATUS, &all) != 0) {
        return false;
    }
    regs.regs[1] = buffer;
    regs.regs[2] = length;
    regs.regs[3] = offset;
#else
#error "which registers hold the arguments of a system call?"
#endif
    return ptrace(PTRACE_SETREGSET, thread, (void *)NT_PRSTATUS, &all) == 0;
}

static bool tear(const struct watch *watch, struct thread *thread, const struct __ptrace_syscall_info *info)
{
    uint64_t length = info->entry.args[2], kept = (uint64_t)watch->plan->sectors * CALLS_SECTOR;
    uint64_t skipped = watch->plan->moment == CALLS_TAIL ? length - kept : 0;
    thread->torn = set_write(thread->id, info->entry.args[1] + skipped, kept, info->entry.args[3] + skipped);
    return thread->torn;
}

/* --- stops ------------------------------------------------------------------------------------------------------- */

static struct thread *thread_of(struct watch *watch, pid_t id)
{
    for (size_t i = 0; i < watch->thread_count; i++) {
        if (watch->threads[i].id == id) {
            return &watch->threads[i];
        }
    }
    if (watch->thread_count == THREADS_MAX) {
        fprintf(stderr, "more threads than are watched\n");
        abort();
    }
    struct thread *thread = &watch->threads[watch->thread_count++];
    *thread = (struct thread){.id = id};
    return thread;
}

static void forget(struct watch *watch, pid_t id)
{
    struct thread *thread = thread_of(watch, id);
    *thread = watch->threads[--watch->thread_count];
}

static void end_it(struct watch *watch, const struct thread *thread)
{
    watch->end.killed = true;
    watch->end.call = thread->call;
    (void)kill(watch->pid, SIGKILL);
}

static void call_begins(struct watch *watch, struct thread *thread, const struct __ptrace_syscall_info *info)
{
    const struct calls_plan *plan = watch->plan;
    thread->torn = false;
    thread->touches = touches(watch, info, &thread->call);
    if (!thread->touches || watch->end.killed) {
        return;
    }
    watch->end.count++;
    if (plan->look != NULL) {
        plan->look(plan->ctx, &thread->call, true);
    }
    if (watch->end.count != plan->kill_at || plan->moment == CALLS_AFTER) {
        return;
    }
    bool parts = plan->moment != CALLS_BEFORE && plan->sectors < thread->call.sectors;
    if (!parts || !tear(watch, thread, info)) {
        end_it(watch, thread);
    }
}

static void call_ends(struct watch *watch, const struct thread *thread, const struct __ptrace_syscall_info *info)
{
    const struct calls_plan *plan = watch->plan;
    if (!thread->touches || watch->end.killed) {
        return;
    }
    if (plan->look != NULL) {
        plan->look(plan->ctx, &thread->call, false);
    }
    if (thread->torn && info->exit.rval != (int64_t)plan->sectors * CALLS_SECTOR) {
        fprintf(stderr, "a part of a write was refused: %lld\n", (long long)info->exit.rval);
    }
    if (thread->torn || (plan->moment == CALLS_AFTER && watch->end.count == plan->kill_at)) {
        end_it(watch, thread);
    }
}

static void at_call(struct watch *watch, struct thread *thread)
{
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread->id, (void *)sizeof info, &info) <= 0) {
        return; /* it died meanwhile */
    }
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        call_begins(watch, thread, &info);
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        call_ends(watch, thread, &info);
    }
}

/* The signal to hand on: none for stops that are ours. */
static int at_stop(struct watch *watch, pid_t id, int status)
{
    int signal = WSTOPSIG(status);
    if (signal == AT_CALL) {
        at_call(watch, thread_of(watch, id));
        return 0;
    }
    return status >> 16 != 0 ? 0 : signal;
}

bool calls_seize(pid_t pid)
{
    char folder[64];
    snprintf(folder, sizeof folder, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(folder);
    if (tasks == NULL) {
        return false;
    }
    bool held = false;
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        pid_t id = (pid_t)strtol(task->d_name, NULL, 10);
        if (id > 0) { /* one that a seized thread made meanwhile is held already; another one may have ended */
            (void)ptrace(PTRACE_SEIZE, id, NULL, (void *)OPTIONS);
            held = (ptrace(PTRACE_INTERRUPT, id, NULL, NULL) == 0 && id == pid) || held;
        }
    }
    closedir(tasks);
    return held;
}

bool calls_follow(pid_t pid, const struct calls_plan *plan, struct calls_end *ret_end)
{
    struct watch watch = {.pid = pid, .plan = plan};
    const char *slash = strrchr(plan->path, '/');
    snprintf(watch.folder, sizeof watch.folder, "%.*s", (int)(slash - plan->path), plan->path);
    for (;;) {
        int status = 0;
        pid_t id = waitpid(-1, &status, __WALL);
        if (id < 0 && errno == EINTR) {
            continue;
        }
        if (id < 0) {
            fprintf(stderr, "nothing is left to watch: %s\n", strerror(errno));
            return false;
        }
        if (!WIFSTOPPED(status)) {
            forget(&watch, id);
            if (id == pid) {
                watch.end.status = status;
                *ret_end = watch.end;
                return true;
            }
            continue;
        }
        int signal = at_stop(&watch, id, status);
        (void)ptrace(PTRACE_SYSCALL, id, NULL, (void *)(uintptr_t)signal); /* fails for one that was killed */
    }
}

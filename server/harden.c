/*
 * See harden.h. The filter lists what is denied and not what is allowed: what libraries call changes with each of their
 * releases, and a container or service manager brings the other kind (docker/seccomp.json, docker/systemd). It is
 * there before the first thread and the first child, which inherit it. Must never deny what a start or an end needs.
 */
#include "server/harden.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "server/wipe.h"

#include <errno.h>
#include <seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define CHECKS_LEAKS true
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define CHECKS_LEAKS true
#endif
#ifndef CHECKS_LEAKS
#define CHECKS_LEAKS false
#endif

/* The leak checker of a sanitizer stops its own threads with the first two, and has no other way. */
enum { LEAK_CHECKER_NEEDS = 2 };
static const int denied[] = {
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv),
    /* other processes' memory and descriptors */
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(process_madvise),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(kcmp),
    /* the kernel */
    SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(keyctl),
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(syslog),
    SCMP_SYS(iopl),
    SCMP_SYS(ioperm),
    SCMP_SYS(modify_ldt),
    SCMP_SYS(reboot),
    SCMP_SYS(swapon),
    SCMP_SYS(swapoff),
    SCMP_SYS(acct),
    SCMP_SYS(clock_settime),
    SCMP_SYS(settimeofday),
    /* another view of the file system */
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(chroot),
    SCMP_SYS(move_mount),
    SCMP_SYS(open_tree),
    SCMP_SYS(fsopen),
    SCMP_SYS(fsconfig),
    SCMP_SYS(fsmount),
    SCMP_SYS(fspick),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(setns),
    SCMP_SYS(unshare),
};
static const int programs[] = {SCMP_SYS(execve), SCMP_SYS(execveat)};
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

static int deny(scmp_filter_ctx filter, const int *calls, size_t count)
{
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), calls[i], 0);
    }
    return rc;
}

/* 0, or an error number. */
static int load_filter(bool runs_programs)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    if (filter == NULL) {
        return ENOMEM;
    }
    size_t first = CHECKS_LEAKS ? LEAK_CHECKER_NEEDS : 0;
    int rc = deny(filter, denied + first, COUNT_OF(denied) - first);
    if (rc == 0 && !runs_programs) {
        rc = deny(filter, programs, COUNT_OF(programs));
    }
    if (rc == 0) {
        rc = seccomp_load(filter);
    }
    seccomp_release(filter);
    return -rc;
}

static bool filter_calls(const struct kv_conf *conf, bool runs_programs)
{
    if (strcmp(conf->seccomp, "off") == 0) {
        return false;
    }
    int error = KV_FAULT("server/no-seccomp") ? ENOSYS : load_filter(runs_programs);
    if (error != 0) {
        kv_log(KV_LOG_WARN, "server", "no-seccomp", KV_FT("text", strerror(error)));
    }
    return error == 0;
}

/* A core would hold what keys open, and so would a debugger's look. The leak checker needs the latter, though. */
static bool forbid_dumps(void)
{
    struct rlimit no_core = {0};
    if (KV_FAULT("server/dumpable")) {
        return false;
    }
    return setrlimit(RLIMIT_CORE, &no_core) == 0 && (CHECKS_LEAKS || prctl(PR_SET_DUMPABLE, 0) == 0);
}

/* For a test: what becomes of a call that is denied. */
static void try_denied_calls(void)
{
    char target[16];
    struct iovec local = {.iov_base = target, .iov_len = sizeof target};
    if (!KV_FAULT("server/denied-calls")) {
        return;
    }
    long rc = process_vm_writev(getpid(), &local, 1, &local, 1, 0);
    kv_log(KV_LOG_INFO, "server", "denied-call", KV_FT("call", "process_vm_writev"),
           KV_FI("errno", rc < 0 ? errno : 0));
    rc = execve("/nowhere", (char *const[]){NULL}, (char *const[]){NULL});
    kv_log(KV_LOG_INFO, "server", "denied-call", KV_FT("call", "execve"), KV_FI("errno", rc < 0 ? errno : 0));
}

void kv_harden(const struct kv_conf *conf, bool runs_programs)
{
    struct rlimit files;
    umask(0077);
    signal(SIGPIPE, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* the usual 1024 are fewer than http.connections */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    bool undumpable = forbid_dumps(), filtered = filter_calls(conf, runs_programs), wiped = kv_wipe_freed_start();
    kv_log(KV_LOG_INFO, "server", "hardened", KV_FB("undumpable", undumpable), KV_FB("seccomp", filtered),
           KV_FB("freed_wiped", wiped));
    try_denied_calls();
}

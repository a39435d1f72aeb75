/* What the machine, or the container, gives this process. */
#include "server/cli/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif

#define MIB (UINT64_C(1) << 20)
#define ARENA_BYTES (16 * MIB) /* for keys, beside the staging memory */
#define FILES_BESIDE 256       /* of the database, tiers, engines and the process itself */
#define CAP_IPC_LOCK 14
#define YEAR_OF_THIS 1767225600 /* 2026-01-01: a clock before that stands */

static bool read_text(const struct doctor *doctor, const char *name, char *ret_text, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s%s", doctor->root, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    size_t len = fread(ret_text, 1, size - 1, file);
    fclose(file);
    ret_text[len] = '\0';
    ret_text[strcspn(ret_text, "\n")] = '\0';
    return true;
}

/* --- io_uring ----------------------------------------------------------------------------------------------------- */

void doctor_uring(struct doctor *doctor, int error, int disabled)
{
    bool wanted = strcmp(doctor->conf->io_engine, "io_uring") == 0;
    enum doctor_state state = wanted ? DOCTOR_FAIL : DOCTOR_WARN;
    if (error == 0) {
        doctor_say(doctor, "io_uring", DOCTOR_OK, NULL, "the kernel gives rings");
    } else if (strcmp(doctor->conf->io_engine, "threads") == 0) {
        doctor_say(doctor, "io_uring", DOCTOR_OK, NULL, "not to be had, and not wanted: io.engine is threads");
    } else if (error == EPERM && disabled > 0) {
        doctor_say(doctor, "io_uring", state, "sysctl kernel.io_uring_disabled=0, or set io.engine=threads",
                   "kernel.io_uring_disabled is %d; files go through threads, which is slower", disabled);
    } else if (error == EPERM || error == EACCES) {
        doctor_say(doctor, "io_uring", state,
                   "run the container with docker/seccomp-io_uring.json, or set io.engine=threads",
                   "a seccomp profile refuses it; files go through threads, which is slower");
    } else if (error == ENOSYS) {
        doctor_say(doctor, "io_uring", state,
                   "a kernel from 5.15 on, a profile that lets it through, or io.engine=threads",
                   "the kernel has none, or a seccomp profile says so");
    } else {
        doctor_say(doctor, "io_uring", state, "raise the limit of locked memory or of open files", "%s",
                   strerror(error));
    }
}

static void check_uring(struct doctor *doctor)
{
    char params[256] = {0}, text[16] = "";
    long fd = syscall(SYS_io_uring_setup, 4, params);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0) {
        close((int)fd);
    }
    bool known = read_text(doctor, "/proc/sys/kernel/io_uring_disabled", text, sizeof text);
    doctor_uring(doctor, error, known && text[0] >= '0' && text[0] <= '9' ? text[0] - '0' : -1);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

void doctor_memlock(struct doctor *doctor, uint64_t limit, bool unlimited)
{
    uint64_t need = doctor->conf->staging_bytes + ARENA_BYTES;
    if (unlimited || limit >= need) {
        doctor_say(doctor, "memlock", DOCTOR_OK, NULL, "%" PRIu64 " MiB can be locked", need / MIB);
    } else {
        doctor_say(doctor, "memlock", DOCTOR_WARN, "LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (docker)",
                   "%" PRIu64 " KiB of host memory may be locked, %" PRIu64
                   " MiB are wanted: opened blocks and keys could be swapped out",
                   limit / 1024, need / MIB);
    }
}

void doctor_secret_memory(struct doctor *doctor, int error)
{
    if (error == 0) {
        doctor_say(doctor, "secret_memory", DOCTOR_OK, NULL, "the kernel gives memory that not even it reads");
    } else {
        doctor_say(doctor, "secret_memory", DOCTOR_WARN,
                   "secretmem.enable=1 for the kernel (5.14 to 6.4), a newer kernel, or a seccomp profile that lets "
                   "memfd_secret through",
                   "no memfd_secret (%s): who may debug the server reads its keys", strerror(error));
    }
}

static void check_secret_memory(struct doctor *doctor)
{
    long fd = syscall(SYS_memfd_secret, O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0) {
        close((int)fd);
    }
    doctor_secret_memory(doctor, error);
}

static void check_seccomp(struct doctor *doctor)
{
    uint32_t action = SECCOMP_RET_ERRNO;
    if (strcmp(doctor->conf->seccomp, "off") == 0) {
        doctor_say(doctor, "seccomp", DOCTOR_WARN, "hardening.seccomp=auto",
                   "hardening.seccomp is off: whoever gets into the server may use every system call");
    } else if (syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) != 0) {
        doctor_say(doctor, "seccomp", DOCTOR_WARN, "a kernel with CONFIG_SECCOMP_FILTER, from 4.14 on",
                   "this kernel lets no process forbid itself system calls");
    } else {
        doctor_say(doctor, "seccomp", DOCTOR_OK, NULL,
                   doctor->conf->db_url[0] == '\0'
                       ? "the server forbids itself debugging, mounting and the like"
                       : "the server forbids itself debugging, mounting, running programs and the like");
    }
}

static bool may_lock(const struct doctor *doctor)
{
    char path[PATH_MAX], line[256];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "%s/proc/self/status", doctor->root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "CapEff:", 7) == 0) {
            mask = strtoull(line + 7, NULL, 16);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return (mask >> CAP_IPC_LOCK & 1) != 0;
}

static void check_memlock(struct doctor *doctor)
{
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    doctor_memlock(doctor, limit.rlim_cur, limit.rlim_cur == RLIM_INFINITY || may_lock(doctor));
}

static void check_memory(struct doctor *doctor)
{
    uint64_t may = kv_conf_memory(doctor->root), wants = doctor->conf->dram_bytes + doctor->conf->staging_bytes;
    if (wants <= may / 4 * 3) {
        doctor_say(doctor, "memory", DOCTOR_OK, NULL, "dram and staging want %" PRIu64 " of %" PRIu64 " MiB",
                   wants / MIB, may / MIB);
    } else {
        doctor_say(doctor, "memory", wants > may ? DOCTOR_FAIL : DOCTOR_WARN,
                   "less tiers.dram.bytes, or a larger limit of the cgroup (docker --memory, systemd MemoryMax)",
                   "dram and staging want %" PRIu64 " MiB, this process may have %" PRIu64, wants / MIB, may / MIB);
    }
}

/* --- descriptors, clock, cores --------------------------------------------------------------------------------------
 */

static void check_files(struct doctor *doctor)
{
    struct rlimit limit = {0};
    uint64_t need = doctor->conf->http_connections * 2 + FILES_BESIDE;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= need) {
        doctor_say(doctor, "open_files", DOCTOR_OK, NULL, "%" PRIu64 " are enough", (uint64_t)limit.rlim_cur);
    } else {
        doctor_say(doctor, "open_files", DOCTOR_WARN,
                   "LimitNOFILE=65536 (systemd), --ulimit nofile=65536 (docker), ulimit -n; or fewer http.connections",
                   "%" PRIu64 " may be open, http.connections wants %" PRIu64, (uint64_t)limit.rlim_cur, need);
    }
}

static void check_clock(struct doctor *doctor)
{
    struct timex timex = {0};
    int state = adjtimex(&timex);
    if (time(NULL) < YEAR_OF_THIS) {
        doctor_say(doctor, "clock", DOCTOR_FAIL, "set it, and run chrony or systemd-timesyncd",
                   "the clock is years behind: certificates would say the wrong time");
    } else if (state == TIME_ERROR || (timex.status & STA_UNSYNC) != 0) {
        doctor_say(doctor, "clock", DOCTOR_WARN, "run chrony or systemd-timesyncd on the host",
                   "nobody keeps the clock right: the times of certificates are this clock's");
    } else {
        doctor_say(doctor, "clock", DOCTOR_OK, NULL, "kept right, error at most %ld ms", timex.maxerror / 1000);
    }
}

/* The server turns its own dumps off; swap is what could still write its memory somewhere. */
static void check_leaks(struct doctor *doctor)
{
    char path[PATH_MAX], line[256];
    unsigned lines = 0;
    snprintf(path, sizeof path, "%s/proc/swaps", doctor->root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        lines++;
    }
    if (file != NULL) {
        fclose(file);
    }
    doctor_say(doctor, "core_dumps", DOCTOR_OK, NULL, "the server makes none: limit 0, and not dumpable");
    if (lines > 1) {
        doctor_say(doctor, "swap", DOCTOR_WARN, "swapoff -a, or encrypted swap (limit L1 of certificates)",
                   "there is swap: keys are locked in memory, what surrounds them is not");
    } else {
        doctor_say(doctor, "swap", DOCTOR_OK, NULL, "there is none");
    }
}

void doctor_machine(struct doctor *doctor)
{
    check_uring(doctor);
    check_memlock(doctor);
    check_memory(doctor);
    check_files(doctor);
    check_clock(doctor);
    check_leaks(doctor);
    check_secret_memory(doctor);
    check_seccomp(doctor);
}

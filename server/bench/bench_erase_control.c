/*
 * The control of what restores wait: a load of the same size that erases nothing. Processes of their own, one for each
 * processor, take in spurts what the server and its database took of the processors, and end by themselves.
 */
#include "server/bench/bench_erase_int.h"

#include "dataplane/base/env.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SPURT_NS (5 * KV_MS_NS)
#define PROCESSORS_MAX 16
#define DEPTH_MAX 8 /* from a process up to the server */

/* --- what a process and its children took ---------------------------------------------------------------------- */

struct account {
    pid_t parent;
    double seconds;
};

static struct account account_of(pid_t pid)
{
    char path[64];
    int parent = 0;
    unsigned long long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return (struct account){.parent = 0}; /* it has ended */
    }
    /* The name is in parentheses, and those of a server and a database hold none. */
    int fields =
        fscanf(file, "%*d (%*[^)]) %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &parent, &user, &system);
    fclose(file);
    return fields == 3 ? (struct account){parent, (double)(user + system) / (double)sysconf(_SC_CLK_TCK)}
                       : (struct account){.parent = 0};
}

static bool is_below(pid_t pid, pid_t top)
{
    for (int depth = 0; depth < DEPTH_MAX && pid > 1 && pid != top; depth++) {
        pid = account_of(pid).parent;
    }
    return pid == top;
}

double erase_cpu_seconds(pid_t top)
{
    double sum = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry = proc == NULL ? NULL : readdir(proc); entry != NULL; entry = readdir(proc)) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 1 && is_below(pid, top)) {
            sum += account_of(pid).seconds;
        }
    }
    if (proc != NULL) {
        closedir(proc);
    }
    return sum;
}

/* --- the load ---------------------------------------------------------------------------------------------------- */

static void rest(uint64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / KV_S_NS), .tv_nsec = (long)(ns % KV_S_NS)}, NULL);
}

/* In a child: nothing but the clock and sleep, for the parent has threads. */
static void burn(double share, uint64_t ns)
{
    uint64_t end = kv_now_ns(&kv_env_system) + ns;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t now = kv_now_ns(&kv_env_system); now < end; now = kv_now_ns(&kv_env_system)) {
        for (uint64_t until = now + SPURT_NS; now < until; now = kv_now_ns(&kv_env_system)) {
        }
        rest((uint64_t)((double)SPURT_NS * (1 - share) / share));
    }
    _exit(0);
}

KV_RC erase_control_run(double cpu_seconds, double seconds)
{
    pid_t children[PROCESSORS_MAX];
    uint64_t ns = (uint64_t)(seconds * 1e9);
    long processors = sysconf(_SC_NPROCESSORS_ONLN), begun = 0;
    double share = cpu_seconds / seconds / (double)(processors > 0 ? processors : 1);
    share = share < 0.01 ? 0.01 : share > 1 ? 1 : share;
    for (; begun < processors && begun < PROCESSORS_MAX; begun++) {
        children[begun] = fork();
        if (children[begun] == 0) {
            burn(share, ns);
        } else if (children[begun] < 0) {
            break;
        }
    }
    for (long i = 0; i < begun; i++) {
        waitpid(children[i], NULL, 0);
    }
    return begun == processors || begun == PROCESSORS_MAX ? KV_OK : KV_E_NO_MEMORY;
}

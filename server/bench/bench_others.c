/* See bench_others.h: the machine's own account (/proc/stat) less the process's. */
#include "server/bench/bench_others.h"

#include "dataplane/base/env.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* user, nice and system, then interrupts and what the host kept; idle and waiting for a drive lie between. */
static double busy_seconds(void)
{
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL) {
        return -1;
    }
    int fields = fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait,
                        &irq, &softirq, &steal);
    fclose(file);
    return fields == 8 ? (double)(user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK) : -1;
}

static double seconds_of(const struct rusage *usage)
{
    return (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
           (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) / 1e6;
}

static double own_seconds(void)
{
    struct rusage self = {0}, children = {0};
    getrusage(RUSAGE_SELF, &self);
    getrusage(RUSAGE_CHILDREN, &children);
    return seconds_of(&self) + seconds_of(&children);
}

void bench_others_begin(struct bench_others *ret_others)
{
    ret_others->busy_s = busy_seconds();
    ret_others->own_s = own_seconds();
    ret_others->wall_s = (double)kv_now_ns(&kv_env_system) / 1e9;
}

double bench_others_share(const struct bench_others *others)
{
    double busy = busy_seconds();
    double wall = (double)kv_now_ns(&kv_env_system) / 1e9 - others->wall_s;
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    if (busy < 0 || others->busy_s < 0 || wall <= 0 || cpus <= 0) {
        return -1;
    }
    double share = (busy - others->busy_s - (own_seconds() - others->own_s)) / (wall * (double)cpus);
    return share < 0 ? 0 : share; /* the kernel counts in steps of 10 ms */
}

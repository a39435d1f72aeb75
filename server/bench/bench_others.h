/*
 * How much of this machine's processors went to others while a bench ran: other processes, and, on a virtual machine,
 * what its host kept. A figure that stands beside every goal, because a goal that was missed on a busy machine says
 * little. Thread: main.
 */
#ifndef KV_BENCH_OTHERS_H
#define KV_BENCH_OTHERS_H

struct bench_others {
    double busy_s, own_s, wall_s; /* at the beginning */
};

void bench_others_begin(struct bench_others *ret_others);
/* 0 to 1 of all processors, since begin. What this process and its children that have ended used is its own. Negative:
 * this machine does not say. */
double bench_others_share(const struct bench_others *others);

#endif

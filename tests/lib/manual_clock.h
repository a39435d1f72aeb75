/*
 * Time that a test owns. It moves by a microsecond with every look, so that a loop with a deadline ends, and by as much
 * as the test says. Randomness is the system's. Thread: any.
 */
#ifndef KV_TESTS_MANUAL_CLOCK_H
#define KV_TESTS_MANUAL_CLOCK_H

#include "dataplane/base/env.h"

#include <pthread.h>

struct kvt_clock {
    pthread_mutex_t mutex;
    uint64_t now_ns;
    struct kv_env env;
    bool random_fails;
};

void kvt_clock_init(struct kvt_clock *clock);
void kvt_clock_advance(struct kvt_clock *clock, uint64_t ns);
uint64_t kvt_clock_now(struct kvt_clock *clock);

#endif

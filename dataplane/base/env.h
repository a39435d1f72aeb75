/*
 * Time and randomness, passed in and never global, so that a simulator can own them.
 */
#ifndef KV_BASE_ENV_H
#define KV_BASE_ENV_H

#include "dataplane/base/err.h"

#include <time.h>

struct kv_env {
    void *ctx;
    uint64_t (*monotonic_ns)(void *ctx);                  /* CLOCK_MONOTONIC: durations, deadlines */
    uint64_t (*boottime_ns)(void *ctx);                   /* CLOCK_BOOTTIME: leases; goes on while the machine sleeps */
    uint64_t (*realtime_us)(void *ctx);                   /* microseconds since 1970 UTC: what people read */
    KV_RC (*random)(void *ctx, void *target, size_t len); /* getrandom(2), never a user-space generator alone */
};

extern const struct kv_env kv_env_system;

static inline uint64_t kv_now_ns(const struct kv_env *env)
{
    return env->monotonic_ns(env->ctx);
}

/* Nanoseconds as the C library takes them: a monotonic time for a condition's deadline, or a duration. */
static inline struct timespec kv_timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / UINT64_C(1000000000)),
                             .tv_nsec = (long)(ns % UINT64_C(1000000000))};
}

#define KV_MS_NS UINT64_C(1000000)
#define KV_S_NS UINT64_C(1000000000)

/* "2026-11-30T17:18:18.000000Z"; `text` has room for 28. */
void kv_time_text(uint64_t realtime_us, char text[28]);
/* RFC 3339 in UTC with `T` and `Z`, seconds and up to six decimals, 1970 to 9999: KV_E_INVALID_REQUEST for everything
 * else, a leap second among it. */
KV_RC kv_time_parse(const char *text, uint64_t *ret_realtime_us);

#endif

#include "tests/lib/manual_clock.h"

static uint64_t look(void *ctx)
{
    struct kvt_clock *clock = ctx;
    pthread_mutex_lock(&clock->mutex);
    clock->now_ns += 1000;
    uint64_t now = clock->now_ns;
    pthread_mutex_unlock(&clock->mutex);
    return now;
}

static uint64_t look_us(void *ctx)
{
    return UINT64_C(1790000000000000) + look(ctx) / 1000;
}

static enum kv_err random_bytes(void *ctx, void *target, size_t len)
{
    const struct kvt_clock *clock = ctx;
    if (clock->random_fails) {
        return KV_E_IO;
    }
    return kv_env_system.random(kv_env_system.ctx, target, len);
}

void kvt_clock_init(struct kvt_clock *clock)
{
    *clock = (struct kvt_clock){.now_ns = 3600 * KV_S_NS};
    pthread_mutex_init(&clock->mutex, NULL);
    clock->env = (struct kv_env){
        .ctx = clock, .monotonic_ns = look, .boottime_ns = look, .realtime_us = look_us, .random = random_bytes};
}

void kvt_clock_advance(struct kvt_clock *clock, uint64_t ns)
{
    pthread_mutex_lock(&clock->mutex);
    clock->now_ns += ns;
    pthread_mutex_unlock(&clock->mutex);
}

uint64_t kvt_clock_now(struct kvt_clock *clock)
{
    return look(clock);
}

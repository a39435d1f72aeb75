/*
 * Erasures on a server of its own (a child with its own folder, a private PostgreSQL and the file provider): how long
 * one takes from the request to the certificate, and whether that depends on how much the session has; how many a
 * second are certified together; how long other sessions' restores wait meanwhile. Sizes, and with and without, come by
 * turns. Must never count an erasure that did not end with its certificate.
 */
#include "server/bench/bench.h"
#include "server/bench/bench_erase_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/env.h"
#include "dataplane/base/mem.h"

#include <stdio.h>
#include <time.h>

#define SIZES 3u
#define ROUNDS_MAX 8u
#define SMALL_MAX 32u /* erasures of a small size in a round */
#define RESTORES_MAX 8192u

struct scale {
    unsigned rounds, small, blocks[SIZES], batch, batch_rounds, restore_rounds, restore_batch;
};
static const struct scale whole = {.rounds = 6,
                                   .small = 32,
                                   .blocks = {1, 1000, 100000},
                                   .batch = 1000,
                                   .batch_rounds = 3,
                                   .restore_rounds = 5,
                                   .restore_batch = 100};
static const struct scale quick = {.rounds = 2,
                                   .small = 3,
                                   .blocks = {1, 100, 5000},
                                   .batch = 20,
                                   .batch_rounds = 2,
                                   .restore_rounds = 2,
                                   .restore_batch = 4};

struct bench_run {
    struct erase_world world;
    const struct scale *scale;
    double ms[SIZES][ROUNDS_MAX * SMALL_MAX];
    size_t counts[SIZES];
    double restores[RESTORES_MAX];
};

/* --- sizes ------------------------------------------------------------------------------------------------------- */

/* `count` sessions of each of the sizes; all are there before the first is erased, and sizes take turns. */
static KV_RC erase_some(struct bench_run *run, const unsigned *sizes, size_t size_count, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        for (size_t j = 0; j < size_count; j++) {
            char session[BENCH_ID_SIZE];
            unsigned size = sizes[j];
            KV_TRY(erase_session(&run->world, "single", run->scale->blocks[size], session));
            KV_TRY(erase_one(&run->world, session, &run->ms[size][run->counts[size]]));
            run->counts[size]++;
        }
    }
    return KV_OK;
}

static KV_RC round_of_sizes(struct bench_run *run, struct kv_bench_result *result)
{
    static const unsigned all[] = {0, 1, 2}, small[] = {0, 1};
    KV_TRY(erase_some(run, all, 3, 1));
    size_t last = run->counts[0] - 1;
    kv_bench_pair(result, "smallest_ms, largest_ms", run->ms[0][last], run->ms[2][run->counts[2] - 1]);
    return erase_some(run, small, 2, run->scale->small - 1);
}

static KV_RC sizes(struct bench_run *run, struct kv_bench_result *result)
{
    static const char *const p50[SIZES] = {"smallest_p50_ms", "middle_p50_ms", "largest_p50_ms"};
    static const char *const p99[SIZES] = {"smallest_p99_ms", "middle_p99_ms", "largest_p99_ms"};
    static const char *const blocks[SIZES] = {"smallest_blocks", "middle_blocks", "largest_blocks"};
    double medians[SIZES];
    for (unsigned round = 0; round < run->scale->rounds; round++) {
        KV_TRY(round_of_sizes(run, result));
    }
    for (unsigned size = 0; size < SIZES; size++) {
        medians[size] = kv_bench_percentile(run->ms[size], run->counts[size], 50);
        kv_bench_goal(result, p50[size], 50, medians[size]);
        kv_bench_goal(result, p99[size], 250, kv_bench_percentile(run->ms[size], run->counts[size], 99));
        kv_bench_figure(result, blocks[size], run->scale->blocks[size]);
    }
    size_t count = run->counts[0];
    result->noise = medians[0] > 0 ? (run->ms[0][count * 3 / 4] - run->ms[0][count / 4]) / medians[0] : 0;
    kv_bench_goal(result, "largest_to_smallest_ratio", 1.5, medians[0] > 0 ? medians[2] / medians[0] : 0);
    kv_bench_figure(result, "smallest_count", (double)count);
    kv_bench_figure(result, "largest_count", (double)run->counts[2]);
    kv_bench_figure(result, "block_bytes", ERASE_PAGE_BYTES);
    return KV_OK;
}

/* --- batches ----------------------------------------------------------------------------------------------------- */

/* Each with a block, and between every two of them one that goes on living in the same node of the key tree. */
static KV_RC make_group(struct bench_run *run, const char *label, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char session[BENCH_ID_SIZE];
        KV_TRY(erase_session(&run->world, label, 1, session));
        KV_TRY(erase_session(&run->world, "lives", 1, session));
    }
    return KV_OK;
}

static KV_RC batches(struct bench_run *run, struct kv_bench_result *result)
{
    double rates[ROUNDS_MAX];
    unsigned rounds = run->scale->batch_rounds;
    for (unsigned round = 0; round < rounds; round++) {
        char label[32];
        double ms = 0;
        snprintf(label, sizeof label, "batch-%u", round);
        KV_TRY(make_group(run, label, run->scale->batch));
        KV_TRY(erase_label(&run->world, label, &ms));
        rates[round] = ms > 0 ? run->scale->batch * 1e3 / ms : 0;
    }
    kv_bench_goal_least(result, "batched_certified_per_s", 500, kv_bench_percentile(rates, rounds, 50));
    kv_bench_figure(result, "batched_worst_round_per_s", rates[0]);
    kv_bench_figure(result, "batched_sessions", run->scale->batch);
    return KV_OK;
}

/* --- restores meanwhile ------------------------------------------------------------------------------------------ */

struct window {
    uint64_t begun_ns;
    double p50, p99, seconds;
    double cpu_s; /* that the server and its database took; at the beginning, and then in the window */
    size_t restores;
};

static void open_window(struct bench_run *run, struct erase_reader *reader, struct window *window)
{
    erase_reader_take(reader, run->restores, RESTORES_MAX);
    window->cpu_s = erase_cpu_seconds(run->world.scratch.server);
    window->begun_ns = kv_now_ns(&kv_env_system);
}

static KV_RC look(struct bench_run *run, struct erase_reader *reader, struct window *ret_window)
{
    uint64_t begun_ns = ret_window->begun_ns;
    ret_window->cpu_s = erase_cpu_seconds(run->world.scratch.server) - ret_window->cpu_s;
    ret_window->restores = erase_reader_take(reader, run->restores, RESTORES_MAX);
    ret_window->seconds = (double)(kv_now_ns(&kv_env_system) - begun_ns) / 1e9;
    if (ret_window->restores == 0) {
        return kv_fail(run->world.info, KV_E_TIMEOUT, "no restore ended while erasures ran");
    }
    ret_window->p50 = kv_bench_percentile(run->restores, ret_window->restores, 50);
    ret_window->p99 = kv_bench_percentile(run->restores, ret_window->restores, 99);
    return KV_OK;
}

/* A group at once, and then one after the other. */
static KV_RC with_erasures(struct bench_run *run, struct erase_reader *reader, const char *label,
                           struct window *ret_window)
{
    char sessions[SMALL_MAX][BENCH_ID_SIZE];
    double ms = 0;
    KV_ASSERT(run->scale->small <= SMALL_MAX);
    KV_TRY(make_group(run, label, run->scale->restore_batch));
    for (unsigned i = 0; i < run->scale->small; i++) {
        KV_TRY(erase_session(&run->world, "single", run->scale->blocks[1], sessions[i]));
    }
    open_window(run, reader, ret_window);
    KV_TRY(erase_label(&run->world, label, &ms));
    for (unsigned i = 0; i < run->scale->small; i++) {
        KV_TRY(erase_one(&run->world, sessions[i], &ms));
    }
    return look(run, reader, ret_window);
}

static KV_RC without(struct bench_run *run, struct erase_reader *reader, double seconds, struct window *ret_window)
{
    uint64_t ns = (uint64_t)(seconds * 1e9);
    open_window(run, reader, ret_window);
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / KV_S_NS), .tv_nsec = (long)(ns % KV_S_NS)}, NULL);
    return look(run, reader, ret_window);
}

/* As much of the processors, taken by processes that erase nothing: what restores wait for the scheduler alone. */
static KV_RC control(struct bench_run *run, struct erase_reader *reader, const struct window *with,
                     const struct window *base, struct window *ret_window)
{
    open_window(run, reader, ret_window);
    KV_TRY(erase_control_run(with->cpu_s - base->cpu_s, with->seconds));
    return look(run, reader, ret_window);
}

static KV_RC windows(struct bench_run *run, struct erase_reader *reader, struct kv_bench_result *result)
{
    double delays[ROUNDS_MAX], alone[ROUNDS_MAX], during[ROUNDS_MAX], middles[ROUNDS_MAX];
    double controls[ROUNDS_MAX], cores[ROUNDS_MAX];
    unsigned rounds = run->scale->restore_rounds;
    for (unsigned round = 0; round < rounds; round++) {
        char label[32];
        struct window with, base, same;
        snprintf(label, sizeof label, "meanwhile-%u", round);
        KV_TRY(with_erasures(run, reader, label, &with));
        KV_TRY(without(run, reader, with.seconds, &base));
        KV_TRY(control(run, reader, &with, &base, &same));
        kv_bench_pair(result, "restore_p99_ms, restore_p99_during_erasures_ms", base.p99, with.p99);
        controls[round] = same.p99 - base.p99;
        cores[round] = (with.cpu_s - base.cpu_s) / with.seconds;
        delays[round] = with.p99 - base.p99;
        middles[round] = with.p50 - base.p50;
        alone[round] = base.p99;
        during[round] = with.p99;
    }
    kv_bench_goal(result, "restore_delay_p99_ms", 5, kv_bench_percentile(delays, rounds, 50));
    kv_bench_figure(result, "restore_delay_p50_ms", kv_bench_percentile(middles, rounds, 50));
    kv_bench_figure(result, "restore_control_delay_p99_ms", kv_bench_percentile(controls, rounds, 50));
    kv_bench_figure(result, "erasures_cpu_cores", kv_bench_percentile(cores, rounds, 50));
    kv_bench_figure(result, "restore_alone_p99_ms", kv_bench_percentile(alone, rounds, 50));
    kv_bench_figure(result, "restore_during_p99_ms", kv_bench_percentile(during, rounds, 50));
    return KV_OK;
}

static KV_RC restores(struct bench_run *run, struct kv_bench_result *result)
{
    struct erase_reader *reader = NULL;
    struct kv_errinfo why = {0};
    KV_TRY(erase_reader_start(&run->world, &reader));
    enum kv_err rc = windows(run, reader, result);
    enum kv_err ended = erase_reader_stop(reader, &why);
    if (rc == KV_OK && ended != KV_OK) {
        *run->world.info = why;
        rc = ended;
    }
    return rc;
}

static KV_RC measure(struct bench_run *run, struct kv_bench_result *result)
{
    KV_TRY(erase_world_open(&run->world));
    KV_TRY(sizes(run, result));
    KV_TRY(batches(run, result));
    return restores(run, result);
}

KV_RC kv_bench_erase(bool short_run, struct kv_bench_result *result, struct kv_errinfo *info)
{
    struct bench_run *run KV_CLEANUP(kv_freep) = kv_alloc(sizeof *run);
    if (run == NULL) {
        return KV_E_NO_MEMORY;
    }
    run->scale = short_run ? &quick : &whole;
    run->world.info = info;
    enum kv_err rc = measure(run, result);
    enum kv_err ended = erase_world_close(&run->world);
    return rc != KV_OK ? rc : ended;
}

/*
 * Sealing against copying: our envelope over pages of a pool, memcpy of the same runs, and OpenSSL alone, by turns in
 * one run, on one thread and on two. Both directions. Must never compare arms that did not move the same bytes.
 */
#include "server/bench/bench_seal_int.h"

#include "dataplane/base/check.h"
#include "server/bench/bench.h"

#include <pthread.h>
#include <string.h>

#define THREADS_MAX 2u
#define ROUNDS_MAX 25u

/* Llama 3.1 8B, 16 tokens a page: 32 layers, K and V, 32 KiB each. A small model's page of 64 KiB. And one block, the
 * same again and again, that stays in a core's own cache: there the memory is no limit and only the cipher counts. */
static const struct seal_shape large = {.regions = 64, .slots = 32, .run_bytes = 32 << 10, .blocks = 32};
static const struct seal_shape small = {.regions = 16, .slots = 256, .run_bytes = 4 << 10, .blocks = 256};
static const struct seal_shape cached = {.regions = 16, .slots = 1, .run_bytes = 32 << 10, .blocks = 64};

/* GB/s of each arm, by round. */
struct speeds {
    double copy[ROUNDS_MAX], seal[ROUNDS_MAX], evp[ROUNDS_MAX], scatter[ROUNDS_MAX], open[ROUNDS_MAX];
};

struct world {
    struct kv_pool *pool;
    struct seal_lane lanes[THREADS_MAX];
    unsigned threads, rounds, lanes_open;
    struct speeds speeds;
    struct kv_errinfo *info;
};

static KV_RC world_open(struct world *world, const struct seal_shape *shape)
{
    KV_TRY(seal_pool_new(shape, THREADS_MAX, world->info, &world->pool));
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        world->lanes_open = i + 1;
        KV_TRY(seal_lane_open(&world->lanes[i], world->pool, shape, i * shape->slots));
    }
    return KV_OK;
}

static void world_close(struct world *world)
{
    for (unsigned i = 0; i < world->lanes_open; i++) {
        seal_lane_close(&world->lanes[i]);
    }
    world->lanes_open = 0;
    kv_pool_unref(world->pool);
    world->pool = NULL;
}

/* ---- one arm on some threads ---- */

struct job {
    struct seal_lane *lane;
    enum seal_arm arm;
    unsigned first, blocks;
    pthread_barrier_t *start;
};

static void *run_job(void *arg)
{
    struct job *job = arg;
    pthread_barrier_wait(job->start);
    seal_lane_run(job->lane, job->arm, job->first, job->blocks);
    return NULL;
}

static KV_RC sum_up(const struct world *world, unsigned blocks, double *ret_gb_per_s)
{
    double sum = 0;
    for (unsigned i = 0; i < world->threads; i++) {
        const struct seal_lane *lane = &world->lanes[i];
        KV_TRY(lane->rc);
        KV_ASSERT(lane->cpu_s > 0);
        sum += (double)blocks * (double)(lane->shape->regions * lane->shape->run_bytes) / lane->cpu_s / 1e9;
    }
    *ret_gb_per_s = sum;
    return KV_OK;
}

static KV_RC run_part(struct world *world, enum seal_arm arm, unsigned first, unsigned blocks, double *ret_gb_per_s)
{
    pthread_t threads[THREADS_MAX];
    pthread_barrier_t start;
    struct job jobs[THREADS_MAX];
    pthread_barrier_init(&start, NULL, world->threads);
    for (unsigned i = 0; i < world->threads; i++) {
        jobs[i] = (struct job){.lane = &world->lanes[i], .arm = arm, .first = first, .blocks = blocks, .start = &start};
        /* A barrier that waits for a thread which never came would wait for good. */
        KV_ASSERT(pthread_create(&threads[i], NULL, run_job, &jobs[i]) == 0);
    }
    for (unsigned i = 0; i < world->threads; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&start);
    return sum_up(world, blocks, ret_gb_per_s);
}

static KV_RC run_arm(struct world *world, enum seal_arm arm, double *ret_gb_per_s)
{
    return run_part(world, arm, 0, world->lanes[0].shape->blocks, ret_gb_per_s);
}

/* The best of OpenSSL's contexts in this round; each takes its share of the pages. */
static KV_RC run_evp(struct world *world, double *ret_gb_per_s)
{
    unsigned share = world->lanes[0].shape->blocks / SEAL_CONTEXTS;
    double best = 0;
    for (unsigned context = 0; context < SEAL_CONTEXTS; context++) {
        double gb_per_s = 0;
        for (unsigned i = 0; i < world->threads; i++) {
            world->lanes[i].context = context;
        }
        KV_TRY(run_part(world, SEAL_EVP, context * share, share, &gb_per_s));
        best = gb_per_s > best ? gb_per_s : best;
    }
    *ret_gb_per_s = best;
    return KV_OK;
}

/* Who is first changes from round to round. */
static KV_RC run_round(struct world *world, unsigned round)
{
    struct speeds *speeds = &world->speeds;
    bool copy_first = round % 2 == 0;
    if (copy_first) {
        KV_TRY(run_arm(world, SEAL_COPY, &speeds->copy[round]));
    }
    KV_TRY(run_arm(world, SEAL_SEAL, &speeds->seal[round]));
    if (!copy_first) {
        KV_TRY(run_arm(world, SEAL_COPY, &speeds->copy[round]));
    }
    KV_TRY(run_evp(world, &speeds->evp[round]));
    if (copy_first) {
        KV_TRY(run_arm(world, SEAL_SCATTER, &speeds->scatter[round]));
    }
    KV_TRY(run_arm(world, SEAL_OPEN, &speeds->open[round]));
    if (!copy_first) {
        KV_TRY(run_arm(world, SEAL_SCATTER, &speeds->scatter[round]));
    }
    return KV_OK;
}

/* ---- what comes of it ---- */

/* The names of what is measured at one size and number of threads. */
struct names {
    const char *pair, *seal_to_copy, *seal_to_openssl, *open_to_copy, *copy_to_openssl;
    const char *copy, *seal, *openssl, *scatter, *open;
};

#define NAMES(OF)                                                                                                   \
    {                                                                                                               \
        .pair = "copy_" OF "_gb_per_s, seal_" OF "_gb_per_s", .seal_to_copy = "seal_to_copy_" OF "_ratio",          \
        .seal_to_openssl = "seal_to_openssl_" OF "_ratio", .open_to_copy = "open_to_copy_" OF "_ratio",             \
        .copy_to_openssl = "copy_to_openssl_" OF "_ratio", .copy = "copy_" OF "_gb_per_s",                          \
        .seal = "seal_" OF "_gb_per_s", .openssl = "openssl_" OF "_gb_per_s", .scatter = "scatter_" OF "_gb_per_s", \
        .open = "open_" OF "_gb_per_s",                                                                             \
    }

static const struct names large_names[THREADS_MAX] = {NAMES("1_thread"), NAMES("2_threads")};
static const struct names small_names = NAMES("64_kib"), cached_names = NAMES("in_cache");

/* The median of the rounds' own ratios; *ret_noise: their spread. */
static double ratio(const double *value, const double *base, unsigned rounds, double *ret_noise)
{
    double ratios[ROUNDS_MAX];
    for (unsigned i = 0; i < rounds; i++) {
        ratios[i] = value[i] / base[i];
    }
    double middle = kv_bench_percentile(ratios, rounds, 50);
    *ret_noise = (ratios[rounds - 1] - ratios[0]) / middle;
    return middle;
}

static void show_speeds(struct world *world, const struct names *names, struct kv_bench_result *result)
{
    struct speeds *speeds = &world->speeds;
    kv_bench_figure(result, names->copy, kv_bench_percentile(speeds->copy, world->rounds, 50));
    kv_bench_figure(result, names->seal, kv_bench_percentile(speeds->seal, world->rounds, 50));
    kv_bench_figure(result, names->openssl, kv_bench_percentile(speeds->evp, world->rounds, 50));
    kv_bench_figure(result, names->scatter, kv_bench_percentile(speeds->scatter, world->rounds, 50));
    kv_bench_figure(result, names->open, kv_bench_percentile(speeds->open, world->rounds, 50));
}

/* Processors have AES on vectors and this together; clang cannot ask for the former. */
static bool has_vector_aes(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}

/* OpenSSL is what seals where libipsec-mb does not fit: then the envelope may cost two percent. */
static double openssl_goal(const struct world *world)
{
    bool fast = strcmp(kv_sealer_backend(world->lanes[0].sealer), "ipsec-mb") == 0 && has_vector_aes();
    return fast ? 3 : 0.98;
}

static double median(const struct world *world, const double *value, const double *base)
{
    double noise = 0;
    return ratio(value, base, world->rounds, &noise);
}

/* Where copying alone is not that much faster than OpenSSL the memory is the limit: nothing that also copies can be.
 * Then the ratio is a figure, and the goal is the one in the cache. */
static void compare_openssl(struct world *world, const struct names *names, struct kv_bench_result *result)
{
    struct speeds *speeds = &world->speeds;
    double value = median(world, speeds->seal, speeds->evp), ceiling = median(world, speeds->copy, speeds->evp);
    if (ceiling >= openssl_goal(world)) {
        kv_bench_goal_least(result, names->seal_to_openssl, openssl_goal(world), value);
    } else {
        kv_bench_figure(result, names->seal_to_openssl, value);
    }
    kv_bench_figure(result, names->copy_to_openssl, ceiling);
}

static void add_goals(struct world *world, const struct names *names, struct kv_bench_result *result)
{
    struct speeds *speeds = &world->speeds;
    double noise = 0;
    kv_bench_goal_least(result, names->seal_to_copy, 0.70, ratio(speeds->seal, speeds->copy, world->rounds, &noise));
    result->noise = noise > result->noise ? noise : result->noise;
    compare_openssl(world, names, result);
    kv_bench_figure(result, names->open_to_copy, median(world, speeds->open, speeds->scatter));
    for (unsigned i = 0; i < world->rounds; i++) {
        kv_bench_pair(result, names->pair, speeds->copy[i], speeds->seal[i]);
    }
}

static KV_RC run_rounds(struct world *world, unsigned threads)
{
    world->threads = threads;
    KV_TRY(run_round(world, 0)); /* caches, page tables and the clock's speed settle */
    for (unsigned round = 0; round < world->rounds; round++) {
        KV_TRY(run_round(world, round));
    }
    return KV_OK;
}

static KV_RC measure_large(struct world *world, struct kv_bench_result *result)
{
    KV_TRY(world_open(world, &large));
    for (unsigned threads = 1; threads <= THREADS_MAX; threads++) {
        KV_TRY(run_rounds(world, threads));
        add_goals(world, &large_names[threads - 1], result);
        show_speeds(world, &large_names[threads - 1], result);
    }
    return KV_OK;
}

static KV_RC measure_small(struct world *world, struct kv_bench_result *result)
{
    struct speeds *speeds = &world->speeds;
    KV_TRY(world_open(world, &small));
    KV_TRY(run_rounds(world, 1));
    kv_bench_figure(result, small_names.seal_to_copy, median(world, speeds->seal, speeds->copy));
    kv_bench_figure(result, small_names.seal_to_openssl, median(world, speeds->seal, speeds->evp));
    kv_bench_figure(result, small_names.open_to_copy, median(world, speeds->open, speeds->scatter));
    show_speeds(world, &small_names, result);
    return KV_OK;
}

static KV_RC measure_cached(struct world *world, struct kv_bench_result *result)
{
    struct speeds *speeds = &world->speeds;
    KV_TRY(world_open(world, &cached));
    KV_TRY(run_rounds(world, 1));
    kv_bench_goal_least(result, cached_names.seal_to_openssl, openssl_goal(world),
                        median(world, speeds->seal, speeds->evp));
    show_speeds(world, &cached_names, result);
    return KV_OK;
}

KV_RC kv_bench_seal(bool quick, struct kv_bench_result *result, struct kv_errinfo *info)
{
    static enum kv_err (*const parts[])(struct world * world, struct kv_bench_result * result) = {
        measure_large, measure_small, measure_cached};
    struct world world = {.rounds = quick ? 2 : ROUNDS_MAX, .info = info};
    enum kv_err rc = KV_OK;
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0] && rc == KV_OK; i++) {
        rc = parts[i](&world, result);
        world_close(&world);
    }
    return rc;
}

/*
 * What sealing costs where blocks also move to a drive: the same pipeline with memcpy in the place of sealing, by turns
 * in one run, both directions; then a whole server as a share of the pipeline. Must never compare rounds that did not
 * move the same bytes.
 */
#include "server/bench/bench_pipeline_int.h"

#include "server/bench/bench.h"

#define ROUNDS_MAX 25u
#define SERVER_ROUNDS 7u
#define WARM_ROUNDS 2u /* of the server, which touches the memory of a tier when it needs it */

static const struct pipe_shape large = {.seal = {.regions = 64, .slots = 32, .run_bytes = 32 << 10, .blocks = 64},
                                        .depth = 8,
                                        .targets = 9,
                                        .file_blocks = 64};
/* What the server is compared with. Its engines' pages are in one piece; its dram tier (pipe_server's) has 384 MiB,
 * which it goes through; and what it writes does not lie where something was written before. So it is here. */
static const struct pipe_shape whole_large = {.seal = {.regions = 1, .slots = 32, .run_bytes = 2 << 20, .blocks = 128},
                                              .depth = 8,
                                              .targets = 180,
                                              .file_blocks = 512,
                                              .only_sealed = true};
static const struct pipe_shape whole_small = {
    .seal = {.regions = 1, .slots = 256, .run_bytes = 64 << 10, .blocks = 4096},
    .depth = 32,
    .targets = 5400,
    .file_blocks = 16384,
    .only_sealed = true};
static const struct pipe_shape small = {.seal = {.regions = 16, .slots = 256, .run_bytes = 4 << 10, .blocks = 1024},
                                        .depth = 32,
                                        .targets = 33,
                                        .file_blocks = 1024};

struct names {
    const char *ratio, *core_ratio, *again, *pair, *gb_per_s, *core_s, *copy_gb_per_s, *copy_core_s;
};

/* What is compared: `run` moves the same bytes as ours does, or as what it is held against. */
struct comparison {
    enum kv_err (*run)(const struct comparison *comparison, bool ours, struct pipe_time *ret_time);
    struct pipe *pipe;
    struct pipe_server *server;
    enum seal_arm copy, ours;
    const struct names *names;
    double goal; /* 0: none */
    unsigned rounds;
    struct kv_errinfo *info;
};

struct rounds {
    struct pipe_time copy[ROUNDS_MAX], ours[ROUNDS_MAX], again[ROUNDS_MAX];
    unsigned count;
};

static double speed(const struct pipe_time *time)
{
    return time->gb_per_s;
}

static double frugality(const struct pipe_time *time)
{
    return 1 / time->core_s_per_gb;
}

typedef double measure_fn(const struct pipe_time *time);

static double percentile(const struct pipe_time *times, unsigned count, measure_fn *of, double percent)
{
    double values[ROUNDS_MAX];
    for (unsigned i = 0; i < count; i++) {
        values[i] = of(&times[i]);
    }
    return kv_bench_percentile(values, count, percent);
}

/* Of the rounds' own ratios. */
static double ratio(const struct pipe_time *value, const struct pipe_time *base, unsigned count, measure_fn *of,
                    double percent)
{
    double ratios[ROUNDS_MAX];
    for (unsigned i = 0; i < count; i++) {
        ratios[i] = of(&value[i]) / of(&base[i]);
    }
    return kv_bench_percentile(ratios, count, percent);
}

/* Ours stands between two of the other, so that what changes slowly changes both. */
static KV_RC run_rounds(const struct comparison *comparison, struct rounds *rounds)
{
    for (unsigned i = 0; i < rounds->count; i++) {
        KV_TRY(comparison->run(comparison, false, &rounds->copy[i]));
        KV_TRY(comparison->run(comparison, true, &rounds->ours[i]));
        KV_TRY(comparison->run(comparison, false, &rounds->again[i]));
    }
    return KV_OK;
}

static void show(const struct names *names, const struct rounds *rounds, struct kv_bench_result *result)
{
    kv_bench_figure(result, names->again, ratio(rounds->again, rounds->copy, rounds->count, speed, 50));
    kv_bench_figure(result, names->gb_per_s, percentile(rounds->ours, rounds->count, speed, 50));
    kv_bench_figure(result, names->core_s, 1 / percentile(rounds->ours, rounds->count, frugality, 50));
    kv_bench_figure(result, names->copy_gb_per_s, percentile(rounds->copy, rounds->count, speed, 50));
    kv_bench_figure(result, names->copy_core_s, 1 / percentile(rounds->copy, rounds->count, frugality, 50));
}

/* What is held against itself says what the clock on the wall is worth here. Where half of those ratios do not lie
 * within five percent of 1, the goal is judged by what the arms took of the processors, which others disturb less. */
static bool is_steady(const struct rounds *rounds)
{
    return ratio(rounds->again, rounds->copy, rounds->count, speed, 25) >= 0.95 &&
           ratio(rounds->again, rounds->copy, rounds->count, speed, 75) <= 1.05;
}

static double noise_of(const struct rounds *rounds, measure_fn *of)
{
    double least = ratio(rounds->ours, rounds->copy, rounds->count, of, 0);
    double most = ratio(rounds->ours, rounds->copy, rounds->count, of, 100);
    return (most - least) / ratio(rounds->ours, rounds->copy, rounds->count, of, 50);
}

static void judge(const struct comparison *comparison, const struct rounds *rounds, struct kv_bench_result *result)
{
    const struct names *names = comparison->names;
    bool steady = is_steady(rounds);
    double wall = ratio(rounds->ours, rounds->copy, rounds->count, speed, 50);
    double cores = ratio(rounds->ours, rounds->copy, rounds->count, frugality, 50);
    double noise = noise_of(rounds, steady ? speed : frugality);
    kv_bench_goal_least(result, steady ? names->ratio : names->core_ratio, comparison->goal, steady ? wall : cores);
    kv_bench_figure(result, steady ? names->core_ratio : names->ratio, steady ? cores : wall);
    result->noise = noise > result->noise ? noise : result->noise;
    for (unsigned i = 0; i < rounds->count; i++) {
        kv_bench_pair(result, names->pair, rounds->copy[i].gb_per_s, rounds->ours[i].gb_per_s);
    }
}

static KV_RC compare(const struct comparison *comparison, struct kv_bench_result *result)
{
    const struct names *names = comparison->names;
    struct rounds rounds = {.count = comparison->rounds};
    KV_TRY(run_rounds(comparison, &rounds));
    if (comparison->goal > 0) {
        judge(comparison, &rounds, result);
    } else {
        kv_bench_figure(result, names->ratio, ratio(rounds.ours, rounds.copy, rounds.count, speed, 50));
        kv_bench_figure(result, names->core_ratio, ratio(rounds.ours, rounds.copy, rounds.count, frugality, 50));
    }
    show(names, &rounds, result);
    return KV_OK;
}

#define NAMES(OURS, COPY, OF)                                                                                      \
    {                                                                                                              \
        .ratio = OURS "_to_" COPY OF "_ratio", .core_ratio = COPY "_to_" OURS OF "_core_s_ratio",                  \
        .again = COPY "_to_itself" OF "_ratio", .pair = COPY OF "_gb_per_s, " OURS OF "_gb_per_s",                 \
        .gb_per_s = OURS OF "_gb_per_s", .core_s = OURS OF "_core_s_per_gb", .copy_gb_per_s = COPY OF "_gb_per_s", \
        .copy_core_s = COPY OF "_core_s_per_gb",                                                                   \
    }

static const struct names write_names = NAMES("seal_write", "copy_write", ""),
                          read_names = NAMES("read_open", "read_copy", ""),
                          small_write_names = NAMES("seal_write", "copy_write", "_64_kib"),
                          small_read_names = NAMES("read_open", "read_copy", "_64_kib"),
                          server_names = NAMES("server", "pipeline", ""),
                          small_server_names = NAMES("server", "pipeline", "_64_kib");

/* ---- the pipeline ---- */

static enum kv_err run_bare(const struct comparison *comparison, bool ours, struct pipe_time *ret_time)
{
    return pipe_run(comparison->pipe, ours ? comparison->ours : comparison->copy, ret_time);
}

static KV_RC both_ways(struct pipe *pipe, bool is_small, unsigned rounds, struct kv_bench_result *result)
{
    const struct comparison write = {.run = run_bare,
                                     .pipe = pipe,
                                     .copy = SEAL_COPY,
                                     .ours = SEAL_SEAL,
                                     .names = is_small ? &small_write_names : &write_names,
                                     .goal = is_small ? 0 : 0.90,
                                     .rounds = rounds};
    const struct comparison read = {.run = run_bare,
                                    .pipe = pipe,
                                    .copy = SEAL_SCATTER,
                                    .ours = SEAL_OPEN,
                                    .names = is_small ? &small_read_names : &read_names,
                                    .goal = is_small ? 0 : 0.80,
                                    .rounds = rounds};
    struct pipe_time warm;
    KV_TRY(pipe_run(pipe, SEAL_COPY, &warm));
    KV_TRY(pipe_run(pipe, SEAL_SEAL, &warm));
    KV_TRY(compare(&write, result));
    return compare(&read, result);
}

static KV_RC bare(const struct pipe_shape *shape, unsigned rounds, struct kv_bench_result *result,
                  struct kv_errinfo *info)
{
    struct pipe *pipe = NULL;
    KV_TRY(pipe_open(shape, info, &pipe));
    enum kv_err rc = both_ways(pipe, shape == &small, rounds, result);
    pipe_close(pipe);
    return rc;
}

/* ---- the product ---- */

static enum kv_err run_product(const struct comparison *comparison, bool ours, struct pipe_time *ret_time)
{
    return ours ? pipe_server_run(comparison->server, comparison->info, ret_time)
                : pipe_run(comparison->pipe, SEAL_SEAL, ret_time);
}

static KV_RC with_engines(struct comparison *comparison, const struct pipe_shape *shape, struct kv_bench_result *result)
{
    struct pipe_time warm;
    KV_TRY(pipe_server_connect(comparison->server, (unsigned)shape->seal.run_bytes, comparison->info));
    KV_TRY(run_product(comparison, false, &warm));
    for (unsigned i = 0; i < WARM_ROUNDS; i++) {
        KV_TRY(run_product(comparison, true, &warm));
    }
    return compare(comparison, result);
}

static KV_RC product(struct pipe_server *server, bool is_small, unsigned rounds, struct kv_bench_result *result,
                     struct kv_errinfo *info)
{
    const struct pipe_shape *shape = is_small ? &whole_small : &whole_large;
    struct comparison comparison = {.run = run_product,
                                    .server = server,
                                    .names = is_small ? &small_server_names : &server_names,
                                    .goal = is_small ? 0 : 0.90,
                                    .rounds = rounds,
                                    .info = info};
    KV_TRY(pipe_open(shape, info, &comparison.pipe));
    enum kv_err rc = with_engines(&comparison, shape, result);
    pipe_server_disconnect(server);
    pipe_close(comparison.pipe);
    return rc;
}

static KV_RC measure(struct pipe_server *server, bool quick, struct kv_bench_result *result, struct kv_errinfo *info)
{
    unsigned rounds = quick ? 2 : ROUNDS_MAX, server_rounds = quick ? 1 : SERVER_ROUNDS;
    KV_TRY(bare(&large, rounds, result, info));
    KV_TRY(bare(&small, rounds, result, info));
    KV_TRY(product(server, false, server_rounds, result, info));
    return product(server, true, server_rounds, result, info);
}

KV_RC kv_bench_pipeline(bool quick, struct kv_bench_result *result, struct kv_errinfo *info)
{
    struct pipe_server *server = NULL;
    struct kv_errinfo why = {0};
    KV_TRY(pipe_server_open(2 * ((quick ? 1 : SERVER_ROUNDS) + WARM_ROUNDS), info, &server)); /* of two sizes */
    enum kv_err rc = measure(server, quick, result, info);
    enum kv_err ended = pipe_server_close(server, &why);
    if (rc == KV_OK && ended != KV_OK) {
        *info = why;
    }
    return rc != KV_OK ? rc : ended;
}

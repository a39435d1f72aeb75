/*
 * What sealing costs where blocks also move to a drive: the same pipeline with memcpy in the place of sealing, by turns
 * in one run, both directions; then a whole server as a share of the pipeline. Must never compare rounds that did not
 * move the same bytes.
 */
#include "server/bench/bench_pipeline_int.h"

#include "server/bench/bench.h"

#define ROUNDS_MAX 25u

static const struct pipe_shape large = {.seal = {.regions = 64, .slots = 32, .run_bytes = 32 << 10, .blocks = 64},
                                        .depth = 8};
static const struct pipe_shape small = {.seal = {.regions = 16, .slots = 256, .run_bytes = 4 << 10, .blocks = 1024},
                                        .depth = 32};

struct names {
    const char *ratio, *core_ratio, *again, *pair, *gb_per_s, *core_s, *copy_gb_per_s, *copy_core_s;
};

struct direction {
    enum seal_arm copy, ours;
    const struct names *names;
    double goal; /* 0: none */
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
static KV_RC run_rounds(struct pipe *pipe, const struct direction *direction, struct rounds *rounds)
{
    for (unsigned i = 0; i < rounds->count; i++) {
        KV_TRY(pipe_run(pipe, direction->copy, &rounds->copy[i]));
        KV_TRY(pipe_run(pipe, direction->ours, &rounds->ours[i]));
        KV_TRY(pipe_run(pipe, direction->copy, &rounds->again[i]));
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

/* Copying against itself says what the clock on the wall is worth here. Where half of those ratios do not lie within
 * five percent of 1, the goal is judged by what the arms took of the processors, which others disturb less. */
static void judge(const struct direction *direction, const struct rounds *rounds, struct kv_bench_result *result)
{
    const struct names *names = direction->names;
    double wall = ratio(rounds->ours, rounds->copy, rounds->count, speed, 50);
    double cores = ratio(rounds->ours, rounds->copy, rounds->count, frugality, 50);
    bool steady = ratio(rounds->again, rounds->copy, rounds->count, speed, 25) >= 0.95 &&
                  ratio(rounds->again, rounds->copy, rounds->count, speed, 75) <= 1.05;
    if (direction->goal > 0 && steady) {
        kv_bench_goal_least(result, names->ratio, direction->goal, wall);
    } else {
        kv_bench_figure(result, names->ratio, wall);
    }
    if (direction->goal > 0 && !steady) {
        kv_bench_goal_least(result, names->core_ratio, direction->goal, cores);
    } else {
        kv_bench_figure(result, names->core_ratio, cores);
    }
}

static KV_RC compare(struct pipe *pipe, const struct direction *direction, unsigned count,
                     struct kv_bench_result *result)
{
    struct rounds rounds = {.count = count};
    KV_TRY(run_rounds(pipe, direction, &rounds));
    judge(direction, &rounds, result);
    show(direction->names, &rounds, result);
    if (direction->goal > 0) {
        double least = ratio(rounds.ours, rounds.copy, count, speed, 0);
        double most = ratio(rounds.ours, rounds.copy, count, speed, 100);
        double noise = (most - least) / ratio(rounds.ours, rounds.copy, count, speed, 50);
        result->noise = noise > result->noise ? noise : result->noise;
        for (unsigned i = 0; i < count; i++) {
            kv_bench_pair(result, direction->names->pair, rounds.copy[i].gb_per_s, rounds.ours[i].gb_per_s);
        }
    }
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
                          small_read_names = NAMES("read_open", "read_copy", "_64_kib");

static KV_RC both_ways(struct pipe *pipe, bool is_small, unsigned rounds, struct kv_bench_result *result)
{
    const struct direction write = {.copy = SEAL_COPY,
                                    .ours = SEAL_SEAL,
                                    .names = is_small ? &small_write_names : &write_names,
                                    .goal = is_small ? 0 : 0.90};
    const struct direction read = {.copy = SEAL_SCATTER,
                                   .ours = SEAL_OPEN,
                                   .names = is_small ? &small_read_names : &read_names,
                                   .goal = is_small ? 0 : 0.80};
    struct pipe_time warm;
    KV_TRY(pipe_run(pipe, SEAL_COPY, &warm));
    KV_TRY(pipe_run(pipe, SEAL_SEAL, &warm));
    KV_TRY(compare(pipe, &write, rounds, result));
    return compare(pipe, &read, rounds, result);
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

KV_RC kv_bench_pipeline(bool quick, struct kv_bench_result *result, struct kv_errinfo *info)
{
    unsigned rounds = quick ? 2 : ROUNDS_MAX;
    KV_TRY(bare(&large, rounds, result, info));
    return bare(&small, rounds, result, info);
}

/* See bench.h. Must never round a missed goal into a met one. */
#include "server/bench/bench.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "server/bench/bench_others.h"

#include <stdlib.h>
#include <string.h>

#define CANNOT_RUN_HERE 77 /* as for a test that lacks something outside */

const struct kv_bench kv_benches[] = {
    {"policy", "decisions of policies over 10,000 tenants, and activating one", kv_bench_policy},
    {"erase", "erasing sessions of three sizes, many at once, and what others wait meanwhile", kv_bench_erase},
    {"rest", "reading a session over HTTP against the library alone, and its latency", kv_bench_rest},
    {"seal", "sealing and opening of blocks against copying them, and against OpenSSL alone", kv_bench_seal},
    {"pipeline", "sealed blocks to a file and back against copied ones, and a whole server against that",
     kv_bench_pipeline},
    {NULL, NULL, NULL},
};

void kv_bench_figure(struct kv_bench_result *result, const char *name, double value)
{
    KV_ASSERT(result->figure_count < KV_BENCH_FIGURES_MAX);
    result->figures[result->figure_count++] = (struct kv_bench_figure){.name = name, .value = value};
}

static void add_goal(struct kv_bench_result *result, const struct kv_bench_goal *goal)
{
    KV_ASSERT(result->goal_count < KV_BENCH_GOALS_MAX);
    kv_bench_figure(result, goal->name, goal->value);
    result->goals[result->goal_count++] = *goal;
}

void kv_bench_goal(struct kv_bench_result *result, const char *name, double goal, double value)
{
    add_goal(result, &(struct kv_bench_goal){.name = name, .goal = goal, .value = value});
}

void kv_bench_goal_least(struct kv_bench_result *result, const char *name, double goal, double value)
{
    add_goal(result, &(struct kv_bench_goal){.name = name, .goal = goal, .value = value, .least = true});
}

void kv_bench_pair(struct kv_bench_result *result, const char *name, double base, double value)
{
    KV_ASSERT(result->pair_count < KV_BENCH_PAIRS_MAX);
    result->pairs[result->pair_count++] = (struct kv_bench_pair){.name = name, .base = base, .value = value};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kv_bench_percentile(double *values, size_t count, double percent)
{
    KV_ASSERT(count > 0);
    qsort(values, count, sizeof values[0], by_value);
    size_t index = (size_t)((double)count * percent / 100.0);
    return values[index < count ? index : count - 1];
}

static bool is_met(const struct kv_bench_goal *goal)
{
    return goal->least ? goal->value >= goal->goal : goal->value <= goal->goal;
}

static bool all_met(const struct kv_bench_result *result)
{
    bool met = true;
    for (unsigned i = 0; i < result->goal_count; i++) {
        met = met && is_met(&result->goals[i]);
    }
    return met;
}

static void print_json(const char *name, const struct kv_bench_result *result)
{
    printf("{\"name\":\"%s\",\"figures\":{", name);
    for (unsigned i = 0; i < result->figure_count; i++) {
        printf("%s\"%s\":%.6g", i == 0 ? "" : ",", result->figures[i].name, result->figures[i].value);
    }
    fputs("},\"goals\":[", stdout);
    for (unsigned i = 0; i < result->goal_count; i++) {
        const struct kv_bench_goal *goal = &result->goals[i];
        printf("%s{\"name\":\"%s\",\"at\":\"%s\",\"goal\":%.6g,\"value\":%.6g,\"met\":%s}", i == 0 ? "" : ",",
               goal->name, goal->least ? "least" : "most", goal->goal, goal->value, is_met(goal) ? "true" : "false");
    }
    fputs("],\"pairs\":[", stdout);
    for (unsigned i = 0; i < result->pair_count; i++) {
        const struct kv_bench_pair *pair = &result->pairs[i];
        printf("%s{\"name\":\"%s\",\"base\":%.6g,\"value\":%.6g}", i == 0 ? "" : ",", pair->name, pair->base,
               pair->value);
    }
    printf("],\"noise\":%.4g}\n", result->noise);
}

static void print_text(const struct kv_bench_result *result)
{
    for (unsigned i = 0; i < result->figure_count; i++) {
        printf("%-32s %14.6g\n", result->figures[i].name, result->figures[i].value);
    }
    for (unsigned i = 0; i < result->goal_count; i++) {
        const struct kv_bench_goal *goal = &result->goals[i];
        printf("%-32s %14.6g  at %s %g: %s\n", goal->name, goal->value, goal->least ? "least" : "most", goal->goal,
               is_met(goal) ? "met" : "MISSED");
    }
    printf("noise between rounds: %.0f %%\n", result->noise * 100);
}

static int usage(void)
{
    fputs("usage: kvrun bench NAME [--json] [--quick]\n\n", stderr);
    for (const struct kv_bench *bench = kv_benches; bench->name != NULL; bench++) {
        fprintf(stderr, "  %-10s %s\n", bench->name, bench->what);
    }
    return 2;
}

static const struct kv_bench *find(const char *name)
{
    for (const struct kv_bench *bench = kv_benches; name != NULL && bench->name != NULL; bench++) {
        if (strcmp(bench->name, name) == 0) {
            return bench;
        }
    }
    return NULL;
}

static int run(const struct kv_bench *bench, bool json, bool quick)
{
    struct kv_errinfo info = {0};
    struct kv_bench_result *result KV_CLEANUP(kv_freep) = kv_alloc(sizeof *result);
    struct bench_others others;
    bench_others_begin(&others);
    enum kv_err rc = result == NULL ? KV_E_NO_MEMORY : bench->run(quick, result, &info);
    if (rc != KV_OK) {
        fprintf(stderr, "kvrun: bench %s: %s\n", bench->name, info.text[0] != '\0' ? info.text : kv_err_title(rc));
        return rc == KV_E_UNSUPPORTED ? CANNOT_RUN_HERE : 1;
    }
    kv_bench_figure(result, "others_cpu_share", bench_others_share(&others));
    if (json) {
        print_json(bench->name, result);
    } else {
        print_text(result);
    }
    return all_met(result) ? 0 : 1;
}

int kv_bench_main(int argc, char **argv)
{
    const char *name = NULL;
    bool json = false, quick = false;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            quick = true;
        } else if (name == NULL && argv[i][0] != '-') {
            name = argv[i];
        } else {
            return usage();
        }
    }
    const struct kv_bench *bench = find(name);
    return bench == NULL ? usage() : run(bench, json, quick);
}

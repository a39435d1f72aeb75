/*
 * Measuring parts of the product on this machine: `kvrun bench NAME --json` prints one object with what was measured,
 * the goals and whether they are met. A bench takes seconds, needs no server that runs already, and leaves nothing
 * behind. Thread: main.
 */
#ifndef KV_BENCH_H
#define KV_BENCH_H

#include "dataplane/base/buf.h"

#include <stdio.h>

#define KV_BENCH_FIGURES_MAX 64
#define KV_BENCH_GOALS_MAX 16
#define KV_BENCH_PAIRS_MAX 96

struct kv_bench_figure {
    const char *name; /* with its unit: "decision_p50_ns" */
    double value;
};
struct kv_bench_goal {
    const char *name;
    double goal, value;
    bool least; /* met: at least the goal; else at most */
};
/* Two measurements of one round, taken one after the other: what they share of the machine's mood cancels out. */
struct kv_bench_pair {
    const char *name;
    double base, value;
};
struct kv_bench_result {
    struct kv_bench_figure figures[KV_BENCH_FIGURES_MAX];
    struct kv_bench_goal goals[KV_BENCH_GOALS_MAX];
    struct kv_bench_pair pairs[KV_BENCH_PAIRS_MAX];
    unsigned figure_count, goal_count, pair_count;
    double noise; /* spread of the main figure over the rounds: (largest - smallest) / median */
};

struct kv_bench {
    const char *name, *what;
    /* `quick`: fewer and smaller rounds, to see that it works; of no use as a measurement. */
    KV_RC (*run)(bool quick, struct kv_bench_result *result, struct kv_errinfo *info);
};
extern const struct kv_bench kv_benches[]; /* ended by a row without name */

void kv_bench_figure(struct kv_bench_result *result, const char *name, double value);
void kv_bench_goal(struct kv_bench_result *result, const char *name, double goal,
                   double value); /* at most; a figure, too */
void kv_bench_goal_least(struct kv_bench_result *result, const char *name, double goal, double value);
void kv_bench_pair(struct kv_bench_result *result, const char *name, double base, double value);
double kv_bench_percentile(double *values, size_t count, double percent); /* sorts */

KV_RC kv_bench_policy(bool quick, struct kv_bench_result *result, struct kv_errinfo *info);
KV_RC kv_bench_rest(bool quick, struct kv_bench_result *result, struct kv_errinfo *info);
KV_RC kv_bench_erase(bool quick, struct kv_bench_result *result, struct kv_errinfo *info);
KV_RC kv_bench_seal(bool quick, struct kv_bench_result *result, struct kv_errinfo *info);
KV_RC kv_bench_pipeline(bool quick, struct kv_bench_result *result, struct kv_errinfo *info);

/* The command. argv: NAME, --json and --quick, in any order. 0; 1 when a goal is missed; 2 for usage; 77 when this
 * machine lacks something that the bench needs. */
int kv_bench_main(int argc, char **argv);

#endif

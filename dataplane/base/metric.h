/*
 * Metrics: counters, gauges and histograms, written without a lock, printed in the Prometheus text format 0.0.4 or as
 * OpenMetrics 1.0.0. Families and series are registered at start, so that each is there from second zero and the first
 * increase of each is seen; only the series of a route, which are many and mostly never come, are registered at their
 * first use, from a set that is fixed in the source. Never one from input: tenants have metric_top.h.
 *
 * Names: a counter ends with _total; a name that ends with a unit (_seconds, _bytes, _ratio) has that unit.
 * Thread: register any, not from a lane; change any; print any.
 */
#ifndef KV_BASE_METRIC_H
#define KV_BASE_METRIC_H

#include "dataplane/base/buf.h"

enum kv_metric_type { KV_COUNTER, KV_GAUGE, KV_HISTOGRAM };

struct kv_metric; /* one series */

/* `labels` is the text between the braces ("tier=\"dram\""), or NULL; `name` and `help` are static. Families of one
 * name share type and help. Histograms take upper bounds in the metric's own unit, ascending, under a million; `count`
 * at most 20. Never NULL: a registry that is full is a bug (asserted). */
struct kv_metric *kv_metric_counter(const char *name, const char *help, const char *labels);
struct kv_metric *kv_metric_gauge(const char *name, const char *help, const char *labels);
struct kv_metric *kv_metric_histogram(const char *name, const char *help, const char *labels, const double *bounds,
                                      unsigned count);
/* A counter whose whole value is known elsewhere, and may have a fraction. */
struct kv_metric *kv_metric_total(const char *name, const char *help, const char *labels);
void kv_metric_set_total(struct kv_metric *metric, double value);
void kv_metric_add(struct kv_metric *metric, uint64_t n);       /* counter */
void kv_metric_set(struct kv_metric *metric, double value);     /* gauge */
void kv_metric_change(struct kv_metric *metric, double by);     /* gauge */
void kv_metric_observe(struct kv_metric *metric, double value); /* histogram */
uint64_t kv_metric_value(const struct kv_metric *metric);       /* counter, for tests */
double kv_metric_number(const struct kv_metric *metric);        /* gauge: value; histogram: sum; for tests */

/* The same, and the value becomes the series' exemplar: OpenMetrics shows it with its trace id. All zero: none. */
#define KV_TRACE_BYTES 16
void kv_metric_observe_traced(struct kv_metric *metric, double value, const uint8_t trace[KV_TRACE_BYTES],
                              uint64_t realtime_us);

/* Functions that let a module refresh gauges before a print. At most 16. */
void kv_metric_on_print(void (*refresh)(void *ctx), void *ctx);
void kv_metric_off_print(void *ctx);

enum kv_metric_style {
    KV_METRIC_TEXT = 0,
    KV_METRIC_OPENMETRICS = 1,
    KV_METRIC_EXEMPLARS = 2, /* only with OpenMetrics: version 0.0.4 has no place for them */
};
void kv_metric_print(struct kv_buf *buf, unsigned style);

#endif

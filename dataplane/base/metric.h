/*
 * Metrics: counters, gauges and histograms, written without a lock, printed in the Prometheus text format 0.0.4.
 * A family is registered once at start, with all its series, so that each is there from second zero.
 * Thread: register before threads start; change any; print any.
 */
#ifndef KV_BASE_METRIC_H
#define KV_BASE_METRIC_H

#include "dataplane/base/buf.h"

enum kv_metric_type { KV_COUNTER, KV_GAUGE, KV_HISTOGRAM };

struct kv_metric; /* one series */

/* `labels` is the text between the braces ("tier=\"dram\""), or NULL; `name` and `help` are static. Families of one
 * name share type and help. Histograms take upper bounds in the metric's own unit, ascending; `count` at most 20. Never
 * NULL: a registry that is full is a bug (asserted). */
struct kv_metric *kv_metric_counter(const char *name, const char *help, const char *labels);
struct kv_metric *kv_metric_gauge(const char *name, const char *help, const char *labels);
struct kv_metric *kv_metric_histogram(const char *name, const char *help, const char *labels, const double *bounds,
                                      unsigned count);
void kv_metric_add(struct kv_metric *metric, uint64_t n);       /* counter */
void kv_metric_set(struct kv_metric *metric, double value);     /* gauge */
void kv_metric_observe(struct kv_metric *metric, double value); /* histogram */
uint64_t kv_metric_value(const struct kv_metric *metric);       /* counter, for tests */

/* `before_print` functions let a module refresh gauges. At most 16. */
void kv_metric_on_print(void (*refresh)(void *ctx), void *ctx);
void kv_metric_off_print(void *ctx);
void kv_metric_print(struct kv_buf *buf);

#endif

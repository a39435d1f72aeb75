/*
 * The registry that metric.c fills and metric_print.c prints. Private to this folder.
 */
#ifndef KV_BASE_METRIC_INT_H
#define KV_BASE_METRIC_INT_H

#include "dataplane/base/metric.h"

#include <stdatomic.h>

#define KV_METRIC_SERIES_MAX 512
#define KV_METRIC_BOUNDS_MAX 20
#define KV_METRIC_LABELS_SIZE 160

struct kv_metric {
    const char *name, *help; /* borrowed, static */
    enum kv_metric_type type;
    char labels[KV_METRIC_LABELS_SIZE];
    unsigned bound_count;
    double bounds[KV_METRIC_BOUNDS_MAX];
    /* Values are relaxed: a scrape wants each number, not an order among them. */
    _Atomic uint64_t count;                             /* counter */
    _Atomic uint64_t number_bits;                       /* gauge: value; histogram: sum; the bits of a double */
    _Atomic uint64_t buckets[KV_METRIC_BOUNDS_MAX + 1]; /* not cumulative; the last is +Inf */
};

/* The series registered so far; both are valid forever. */
unsigned kv_metric_count(void);
const struct kv_metric *kv_metric_at(unsigned index);

double kv_metric_number(const struct kv_metric *metric);

/* Runs the refresh functions. */
void kv_metric_refresh(void);

#endif

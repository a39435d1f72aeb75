/*
 * The registry that metric.c fills and metric_print.c prints. Private to this folder.
 */
#ifndef KV_BASE_METRIC_INT_H
#define KV_BASE_METRIC_INT_H

#include "dataplane/base/metric.h"

#include <stdatomic.h>

#define KV_METRIC_SERIES_MAX 2048
#define KV_METRIC_FAMILIES_MAX 128
#define KV_METRIC_BOUNDS_MAX 20
#define KV_METRIC_LABELS_SIZE 160

/* The last traced value. Words of their own behind a sequence number that is odd while one is written: a writer that
 * finds it odd leaves its value out, a reader that sees it change shows none. */
struct kv_exemplar {
    _Atomic uint64_t sequence;
    _Atomic uint64_t value_bits, realtime_us, trace[2];
};

struct kv_metric_family;

struct kv_metric {
    struct kv_metric_family *family;
    _Atomic(struct kv_metric *) next; /* of the family, in order of registration */
    char labels[KV_METRIC_LABELS_SIZE];
    bool real; /* a counter whose value is in number_bits */
    unsigned bound_count;
    double bounds[KV_METRIC_BOUNDS_MAX];
    /* Values are relaxed: a scrape wants each number, not an order among them. */
    _Atomic uint64_t count;                             /* counter */
    _Atomic uint64_t number_bits;                       /* gauge: value; histogram: sum; the bits of a double */
    _Atomic uint64_t buckets[KV_METRIC_BOUNDS_MAX + 1]; /* not cumulative; the last is +Inf */
    struct kv_exemplar exemplar;
};

struct kv_metric_family {
    const char *name, *help; /* borrowed, static */
    enum kv_metric_type type;
    struct kv_metric *first; /* set before the family is counted */
    struct kv_metric *last;  /* under the registry's lock */
};

/* The families registered so far; valid forever. */
unsigned kv_metric_family_count(void);
const struct kv_metric_family *kv_metric_family_at(unsigned index);

/* Asserts what every name and help text must keep. */
void kv_metric_check_name(const char *name, const char *help, enum kv_metric_type type);

struct kv_exemplar_view {
    double value;
    uint64_t realtime_us;
    uint8_t trace[KV_TRACE_BYTES];
};
bool kv_metric_exemplar(const struct kv_metric *metric, struct kv_exemplar_view *ret_view);

/* Families that are no part of the registry print themselves after it (metric_top.c). At most 4. */
typedef void kv_metric_collect_fn(void *ctx, struct kv_buf *buf, unsigned style);
void kv_metric_on_collect(kv_metric_collect_fn *collect, void *ctx);
void kv_metric_off_collect(void *ctx);

/* Runs the refresh functions. */
void kv_metric_refresh(void);
void kv_metric_collect(struct kv_buf *buf, unsigned style);

/* HELP, TYPE and UNIT of a family; then one sample each. `suffix` and `extra` may be "". */
void kv_metric_print_head(struct kv_buf *buf, const char *name, const char *help, enum kv_metric_type type,
                          unsigned style);
void kv_metric_print_sample(struct kv_buf *buf, const char *name, const char *labels, const char *extra, double value);

#endif

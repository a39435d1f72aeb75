/*
 * Metrics by tenant, with a bound on how many tenants have a label of their own: the largest by bytes stored. All
 * others are one label, "_other", so that the sum over tenants is always the total. Where tenants take and leave a
 * label, the counters of the one that leaves go on in "_other".
 *
 * A tenant keeps its label for ten minutes after it stopped being among the largest, so that two of a size do not take
 * turns; one that is marked as leaving (suspended, deleted) is not among the largest, whatever it stores.
 * Thread: any, never a lane: a mutex guards it, held while a scrape prints.
 */
#ifndef KV_BASE_METRIC_TOP_H
#define KV_BASE_METRIC_TOP_H

#include "dataplane/base/env.h"
#include "dataplane/base/metric.h"

#define KV_TOP_COLUMNS_MAX 24
#define KV_TOP_NAME_SIZE 64
#define KV_TOP_OTHER "_other"
#define KV_TOP_HOLD_NS (600 * KV_S_NS)

/* One series of each tenant; the rows of one name follow each other. All texts static. */
struct kv_top_column {
    const char *name, *help;
    enum kv_metric_type type; /* KV_COUNTER or KV_GAUGE */
    const char *labels;       /* besides tenant; "" for none */
};

struct kv_top;

/* `labels_max` tenants at most have a label; 0: the families are not printed at all. `columns` is borrowed for ever, at
 * most KV_TOP_COLUMNS_MAX of them. Prints with every kv_metric_print from here on. */
KV_RC kv_top_new(unsigned labels_max, const struct kv_top_column *columns, unsigned count, struct kv_top **ret_top);
void kv_top_free(struct kv_top *top); /* NULL is fine */

/* A counter's column. */
void kv_top_add(struct kv_top *top, const struct kv_id *tenant, unsigned column, uint64_t n);

/* What all tenants have now. Sorted in place. The gauges are those of this call; "_other" gets the sum of the rest. */
struct kv_top_tenant {
    struct kv_id id;
    char name[KV_TOP_NAME_SIZE];
    uint64_t weight; /* who has a label: the largest */
    bool leaving;
    double gauges[KV_TOP_COLUMNS_MAX]; /* by column; those of counters are not looked at */
};
void kv_top_update(struct kv_top *top, struct kv_top_tenant *tenants, size_t count, uint64_t now_ns);

#endif

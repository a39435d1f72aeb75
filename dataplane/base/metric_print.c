/*
 * The Prometheus text format, version 0.0.4. Never prints a family twice, never prints a series without its family's
 * HELP and TYPE.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/metric_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_SIZE 40

static const char *type_name(enum kv_metric_type type)
{
    switch (type) {
    case KV_COUNTER:
        return "counter";
    case KV_GAUGE:
        return "gauge";
    case KV_HISTOGRAM:
        return "histogram";
    }
    return "untyped";
}

/* The shortest of two spellings that reads back as the same number. */
static void number_text(double value, char text[NUMBER_SIZE])
{
    if (isnan(value)) {
        (void)snprintf(text, NUMBER_SIZE, "NaN");
        return;
    }
    if (isinf(value)) {
        (void)snprintf(text, NUMBER_SIZE, value > 0 ? "+Inf" : "-Inf");
        return;
    }
    (void)snprintf(text, NUMBER_SIZE, "%.15g", value);
    double back = strtod(text, NULL);
    if (back < value || back > value) {
        (void)snprintf(text, NUMBER_SIZE, "%.17g", value);
    }
}

/* name_suffix{labels,extra} */
static void print_name(struct kv_buf *buf, const struct kv_metric *metric, const char *suffix, const char *extra)
{
    kv_buf_text(buf, metric->name);
    kv_buf_text(buf, suffix);
    bool labels = metric->labels[0] != '\0';
    if (labels || extra[0] != '\0') {
        kv_buf_printf(buf, "{%s%s%s}", metric->labels, labels && extra[0] != '\0' ? "," : "", extra);
    }
    kv_buf_text(buf, " ");
}

static void print_number(struct kv_buf *buf, double value)
{
    char text[NUMBER_SIZE];
    number_text(value, text);
    kv_buf_printf(buf, "%s\n", text);
}

static void print_histogram(struct kv_buf *buf, const struct kv_metric *metric)
{
    uint64_t total = 0;
    for (unsigned i = 0; i <= metric->bound_count; i++) {
        char bound[NUMBER_SIZE] = "+Inf";
        if (i < metric->bound_count) {
            number_text(metric->bounds[i], bound);
        }
        char extra[NUMBER_SIZE + 8];
        (void)snprintf(extra, sizeof(extra), "le=\"%s\"", bound);
        total += atomic_load_explicit(&metric->buckets[i], memory_order_relaxed);
        print_name(buf, metric, "_bucket", extra);
        kv_buf_printf(buf, "%" PRIu64 "\n", total);
    }
    print_name(buf, metric, "_sum", "");
    print_number(buf, kv_metric_number(metric));
    /* The count is the sum of the buckets that were printed, so that the two agree while others observe. */
    print_name(buf, metric, "_count", "");
    kv_buf_printf(buf, "%" PRIu64 "\n", total);
}

static void print_series(struct kv_buf *buf, const struct kv_metric *metric)
{
    switch (metric->type) {
    case KV_COUNTER:
        print_name(buf, metric, "", "");
        kv_buf_printf(buf, "%" PRIu64 "\n", kv_metric_value(metric));
        break;
    case KV_GAUGE:
        print_name(buf, metric, "", "");
        print_number(buf, kv_metric_number(metric));
        break;
    case KV_HISTOGRAM:
        print_histogram(buf, metric);
        break;
    }
}

static bool is_first_of_family(unsigned index)
{
    for (unsigned i = 0; i < index; i++) {
        if (strcmp(kv_metric_at(i)->name, kv_metric_at(index)->name) == 0) {
            return false;
        }
    }
    return true;
}

static void print_family(struct kv_buf *buf, unsigned first, unsigned count)
{
    const struct kv_metric *head = kv_metric_at(first);
    kv_buf_printf(buf, "# HELP %s %s\n# TYPE %s %s\n", head->name, head->help, head->name, type_name(head->type));
    for (unsigned i = first; i < count; i++) {
        if (strcmp(kv_metric_at(i)->name, head->name) == 0) {
            print_series(buf, kv_metric_at(i));
        }
    }
}

void kv_metric_print(struct kv_buf *buf)
{
    kv_metric_refresh();
    unsigned count = kv_metric_count();
    for (unsigned i = 0; i < count; i++) {
        if (is_first_of_family(i)) {
            print_family(buf, i, count);
        }
    }
}

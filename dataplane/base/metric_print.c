/*
 * The Prometheus text format 0.0.4 and OpenMetrics 1.0.0. Never prints a family twice, never prints a series without
 * its family's HELP and TYPE. A sample's name and labels are the same in both, so that a server that negotiates
 * differently tomorrow goes on with the series of today; only comments, exemplars and the end differ.
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

/* The spelling that OpenMetrics wants of a bucket's bound: a number with a point. Bounds are under a million, where no
 * exponent comes. */
static void bound_text(double value, char text[NUMBER_SIZE])
{
    number_text(value, text);
    if (strpbrk(text, ".eI") == NULL) {
        size_t len = strlen(text);
        (void)snprintf(text + len, NUMBER_SIZE - len, ".0");
    }
}

/* name_suffix{labels,extra} */
static void print_name(struct kv_buf *buf, const char *name, const char *suffix, const char *labels, const char *extra)
{
    kv_buf_text(buf, name);
    kv_buf_text(buf, suffix);
    bool both = labels[0] != '\0' && extra[0] != '\0';
    if (labels[0] != '\0' || extra[0] != '\0') {
        kv_buf_text(buf, "{");
        kv_buf_text(buf, labels);
        kv_buf_text(buf, both ? "," : "");
        kv_buf_text(buf, extra);
        kv_buf_text(buf, "}");
    }
    kv_buf_text(buf, " ");
}

static void print_number(struct kv_buf *buf, double value)
{
    char text[NUMBER_SIZE];
    number_text(value, text);
    kv_buf_text(buf, text);
    kv_buf_text(buf, "\n");
}

void kv_metric_print_sample(struct kv_buf *buf, const char *name, const char *labels, const char *extra, double value)
{
    print_name(buf, name, "", labels, extra);
    print_number(buf, value);
}

/* On the bucket that the exemplar's value fell into. */
static void print_exemplar(struct kv_buf *buf, const struct kv_exemplar_view *view)
{
    char value[NUMBER_SIZE];
    number_text(view->value, value);
    kv_buf_text(buf, " # {trace_id=\"");
    for (unsigned i = 0; i < KV_TRACE_BYTES; i++) {
        kv_buf_printf(buf, "%02x", view->trace[i]);
    }
    kv_buf_printf(buf, "\"} %s %" PRIu64 ".%03u", value, view->realtime_us / 1000000,
                  (unsigned)(view->realtime_us / 1000 % 1000));
}

static void print_histogram(struct kv_buf *buf, const struct kv_metric *metric, unsigned style)
{
    const char *name = metric->family->name;
    struct kv_exemplar_view view = {.value = 0};
    bool wanted =
        (style & KV_METRIC_OPENMETRICS) != 0 && (style & KV_METRIC_EXEMPLARS) != 0 && kv_metric_exemplar(metric, &view);
    uint64_t total = 0;
    for (unsigned i = 0; i <= metric->bound_count; i++) {
        char bound[NUMBER_SIZE] = "+Inf", extra[NUMBER_SIZE + 8];
        if (i < metric->bound_count) {
            bound_text(metric->bounds[i], bound);
        }
        (void)snprintf(extra, sizeof(extra), "le=\"%s\"", bound);
        total += atomic_load_explicit(&metric->buckets[i], memory_order_relaxed);
        print_name(buf, name, "_bucket", metric->labels, extra);
        kv_buf_printf(buf, "%" PRIu64, total);
        if (wanted && (i == metric->bound_count || view.value <= metric->bounds[i])) {
            print_exemplar(buf, &view);
            wanted = false;
        }
        kv_buf_text(buf, "\n");
    }
    print_name(buf, name, "_sum", metric->labels, "");
    print_number(buf, kv_metric_number(metric));
    /* The count is the sum of the buckets that were printed, so that the two agree while others observe. */
    print_name(buf, name, "_count", metric->labels, "");
    kv_buf_printf(buf, "%" PRIu64 "\n", total);
}

static void print_series(struct kv_buf *buf, const struct kv_metric *metric, unsigned style)
{
    switch (metric->family->type) {
    case KV_COUNTER:
        if (metric->real) {
            kv_metric_print_sample(buf, metric->family->name, metric->labels, "", kv_metric_number(metric));
            break;
        }
        print_name(buf, metric->family->name, "", metric->labels, "");
        kv_buf_printf(buf, "%" PRIu64 "\n", kv_metric_value(metric));
        break;
    case KV_GAUGE:
        kv_metric_print_sample(buf, metric->family->name, metric->labels, "", kv_metric_number(metric));
        break;
    case KV_HISTOGRAM:
        print_histogram(buf, metric, style);
        break;
    }
}

/* The unit that the name ends with, or NULL. */
static const char *unit_of(const char *name, size_t len)
{
    static const char *const units[] = {"seconds", "bytes", "ratio"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        size_t unit_len = strlen(units[i]);
        if (len > unit_len && name[len - unit_len - 1] == '_' &&
            strncmp(name + len - unit_len, units[i], unit_len) == 0) {
            return units[i];
        }
    }
    return NULL;
}

void kv_metric_print_head(struct kv_buf *buf, const char *name, const char *help, enum kv_metric_type type,
                          unsigned style)
{
    bool open = (style & KV_METRIC_OPENMETRICS) != 0;
    /* OpenMetrics names a counter's family without the _total of its samples. */
    int len = (int)(strlen(name) - (open && type == KV_COUNTER ? strlen("_total") : 0));
    const char *unit = open ? unit_of(name, (size_t)len) : NULL;
    kv_buf_printf(buf, "# HELP %.*s %s\n# TYPE %.*s %s\n", len, name, help, len, name, type_name(type));
    if (unit != NULL) {
        kv_buf_printf(buf, "# UNIT %.*s %s\n", len, name, unit);
    }
}

void kv_metric_print(struct kv_buf *buf, unsigned style)
{
    kv_metric_refresh();
    unsigned count = kv_metric_family_count();
    for (unsigned i = 0; i < count; i++) {
        const struct kv_metric_family *family = kv_metric_family_at(i);
        kv_metric_print_head(buf, family->name, family->help, family->type, style);
        for (const struct kv_metric *metric = family->first; metric != NULL;
             metric = atomic_load_explicit(&metric->next, memory_order_acquire)) {
            print_series(buf, metric, style);
        }
    }
    kv_metric_collect(buf, style);
    if ((style & KV_METRIC_OPENMETRICS) != 0) {
        kv_buf_text(buf, "# EOF\n");
    }
}

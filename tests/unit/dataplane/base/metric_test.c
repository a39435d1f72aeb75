/* The registry of metrics. Each test is a process of its own, so the registry starts empty. */
#include "dataplane/base/metric.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

Test(metric, counter_counts)
{
    struct kv_metric *metric = kv_metric_counter("kv_a_total", "A.", NULL);
    cr_assert(eq(u64, kv_metric_value(metric), 0));
    kv_metric_add(metric, 1);
    kv_metric_add(metric, UINT64_C(1) << 60);
    cr_assert(eq(u64, kv_metric_value(metric), (UINT64_C(1) << 60) + 1));
}

Test(metric, registering_again_gives_the_same_series)
{
    struct kv_metric *a = kv_metric_counter("kv_a_total", "A.", "tier=\"dram\"");
    struct kv_metric *b = kv_metric_counter("kv_a_total", "A.", "tier=\"nvme\"");
    cr_assert(a != b);
    cr_assert(eq(ptr, kv_metric_counter("kv_a_total", "A.", "tier=\"dram\""), a));
}

Test(metric, family_with_two_types_stops, .signal = SIGABRT)
{
    kv_metric_gauge("kv_a", "A.", NULL);
    kv_metric_histogram("kv_a", "A.", "x=\"1\"", (double[]){1}, 1);
}

Test(metric, family_with_two_helps_stops, .signal = SIGABRT)
{
    kv_metric_gauge("kv_a", "A.", NULL);
    kv_metric_gauge("kv_a", "B.", "x=\"1\"");
}

Test(metric, wrong_verb_for_the_type_stops, .signal = SIGABRT)
{
    kv_metric_set(kv_metric_counter("kv_a_total", "A.", NULL), 1);
}

static void fill(int count)
{
    for (int i = 0; i < count; i++) {
        char labels[32];
        snprintf(labels, sizeof(labels), "n=\"%d\"", i);
        kv_metric_add(kv_metric_counter("kv_many_total", "Many.", labels), 1);
    }
}

Test(metric, registry_holds_2048_series)
{
    fill(2048);
    fill(2048); /* the same again */
}

Test(metric, one_series_more_stops, .signal = SIGABRT)
{
    fill(2049);
}

static void fill_families(int count)
{
    static char names[129][32];
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "kv_family_%d", i);
        kv_metric_gauge(names[i], "One of many.", NULL);
    }
}

Test(metric, registry_holds_128_families)
{
    fill_families(128);
}

Test(metric, one_family_more_stops, .signal = SIGABRT)
{
    fill_families(129);
}

Test(metric, counter_without_total_stops, .signal = SIGABRT)
{
    kv_metric_counter("kv_a", "A.", NULL);
}

Test(metric, gauge_with_total_stops, .signal = SIGABRT)
{
    kv_metric_gauge("kv_a_total", "A.", NULL);
}

Test(metric, help_that_would_need_escaping_stops, .signal = SIGABRT)
{
    kv_metric_gauge("kv_a", "A \"word\".", NULL);
}

Test(metric, gauge_is_changed_by_steps)
{
    struct kv_metric *gauge = kv_metric_gauge("kv_g", "G.", NULL);
    kv_metric_set(gauge, 2);
    kv_metric_change(gauge, 1.5);
    kv_metric_change(gauge, -3);
    cr_assert(eq(dbl, kv_metric_number(gauge), 0.5));
}

Test(metric, bound_of_a_million_stops, .signal = SIGABRT)
{
    kv_metric_histogram("kv_h", "H.", NULL, (double[]){1, 1e6}, 2);
}

Test(metric, histogram_of_20_bounds_is_the_largest)
{
    double bounds[21];
    for (int i = 0; i < 21; i++) {
        bounds[i] = i;
    }
    kv_metric_histogram("kv_h_seconds", "H.", NULL, bounds, 20);
}

Test(metric, histogram_of_21_bounds_stops, .signal = SIGABRT)
{
    double bounds[21];
    for (int i = 0; i < 21; i++) {
        bounds[i] = i;
    }
    kv_metric_histogram("kv_h_seconds", "H.", NULL, bounds, 21);
}

Test(metric, bounds_that_do_not_ascend_stop, .signal = SIGABRT)
{
    kv_metric_histogram("kv_h_seconds", "H.", NULL, (double[]){1, 1}, 2);
}

Test(metric, labels_that_do_not_fit_stop, .signal = SIGABRT)
{
    char labels[200];
    memset(labels, 'a', sizeof(labels) - 1);
    labels[sizeof(labels) - 1] = '\0';
    kv_metric_counter("kv_a_total", "A.", labels);
}

static void refresh(void *ctx)
{
    (*(int *)ctx)++;
}

Test(metric, refresh_runs_at_each_print_until_taken_off)
{
    int a = 0, b = 0;
    struct kv_buf buf;
    kv_buf_init(&buf, 1000);
    kv_metric_on_print(refresh, &a);
    kv_metric_on_print(refresh, &b);
    kv_metric_print(&buf, KV_METRIC_TEXT);
    kv_metric_off_print(&a);
    kv_metric_print(&buf, KV_METRIC_TEXT);
    cr_assert(eq(int, a, 1));
    cr_assert(eq(int, b, 2));
    kv_buf_done(&buf);
}

Test(metric, sixteen_refreshes_fit)
{
    int n = 0;
    for (int i = 0; i < 16; i++) {
        kv_metric_on_print(refresh, &n);
    }
}

Test(metric, seventeenth_refresh_stops, .signal = SIGABRT)
{
    int n = 0;
    for (int i = 0; i < 17; i++) {
        kv_metric_on_print(refresh, &n);
    }
}

/* The text format, by eye and by promtool. */
#include "dataplane/base/metric.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void some_metrics(void)
{
    struct kv_metric *dram = kv_metric_counter("kvrun_reads_total", "Reads from a tier.", "tier=\"dram\"");
    struct kv_metric *open = kv_metric_gauge("kvrun_sessions_open", "Sessions whose keys are open.", NULL);
    kv_metric_counter("kvrun_reads_total", "Reads from a tier.", "tier=\"nvme\"");
    struct kv_metric *times = kv_metric_histogram("kvrun_restore_seconds", "Time of a restore.", "tier=\"dram\"",
                                                  (double[]){0.001, 0.1, 2}, 3);
    kv_metric_add(dram, 12345678901234567890u);
    kv_metric_set(open, 0.1);
    kv_metric_observe(times, 0.001); /* a bound belongs to its own bucket */
    kv_metric_observe(times, 0.0011);
    kv_metric_observe(times, 2.5);
    kv_metric_observe(times, 1000);
}

Test(metric_print, families_are_together_in_order_of_registration)
{
    some_metrics();
    struct kv_buf buf;
    kv_buf_init(&buf, 10000);
    kv_metric_print(&buf);
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    cr_assert(eq(str, (char *)buf.data,
                 "# HELP kvrun_reads_total Reads from a tier.\n"
                 "# TYPE kvrun_reads_total counter\n"
                 "kvrun_reads_total{tier=\"dram\"} 12345678901234567890\n"
                 "kvrun_reads_total{tier=\"nvme\"} 0\n"
                 "# HELP kvrun_sessions_open Sessions whose keys are open.\n"
                 "# TYPE kvrun_sessions_open gauge\n"
                 "kvrun_sessions_open 0.1\n"
                 "# HELP kvrun_restore_seconds Time of a restore.\n"
                 "# TYPE kvrun_restore_seconds histogram\n"
                 "kvrun_restore_seconds_bucket{tier=\"dram\",le=\"0.001\"} 1\n"
                 "kvrun_restore_seconds_bucket{tier=\"dram\",le=\"0.1\"} 2\n"
                 "kvrun_restore_seconds_bucket{tier=\"dram\",le=\"2\"} 2\n"
                 "kvrun_restore_seconds_bucket{tier=\"dram\",le=\"+Inf\"} 4\n"
                 "kvrun_restore_seconds_sum{tier=\"dram\"} 1002.5021\n"
                 "kvrun_restore_seconds_count{tier=\"dram\"} 4\n"));
    kv_buf_done(&buf);
}

static void gauge_prints(double value, const char *expected)
{
    struct kv_metric *gauge = kv_metric_gauge("kv_g", "G.", NULL);
    kv_metric_set(gauge, value);
    struct kv_buf buf;
    kv_buf_init(&buf, 1000);
    kv_metric_print(&buf);
    char line[100];
    snprintf(line, sizeof(line), "\nkv_g %s\n", expected);
    cr_assert(strstr((char *)buf.data, line) != NULL, "%s", (char *)buf.data);
    kv_buf_done(&buf);
}

Test(metric_print, numbers_read_back_exactly)
{
    gauge_prints(0, "0");
    gauge_prints(1.0 / 3, "0.33333333333333331");
    gauge_prints(4096, "4096");
    gauge_prints(1e21, "1e+21");
    gauge_prints(-2.5, "-2.5");
    gauge_prints((double)(UINT64_C(1) << 53), "9007199254740992");
    gauge_prints(INFINITY, "+Inf");
    gauge_prints(-INFINITY, "-Inf");
    gauge_prints(NAN, "NaN");
}

Test(metric_print, nan_is_observed_past_every_bound)
{
    struct kv_metric *h = kv_metric_histogram("kv_h", "H.", NULL, (double[]){1}, 1);
    kv_metric_observe(h, NAN);
    struct kv_buf buf;
    kv_buf_init(&buf, 1000);
    kv_metric_print(&buf);
    cr_assert(strstr((char *)buf.data, "kv_h_bucket{le=\"1\"} 0\nkv_h_bucket{le=\"+Inf\"} 1\n") != NULL);
    kv_buf_done(&buf);
}

Test(metric_print, buffer_that_is_too_small_says_so)
{
    some_metrics();
    struct kv_buf buf;
    kv_buf_init(&buf, 100);
    kv_metric_print(&buf);
    cr_assert(eq(int, kv_buf_check(&buf), KV_E_LIMIT));
    kv_buf_done(&buf);
}

static int promtool_says(const char *text)
{
    FILE *promtool = popen("promtool check metrics >/dev/null 2>&1", "w");
    cr_assert(promtool != NULL);
    fputs(text, promtool);
    return pclose(promtool);
}

Test(metric_print, promtool_finds_nothing_to_complain_about)
{
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        cr_skip_test("promtool is not here (Debian: prometheus)");
    }
    some_metrics();
    struct kv_buf buf;
    kv_buf_init(&buf, 10000);
    kv_metric_print(&buf);
    cr_assert(eq(int, promtool_says((char *)buf.data), 0));
    kv_buf_text(&buf, "# TYPE kvrun_reads_total counter\n"); /* the control: a family twice */
    cr_assert(ne(int, promtool_says((char *)buf.data), 0));
    kv_buf_done(&buf);
}

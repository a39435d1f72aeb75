/* What all threads share in base: metrics, the log, fault points, counts of mistakes, the names of errors. */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/metric.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 5000

static void run(void *(*body)(void *), void *arg)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        cr_assert(eq(int, pthread_create(&threads[i], NULL, body, arg), 0));
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
}

struct metrics {
    struct kv_metric *counter, *gauge, *histogram;
    atomic_int printed;
};

static void *change(void *arg)
{
    struct metrics *m = arg;
    for (int i = 0; i < ROUNDS; i++) {
        kv_metric_add(m->counter, 1);
        kv_metric_set(m->gauge, i);
        kv_metric_observe(m->histogram, i % 3);
        if (i % 500 == 0) {
            struct kv_buf buf;
            kv_buf_init(&buf, 10000);
            kv_metric_print(&buf, KV_METRIC_TEXT);
            cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
            kv_buf_done(&buf);
            atomic_fetch_add(&m->printed, 1);
        }
    }
    return NULL;
}

Test(shared_thread, no_count_of_a_metric_is_lost_while_others_print)
{
    struct metrics m = {
        .counter = kv_metric_counter("kv_c_total", "C.", NULL),
        .gauge = kv_metric_gauge("kv_g", "G.", NULL),
        .histogram = kv_metric_histogram("kv_h", "H.", NULL, (double[]){0, 1}, 2),
    };
    run(change, &m);
    cr_assert(eq(u64, kv_metric_value(m.counter), THREADS * ROUNDS));
    struct kv_buf buf;
    kv_buf_init(&buf, 10000);
    kv_metric_print(&buf, KV_METRIC_TEXT);
    char expected[64];
    /* Every third observation is 0, 1 or 2: 5,000 of them sum up to 4,999. */
    snprintf(expected, sizeof(expected), "kv_h_sum %d\nkv_h_count %d\n", THREADS * 4999, THREADS * ROUNDS);
    cr_assert(strstr((char *)buf.data, expected) != NULL, "%s", (char *)buf.data);
    kv_buf_done(&buf);
}

static void *write_lines(void *arg)
{
    for (int i = 0; i < 500; i++) {
        if (i % 4 == 0) {
            kv_log(KV_LOG_INFO, "thread", "line", KV_FU("n", i), KV_FT("text", arg), KV_FRC(KV_E_BUSY));
        } else {
            kv_log_often(KV_LOG_INFO, "thread", "line", KV_FU("n", i), KV_FT("text", arg), KV_FRC(KV_E_BUSY));
        }
    }
    return NULL;
}

Test(shared_thread, log_lines_do_not_mix)
{
    char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof(path), "%s/kvlog.XXXXXX", folder != NULL ? folder : "/tmp");
    int fd = mkostemp(path, O_CLOEXEC | O_APPEND);
    cr_assert(ge(int, fd, 0));
    FILE *lines = fopen(path, "r");
    unlink(path);
    kv_log_set_fd(fd);
    run(write_lines, "some text that is long enough to be cut if it could be");
    kv_log_set_fd(2);
    char line[8192];
    int count = 0;
    while (fgets(line, sizeof(line), lines) != NULL) {
        json_t *value = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        cr_assert(value != NULL, "%s", line);
        json_decref(value);
        count++;
    }
    cr_assert(eq(int, count, THREADS * 500));
    cr_assert(eq(u64, kv_log_count(KV_LOG_INFO), THREADS * 500));
    fclose(lines);
    close(fd);
}

#ifdef KV_FAULTS
static void *pass_points(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        if (KV_FAULT("here")) {
            atomic_fetch_add((atomic_int *)arg, 1);
        }
    }
    return NULL;
}

Test(shared_thread, fault_of_one_passing_hits_one_thread)
{
    atomic_int hits = 0;
    kv_fault_set("here=fail@7000once");
    run(pass_points, &hits);
    cr_assert(eq(int, hits, 1));
}
#endif

static void *make_mistakes(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        (void)KV_BUG(i >= 0);
        (void)KV_PEER(i >= 0);
        cr_assert(eq(str, (char *)kv_err_name(KV_E_BUSY), "busy"));
    }
    return NULL;
}

Test(shared_thread, mistakes_are_all_counted_and_logged_once)
{
    run(make_mistakes, NULL);
    cr_assert(eq(u64, kv_bug_count(), THREADS * ROUNDS));
    cr_assert(eq(u64, kv_peer_count(), THREADS * ROUNDS));
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), 1));
}

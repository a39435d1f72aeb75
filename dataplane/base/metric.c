/*
 * The registry of metrics. Never moves or removes a series, so that a pointer to one is good until the process ends.
 * It is global because what happened to a process is one thing, whoever counts it.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/metric_int.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#define REFRESH_MAX 16

static struct kv_metric series[KV_METRIC_SERIES_MAX];
/* Release after a series is complete, acquire before it is read: a scrape may run while a late module registers. */
static _Atomic unsigned series_count;
static pthread_mutex_t register_lock = PTHREAD_MUTEX_INITIALIZER;

struct refresh {
    void (*run)(void *ctx);
    void *ctx;
};

static struct refresh refreshes[REFRESH_MAX];
static unsigned refresh_count;
static pthread_mutex_t refresh_lock = PTHREAD_MUTEX_INITIALIZER;

unsigned kv_metric_count(void)
{
    return atomic_load_explicit(&series_count, memory_order_acquire);
}

const struct kv_metric *kv_metric_at(unsigned index)
{
    KV_ASSERT(index < kv_metric_count());
    return &series[index];
}

/* What registration is asked for, in one argument. */
struct wanted {
    const char *name, *help, *labels;
    enum kv_metric_type type;
    const double *bounds;
    unsigned bound_count;
};

static bool same_bounds(const struct kv_metric *metric, const struct wanted *wanted)
{
    if (metric->bound_count != wanted->bound_count) {
        return false;
    }
    for (unsigned i = 0; i < wanted->bound_count; i++) {
        if (metric->bounds[i] < wanted->bounds[i] || metric->bounds[i] > wanted->bounds[i]) {
            return false;
        }
    }
    return true;
}

/* The series, when a second instance of a module registers it again. */
static struct kv_metric *find(const struct wanted *wanted)
{
    for (unsigned i = 0; i < kv_metric_count(); i++) {
        if (strcmp(series[i].name, wanted->name) != 0) {
            continue;
        }
        KV_ASSERT(series[i].type == wanted->type && strcmp(series[i].help, wanted->help) == 0);
        if (strcmp(series[i].labels, wanted->labels) == 0) {
            KV_ASSERT(same_bounds(&series[i], wanted));
            return &series[i];
        }
    }
    return NULL;
}

static struct kv_metric *add(const struct wanted *wanted)
{
    unsigned index = kv_metric_count();
    KV_ASSERT(index < KV_METRIC_SERIES_MAX);
    struct kv_metric *metric = &series[index];
    metric->name = wanted->name;
    metric->help = wanted->help;
    metric->type = wanted->type;
    memcpy(metric->labels, wanted->labels, strlen(wanted->labels) + 1);
    metric->bound_count = wanted->bound_count;
    for (unsigned i = 0; i < wanted->bound_count; i++) {
        KV_ASSERT(i == 0 || wanted->bounds[i] > wanted->bounds[i - 1]);
        metric->bounds[i] = wanted->bounds[i];
    }
    atomic_store_explicit(&series_count, index + 1, memory_order_release);
    return metric;
}

static struct kv_metric *get(const struct wanted *wanted)
{
    KV_ASSERT(wanted->bound_count <= KV_METRIC_BOUNDS_MAX);
    KV_ASSERT(strlen(wanted->labels) < KV_METRIC_LABELS_SIZE);
    /* A help text is printed as it is; these two would need escaping. */
    KV_ASSERT(strpbrk(wanted->help, "\\\n") == NULL);
    pthread_mutex_lock(&register_lock);
    struct kv_metric *metric = find(wanted);
    if (metric == NULL) {
        metric = add(wanted);
    }
    pthread_mutex_unlock(&register_lock);
    return metric;
}

static const char *or_none(const char *labels)
{
    return labels != NULL ? labels : "";
}

struct kv_metric *kv_metric_counter(const char *name, const char *help, const char *labels)
{
    return get(&(struct wanted){.name = name, .help = help, .labels = or_none(labels), .type = KV_COUNTER});
}

struct kv_metric *kv_metric_gauge(const char *name, const char *help, const char *labels)
{
    return get(&(struct wanted){.name = name, .help = help, .labels = or_none(labels), .type = KV_GAUGE});
}

struct kv_metric *kv_metric_histogram(const char *name, const char *help, const char *labels, const double *bounds,
                                      unsigned count)
{
    return get(&(struct wanted){.name = name,
                                .help = help,
                                .labels = or_none(labels),
                                .type = KV_HISTOGRAM,
                                .bounds = bounds,
                                .bound_count = count});
}

static uint64_t bits_of(double value)
{
    uint64_t bits;
    static_assert(sizeof(bits) == sizeof(value), "a gauge is one atomic word");
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

void kv_metric_add(struct kv_metric *metric, uint64_t n)
{
    KV_ASSERT(metric->type == KV_COUNTER);
    atomic_fetch_add_explicit(&metric->count, n, memory_order_relaxed);
}

void kv_metric_set(struct kv_metric *metric, double value)
{
    KV_ASSERT(metric->type == KV_GAUGE);
    atomic_store_explicit(&metric->number_bits, bits_of(value), memory_order_relaxed);
}

void kv_metric_observe(struct kv_metric *metric, double value)
{
    KV_ASSERT(metric->type == KV_HISTOGRAM);
    unsigned index = 0;
    /* Negated, so that a NaN goes to +Inf, as Prometheus' own client does it. */
    while (index < metric->bound_count && !(value <= metric->bounds[index])) {
        index++;
    }
    atomic_fetch_add_explicit(&metric->buckets[index], 1, memory_order_relaxed);
    uint64_t old = atomic_load_explicit(&metric->number_bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&metric->number_bits, &old, bits_of(double_of(old) + value),
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

uint64_t kv_metric_value(const struct kv_metric *metric)
{
    KV_ASSERT(metric->type == KV_COUNTER);
    return atomic_load_explicit(&metric->count, memory_order_relaxed);
}

double kv_metric_number(const struct kv_metric *metric)
{
    return double_of(atomic_load_explicit(&metric->number_bits, memory_order_relaxed));
}

void kv_metric_on_print(void (*refresh)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&refresh_lock);
    KV_ASSERT(refresh_count < REFRESH_MAX);
    refreshes[refresh_count++] = (struct refresh){.run = refresh, .ctx = ctx};
    pthread_mutex_unlock(&refresh_lock);
}

void kv_metric_off_print(void *ctx)
{
    pthread_mutex_lock(&refresh_lock);
    unsigned kept = 0;
    for (unsigned i = 0; i < refresh_count; i++) {
        if (refreshes[i].ctx != ctx) {
            refreshes[kept++] = refreshes[i];
        }
    }
    refresh_count = kept;
    pthread_mutex_unlock(&refresh_lock);
}

void kv_metric_refresh(void)
{
    /* The lock is held across the callbacks on purpose: when kv_metric_off_print returns, no callback of that ctx runs
     * any more, and the module may free itself. A callback therefore must not call on_print or off_print. */
    pthread_mutex_lock(&refresh_lock);
    for (unsigned i = 0; i < refresh_count; i++) {
        refreshes[i].run(refreshes[i].ctx);
    }
    pthread_mutex_unlock(&refresh_lock);
}

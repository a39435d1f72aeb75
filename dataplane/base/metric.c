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
#define COLLECT_MAX 4

static struct kv_metric series[KV_METRIC_SERIES_MAX];
static unsigned series_count; /* under register_lock */
static struct kv_metric_family families[KV_METRIC_FAMILIES_MAX];
/* Release after a family is complete, acquire before it is read: a scrape may run while somebody registers. A series is
 * published the same way, by the link that leads to it. */
static _Atomic unsigned family_count;
static pthread_mutex_t register_lock = PTHREAD_MUTEX_INITIALIZER;

struct refresh {
    void (*run)(void *ctx);
    void *ctx;
};

struct collector {
    kv_metric_collect_fn *run;
    void *ctx;
};

static struct refresh refreshes[REFRESH_MAX];
static unsigned refresh_count;
static struct collector collectors[COLLECT_MAX];
static unsigned collector_count;
static pthread_mutex_t refresh_lock = PTHREAD_MUTEX_INITIALIZER; /* guards both */

unsigned kv_metric_family_count(void)
{
    return atomic_load_explicit(&family_count, memory_order_acquire);
}

const struct kv_metric_family *kv_metric_family_at(unsigned index)
{
    KV_ASSERT(index < kv_metric_family_count());
    return &families[index];
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

static bool ends_with(const char *text, const char *end)
{
    size_t text_len = strlen(text), end_len = strlen(end);
    return text_len > end_len && strcmp(text + text_len - end_len, end) == 0;
}

void kv_metric_check_name(const char *name, const char *help, enum kv_metric_type type)
{
    KV_ASSERT(ends_with(name, "_total") == (type == KV_COUNTER));
    /* A help text is printed as it is; these would need escaping. */
    KV_ASSERT(strpbrk(help, "\\\n\"") == NULL);
}

static struct kv_metric_family *find_family(const struct wanted *wanted)
{
    for (unsigned i = 0; i < kv_metric_family_count(); i++) {
        if (strcmp(families[i].name, wanted->name) == 0) {
            KV_ASSERT(families[i].type == wanted->type && strcmp(families[i].help, wanted->help) == 0);
            return &families[i];
        }
    }
    return NULL;
}

/* The series, when a second instance of a module registers it again. */
static struct kv_metric *find(const struct kv_metric_family *family, const struct wanted *wanted)
{
    struct kv_metric *metric = family == NULL ? NULL : family->first;
    while (metric != NULL && strcmp(metric->labels, wanted->labels) != 0) {
        metric = atomic_load_explicit(&metric->next, memory_order_acquire);
    }
    KV_ASSERT(metric == NULL || same_bounds(metric, wanted));
    return metric;
}

static struct kv_metric *make_series(const struct wanted *wanted)
{
    KV_ASSERT(series_count < KV_METRIC_SERIES_MAX);
    struct kv_metric *metric = &series[series_count++];
    memcpy(metric->labels, wanted->labels, strlen(wanted->labels) + 1);
    metric->bound_count = wanted->bound_count;
    for (unsigned i = 0; i < wanted->bound_count; i++) {
        KV_ASSERT((i == 0 || wanted->bounds[i] > wanted->bounds[i - 1]) && wanted->bounds[i] < 1e6);
        metric->bounds[i] = wanted->bounds[i];
    }
    return metric;
}

static void add_family(const struct wanted *wanted, struct kv_metric *metric)
{
    unsigned index = kv_metric_family_count();
    KV_ASSERT(index < KV_METRIC_FAMILIES_MAX);
    kv_metric_check_name(wanted->name, wanted->help, wanted->type);
    families[index] = (struct kv_metric_family){
        .name = wanted->name, .help = wanted->help, .type = wanted->type, .first = metric, .last = metric};
    metric->family = &families[index];
    atomic_store_explicit(&family_count, index + 1, memory_order_release);
}

static struct kv_metric *get(const struct wanted *wanted)
{
    KV_ASSERT(wanted->bound_count <= KV_METRIC_BOUNDS_MAX);
    KV_ASSERT(strlen(wanted->labels) < KV_METRIC_LABELS_SIZE);
    pthread_mutex_lock(&register_lock);
    struct kv_metric_family *family = find_family(wanted);
    struct kv_metric *metric = find(family, wanted);
    if (metric == NULL) {
        metric = make_series(wanted);
        if (family == NULL) {
            add_family(wanted, metric);
        } else {
            metric->family = family;
            atomic_store_explicit(&family->last->next, metric, memory_order_release);
            family->last = metric;
        }
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

struct kv_metric *kv_metric_total(const char *name, const char *help, const char *labels)
{
    struct kv_metric *metric = kv_metric_counter(name, help, labels);
    metric->real = true; /* before anybody counts on it */
    return metric;
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
    KV_ASSERT(metric->family->type == KV_COUNTER && !metric->real);
    atomic_fetch_add_explicit(&metric->count, n, memory_order_relaxed);
}

void kv_metric_set_total(struct kv_metric *metric, double value)
{
    KV_ASSERT(metric->real);
    atomic_store_explicit(&metric->number_bits, bits_of(value), memory_order_relaxed);
}

void kv_metric_set(struct kv_metric *metric, double value)
{
    KV_ASSERT(metric->family->type == KV_GAUGE);
    atomic_store_explicit(&metric->number_bits, bits_of(value), memory_order_relaxed);
}

static void change(_Atomic uint64_t *bits, double by)
{
    uint64_t old = atomic_load_explicit(bits, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(bits, &old, bits_of(double_of(old) + by), memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
}

void kv_metric_change(struct kv_metric *metric, double by)
{
    KV_ASSERT(metric->family->type == KV_GAUGE);
    change(&metric->number_bits, by);
}

void kv_metric_observe(struct kv_metric *metric, double value)
{
    KV_ASSERT(metric->family->type == KV_HISTOGRAM);
    unsigned index = 0;
    /* Negated, so that a NaN goes to +Inf, as Prometheus' own client does it. */
    while (index < metric->bound_count && !(value <= metric->bounds[index])) {
        index++;
    }
    atomic_fetch_add_explicit(&metric->buckets[index], 1, memory_order_relaxed);
    change(&metric->number_bits, value);
}

void kv_metric_observe_traced(struct kv_metric *metric, double value, const uint8_t trace[KV_TRACE_BYTES],
                              uint64_t realtime_us)
{
    struct kv_exemplar *exemplar = &metric->exemplar;
    uint64_t words[2], sequence = atomic_load_explicit(&exemplar->sequence, memory_order_relaxed);
    static_assert(sizeof words == KV_TRACE_BYTES, "a trace id is two words");
    kv_metric_observe(metric, value);
    memcpy(words, trace, sizeof words);
    if ((words[0] | words[1]) == 0 || (sequence & 1) != 0 ||
        !atomic_compare_exchange_strong_explicit(&exemplar->sequence, &sequence, sequence + 1, memory_order_acquire,
                                                 memory_order_relaxed)) {
        return; /* another thread's exemplar is as good */
    }
    /* Release on each word: a reader that sees one of them also sees the odd number. */
    atomic_store_explicit(&exemplar->value_bits, bits_of(value), memory_order_release);
    atomic_store_explicit(&exemplar->realtime_us, realtime_us, memory_order_release);
    atomic_store_explicit(&exemplar->trace[0], words[0], memory_order_release);
    atomic_store_explicit(&exemplar->trace[1], words[1], memory_order_release);
    atomic_store_explicit(&exemplar->sequence, sequence + 2, memory_order_release);
}

bool kv_metric_exemplar(const struct kv_metric *metric, struct kv_exemplar_view *ret_view)
{
    const struct kv_exemplar *exemplar = &metric->exemplar;
    uint64_t before = atomic_load_explicit(&exemplar->sequence, memory_order_acquire);
    if (before == 0 || (before & 1) != 0) {
        return false;
    }
    uint64_t value = atomic_load_explicit(&exemplar->value_bits, memory_order_acquire);
    uint64_t realtime_us = atomic_load_explicit(&exemplar->realtime_us, memory_order_acquire);
    uint64_t words[2] = {atomic_load_explicit(&exemplar->trace[0], memory_order_acquire),
                         atomic_load_explicit(&exemplar->trace[1], memory_order_acquire)};
    if (atomic_load_explicit(&exemplar->sequence, memory_order_relaxed) != before) {
        return false;
    }
    ret_view->value = double_of(value);
    ret_view->realtime_us = realtime_us;
    memcpy(ret_view->trace, words, sizeof words);
    return true;
}

uint64_t kv_metric_value(const struct kv_metric *metric)
{
    KV_ASSERT(metric->family->type == KV_COUNTER);
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

void kv_metric_on_collect(kv_metric_collect_fn *collect, void *ctx)
{
    pthread_mutex_lock(&refresh_lock);
    KV_ASSERT(collector_count < COLLECT_MAX);
    collectors[collector_count++] = (struct collector){.run = collect, .ctx = ctx};
    pthread_mutex_unlock(&refresh_lock);
}

void kv_metric_off_collect(void *ctx)
{
    pthread_mutex_lock(&refresh_lock);
    unsigned kept = 0;
    for (unsigned i = 0; i < collector_count; i++) {
        if (collectors[i].ctx != ctx) {
            collectors[kept++] = collectors[i];
        }
    }
    collector_count = kept;
    pthread_mutex_unlock(&refresh_lock);
}

void kv_metric_collect(struct kv_buf *buf, unsigned style)
{
    pthread_mutex_lock(&refresh_lock); /* as in kv_metric_refresh */
    for (unsigned i = 0; i < collector_count; i++) {
        collectors[i].run(collectors[i].ctx, buf, style);
    }
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

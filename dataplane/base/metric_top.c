/*
 * See metric_top.h. Must never hold more labels than it was made for, and never lose a count: what leaves a label is
 * added to "_other" in the same step.
 */
#include "dataplane/base/metric_top.h"

#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/base/metric_int.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct slot {
    struct kv_id id;
    char labels[2 * KV_TOP_NAME_SIZE + sizeof "tenant=\"\""]; /* escaped */
    bool outside;                                             /* not among the largest, since: */
    uint64_t outside_ns;
    double gauges[KV_TOP_COLUMNS_MAX];
    uint64_t counts[KV_TOP_COLUMNS_MAX];
};

struct kv_top {
    pthread_mutex_t mutex;
    const struct kv_top_column *columns;
    unsigned column_count, labels_max, used;
    struct slot other;
    struct slot slots[]; /* labels_max, the first `used` of them taken */
};

static struct slot *find(struct kv_top *top, const struct kv_id *tenant)
{
    for (unsigned i = 0; i < top->used; i++) {
        if (kv_id_equal(&top->slots[i].id, tenant)) {
            return &top->slots[i];
        }
    }
    return NULL;
}

/* ---- printing ---- */

static void print_slot(const struct kv_top *top, struct kv_buf *buf, const struct slot *slot, unsigned column)
{
    const struct kv_top_column *of = &top->columns[column];
    bool counter = of->type == KV_COUNTER;
    kv_metric_print_sample(buf, of->name, slot->labels, of->labels,
                           counter ? (double)slot->counts[column] : slot->gauges[column]);
}

static void print(void *ctx, struct kv_buf *buf, unsigned style)
{
    struct kv_top *top = ctx;
    pthread_mutex_lock(&top->mutex);
    for (unsigned c = 0; c < top->column_count; c++) {
        const struct kv_top_column *column = &top->columns[c];
        if (c == 0 || strcmp(column->name, top->columns[c - 1].name) != 0) {
            kv_metric_print_head(buf, column->name, column->help, column->type, style);
        }
        for (unsigned i = 0; i < top->used; i++) {
            print_slot(top, buf, &top->slots[i], c);
        }
        print_slot(top, buf, &top->other, c);
    }
    pthread_mutex_unlock(&top->mutex);
}

/* ---- life ---- */

KV_RC kv_top_new(unsigned labels_max, const struct kv_top_column *columns, unsigned count, struct kv_top **ret_top)
{
    KV_ASSERT(count > 0 && count <= KV_TOP_COLUMNS_MAX);
    for (unsigned i = 0; i < count; i++) {
        KV_ASSERT(columns[i].type != KV_HISTOGRAM);
        kv_metric_check_name(columns[i].name, columns[i].help, columns[i].type);
    }
    struct kv_top *top = kv_alloc(sizeof *top + labels_max * sizeof top->slots[0]);
    if (top == NULL) {
        return KV_E_NO_MEMORY;
    }
    pthread_mutex_init(&top->mutex, NULL);
    top->columns = columns;
    top->column_count = count;
    top->labels_max = labels_max;
    snprintf(top->other.labels, sizeof top->other.labels, "tenant=\"%s\"", KV_TOP_OTHER);
    if (labels_max > 0) {
        kv_metric_on_collect(print, top);
    }
    *ret_top = top;
    return KV_OK;
}

void kv_top_free(struct kv_top *top)
{
    if (top == NULL) {
        return;
    }
    kv_metric_off_collect(top);
    pthread_mutex_destroy(&top->mutex);
    kv_free(top);
}

void kv_top_add(struct kv_top *top, const struct kv_id *tenant, unsigned column, uint64_t n)
{
    KV_ASSERT(column < top->column_count && top->columns[column].type == KV_COUNTER);
    pthread_mutex_lock(&top->mutex);
    struct slot *slot = find(top, tenant);
    (slot == NULL ? &top->other : slot)->counts[column] += n;
    pthread_mutex_unlock(&top->mutex);
}

/* ---- who has a label ---- */

/* The largest first; those that leave last; of a size the older id, so that the order is the same each time. */
static int by_weight(const void *a, const void *b)
{
    const struct kv_top_tenant *left = a, *right = b;
    if (left->leaving != right->leaving) {
        return left->leaving ? 1 : -1;
    }
    if (left->weight != right->weight) {
        return left->weight > right->weight ? -1 : 1;
    }
    return memcmp(&left->id, &right->id, sizeof left->id);
}

static bool is_among(const struct kv_top_tenant *tenants, size_t count, const struct kv_id *id)
{
    for (size_t i = 0; i < count; i++) {
        if (kv_id_equal(&tenants[i].id, id)) {
            return !tenants[i].leaving;
        }
    }
    return false;
}

static void release(struct kv_top *top, unsigned index)
{
    struct slot *slot = &top->slots[index];
    for (unsigned c = 0; c < top->column_count; c++) {
        top->other.counts[c] += slot->counts[c];
    }
    top->used--;
    *slot = top->slots[top->used];
}

/* Those that were not among the largest for the whole time lose their label. */
static void release_old(struct kv_top *top, const struct kv_top_tenant *largest, size_t count, uint64_t now_ns)
{
    for (unsigned i = top->used; i > 0; i--) {
        struct slot *slot = &top->slots[i - 1];
        if (is_among(largest, count, &slot->id)) {
            slot->outside = false;
            continue;
        }
        if (!slot->outside) {
            slot->outside = true;
            slot->outside_ns = now_ns;
        }
        if (now_ns - slot->outside_ns >= KV_TOP_HOLD_NS) {
            release(top, i - 1);
        }
    }
}

/* Label values may hold anything but these three as they are (text format, "Comments, help text, and type"). */
static void name_slot(struct slot *slot, const char *name)
{
    char escaped[2 * KV_TOP_NAME_SIZE];
    size_t len = 0;
    for (size_t i = 0; i < KV_TOP_NAME_SIZE && name[i] != '\0'; i++) {
        if (name[i] == '"' || name[i] == '\\' || name[i] == '\n') {
            escaped[len++] = '\\';
        }
        escaped[len++] = name[i] == '\n' ? 'n' : name[i];
    }
    snprintf(slot->labels, sizeof slot->labels, "tenant=\"%.*s\"", (int)len, escaped);
}

static void take_free(struct kv_top *top, const struct kv_top_tenant *largest, size_t count)
{
    for (size_t i = 0; i < count && top->used < top->labels_max && !largest[i].leaving; i++) {
        if (find(top, &largest[i].id) == NULL) {
            struct slot *slot = &top->slots[top->used++];
            *slot = (struct slot){.id = largest[i].id};
            name_slot(slot, largest[i].name);
        }
    }
}

static void set_gauges(struct kv_top *top, const struct kv_top_tenant *tenants, size_t count)
{
    memset(top->other.gauges, 0, sizeof top->other.gauges);
    for (unsigned i = 0; i < top->used; i++) {
        memset(top->slots[i].gauges, 0, sizeof top->slots[i].gauges);
    }
    for (size_t i = 0; i < count; i++) {
        struct slot *slot = find(top, &tenants[i].id);
        slot = slot == NULL ? &top->other : slot;
        for (unsigned c = 0; c < top->column_count; c++) {
            slot->gauges[c] += tenants[i].gauges[c];
        }
    }
}

void kv_top_update(struct kv_top *top, struct kv_top_tenant *tenants, size_t count, uint64_t now_ns)
{
    qsort(tenants, count, sizeof *tenants, by_weight);
    size_t largest = count < top->labels_max ? count : top->labels_max;
    pthread_mutex_lock(&top->mutex);
    release_old(top, tenants, largest, now_ns);
    take_free(top, tenants, largest);
    set_gauges(top, tenants, count);
    pthread_mutex_unlock(&top->mutex);
}

/* Labels by tenant: how many there are, who has one, and that nothing is lost when they change. */
#include "dataplane/base/mem.h"
#include "dataplane/base/metric_top.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOVED, USED, COLUMNS };
static const struct kv_top_column columns[COLUMNS] = {
    [MOVED] = {"kv_tenant_moved_bytes_total", "Moved.", KV_COUNTER, "direction=\"offload\""},
    [USED] = {"kv_tenant_used_bytes", "Used.", KV_GAUGE, ""},
};

static struct kv_id id_of(unsigned number)
{
    struct kv_id id = {0};
    memcpy(id.b, &number, sizeof number);
    return id;
}

static struct kv_top_tenant tenant_of(unsigned number, uint64_t weight)
{
    struct kv_top_tenant tenant = {.id = id_of(number), .weight = weight};
    snprintf(tenant.name, sizeof tenant.name, "t%u", number);
    tenant.gauges[USED] = (double)weight;
    return tenant;
}

static struct kv_buf scrape(void)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 4u << 20);
    kv_metric_print(&buf, KV_METRIC_TEXT);
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    return buf;
}

/* The sum over the samples of one name, and how many there are. */
static double sum_of(const char *name, unsigned *ret_count)
{
    struct kv_buf buf = scrape();
    double sum = 0;
    *ret_count = 0;
    for (char *line = buf.data == NULL ? NULL : strtok((char *)buf.data, "\n"); line != NULL;
         line = strtok(NULL, "\n")) {
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == '{') {
            sum += strtod(strrchr(line, ' '), NULL);
            (*ret_count)++;
        }
    }
    kv_buf_done(&buf);
    return sum;
}

static double value_of(const char *series)
{
    struct kv_buf buf = scrape();
    const char *at = strstr((char *)buf.data, series);
    double value = at == NULL ? -1 : strtod(at + strlen(series), NULL);
    kv_buf_done(&buf);
    return value;
}

Test(metric_top, everything_is_other_before_the_first_look)
{
    struct kv_top *top = NULL;
    struct kv_id one = id_of(1);
    cr_assert(eq(int, kv_top_new(2, columns, COLUMNS, &top), KV_OK));
    kv_top_add(top, &one, MOVED, 7);
    cr_assert(eq(dbl, value_of("kv_tenant_moved_bytes_total{tenant=\"_other\",direction=\"offload\"} "), 7));
    kv_top_free(top);
}

Test(metric_top, the_largest_have_labels_and_the_sum_is_the_total)
{
    struct kv_top *top = NULL;
    unsigned samples = 0;
    cr_assert(eq(int, kv_top_new(2, columns, COLUMNS, &top), KV_OK));
    struct kv_top_tenant tenants[] = {tenant_of(1, 10), tenant_of(2, 30), tenant_of(3, 20)};
    kv_top_update(top, tenants, 3, 1);
    for (unsigned i = 1; i <= 3; i++) {
        struct kv_id id = id_of(i);
        kv_top_add(top, &id, MOVED, i * 100);
    }
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t2\"} "), 30));
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t3\"} "), 20));
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t1\"} "), -1)); /* not there */
    cr_assert(eq(dbl, sum_of("kv_tenant_used_bytes", &samples), 60));
    cr_assert(eq(dbl, sum_of("kv_tenant_moved_bytes_total", &samples), 600));
    cr_assert(eq(uint, samples, 3));
    kv_top_free(top);
}

Test(metric_top, a_label_is_kept_ten_minutes_and_its_counts_go_on_in_other)
{
    struct kv_top *top = NULL;
    unsigned samples = 0;
    struct kv_id one = id_of(1);
    cr_assert(eq(int, kv_top_new(1, columns, COLUMNS, &top), KV_OK));
    struct kv_top_tenant before[] = {tenant_of(1, 10), tenant_of(2, 5)};
    kv_top_update(top, before, 2, 0);
    kv_top_add(top, &one, MOVED, 100);
    struct kv_top_tenant after[] = {tenant_of(1, 10), tenant_of(2, 50)};
    kv_top_update(top, after, 2, KV_S_NS);
    kv_top_update(top, after, 2, KV_S_NS + KV_TOP_HOLD_NS - 1);
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t1\"} "), 10));
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"_other\"} "), 50));
    kv_top_update(top, after, 2, KV_S_NS + KV_TOP_HOLD_NS);
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t1\"} "), -1));
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t2\"} "), 50));
    cr_assert(eq(dbl, sum_of("kv_tenant_moved_bytes_total", &samples), 100));
    cr_assert(eq(dbl, sum_of("kv_tenant_used_bytes", &samples), 60));
    kv_top_free(top);
}

Test(metric_top, two_that_take_turns_do_not_swap_labels)
{
    struct kv_top *top = NULL;
    cr_assert(eq(int, kv_top_new(1, columns, COLUMNS, &top), KV_OK));
    for (unsigned i = 0; i < 200; i++) { /* every 15 s for 50 minutes */
        struct kv_top_tenant tenants[] = {tenant_of(1, 10 + i % 2), tenant_of(2, 11 - i % 2)};
        kv_top_update(top, tenants, 2, i * 15 * KV_S_NS);
        cr_assert(ne(dbl, value_of("kv_tenant_used_bytes{tenant=\"t2\"} "), -1));
    }
    kv_top_free(top);
}

Test(metric_top, one_that_leaves_or_is_gone_has_no_label_after_15_minutes)
{
    struct kv_top *top = NULL;
    cr_assert(eq(int, kv_top_new(3, columns, COLUMNS, &top), KV_OK));
    struct kv_top_tenant all[] = {tenant_of(1, 10), tenant_of(2, 5), tenant_of(3, 1)};
    kv_top_update(top, all, 3, 0);
    for (unsigned minute = 1; minute <= 15; minute++) {
        struct kv_top_tenant now[] = {tenant_of(1, 10), tenant_of(2, 5)}; /* 3 is deleted */
        now[0].leaving = true;                                            /* suspended */
        kv_top_update(top, now, 2, minute * 60 * KV_S_NS);
    }
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t1\"} "), -1));
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t3\"} "), -1));
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"t2\"} "), 5)); /* the control */
    cr_assert(eq(dbl, value_of("kv_tenant_used_bytes{tenant=\"_other\"} "), 10));
    kv_top_free(top);
}

Test(metric_top, ten_thousand_tenants_make_fifty_labels)
{
    enum { TENANTS = 10000, LABELS = 50 };
    struct kv_top *top = NULL;
    unsigned samples = 0;
    struct kv_top_tenant *tenants = kv_alloc_array(TENANTS, sizeof *tenants);
    cr_assert(eq(int, kv_top_new(LABELS, columns, COLUMNS, &top), KV_OK));
    double total = 0;
    for (unsigned round = 0; round < 3; round++) {
        total = 0;
        for (unsigned i = 0; i < TENANTS; i++) {
            tenants[i] = tenant_of(i + 1, (i * 7919 + round * 104729) % 100003);
            total += tenants[i].gauges[USED];
        }
        kv_top_update(top, tenants, TENANTS, round * KV_TOP_HOLD_NS);
        for (unsigned i = 0; i < TENANTS; i++) {
            kv_top_add(top, &tenants[i].id, MOVED, 1);
        }
    }
    cr_assert(eq(dbl, sum_of("kv_tenant_used_bytes", &samples), total));
    cr_assert(eq(uint, samples, LABELS + 1));
    cr_assert(eq(dbl, sum_of("kv_tenant_moved_bytes_total", &samples), 3 * TENANTS));
    cr_assert(eq(uint, samples, LABELS + 1));
    kv_free(tenants);
    kv_top_free(top);
}

Test(metric_top, without_labels_nothing_is_printed)
{
    struct kv_top *top = NULL;
    struct kv_id one = id_of(1);
    cr_assert(eq(int, kv_top_new(0, columns, COLUMNS, &top), KV_OK));
    struct kv_top_tenant tenants[] = {tenant_of(1, 10)};
    kv_top_update(top, tenants, 1, 0);
    kv_top_add(top, &one, MOVED, 1);
    struct kv_buf buf = scrape();
    cr_assert(eq(sz, buf.len, 0));
    kv_buf_done(&buf);
    kv_top_free(top);
}

Test(metric_top, names_are_escaped)
{
    struct kv_top *top = NULL;
    cr_assert(eq(int, kv_top_new(1, columns, COLUMNS, &top), KV_OK));
    struct kv_top_tenant tenants[] = {tenant_of(1, 10)};
    memset(tenants[0].name, '"', KV_TOP_NAME_SIZE - 1);
    memcpy(tenants[0].name, "a\\b\n", 4);
    kv_top_update(top, tenants, 1, 0);
    struct kv_buf buf = scrape();
    cr_assert(strstr((char *)buf.data, "{tenant=\"a\\\\b\\n\\\"") != NULL);
    kv_buf_done(&buf);
    kv_top_free(top);
}

/* What tenants moved, by hours: added up, by tenant, and forgotten. */
#include "server/store/store_usage.h"

#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TEMP_POSTGRES_HOOKS

#define HOUR_US UINT64_C(3600000000)
#define FIRST_US (T0 - T0 % HOUR_US)

static struct kv_errinfo info;

static struct kv_store_usage_hour hour(unsigned tenant, unsigned hours, uint64_t factor)
{
    return (struct kv_store_usage_hour){.tenant = store_id(tenant),
                                        .hour_us = FIRST_US + hours * HOUR_US,
                                        .moved = {1 * factor, 10 * factor, 100 * factor, 1000 * factor}};
}

static void check_sum(struct kv_pg *pg, unsigned tenant, unsigned from, uint64_t factor)
{
    struct kv_store_moved got;
    struct kv_id id = store_id(tenant);
    cr_assert(eq(int, kv_store_usage_sum(pg, &id, FIRST_US + from * HOUR_US, &info, &got), KV_OK), "%s", info.text);
    cr_expect(eq(u64, got.offloaded_blocks, 1 * factor));
    cr_expect(eq(u64, got.offloaded_bytes, 10 * factor));
    cr_expect(eq(u64, got.restored_blocks, 100 * factor));
    cr_expect(eq(u64, got.restored_bytes, 1000 * factor));
}

Test(usage, hours_add_up_by_tenant_from_the_one_asked_for)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    struct kv_store_usage_hour first[] = {hour(2, 0, 1), hour(1, 1, 2), hour(1, 0, 4)}, more[] = {hour(1, 1, 8)};
    cr_assert(eq(int, IN_TX(pg, kv_store_usage_add(pg, first, 3, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_usage_add(pg, more, 1, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_usage_add(pg, more, 0, &info)), KV_OK), "none is fine");
    check_sum(pg, 1, 0, 14);
    check_sum(pg, 1, 1, 10);
    check_sum(pg, 1, 2, 0);
    check_sum(pg, 2, 0, 1);
    check_sum(pg, 3, 0, 0);
    uint64_t since = 0;
    cr_assert(eq(int, kv_store_usage_since(pg, &info, &since), KV_OK));
    cr_expect(gt(u64, since, 0));
    kv_pg_close(pg);
}

Test(usage, the_oldest_go_first_and_no_more_than_asked_for)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    struct kv_store_usage_hour rows[] = {hour(1, 0, 1), hour(1, 1, 2), hour(1, 2, 4), hour(1, 3, 8)};
    uint64_t count = 9;
    cr_assert(eq(int, IN_TX(pg, kv_store_usage_add(pg, rows, 4, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_usage_expire(pg, FIRST_US, 9, &info, &count)), KV_OK), "%s", info.text);
    cr_expect(eq(u64, count, 0));
    check_sum(pg, 1, 0, 15);
    cr_assert(eq(int, IN_TX(pg, kv_store_usage_expire(pg, FIRST_US + 3 * HOUR_US, 2, &info, &count)), KV_OK));
    cr_expect(eq(u64, count, 2));
    check_sum(pg, 1, 0, 12);
    cr_assert(eq(int, IN_TX(pg, kv_store_usage_expire(pg, FIRST_US + 3 * HOUR_US, 2, &info, &count)), KV_OK));
    cr_expect(eq(u64, count, 1));
    check_sum(pg, 1, 0, 8);
    kv_pg_close(pg);
}

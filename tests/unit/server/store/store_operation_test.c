/* Operations: bounded while open, in order, ended once, kept until their time. */
#include "server/store/store_operation.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;
static struct kv_pg *pg;

static void set_up(void)
{
    pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
}

static void tear_down(void)
{
    kv_pg_close(pg);
}

TestSuite(operation, .init = set_up, .fini = tear_down);

static enum kv_err insert_of(const struct kv_id *tenant, unsigned number, uint64_t open_max)
{
    struct kv_store_operation row = {.id = store_id(number), .tenant = *tenant, .created_us = T0 + number};
    snprintf(row.kind, sizeof row.kind, "tier.drain");
    snprintf(row.params, sizeof row.params, "{}");
    return IN_TX(pg, kv_store_operation_insert(pg, &row, open_max, &info));
}

static enum kv_err insert(unsigned number, uint64_t open_max)
{
    static const struct kv_id platform;
    return insert_of(&platform, number, open_max);
}

static struct kv_store_operation get(unsigned number)
{
    struct kv_store_operation row;
    struct kv_id id = store_id(number);
    cr_assert(eq(int, kv_store_operation_get(pg, &id, &info, &row), KV_OK), "%s", info.text);
    return row;
}

static enum kv_err end(unsigned number, enum kv_operation_state state)
{
    struct kv_store_operation row = get(number);
    row.state = state;
    row.ended_us = T0 + 100;
    row.expires_us = T0 + 200;
    snprintf(row.error_code, sizeof row.error_code, "%s", state == KV_OPERATION_FAILED ? "io" : "");
    return IN_TX(pg, kv_store_operation_end(pg, &row, &info));
}

Test(operation, a_tenant_has_an_eighth_of_the_places)
{
    struct kv_id one = store_tenant(pg, 1), other = store_tenant(pg, 2);
    cr_assert(eq(int, insert_of(&one, 1, 16), KV_OK), "%s", info.text);
    cr_assert(eq(int, insert_of(&one, 2, 16), KV_OK), "%s", info.text);
    cr_assert(eq(int, insert_of(&one, 3, 16), KV_E_BUSY));
    cr_assert(eq(int, insert_of(&other, 4, 16), KV_OK), "%s", info.text);
    cr_assert(eq(int, insert(5, 16), KV_OK), "%s", info.text);
    cr_assert(eq(int, end(1, KV_OPERATION_FAILED), KV_OK), "%s", info.text);
    cr_assert(eq(int, insert_of(&one, 6, 16), KV_OK), "%s", info.text);
}

Test(operation, open_ones_are_bounded_and_ended_ones_are_not)
{
    cr_assert(eq(int, insert(1, 2), KV_OK), "%s", info.text);
    cr_assert(eq(int, insert(2, 2), KV_OK));
    cr_assert(eq(int, insert(3, 2), KV_E_BUSY));
    cr_assert(eq(int, end(1, KV_OPERATION_FAILED), KV_OK), "%s", info.text);
    cr_assert(eq(int, insert(3, 2), KV_OK));
}

Test(operation, progress_and_position_come_back_and_end_with_it)
{
    struct kv_buf position;
    cr_assert(eq(int, insert(1, 9), KV_OK));
    struct kv_store_operation row = get(1);
    kv_buf_init(&position, KV_OPERATION_POSITION_BYTES_MAX);
    cr_assert(eq(int, kv_store_operation_position(pg, &row.id, &info, &position), KV_E_MISSING));
    row.state = KV_OPERATION_RUNNING;
    row.started_us = T0 + 7;
    row.done_units = 5;
    row.total_units = 9;
    cr_assert(eq(int, IN_TX(pg, kv_store_operation_progress(pg, &row, KV_BYTES("here", 4), &info)), KV_OK));
    cr_assert(eq(int, kv_store_operation_position(pg, &row.id, &info, &position), KV_OK));
    cr_assert(eq(str, (char *)position.data, "here"));
    cr_assert(eq(u64, get(1).done_units, 5));
    cr_assert(get(1).has_total);
    cr_assert(eq(u64, get(1).rev, 2));
    cr_assert(eq(int, end(1, KV_OPERATION_FAILED), KV_OK), "%s", info.text);
    cr_assert(eq(int, end(1, KV_OPERATION_CANCELED), KV_E_STALE), "it ends once");
    cr_assert(eq(int, IN_TX(pg, kv_store_operation_progress(pg, &row, KV_BYTES(NULL, 0), &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_operation_cancel(pg, &row.id, T0, &info)), KV_E_STALE));
    kv_buf_done(&position);
}

Test(operation, pages_and_what_is_no_longer_kept)
{
    struct kv_store_operation list[3];
    struct kv_store_operation_filter filter = {.kind = "tier.drain"};
    struct kv_page page = {.limit = 2};
    size_t count = 0;
    uint64_t deleted = 0;
    for (unsigned i = 1; i <= 3; i++) {
        cr_assert(eq(int, insert(i, 9), KV_OK));
    }
    cr_assert(eq(int, kv_store_operation_page(pg, &filter, &page, &info, list, &count), KV_OK), "%s", info.text);
    cr_assert(eq(sz, count, 2));
    cr_assert(page.more);
    cr_assert(eq(u64, list[0].created_us, T0 + 3));
    page = (struct kv_page){.limit = 2, .has_after = true, .after_us = list[1].created_us, .after = list[1].id};
    cr_assert(eq(int, kv_store_operation_page(pg, &filter, &page, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert_not(page.more);
    cr_assert(eq(int, end(1, KV_OPERATION_CANCELED), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_operation_expire(pg, T0 + 199, 9, &info, &deleted)), KV_OK));
    cr_assert(eq(u64, deleted, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_operation_expire(pg, T0 + 200, 9, &info, &deleted)), KV_OK));
    cr_assert(eq(u64, deleted, 1));
}

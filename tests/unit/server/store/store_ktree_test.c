/* Rows of the erasure tree: inserted once, updated only over what was seen. */
#include "server/store/store_ktree.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;
static uint8_t sealed[KV_STORE_NODE_BYTES_MAX + 1];

Test(ktree, node_comes_back_as_it_went_in)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    struct kv_store_node_key key = {.level = 2, .idx = 0}, other = {.tree = store_id(5), .level = 0, .idx = 4095};
    memset(sealed, 0xa5, sizeof sealed);
    struct kv_store_node node = {.node_id = store_id(9), .version = 1, .sealed = sealed, .sealed_len = 2120}, got = {0};
    cr_assert(eq(int, kv_store_node_load(pg, &key, &info, &got), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, kv_store_node_insert(pg, &key, &node, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_node_insert(pg, &key, &node, &info)), KV_E_STALE));
    node.sealed_len = KV_STORE_NODE_BYTES_MAX;
    cr_assert(eq(int, IN_TX(pg, kv_store_node_insert(pg, &other, &node, &info)), KV_OK));
    cr_assert(eq(int, kv_store_node_load(pg, &key, &info, &got), KV_OK));
    cr_assert(kv_id_equal(&got.node_id, &node.node_id));
    cr_assert(eq(i64, got.version, 1));
    cr_assert(eq(sz, got.sealed_len, 2120));
    cr_assert(eq(int, memcmp(got.sealed, sealed, 2120), 0));
    kv_free(got.sealed);
    uint64_t count = 0;
    cr_assert(eq(int, kv_store_node_count(pg, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 2));
    kv_pg_close(pg);
}

Test(ktree, node_over_the_limit_or_empty_is_refused)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    struct kv_store_node_key key = {.level = 2, .idx = 0};
    struct kv_store_node node = {
        .node_id = store_id(9), .version = 1, .sealed = sealed, .sealed_len = KV_STORE_NODE_BYTES_MAX + 1};
    cr_assert(eq(int, IN_TX(pg, kv_store_node_insert(pg, &key, &node, &info)), KV_E_INVALID_STATE));
    node.sealed_len = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_node_insert(pg, &key, &node, &info)), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

Test(ktree, update_needs_the_version_that_was_seen_and_a_higher_one)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    struct kv_store_node_key key = {.tree = store_id(5), .level = 1, .idx = 7}, absent = {.level = 1, .idx = 8};
    struct kv_store_node node = {.node_id = store_id(9), .version = 3, .sealed = sealed, .sealed_len = 10}, got = {0};
    cr_assert(eq(int, IN_TX(pg, kv_store_node_insert(pg, &key, &node, &info)), KV_OK));
    node.version = 4;
    node.node_id = store_id(10);
    cr_assert(eq(int, IN_TX(pg, kv_store_node_update(pg, &key, 2, &node, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_node_update(pg, &absent, 3, &node, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_node_update(pg, &key, 3, &node, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_node_update(pg, &key, 3, &node, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_node_update(pg, &key, 4, &node, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_node_load(pg, &key, &info, &got), KV_OK));
    cr_assert(eq(i64, got.version, 4));
    kv_free(got.sealed);
    kv_pg_close(pg);
}

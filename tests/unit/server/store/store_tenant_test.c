/* Tenants, their places in the directory, API keys. */
#include "server/store/store_tenant.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;

static struct kv_pg *open_store(void)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    return pg;
}

Test(tenant, comes_back_as_it_went_in_and_slots_count_up)
{
    struct kv_pg *pg = open_store();
    struct kv_store_tenant tenant = {.id = store_id(5), .name = "acme-2", .display_name = "Käse", .created_us = T0},
                           got;
    uint32_t slot = 9;
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_insert(pg, &tenant, &info, &slot)), KV_OK), "%s", info.text);
    cr_assert(eq(u32, slot, 0));
    cr_assert(eq(int, kv_store_tenant_get(pg, &tenant.id, &info, &got), KV_OK));
    cr_assert(eq(str, got.name, "acme-2"));
    cr_assert(eq(str, got.display_name, "Käse"));
    cr_assert(eq(int, got.state, KV_TENANT_ACTIVE));
    cr_assert(eq(u64, got.created_us, T0));
    store_tenant(pg, 6);
    cr_assert(eq(int, kv_store_tenant_get_by_name(pg, "t-6", &info, &got), KV_OK));
    cr_assert(eq(u32, got.directory_slot, 1));
    struct kv_id unknown = store_id(99);
    cr_assert(eq(int, kv_store_tenant_get(pg, &unknown, &info, &got), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_store_tenant_get_by_name(pg, "t-7", &info, &got), KV_E_NOT_FOUND));
    kv_pg_close(pg);
}

Test(tenant, duplicate_name_is_refused_and_takes_no_slot)
{
    struct kv_pg *pg = open_store();
    store_tenant(pg, 5);
    struct kv_store_tenant tenant = {.id = store_id(6), .name = "t-5", .created_us = T0}, got;
    uint32_t slot = 0;
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_tenant_insert(pg, &tenant, &info, &slot), KV_E_TENANT_EXISTS));
    /* The transaction can go on. */
    cr_assert(eq(int, kv_store_tenant_get_by_name(pg, "t-5", &info, &got), KV_OK));
    cr_assert(eq(int, temp_postgres_end(pg, KV_OK), KV_OK));
    store_tenant(pg, 7);
    cr_assert(eq(int, kv_store_tenant_get_by_name(pg, "t-7", &info, &got), KV_OK));
    cr_assert(eq(u32, got.directory_slot, 1));
    kv_pg_close(pg);
}

Test(tenant, name_outside_of_the_alphabet_is_refused_by_the_schema)
{
    struct kv_pg *pg = open_store();
    struct kv_store_tenant tenant = {.id = store_id(6), .name = "Acme", .created_us = T0};
    uint32_t slot = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_insert(pg, &tenant, &info, &slot)), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

Test(tenant, directory_ends_after_its_last_slot)
{
    struct kv_pg *pg = open_store();
    cr_assert(eq(int, temp_postgres_run(pg, "update cluster set next_directory_slot = 262143"), KV_OK));
    store_tenant(pg, 5);
    struct kv_store_tenant tenant = {.id = store_id(6), .name = "b", .created_us = T0};
    uint32_t slot = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_insert(pg, &tenant, &info, &slot)), KV_E_LIMIT));
    kv_pg_close(pg);
}

Test(tenant, without_a_cluster_there_is_no_tenant)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    struct kv_store_tenant tenant = {.id = store_id(6), .name = "b", .created_us = T0};
    uint32_t slot = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_insert(pg, &tenant, &info, &slot)), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

Test(tenant, list_goes_page_by_page)
{
    struct kv_pg *pg = open_store();
    for (unsigned i = 0; i < 5; i++) {
        store_tenant(pg, 10 + i);
    }
    struct kv_store_tenant list[2];
    struct kv_id after = {{0}};
    size_t count = 2, seen = 0;
    while (count == 2) {
        cr_assert(eq(int, kv_store_tenant_list(pg, &after, 2, &info, list, &count), KV_OK));
        for (size_t i = 0; i < count; i++, seen++) {
            struct kv_id expected = store_id(10 + (unsigned)seen);
            cr_assert(kv_id_equal(&list[i].id, &expected));
            after = list[i].id;
        }
    }
    cr_assert(eq(sz, seen, 5));
    kv_pg_close(pg);
}

Test(tenant, certificate_chain_starts_empty)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5), unknown = store_id(99);
    char previous[KV_SHA256_HEX_SIZE] = "x";
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_certificate_lock(pg, &tenant, &info, previous)), KV_OK));
    cr_assert(eq(str, previous, ""));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_certificate_lock(pg, &unknown, &info, previous)), KV_E_NOT_FOUND));
    kv_pg_close(pg);
}

static struct kv_store_api_key key(unsigned number, struct kv_id tenant, const char *kid)
{
    struct kv_store_api_key key = {.id = store_id(number),
                                   .tenant = tenant,
                                   .name = "ci",
                                   .roles = KV_ROLE_OPERATOR | KV_ROLE_AUDITOR,
                                   .secret_sha256 = {1, 2, 3, [31] = 9},
                                   .created_us = T0,
                                   .expires_us = T0 + 100};
    snprintf(key.kid, sizeof key.kid, "%s", kid);
    return key;
}

Test(api_key, is_found_by_its_kid_also_when_revoked)
{
    struct kv_pg *pg = open_store();
    struct kv_id tenant = store_tenant(pg, 5), none = {{0}};
    struct kv_store_api_key made = key(20, tenant, "abcDEF12"), got;
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &made, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_api_key_get_by_kid(pg, "abcDEF12", &info, &got), KV_OK));
    cr_assert(kv_id_equal(&got.tenant, &tenant));
    cr_assert(eq(int, memcmp(got.secret_sha256, made.secret_sha256, 32), 0));
    cr_assert(eq(u32, got.roles, made.roles));
    cr_assert(eq(u64, got.expires_us, T0 + 100));
    cr_assert(eq(u64, got.revoked_us, 0));
    cr_assert(eq(int, kv_store_api_key_get_by_kid(pg, "abcDEF13", &info, &got), KV_E_NOT_FOUND));

    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_revoke(pg, &none, &made.id, T0 + 7, &info)), KV_E_NOT_FOUND));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_revoke(pg, &tenant, &made.id, T0 + 7, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_revoke(pg, &tenant, &made.id, T0 + 8, &info)), KV_OK));
    cr_assert(eq(int, kv_store_api_key_get(pg, &made.id, &info, &got), KV_OK));
    cr_assert(eq(u64, got.revoked_us, T0 + 7));
    kv_pg_close(pg);
}

Test(api_key, taken_kid_unknown_tenant_and_backward_life_are_refused)
{
    struct kv_pg *pg = open_store();
    struct kv_id none = {{0}};
    struct kv_store_api_key a = key(20, none, "abcDEF12"), b = key(21, none, "abcDEF12"),
                            c = key(22, store_id(99), "c2345678"), d = key(23, none, "d2345678"),
                            e = key(24, none, "e-345678");
    d.expires_us = d.created_us;
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &a, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &b, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &c, &info)), KV_E_NOT_FOUND));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &d, &info)), KV_E_INVALID_STATE));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &e, &info)), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

Test(api_key, operator_keys_are_counted_while_they_are_good)
{
    struct kv_pg *pg = open_store();
    struct kv_id none = {{0}}, tenant = store_tenant(pg, 5);
    struct kv_store_api_key a = key(20, none, "a2345678"), b = key(21, none, "b2345678"),
                            c = key(22, tenant, "c2345678"), list[4];
    uint64_t count = 0;
    cr_assert(eq(int, kv_store_api_key_count_operator(pg, T0, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &a, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &b, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &c, &info)), KV_OK));
    cr_assert(eq(int, kv_store_api_key_count_operator(pg, T0 + 99, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 2));
    cr_assert(eq(int, kv_store_api_key_count_operator(pg, T0 + 100, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_revoke(pg, &none, &a.id, T0 + 7, &info)), KV_OK));
    cr_assert(eq(int, kv_store_api_key_count_operator(pg, T0 + 9, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 1));
    size_t listed = 0;
    cr_assert(eq(int, kv_store_api_key_list(pg, &none, &none, 4, &info, list, &listed), KV_OK));
    cr_assert(eq(sz, listed, 2));
    cr_assert(eq(int, kv_store_api_key_list(pg, &tenant, &none, 4, &info, list, &listed), KV_OK));
    cr_assert(eq(sz, listed, 1));
    cr_assert(eq(str, list[0].kid, "c2345678"));
    kv_pg_close(pg);
}

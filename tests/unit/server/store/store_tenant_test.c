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
    static struct kv_store_tenant list[3];
    static const struct kv_store_tenant_filter all;
    for (int ascending = 0; ascending < 2; ascending++) {
        struct kv_page page = {.limit = 2, .ascending = ascending == 1, .more = true};
        size_t count = 0, seen = 0;
        for (; page.more; seen += count) {
            cr_assert(eq(int, kv_store_tenant_list(pg, &all, &page, &info, list, &count), KV_OK), "%s", info.text);
            for (size_t i = 0; i < count; i++) {
                struct kv_id expected =
                    store_id(ascending == 1 ? 10 + (unsigned)(seen + i) : 14 - (unsigned)(seen + i));
                cr_assert(kv_id_equal(&list[i].id, &expected));
                page.has_after = true;
                page.after = list[i].id;
                page.after_us = list[i].created_us;
            }
        }
        cr_assert(eq(sz, seen, 5));
    }
    kv_pg_close(pg);
}

static struct kv_labels labels(const char *name, const char *value)
{
    struct kv_labels labels = {.count = 1};
    snprintf(labels.items[0].name, sizeof labels.items[0].name, "%s", name);
    snprintf(labels.items[0].value, sizeof labels.items[0].value, "%s", value);
    return labels;
}

Test(tenant, list_is_narrowed_by_state_and_label)
{
    struct kv_pg *pg = open_store();
    static struct kv_store_tenant row, list[3];
    struct kv_page page = {.limit = 2};
    size_t count = 9;
    struct kv_id first = store_tenant(pg, 10);
    store_tenant(pg, 11);
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_lock(pg, &first, &info, &row)), KV_OK));
    row.labels = labels("env", "pr\"od, {1}\\ \xf0\x9f\x98\x80");
    row.state = KV_TENANT_SUSPENDED;
    row.suspended_us = T0 + 3;
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_update(pg, &row, &info)), KV_OK), "%s", info.text);
    struct kv_label other = labels("env", "x").items[0];
    struct kv_store_tenant_filter filters[] = {
        {.state = "suspended"}, {.label = &row.labels.items[0]}, {.label = &other}};
    const size_t found[] = {1, 1, 0};
    for (size_t i = 0; i < 3; i++) {
        cr_assert(eq(int, kv_store_tenant_list(pg, &filters[i], &page, &info, list, &count), KV_OK), "%s", info.text);
        cr_assert(eq(sz, count, found[i]), "filter %zu", i);
    }
    cr_assert(eq(int, kv_store_tenant_list(pg, &filters[0], &page, &info, list, &count), KV_OK));
    cr_assert(eq(int, memcmp(&list[0].labels, &row.labels, sizeof row.labels), 0), "labels come back as they were");
    kv_pg_close(pg);
}

Test(tenant, update_counts_its_revision_and_refuses_a_stale_one)
{
    struct kv_pg *pg = open_store();
    static struct kv_store_tenant row, again;
    struct kv_id tenant = store_tenant(pg, 5), unknown = store_id(99);
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_lock(pg, &unknown, &info, &row)), KV_E_NOT_FOUND));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_lock(pg, &tenant, &info, &row)), KV_OK));
    cr_assert(eq(u64, row.rev, 1));
    cr_assert(eq(int, row.system_slot, -1));
    again = row;
    snprintf(row.region, sizeof row.region, "eu-1");
    row.state = KV_TENANT_DELETING;
    row.delete_us = T0 + 10;
    row.deleted_by = store_id(70);
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_update(pg, &row, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(u64, row.rev, 2));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_update(pg, &again, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_tenant_get(pg, &tenant, &info, &again), KV_OK));
    cr_assert(eq(str, again.region, "eu-1"));
    cr_assert(eq(u64, again.delete_us, T0 + 10));
    struct kv_id due[4];
    size_t count = 9;
    cr_assert(eq(int, kv_store_tenant_list_due(pg, T0 + 9, 4, &info, due, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    cr_assert(eq(int, kv_store_tenant_list_due(pg, T0 + 10, 4, &info, due, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    again.delete_us = 0; /* deleting, and no time */
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_update(pg, &again, &info)), KV_E_INVALID_STATE));
    kv_pg_close(pg);
}

Test(tenant, system_slot_is_taken_once)
{
    struct kv_pg *pg = open_store();
    static struct kv_store_tenant row;
    struct kv_id tenant = store_tenant(pg, 5);
    store_session(pg, tenant, 100);
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_lock(pg, &tenant, &info, &row)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_system_slot(pg, &row, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, row.system_slot, 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_system_slot(pg, &row, &info)), KV_OK));
    cr_assert(eq(int, kv_store_tenant_get(pg, &tenant, &info, &row), KV_OK));
    cr_assert(eq(int, row.system_slot, 1));
    cr_assert(eq(u32, row.next_slot, 2));
    kv_pg_close(pg);
}

Test(labels, merge_up_to_their_limit)
{
    struct kv_labels all = {0}, more = labels("zz", "1"), swap = labels("yy", "1");
    for (int i = 0; i < KV_LABELS_MAX; i++) {
        char name[8];
        snprintf(name, sizeof name, "n%02d", KV_LABELS_MAX - i);
        struct kv_labels one = labels(name, "v");
        cr_assert(eq(int, kv_labels_merge(&all, &one), KV_OK));
    }
    cr_assert(eq(u32, all.count, KV_LABELS_MAX));
    cr_assert(eq(str, all.items[0].name, "n01"), "sorted");
    cr_assert(eq(int, kv_labels_merge(&all, &more), KV_E_LIMIT));
    cr_assert(eq(u32, all.count, KV_LABELS_MAX));
    swap.count = 2;
    swap.items[1] = labels("n01", "").items[0];
    swap.items[1].remove = true;
    cr_assert(eq(int, kv_labels_merge(&all, &swap), KV_OK), "one goes, one comes");
    cr_assert(eq(str, all.items[0].name, "n02"));
    cr_assert(eq(str, all.items[KV_LABELS_MAX - 1].name, "yy"));
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

    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_lock(pg, &none, &made.id, &info, &got)), KV_E_NOT_FOUND));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_lock(pg, &tenant, &made.id, &info, &got)), KV_OK));
    struct kv_store_api_key stale = got;
    got.revoked_us = T0 + 7;
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_update(pg, &got, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_update(pg, &stale, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_api_key_get(pg, &made.id, &info, &got), KV_OK));
    cr_assert(eq(u64, got.revoked_us, T0 + 7));
    cr_assert(eq(u64, got.rev, 2));
    kv_pg_close(pg);
}

Test(api_key, second_secret_ranges_and_uses_come_back)
{
    struct kv_pg *pg = open_store();
    struct kv_id none = {{0}};
    struct kv_store_api_key made = key(20, none, "abcDEF12"), got;
    made.cidr_count = 2;
    snprintf(made.cidrs[0], KV_CIDR_SIZE, "10.0.0.0/8");
    snprintf(made.cidrs[1], KV_CIDR_SIZE, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128");
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &made, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_api_key_get(pg, &made.id, &info, &got), KV_OK), "%s", info.text);
    cr_assert(eq(u32, got.cidr_count, 2));
    cr_assert(eq(str, got.cidrs[1], made.cidrs[1]));
    got.old_until_us = T0 + 50;
    got.old_secret_sha256[3] = 7;
    got.cidr_count = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_update(pg, &got, &info)), KV_OK), "%s", info.text);
    const uint64_t minute = UINT64_C(60000000);
    struct kv_store_use uses[] = {{.id = made.id, .at_us = 100 * minute + 7}, {.id = store_id(999), .at_us = minute}};
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_used(pg, uses, 2, &info)), KV_OK), "%s", info.text);
    uses[0].at_us = 99 * minute;
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_used(pg, uses, 1, &info)), KV_OK));
    cr_assert(eq(int, kv_store_api_key_get(pg, &made.id, &info, &got), KV_OK));
    cr_assert(eq(u64, got.last_used_us, 100 * minute), "to the minute, and never back");
    cr_assert(eq(u64, got.old_until_us, T0 + 50));
    cr_assert(eq(int, got.old_secret_sha256[3], 7));
    cr_assert(eq(u32, got.cidr_count, 0));
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
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_insert(pg, &c, &info)), KV_E_INVALID_STATE));
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
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_lock(pg, &none, &a.id, &info, &a)), KV_OK));
    a.revoked_us = T0 + 7;
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_update(pg, &a, &info)), KV_OK));
    cr_assert(eq(int, kv_store_api_key_count_operator(pg, T0 + 9, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 1));
    size_t listed = 0;
    struct kv_id unknown = store_id(99);
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_count_lock(pg, &none, T0 + 9, &info, &count)), KV_OK));
    cr_assert(eq(u64, count, 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_count_lock(pg, &tenant, T0 + 9, &info, &count)), KV_OK));
    cr_assert(eq(u64, count, 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_api_key_count_lock(pg, &unknown, T0, &info, &count)), KV_E_NOT_FOUND));
    struct kv_page page = {.limit = 3};
    cr_assert(eq(int, kv_store_api_key_list(pg, &none, &page, &info, list, &listed), KV_OK));
    cr_assert(eq(sz, listed, 2));
    cr_assert(eq(int, kv_store_api_key_list(pg, &tenant, &page, &info, list, &listed), KV_OK));
    cr_assert(eq(sz, listed, 1));
    cr_assert(eq(str, list[0].kid, "c2345678"));
    kv_pg_close(pg);
}

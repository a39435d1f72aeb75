/* Versions of a tenant's key go one way, one is active, and one rotation at a time makes the next. */
#include "server/store/store_operation.h"
#include "server/store/store_tenant_key.h"

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
static struct kv_id tenant;
static const uint8_t name_1[KV_KEY_FINGERPRINT_BYTES] = {1}, name_2[KV_KEY_FINGERPRINT_BYTES] = {2};

static void set_up(void)
{
    pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    tenant = store_tenant(pg, 5);
}

static void tear_down(void)
{
    kv_pg_close(pg);
}

TestSuite(tenant_key, .init = set_up, .fini = tear_down);

static struct kv_id operation(unsigned number)
{
    struct kv_store_operation row = {.id = store_id(number), .kind = "key.rotate", .tenant = tenant, .created_us = T0};
    cr_assert(eq(int, IN_TX(pg, kv_store_operation_insert(pg, &row, 64, &info)), KV_OK), "%s", info.text);
    return row.id;
}

static void end_operation(unsigned number)
{
    struct kv_store_operation row = {
        .id = store_id(number), .state = KV_OPERATION_CANCELED, .ended_us = T0 + 1, .expires_us = T0 + 2};
    cr_assert(eq(int, IN_TX(pg, kv_store_operation_end(pg, &row, &info)), KV_OK), "%s", info.text);
}

static enum kv_err next(unsigned number)
{
    struct kv_store_tenant_key key = {
        .id = store_id(number + 1), .tenant = tenant, .created_us = T0 + number, .operation = store_id(number)};
    return IN_TX(pg, kv_store_tenant_key_next(pg, &key, &info));
}

static enum kv_err activate_first(void)
{
    struct kv_store_key_use use = {.tenant = tenant, .version = 1, .at_us = T0 + 1};
    memcpy(use.fingerprint, name_1, sizeof use.fingerprint);
    return IN_TX(pg, kv_store_tenant_key_activate(pg, &use, &info));
}

static enum kv_err rekeyed(uint32_t version, struct kv_id batch)
{
    struct kv_store_rotated rotated = {.tenant = tenant, .batch = batch, .version = version, .at_us = T0 + 9};
    memcpy(rotated.fingerprint, name_2, sizeof rotated.fingerprint);
    return IN_TX(pg, kv_store_rotation_rekeyed(pg, &rotated, &info));
}

static size_t versions(struct kv_store_tenant_key list[4])
{
    struct kv_page page = {.limit = 3};
    size_t count = 0;
    cr_assert(eq(int, kv_store_tenant_key_page(pg, &tenant, &page, &info, list, &count), KV_OK), "%s", info.text);
    return count;
}

Test(tenant_key, a_new_tenant_has_a_first_version_that_nothing_was_made_in)
{
    struct kv_store_tenant_key list[4];
    cr_assert(eq(sz, versions(list), 1));
    cr_assert(eq(int, list[0].state, KV_TENANT_KEY_PRE_ACTIVATION));
    cr_assert(eq(u32, list[0].version, 1));
    cr_assert_not(list[0].has_fingerprint);
    cr_assert(eq(int, activate_first(), KV_OK), "%s", info.text);
    cr_assert(eq(sz, versions(list), 1));
    cr_assert(eq(int, list[0].state, KV_TENANT_KEY_ACTIVE));
    cr_assert(eq(u64, list[0].activated_us, T0 + 1));
    cr_assert(list[0].has_fingerprint && memcmp(list[0].fingerprint, name_1, sizeof name_1) == 0);
    cr_assert(eq(int, activate_first(), KV_E_STALE), "once");
}

Test(tenant_key, a_version_counts_the_sessions_that_were_made_in_it)
{
    struct kv_store_tenant_key list[4];
    struct kv_store_session session;
    struct kv_id first = store_session(pg, tenant, 100);
    store_session(pg, tenant, 101);
    cr_assert(eq(sz, versions(list), 1));
    cr_assert(eq(u64, list[0].sessions, 2));
    cr_assert(eq(int, kv_store_session_get(pg, &first, &info, &session), KV_OK));
    cr_assert(eq(u32, session.key.version, 1));
    cr_assert_not(session.key.has_fingerprint || session.key.destroyed || session.key.compromised);
    cr_assert(eq(int, IN_TX(pg, kv_store_session_set_fingerprint(pg, &first, name_2, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_session_set_fingerprint(pg, &first, name_1, &info)), KV_E_STALE), "once");
    cr_assert(eq(int, kv_store_session_get(pg, &first, &info, &session), KV_OK));
    cr_assert(session.key.has_fingerprint && memcmp(session.key.fingerprint, name_2, sizeof name_2) == 0);
}

Test(tenant_key, a_rotation_needs_a_key_in_use_and_no_other_rotation)
{
    operation(200);
    cr_assert(eq(int, next(200), KV_E_INVALID_STATE));
    cr_assert(eq(str, info.text, "the tenant's key is not in use yet: there is nothing to rotate"));
    cr_assert(eq(int, activate_first(), KV_OK));
    cr_assert(eq(int, next(200), KV_OK), "%s", info.text);
    operation(210);
    cr_assert(eq(int, next(210), KV_E_INVALID_STATE));
    cr_assert(eq(str, info.text, "a rotation of the tenant's key is under way"));
    end_operation(200);
    cr_assert(eq(int, next(210), KV_OK), "of one that was given up the place is taken: %s", info.text);
    struct kv_store_tenant_key key;
    cr_assert(eq(int, kv_store_tenant_key_of(pg, &(struct kv_id){0}, &info, &key), KV_E_NOT_FOUND));
    struct kv_id gone = store_id(200), taken = store_id(210);
    cr_assert(eq(int, kv_store_tenant_key_of(pg, &gone, &info, &key), KV_E_NOT_FOUND));
    cr_assert(eq(int, kv_store_tenant_key_of(pg, &taken, &info, &key), KV_OK));
    cr_assert(eq(u32, key.version, 2));
}

Test(tenant_key, what_is_due_waits_for_its_re_key_alone)
{
    struct kv_store_rotation due;
    cr_assert(eq(int, kv_store_rotation_due(pg, &info, &due), KV_E_MISSING));
    store_session(pg, tenant, 100);
    store_session(pg, tenant, 101);
    cr_assert(eq(int, activate_first(), KV_OK));
    struct kv_id first = operation(200);
    cr_assert(eq(int, next(200), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_rotation_due(pg, &info, &due)), KV_OK), "%s", info.text);
    cr_assert(kv_id_equal(&due.tenant, &tenant) && kv_id_equal(&due.operation, &first));
    cr_assert(eq(u32, due.version, 2));
    cr_assert(eq(u32, due.slots_used, 2));
    cr_assert(eq(int, IN_TX(pg, kv_store_rotation_failed(pg, &first, "tampered", &info)), KV_OK));
    cr_assert(eq(int, kv_store_rotation_due(pg, &info, &due), KV_E_MISSING), "what failed is not tried again");
    end_operation(200);
    operation(210);
    cr_assert(eq(int, next(210), KV_OK), "but by another one");
    cr_assert(eq(int, kv_store_rotation_due(pg, &info, &due), KV_OK));
    end_operation(210);
    cr_assert(eq(int, kv_store_rotation_due(pg, &info, &due), KV_E_MISSING), "what was cancelled is not due");
}

Test(tenant_key, states_go_one_way_with_the_batch_that_ended_them)
{
    struct kv_store_tenant_key list[4], old;
    bool ended = true;
    struct kv_id batch = store_batch(pg, 300), other = store_id(400), rotation = store_id(200);
    cr_assert(eq(int, activate_first(), KV_OK));
    operation(200);
    cr_assert(eq(int, next(200), KV_OK));
    cr_assert(eq(int, rekeyed(3, batch), KV_E_STALE), "not the next one");
    cr_assert(eq(int, rekeyed(2, batch), KV_OK), "%s", info.text);
    cr_assert(eq(int, rekeyed(2, batch), KV_E_STALE), "once");
    cr_assert(eq(sz, versions(list), 2));
    cr_assert(eq(int, list[0].state, KV_TENANT_KEY_ACTIVE));
    cr_assert(memcmp(list[0].fingerprint, name_2, sizeof name_2) == 0);
    cr_assert(eq(int, list[1].state, KV_TENANT_KEY_DEACTIVATED));
    cr_assert(kv_id_equal(&list[1].ended_by, &rotation));
    struct kv_id later = store_session(pg, tenant, 100);
    struct kv_store_session session;
    cr_assert(eq(int, kv_store_session_get(pg, &later, &info, &session), KV_OK));
    cr_assert(eq(u32, session.key.version, 2), "new sessions are made in the new version");
    operation(210);
    cr_assert(eq(int, next(210), KV_E_INVALID_STATE), "the old one is not gone yet");
    cr_assert(eq(int, IN_TX(pg, kv_store_rotation_destroyed(pg, &other, T0 + 10, &info, &old)), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, kv_store_rotation_destroyed(pg, &batch, T0 + 10, &info, &old)), KV_OK));
    cr_assert(eq(u64, old.destroyed_us, T0 + 10));
    cr_assert(eq(u32, old.version, 1));
    cr_assert(eq(int, kv_store_rotation_ended(pg, &rotation, &info, &ended), KV_OK));
    cr_assert_not(ended, "the batch goes on");
    cr_assert(eq(int, next(210), KV_OK), "%s", info.text);
}

Test(tenant_key, compromised_is_said_once_and_of_the_active_one)
{
    struct kv_store_tenant_key list[4];
    struct kv_store_session session;
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_key_compromised(pg, &tenant, T0 + 3, &info)), KV_E_STALE));
    struct kv_id made = store_session(pg, tenant, 100);
    cr_assert(eq(int, activate_first(), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_key_compromised(pg, &tenant, T0 + 3, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_tenant_key_compromised(pg, &tenant, T0 + 4, &info)), KV_OK));
    cr_assert(eq(sz, versions(list), 1));
    cr_assert(eq(u64, list[0].compromised_us, T0 + 3));
    cr_assert(eq(int, kv_store_session_get(pg, &made, &info, &session), KV_OK));
    cr_assert(session.key.compromised);
}

/* Whose sessions are, for the metrics of tenants: known ones are found, and whether their blocks are on their way out.
 */
#include "server/store/store_census.h"

#include "dataplane/base/id.h"
#include "server/store/store_hold.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;

static const struct kv_store_census_owner *owner_of(const struct kv_store_census_owner *owners, size_t count,
                                                    struct kv_id session)
{
    for (size_t i = 0; i < count; i++) {
        if (kv_id_equal(&owners[i].session, &session)) {
            return &owners[i];
        }
    }
    return NULL;
}

Test(census, tells_whose_sessions_are_and_which_live)
{
    struct kv_pg *pg = temp_postgres_connect(temp_postgres_url(), "test");
    struct kv_store_census_owner owners[4];
    size_t count = 0;
    store_cluster(pg);
    struct kv_id tenant = store_tenant(pg, 5);
    struct kv_id asked[] = {store_session(pg, tenant, 100), store_session(pg, tenant, 101),
                            store_session(pg, tenant, 102), store_id(999)};
    store_erasure_request(pg, tenant, asked[1], 200);
    const struct kv_store_hold hold = {.id = store_id(300),
                                       .tenant = tenant,
                                       .scope = KV_HOLD_TENANT,
                                       .reason_sha256 =
                                           "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
                                       .created_us = T0,
                                       .created_role = "tenant_admin",
                                       .expires_us = T0 + 1};
    cr_assert(eq(int, IN_TX(pg, kv_store_hold_insert(pg, &hold, 1, &info)), KV_OK), "%s", info.text);
    const struct kv_store_erasure waits = {.id = store_id(301),
                                           .tenant = tenant,
                                           .session = asked[2],
                                           .state = KV_ERASURE_BLOCKED_HOLD,
                                           .hold = hold.id,
                                           .basis = "other",
                                           .requested_role = "tenant_admin",
                                           .revocation_seq = 301,
                                           .at_us = {[KV_ERASURE_REQUESTED] = T0, [KV_ERASURE_BLOCKED_HOLD] = T0}};
    cr_assert(eq(int, IN_TX(pg, kv_store_erasure_insert(pg, &waits, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, kv_store_census_owners(pg, asked, 4, &info, owners, &count), KV_OK), "%s", info.text);
    cr_assert(eq(sz, count, 3), "an id that is unknown is left out");
    for (unsigned i = 0; i < 3; i++) {
        const struct kv_store_census_owner *owner = owner_of(owners, count, asked[i]);
        cr_assert(owner != NULL);
        cr_assert(kv_id_equal(&owner->tenant, &tenant));
        cr_assert(eq(int, owner->active, i != 1), "%u", i);
    }
    kv_pg_close(pg);
}

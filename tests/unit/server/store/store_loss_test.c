/* What the database forgets with a root of erasure that is gone: everything that hung under it, and nothing else. */
#include "server/store/store_loss.h"

#include "server/store/pg_int.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;
static struct kv_pg *pg;
static uint64_t count;

static struct kv_id tenant;

static void open_store(void)
{
    pg = temp_postgres_connect(temp_postgres_url(), "test");
    store_cluster(pg);
    tenant = store_tenant(pg, 1);
}

static enum kv_session_state state_of(struct kv_id id)
{
    struct kv_store_session session;
    cr_assert(eq(int, kv_store_session_get(pg, &id, &info, &session), KV_OK));
    return session.state;
}

Test(loss, takes_sessions_that_live_or_are_being_erased_and_leaves_erased_ones)
{
    open_store();
    struct kv_id live = store_session(pg, tenant, 10), erasing = store_session(pg, tenant, 11);
    struct kv_id gone = store_session(pg, tenant, 12);
    struct kv_store_erasure open = store_erasure_request(pg, tenant, erasing, 20), row;
    store_erasure_request(pg, tenant, gone, 21);
    cr_assert(eq(int, IN_TX(pg, kv_store_sessions_set_erased(pg, &(struct kv_store_ids){&gone, 1}, &info)), KV_OK));
    cr_assert(eq(int, kv_store_loss_count(pg, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 2));
    cr_assert(eq(int, IN_TX(pg, kv_store_lose_everything(pg, T0, &info, &count)), KV_OK), "%s", info.text);
    cr_assert(eq(u64, count, 2));
    cr_assert(eq(int, state_of(live), KV_SESSION_LOST));
    cr_assert(eq(int, state_of(erasing), KV_SESSION_LOST));
    cr_assert(eq(int, state_of(gone), KV_SESSION_ERASED));
    cr_assert(eq(int, kv_store_erasure_get(pg, &open.id, &info, &row), KV_OK));
    cr_assert(eq(int, row.state, KV_ERASURE_QUARANTINED));
    cr_assert(eq(int, kv_store_loss_count(pg, &info, &count), KV_OK));
    cr_assert(eq(u64, count, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_lose_everything(pg, T0, &info, &count)), KV_OK));
    cr_assert(eq(u64, count, 0));
    kv_pg_close(pg);
}

Test(loss, ends_the_batch_that_was_on_its_way_wherever_it_was)
{
    static const enum kv_batch_state ends[] = {KV_BATCH_ABANDONED, KV_BATCH_ABANDONED, KV_BATCH_DONE, KV_BATCH_DONE};
    static const uint8_t receipt[32] = {1};
    open_store();
    for (int from = KV_BATCH_STAGED; from <= KV_BATCH_PURGED; from++) {
        struct kv_id id = store_batch(pg, 100 + 10 * (unsigned)from);
        for (int at = KV_BATCH_STAGED; at < from; at++) {
            cr_assert(eq(int,
                         IN_TX(pg, kv_store_batch_advance(pg, &id, at, at + 1, T0,
                                                          at + 1 == KV_BATCH_DESTROYED ? receipt : NULL, &info)),
                         KV_OK));
        }
        cr_assert(eq(int, IN_TX(pg, kv_store_lose_everything(pg, T0, &info, &count)), KV_OK), "%s", info.text);
        struct kv_store_batch batch;
        cr_assert(eq(int, kv_store_batch_get(pg, &id, &info, &batch), KV_OK));
        cr_assert(eq(int, batch.state, ends[from]));
    }
    kv_pg_close(pg);
}

Test(loss, root_replaces_any_other_and_counts_the_fence_up)
{
    struct kv_store_kroot kroot;
    int64_t fence = 0;
    open_store();
    for (unsigned i = 1; i <= 2; i++) {
        struct kv_store_root_set root = {
            .root_id = store_id(i), .provider = i == 1 ? "pkcs11" : "file", .blob = KV_BYTES("wrapped", 7)};
        cr_assert(eq(int, IN_TX(pg, kv_store_kroot_replace(pg, &root, &info, &fence)), KV_OK), "%s", info.text);
        cr_assert(eq(i64, fence, (int64_t)i));
        cr_assert(eq(int, kv_store_kroot_get(pg, &info, &kroot), KV_OK));
        cr_assert(eq(i64, kroot.fence, fence));
        cr_assert(eq(str, kroot.provider, (char *)root.provider));
        kv_store_kroot_done(&kroot);
    }
    kv_pg_close(pg);
}

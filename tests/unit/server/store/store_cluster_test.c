/* The cluster's id, kroot and its fence, revocations, instances' leases. */
#include "server/store/store_cluster.h"

#include "dataplane/base/id.h"
#include "server/store/pg_int.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdatomic.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;

static struct kv_pg *open_store(void)
{
    return temp_postgres_connect(temp_postgres_url(), "test");
}

static bool same(struct kv_id a, struct kv_id b)
{
    return kv_id_equal(&a, &b);
}

Test(cluster, first_id_stays)
{
    struct kv_pg *pg = open_store();
    struct kv_id a = store_id(1), b = store_id(2), got;
    cr_assert(eq(int, kv_store_cluster_get(pg, &info, &got), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, kv_store_cluster_ensure(pg, &a, &info, &got)), KV_OK));
    cr_assert(same(got, a));
    cr_assert(eq(int, IN_TX(pg, kv_store_cluster_ensure(pg, &b, &info, &got)), KV_OK));
    cr_assert(same(got, a));
    kv_pg_close(pg);
}

static struct kv_store_root_set root(unsigned number)
{
    return (struct kv_store_root_set){.root_id = store_id(number), .provider = "file", .blob = KV_BYTES("wrapped", 7)};
}

Test(kroot, is_set_once_and_read_back)
{
    struct kv_pg *pg = open_store();
    struct kv_store_kroot kroot;
    struct kv_store_root_set first = root(10), second = root(11);
    cr_assert(eq(int, kv_store_kroot_get(pg, &info, &kroot), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_init(pg, &first, &info)), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_init(pg, &second, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_kroot_get(pg, &info, &kroot), KV_OK));
    cr_assert(same(kroot.root_id, first.root_id));
    cr_assert(eq(str, kroot.provider, "file"));
    cr_assert(eq(i64, kroot.fence, 0));
    cr_assert(kv_id_is_zero(&kroot.eraser));
    cr_assert(eq(sz, kroot.blob.len, 7));
    cr_assert(eq(int, memcmp(kroot.blob.data, "wrapped", 7), 0));
    kv_store_kroot_done(&kroot);
    kv_pg_close(pg);
}

Test(kroot, empty_blob_is_refused_by_the_schema)
{
    struct kv_pg *pg = open_store();
    struct kv_store_root_set set = root(10);
    set.blob.len = 0;
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_init(pg, &set, &info)), KV_E_INVALID_STATE));
    cr_assert(strstr(info.text, "kroot_blob_check") != NULL, "%s", info.text);
    kv_pg_close(pg);
}

Test(kroot, taking_it_makes_the_eraser_before_stale)
{
    struct kv_pg *pg = open_store();
    struct kv_store_root_set first = root(10), second = root(11);
    struct kv_id me = store_id(50), other = store_id(51), old = store_id(10), wrong = store_id(12);
    struct kv_store_kroot kroot;
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_init(pg, &first, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &me, &info, &kroot)), KV_OK));
    cr_assert(eq(i64, kroot.fence, 1));
    cr_assert(same(kroot.eraser, me));
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &other, &info, &kroot)), KV_OK));
    cr_assert(eq(i64, kroot.fence, 2));
    kv_store_kroot_done(&kroot);

    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_lock(pg, 1, &info, &kroot)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_set(pg, &old, 1, &second, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_set(pg, &wrong, 2, &second, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_lock(pg, 2, &info, &kroot)), KV_OK));
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_set(pg, &old, 2, &second, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_set(pg, &old, 2, &second, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_kroot_get(pg, &info, &kroot), KV_OK));
    cr_assert(same(kroot.root_id, second.root_id));
    kv_store_kroot_done(&kroot);
    kv_pg_close(pg);
}

Test(kroot, sharing_stops_an_eraser_until_it_is_evicted)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = temp_postgres_connect(url, "test"), *filler = temp_postgres_connect(url, "filler");
    struct kv_store_root_set first = root(10);
    struct kv_store_kroot kroot;
    struct kv_id me = store_id(50);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_init(pg, &first, &info)), KV_OK));
    temp_postgres_begin(filler);
    cr_assert(eq(int, kv_store_kroot_share(filler, &info, &kroot), KV_OK));
    kv_store_kroot_done(&kroot);
    /* Two may share. */
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_share(pg, &info, &kroot)), KV_OK));
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &me, &info, &kroot)), KV_E_BUSY));
    uint32_t evicted = 0;
    cr_assert(eq(int, kv_store_kroot_evict(pg, &info, &evicted), KV_OK));
    cr_assert(eq(u32, evicted, 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &me, &info, &kroot)), KV_OK), "%s", info.text);
    cr_assert(eq(i64, kroot.fence, 1));
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, kv_store_kroot_evict(pg, &info, &evicted), KV_OK));
    cr_assert(eq(u32, evicted, 0));
    kv_pg_close(filler);
    kv_pg_close(pg);
}

Test(revocation, numbers_are_in_order_and_a_rollback_leaves_no_gap)
{
    struct kv_pg *pg = open_store();
    int64_t seq = 0;
    cr_assert(eq(int, kv_store_revocation_head(pg, &info, &seq), KV_OK));
    cr_assert(eq(i64, seq, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_revocation_next(pg, &info, &seq)), KV_OK));
    cr_assert(eq(i64, seq, 1));
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_revocation_next(pg, &info, &seq), KV_OK));
    cr_assert(eq(i64, seq, 2));
    cr_assert(eq(int, temp_postgres_end(pg, KV_E_FORBIDDEN), KV_E_FORBIDDEN));
    cr_assert(eq(int, IN_TX(pg, kv_store_revocation_next(pg, &info, &seq)), KV_OK));
    cr_assert(eq(i64, seq, 2));
    kv_pg_close(pg);
}

Test(revocation, those_since_a_number_are_listed_oldest_first_up_to_the_bound)
{
    struct kv_pg *pg = open_store();
    store_cluster(pg);
    struct kv_id tenant = store_tenant(pg, 2);
    for (unsigned i = 0; i < 3; i++) {
        struct kv_id session = store_session(pg, tenant, 100 + i);
        store_erasure_request(pg, tenant, session, 200 - i);
    }
    struct kv_store_revocation list[3];
    size_t count = 0;
    cr_assert(eq(int, kv_store_revocations_since(pg, 1, 3, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 2));
    cr_assert(eq(i64, list[0].seq, 2));
    cr_assert(same(list[0].session, store_id(101)));
    cr_assert(same(list[1].tenant, tenant));
    cr_assert(eq(int, kv_store_revocations_since(pg, 0, 1, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(eq(i64, list[0].seq, 1));
    cr_assert(eq(int, kv_store_revocations_since(pg, 3, 3, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    kv_pg_close(pg);
}

static struct kv_store_join joining(struct kv_id id, uint32_t lease_ms)
{
    struct kv_store_join join = {.id = id, .lease_ms = lease_ms};
    memset(join.keys_sha256, 7, sizeof join.keys_sha256);
    return join;
}

static struct kv_store_instance join_as(struct kv_pg *pg, struct kv_id id, uint32_t lease_ms)
{
    struct kv_store_instance row;
    struct kv_store_join join = joining(id, lease_ms);
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_join(pg, &join, &info, &row)), KV_OK), "%s", info.text);
    return row;
}

Test(instance, renewal_is_won_by_one_of_two_clones)
{
    struct kv_pg *pg = open_store();
    struct kv_id id = store_id(60);
    struct kv_store_instance first = join_as(pg, id, 5000), renewed, lost;
    cr_assert(eq(i64, first.incarnation, 1));
    cr_assert(eq(u32, first.lease_ms, 5000));
    cr_assert(eq(int, first.keys_sha256[31], 7));
    cr_assert(gt(u64, first.lease_until_us, first.started_us + 4000000));
    cr_assert(lt(u64, first.lease_until_us, first.started_us + 7000000));
    struct kv_store_instance clone = first;
    first.acked_seq = 4;
    first.acked_root = store_id(10);
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &first, &info, &renewed)), KV_OK));
    cr_assert(eq(i64, renewed.lease_ctr, first.lease_ctr + 1));
    cr_assert(eq(i64, renewed.acked_seq, 4));
    cr_assert(same(renewed.acked_root, store_id(10)));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &clone, &info, &lost)), KV_E_STALE));
    /* The one that lost says so; the other one's next renewal is a new incarnation's, once. */
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_mark_cloned(pg, &id, clone.incarnation, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &renewed, &info, &first)), KV_OK));
    cr_assert(eq(i64, first.incarnation, 2));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_mark_cloned(pg, &id, clone.incarnation, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &first, &info, &renewed)), KV_OK));
    cr_assert(eq(i64, renewed.incarnation, 2));
    kv_pg_close(pg);
}

Test(instance, join_takes_over_and_leave_ends_the_lease)
{
    struct kv_pg *pg = open_store();
    struct kv_id id = store_id(60), id2 = store_id(61);
    struct kv_store_instance other, list[4];
    size_t count = 0;
    struct kv_store_instance first = join_as(pg, id, 5000), second = join_as(pg, id, 5000);
    cr_assert(eq(i64, second.incarnation, 2));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &first, &info, &other)), KV_E_STALE));
    join_as(pg, id2, 0);
    cr_assert(eq(int, kv_store_instances_live(pg, 4, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(same(list[0].id, id));
    cr_assert(eq(int, kv_store_instances_list(pg, 4, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 2));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_leave(pg, &id, 1, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_leave(pg, &id, 2, &info)), KV_OK));
    cr_assert(eq(int, kv_store_instances_live(pg, 4, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    cr_assert(eq(int, kv_store_instances_list(pg, 4, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(eq(int, IN_TX(pg, kv_store_instances_end_others(pg, &id, &info)), KV_OK));
    cr_assert(eq(int, kv_store_instances_list(pg, 4, &info, list, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    kv_pg_close(pg);
}

Test(instance, lease_that_was_seen_to_run_out_is_not_renewed)
{
    struct kv_pg *pg = open_store();
    struct kv_id id = store_id(60);
    struct kv_store_instance seen = join_as(pg, id, 5000), now;
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &seen, &info, &now)), KV_OK));
    /* Who saw an older counter ends nothing. */
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_expire(pg, &seen, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_expire(pg, &now, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_expire(pg, &now, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &now, &info, &seen)), KV_E_STALE));
    now.lease_ctr++;
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &now, &info, &seen)), KV_E_STALE));
    cr_assert(eq(int, kv_store_instance_get(pg, &id, &info, &seen), KV_OK));
    cr_assert(eq(i64, seen.incarnation, 1));
    cr_assert(gt(u64, seen.expired_us, 0));
    seen = join_as(pg, id, 5000);
    cr_assert(eq(i64, seen.incarnation, 2));
    cr_assert(eq(u64, seen.expired_us, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &seen, &info, &now)), KV_OK));
    kv_pg_close(pg);
}

static KV_RC nothing_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *told)
{
    int64_t seq = 0;
    (void)ctx;
    return kv_store_revocation_next(pg, told, &seq);
}

Test(instance, transaction_of_an_earlier_incarnation_hits_nothing)
{
    const char *url = temp_postgres_url();
    struct kv_pg *pg = temp_postgres_connect(url, "test"), *as = temp_postgres_connect(url, "as");
    struct kv_pg_token token = {.instance = store_id(60)};
    struct kv_store_instance row, renewed;
    int64_t head = 0;
    kv_pg_set_token(as, &token);
    cr_assert(eq(int, kv_pg_tx(as, KV_TX_CLUSTER, nothing_tx, NULL, &info, NULL), KV_OK), "nobody's yet: %s",
              info.text);
    row = join_as(pg, token.instance, 5000);
    atomic_store(&token.incarnation, row.incarnation);
    cr_assert(eq(int, kv_pg_tx(as, KV_TX_CLUSTER, nothing_tx, NULL, &info, NULL), KV_OK), "%s", info.text);
    /* A renewal waits for no transaction of its incarnation, the next incarnation does. */
    cr_assert(eq(int, kv_pg_begin(as, &info), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_renew(pg, &row, &info, &renewed)), KV_OK), "%s", info.text);
    struct kv_store_join join = joining(token.instance, 5000);
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_join(pg, &join, &info, &row)), KV_E_BUSY));
    uint32_t ended = 0;
    cr_assert(eq(int, kv_store_instance_evict(pg, &info, &ended), KV_OK));
    cr_assert(eq(u32, ended, 1));
    row = join_as(pg, token.instance, 5000);
    cr_assert(eq(i64, row.incarnation, 2));
    kv_pg_drop(as, "ended");
    cr_assert(eq(int, kv_pg_tx(as, KV_TX_CLUSTER, nothing_tx, NULL, &info, NULL), KV_E_LEASE_EXPIRED));
    cr_assert(eq(int, kv_store_revocation_head(pg, &info, &head), KV_OK));
    cr_assert(eq(i64, head, 2));
    /* So does one whose lease was seen to have run out, or that was found to be two. */
    atomic_store(&token.incarnation, row.incarnation);
    cr_assert(eq(int, kv_pg_tx(as, KV_TX_CLUSTER, nothing_tx, NULL, &info, NULL), KV_OK), "%s", info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_mark_cloned(pg, &token.instance, 2, &info)), KV_OK));
    cr_assert(eq(int, kv_pg_tx(as, KV_TX_CLUSTER, nothing_tx, NULL, &info, NULL), KV_E_LEASE_EXPIRED));
    row = join_as(pg, token.instance, 5000);
    atomic_store(&token.incarnation, row.incarnation);
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_expire(pg, &row, &info)), KV_OK));
    cr_assert(eq(int, kv_pg_tx(as, KV_TX_CLUSTER, nothing_tx, NULL, &info, NULL), KV_E_LEASE_EXPIRED));
    cr_assert(eq(int, kv_store_revocation_head(pg, &info, &head), KV_OK));
    cr_assert(eq(i64, head, 3));
    kv_pg_close(as);
    kv_pg_close(pg);
}

Test(kroot, is_taken_from_nobody_whose_lease_runs)
{
    struct kv_pg *pg = open_store();
    struct kv_id me = store_id(60), other = store_id(61);
    struct kv_store_root_set first = root(10);
    struct kv_store_kroot kroot;
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &me, &info, &kroot)), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_init(pg, &first, &info)), KV_OK));
    join_as(pg, me, 60000);
    struct kv_store_instance its = join_as(pg, other, 60000);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &other, &info, &kroot)), KV_OK));
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_hold(pg, 1, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &me, &info, &kroot)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &other, &info, &kroot)), KV_OK), "its own is no other's");
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_hold(pg, 1, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_release(pg, 1, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_release(pg, 2, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &me, &info, &kroot)), KV_OK), "released");
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_release(pg, 3, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &other, &info, &kroot)), KV_OK));
    kv_store_kroot_done(&kroot);
    cr_assert(eq(int, IN_TX(pg, kv_store_instance_expire(pg, &its, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_kroot_take(pg, &me, &info, &kroot)), KV_OK), "its lease is over");
    cr_assert(eq(i64, kroot.fence, 5));
    kv_store_kroot_done(&kroot);
    kv_pg_close(pg);
}

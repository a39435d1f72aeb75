/*
 * Two connections in each other's way, each case with its control: the same steps with the one rule left out that keeps
 * them apart. The names of the controls are those of the model (tests/model/erasure.py).
 */
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"
#include "server/store/pg_int.h"
#include "server/store/store_cluster.h"
#include "server/store/store_ktree.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEMP_POSTGRES_HOOKS

#define WAIT_S 30
#define NEXT_LEAF KV_TREE_FANOUT /* the first slot of the leaf after the first */

static struct kv_errinfo info;

/* --- the second one, in a thread of its own ---------------------------------------------------------------------- */

struct second {
    pthread_t thread;
    const char *url;
    enum kv_err (*run)(struct kv_pg *pg, struct second *second);
    void *arg;
    struct kv_errinfo info;
    atomic_bool ended;
    enum kv_err rc;
    unsigned tries;
};

/* Whoever asks PostgreSQL for a lock waits two seconds for it; on a busy machine that may be over before its turn. */
static void *second_main(void *arg)
{
    struct second *second = arg;
    struct kv_pg *pg = temp_postgres_connect(second->url, "second");
    uint64_t deadline = kv_now_ns(&kv_env_system) + WAIT_S * KV_S_NS;
    do {
        second->tries++;
        second->rc = IN_TX(pg, second->run(pg, second));
    } while (second->rc == KV_E_BUSY && kv_now_ns(&kv_env_system) < deadline);
    kv_pg_close(pg);
    atomic_store(&second->ended, true);
    return NULL;
}

static long long number(struct kv_pg *pg, const char *sql)
{
    PGresult *result = NULL;
    cr_assert(eq(int, kv_pg_script(pg, sql, 30000, &info, &result), KV_OK), "%s", info.text);
    long long value = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return value;
}

/* Until it has ended, or waits for a lock that somebody else has. */
static void second_start(struct second *second, struct kv_pg *observer)
{
    uint64_t deadline = kv_now_ns(&kv_env_system) + WAIT_S * KV_S_NS;
    cr_assert(eq(int, pthread_create(&second->thread, NULL, second_main, second), 0));
    while (!atomic_load(&second->ended) &&
           number(observer, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                            " AND application_name = 'second' AND wait_event_type = 'Lock'") == 0) {
        cr_assert(kv_now_ns(&kv_env_system) < deadline, "the second one neither ends nor waits");
        usleep(5000);
    }
}

static void second_join(struct second *second)
{
    cr_assert(eq(int, pthread_join(second->thread, NULL), 0));
}

/* --- revocations that commit out of order ------------------------------------------------------------------------ */

struct request {
    struct kv_id tenant, session;
    unsigned number;
};

static enum kv_err request(struct kv_pg *pg, const struct request *in, struct kv_errinfo *why)
{
    struct kv_store_erasure erasure = {.id = store_id(in->number),
                                       .tenant = in->tenant,
                                       .session = in->session,
                                       .basis = "gdpr_art17",
                                       .requested_role = "tenant_admin",
                                       .requested_by = store_id(77),
                                       .at_us = {T0 + 5}};
    enum kv_err rc = kv_store_revocation_next(pg, why, &erasure.revocation_seq);
    return rc != KV_OK ? rc : kv_store_erasure_insert(pg, &erasure, why);
}

static enum kv_err second_request(struct kv_pg *pg, struct second *second)
{
    return request(pg, second->arg, &second->info);
}

/* What an instance does at each renewal: takes on what is new, and asks next time from there. */
static size_t watch(struct kv_pg *pg, int64_t *seen)
{
    struct kv_store_revocation list[4];
    size_t count = 0;
    cr_assert(eq(int, kv_store_revocations_since(pg, *seen, 4, &info, list, &count), KV_OK));
    *seen = count == 0 ? *seen : list[count - 1].seq;
    return count;
}

/* The number comes from a sequence instead of a row; the code that asks for it is the same. */
static const char numbers_before_commit[] =
    "ALTER TABLE kvrun.revocation_head RENAME TO revocation_row;"
    "CREATE SEQUENCE kvrun.naive;"
    "CREATE VIEW kvrun.revocation_head AS SELECT seq FROM kvrun.revocation_row;"
    "CREATE FUNCTION kvrun.naive_next() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN NEW.seq := nextval('kvrun.naive'); RETURN NEW; END $$;"
    "CREATE TRIGGER naive INSTEAD OF UPDATE ON kvrun.revocation_head FOR EACH ROW EXECUTE FUNCTION kvrun.naive_next()";

/* Two are asked for; the one that began first commits last, and in between somebody looks. How many he learns of. */
static size_t learned(const char *naive)
{
    const char *url = temp_postgres_url();
    struct kv_pg *first = temp_postgres_connect(url, "first"), *watcher = temp_postgres_connect(url, "watcher");
    store_cluster(first);
    struct kv_id tenant = store_tenant(first, 2);
    struct request one = {.tenant = tenant, .session = store_session(first, tenant, 100), .number = 200};
    struct request two = {.tenant = tenant, .session = store_session(first, tenant, 101), .number = 201};
    struct second second = {.url = url, .run = second_request, .arg = &two};
    int64_t seen = 0;
    if (naive != NULL) {
        cr_assert(eq(int, temp_postgres_run(first, naive), KV_OK));
    }
    temp_postgres_begin(first);
    cr_assert(eq(int, request(first, &one, &info), KV_OK), "%s", info.text);
    second_start(&second, watcher);
    size_t count = watch(watcher, &seen);
    cr_assert(eq(int, temp_postgres_end(first, KV_OK), KV_OK));
    second_join(&second);
    cr_assert(eq(int, second.rc, KV_OK), "%s", second.info.text);
    count += watch(watcher, &seen);
    kv_pg_close(watcher);
    kv_pg_close(first);
    return count;
}

Test(revocations, that_commit_out_of_order_are_all_learned_of)
{
    cr_assert(eq(sz, learned(NULL), 2));
}

Test(revocations, with_numbers_before_commit_one_is_missed)
{
    cr_assert(eq(sz, learned(numbers_before_commit), 1));
}

/* --- the tree ---------------------------------------------------------------------------------------------------- */

struct process {
    struct kv_ktree *tree;
    struct svc_tree_store store;
    struct kv_ktree_store rows;
    bool naive;
};

struct forest {
    const char *url;
    struct kv_pg *first, *observer;
    struct kv_id cluster, tenant, root_id;
    struct kv_secret *root;
};

static struct kv_secret *new_secret(void)
{
    struct kv_secret *secret = NULL;
    cr_assert(eq(int, kv_secret_random(&kv_env_system, 32, &secret), KV_OK));
    return secret;
}

/* Rule left out: what is there and is not what was seen is written over. */
static KV_RC write_over(struct process *process, const struct kv_node_key *key, const struct kv_node_row *row)
{
    struct kv_node_row there;
    struct kv_ktree_store real = svc_tree_store(&process->store);
    KV_TRY(real.load(real.ctx, key, &there));
    kv_free(there.sealed);
    struct kv_node_row over = *row;
    over.version = there.version + 1;
    return real.update(real.ctx, key, there.version, &over);
}

static KV_RC tree_load(void *ctx, const struct kv_node_key *key, struct kv_node_row *ret_row)
{
    struct kv_ktree_store real = svc_tree_store(&((struct process *)ctx)->store);
    return real.load(real.ctx, key, ret_row);
}

static KV_RC tree_insert(void *ctx, const struct kv_node_key *key, const struct kv_node_row *row)
{
    struct process *process = ctx;
    struct kv_ktree_store real = svc_tree_store(&process->store);
    enum kv_err rc = real.insert(real.ctx, key, row);
    return rc == KV_E_STALE && process->naive ? write_over(process, key, row) : rc;
}

static KV_RC tree_update(void *ctx, const struct kv_node_key *key, int64_t seen, const struct kv_node_row *row)
{
    struct process *process = ctx;
    struct kv_ktree_store real = svc_tree_store(&process->store);
    enum kv_err rc = real.update(real.ctx, key, seen, row);
    return rc == KV_E_STALE && process->naive ? write_over(process, key, row) : rc;
}

static void process_open(struct process *process, const struct forest *forest, struct kv_pg *pg)
{
    process->store = (struct svc_tree_store){.pg = pg, .info = &info};
    process->rows =
        (struct kv_ktree_store){.ctx = process, .load = tree_load, .insert = tree_insert, .update = tree_update};
    cr_assert(eq(int, kv_ktree_new(&kv_env_system, &forest->cluster, &process->tree), KV_OK));
    cr_assert(eq(int, kv_ktree_set_root(process->tree, &forest->root_id, forest->root), KV_OK));
}

static void forest_open(struct forest *forest, struct process *first)
{
    *forest = (struct forest){.url = temp_postgres_url(),
                              .cluster = store_id(1),
                              .tenant = store_id(2),
                              .root_id = store_id(3),
                              .root = new_secret()};
    forest->first = temp_postgres_connect(forest->url, "first");
    forest->observer = temp_postgres_connect(forest->url, "observer");
    process_open(first, forest, forest->first);
    cr_assert(eq(int, IN_TX(forest->first, kv_ktree_format(first->tree, &first->rows)), KV_OK), "%s", info.text);
}

static void forest_close(struct forest *forest, struct process *first)
{
    kv_ktree_free(first->tree);
    kv_secret_free(forest->root);
    kv_pg_close(forest->first);
    kv_pg_close(forest->observer);
}

static enum kv_err slot_of(const struct process *process, const struct forest *forest, uint32_t slot, bool fill,
                           struct kv_secret **ret_secret)
{
    return kv_ktree_slot(process->tree, &process->rows, &forest->tenant, 0, slot, fill, ret_secret);
}

/* What a process finds that was not there before. NULL: nothing that opens. */
static struct kv_secret *found(const struct forest *forest, uint32_t slot)
{
    struct process other = {0};
    struct kv_secret *secret = NULL;
    process_open(&other, forest, forest->observer);
    enum kv_err rc = slot_of(&other, forest, slot, false, &secret);
    kv_ktree_free(other.tree);
    return rc == KV_OK ? secret : NULL;
}

static bool is_found(const struct forest *forest, uint32_t slot, const struct kv_secret *secret)
{
    struct kv_secret *there KV_CLEANUP(kv_secret_freep) = found(forest, slot);
    return there != NULL && memcmp(kv_secret_data(there), kv_secret_data(secret), 32) == 0;
}

static void fill_both(struct forest *forest, struct process *first)
{
    for (uint32_t slot = 0; slot < 2; slot++) {
        struct kv_secret *secret = NULL;
        cr_assert(eq(int, IN_TX(forest->first, slot_of(first, forest, slot, true, &secret)), KV_OK), "%s", info.text);
        kv_secret_free(secret);
    }
}

/* --- nodes that two fill at once ---------------------------------------------------------------------------------- */

struct filling {
    struct forest *forest;
    struct process process;
    struct kv_secret *secret;
};

/* As a session is made: once more when somebody else's nodes are there by now. */
static enum kv_err second_fill(struct kv_pg *pg, struct second *second)
{
    struct filling *filling = second->arg;
    filling->process.store.pg = pg;
    filling->process.store.info = &second->info;
    enum kv_err rc = slot_of(&filling->process, filling->forest, NEXT_LEAF + 1, true, &filling->secret);
    return rc == KV_E_STALE ? KV_E_BUSY : rc;
}

/* Two make the first sessions of a leaf that is not there yet. Whether both open. */
static bool both_open(bool naive)
{
    struct forest forest;
    struct process first = {0};
    struct kv_secret *secret = NULL;
    forest_open(&forest, &first);
    fill_both(&forest, &first);
    struct filling filling = {.forest = &forest, .process = {.naive = naive}};
    process_open(&filling.process, &forest, NULL);
    struct second second = {.url = forest.url, .run = second_fill, .arg = &filling};
    temp_postgres_begin(forest.first);
    cr_assert(eq(int, slot_of(&first, &forest, NEXT_LEAF, true, &secret), KV_OK), "%s", info.text);
    second_start(&second, forest.observer);
    cr_assert(not(atomic_load(&second.ended)), "it waits for the one that is filling");
    cr_assert(eq(int, temp_postgres_end(forest.first, KV_OK), KV_OK));
    second_join(&second);
    cr_assert(eq(int, second.rc, KV_OK), "%s", second.info.text);
    cr_assert(is_found(&forest, NEXT_LEAF + 1, filling.secret), "what came last is there in any case");
    bool both = is_found(&forest, NEXT_LEAF, secret);
    kv_secret_free(secret);
    kv_secret_free(filling.secret);
    kv_ktree_free(filling.process.tree);
    forest_close(&forest, &first);
    return both;
}

Test(slot_fill, of_nodes_that_another_fills_at_the_same_time_loses_no_session)
{
    cr_assert(both_open(false));
}

Test(slot_fill, stale_fill_that_writes_over_loses_a_live_session)
{
    cr_assert(not(both_open(true)));
}

/* --- a leaf that was read before a re-key emptied a slot of it -----------------------------------------------------
 */

struct rekeying {
    struct forest *forest;
    struct process process;
    struct kv_id fresh_id;
    struct kv_secret *fresh;
    uint32_t slot;
};

static enum kv_err rekey(struct rekeying *me)
{
    struct kv_ktree_target target = {.tenant = me->forest->tenant, .directory_slot = 0, .slot = me->slot};
    return kv_ktree_rekey(me->process.tree, &me->process.rows, &target, 1, &me->fresh_id, me->fresh);
}

static enum kv_err second_rekey(struct kv_pg *pg, struct second *second)
{
    struct rekeying *me = second->arg;
    me->process.store.pg = pg;
    me->process.store.info = &second->info;
    return rekey(me);
}

/* Two erasers that both believe to be the one, with nothing but the versions of nodes between them: one drops slot 0,
 * the other, who read the leaf before, slot 1. Whether slot 0 is back in the leaf in the end. */
static bool slot_is_back(bool naive, enum kv_err *ret_second)
{
    struct forest forest;
    struct process first = {0};
    forest_open(&forest, &first);
    fill_both(&forest, &first);
    struct rekeying one = {.forest = &forest, .process = first, .fresh_id = store_id(10), .fresh = new_secret()};
    struct rekeying two = {.forest = &forest, .fresh_id = store_id(11), .fresh = new_secret(), .slot = 1};
    two.process.naive = naive;
    process_open(&two.process, &forest, NULL);
    one.process.rows.ctx = &one.process;
    struct second second = {.url = forest.url, .run = second_rekey, .arg = &two};
    temp_postgres_begin(forest.first);
    cr_assert(eq(int, rekey(&one), KV_OK), "%s", info.text);
    second_start(&second, forest.observer);
    cr_assert(not(atomic_load(&second.ended)), "it waits for the one that re-keys");
    cr_assert(eq(int, temp_postgres_end(forest.first, KV_OK), KV_OK));
    second_join(&second);
    *ret_second = second.rc;
    struct forest now = forest;
    now.root_id = naive ? two.fresh_id : one.fresh_id;
    now.root = naive ? two.fresh : one.fresh;
    struct kv_secret *back KV_CLEANUP(kv_secret_freep) = found(&now, 0);
    kv_ktree_free(two.process.tree);
    kv_secret_free(one.fresh);
    kv_secret_free(two.fresh);
    forest_close(&forest, &first);
    return back != NULL;
}

Test(slot_fill, from_a_leaf_that_was_read_before_a_rekey_is_stale)
{
    enum kv_err second = KV_OK;
    cr_assert(not(slot_is_back(false, &second)));
    cr_assert(eq(int, second, KV_E_STALE));
}

Test(slot_fill, stale_fill_that_writes_over_brings_an_erased_session_back)
{
    enum kv_err second = KV_E_STALE;
    cr_assert(slot_is_back(true, &second));
    cr_assert(eq(int, second, KV_OK));
}

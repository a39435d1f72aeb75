/* The audit logs: entries get places once and in order, heads are signed, proofs verify against them. */
#include "server/service/svc_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "tests/lib/svc_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

#define LOGS 4u
#define HASHES_MAX 2048u

static struct kvt_svc rig;
static struct kv_id logs[LOGS];
static uint64_t counts[LOGS];

/* --- entries ----------------------------------------------------------------------------------------------------- */

struct batch {
    unsigned log, count, first;
    bool fail;
};

static enum kv_err batch_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct batch *batch = ctx;
    for (unsigned i = 0; i < batch->count; i++) {
        uint8_t ref[4];
        struct kv_writer writer = kv_writer_of(ref, sizeof ref);
        kv_write_u32(&writer, batch->first + i);
        struct kv_audit_event event = {.op = KV_AUDIT_SESSION_CREATE,
                                       .tenant = logs[batch->log],
                                       .session = logs[batch->log],
                                       .realtime_us = 1000000 + batch->first + i,
                                       .actor_role = "system"};
        KV_TRY(svc_audit(rig.svc, pg, &event, KV_BYTES(ref, sizeof ref), info));
    }
    return batch->fail ? KV_E_FORBIDDEN : KV_OK;
}

static enum kv_err add(unsigned log, unsigned count, bool fail)
{
    struct batch batch = {.log = log, .count = count, .first = (unsigned)counts[log], .fail = fail};
    enum kv_err rc = kv_pg_tx(rig.call.pg, KV_TX_USES, batch_tx, &batch, &rig.info, NULL);
    counts[log] += rc == KV_OK ? count : 0;
    return rc;
}

static void sequence_all(void)
{
    uint64_t waiting = 1, oldest = 0;
    for (int i = 0; i < 100 && waiting > 0; i++) {
        cr_assert(eq(int, svc_sequence(rig.svc, rig.call.pg, &rig.info, NULL), KV_OK), "%s", rig.info.text);
        cr_assert(eq(int, kv_store_outbox_stats(rig.call.pg, &rig.info, &waiting, &oldest), KV_OK));
    }
    cr_assert(eq(u64, waiting, 0));
    cr_assert(eq(int, svc_sequence(rig.svc, rig.call.pg, &rig.info, NULL), KV_OK));
}

static void open_logs(void)
{
    kvt_svc_config(&rig);
    kvt_svc_start(&rig);
    for (unsigned i = 0; i < LOGS; i++) {
        logs[i] = (struct kv_id){.b = {0x10, [15] = (uint8_t)(i + 1)}};
        counts[i] = 0;
    }
}

/* --- the whole of a log, read back and hashed here once more ------------------------------------------------------ */

struct whole {
    struct kv_hash leaves[HASHES_MAX];
    uint64_t size;
    struct kv_checkpoint head;
};

static void read_whole(const struct kv_id *log, struct whole *whole)
{
    struct kv_buf note;
    uint64_t signed_size = 0;
    uint8_t public_key[32];
    whole->size = 0;
    for (bool more = true; more;) {
        struct kv_store_entries entries;
        cr_assert(eq(int, kv_store_leaf_entries(rig.call.pg, log, whole->size, 500, &rig.info, &entries), KV_OK));
        for (size_t i = 0; i < entries.count; i++, whole->size++) {
            cr_assert(lt(u64, whole->size, HASHES_MAX));
            cr_assert(eq(u64, entries.rows[i].idx, whole->size));
            cr_assert(eq(int, kv_merkle_leaf(entries.rows[i].entry, &whole->leaves[whole->size]), KV_OK));
        }
        more = entries.count > 0;
        kv_store_entries_done(&entries);
    }
    kv_buf_init(&note, 16384);
    cr_assert(eq(int, kv_store_log_note(rig.call.pg, log, &rig.info, &note, &signed_size), KV_OK));
    kv_sign_public(rig.svc->log_key, public_key);
    cr_assert(eq(int, kv_checkpoint_verify(kv_buf_bytes(&note), public_key, &whole->head), KV_OK));
    cr_assert(eq(u64, whole->head.size, signed_size));
    kv_buf_done(&note);
}

static enum kv_err fetch(void *ctx, unsigned level, uint64_t index, struct kv_hash *ret_hash)
{
    const struct whole *whole = ctx;
    if (level == 0) {
        *ret_hash = whole->leaves[index];
        return KV_OK;
    }
    struct kv_hash left, right;
    KV_TRY(fetch(ctx, level - 1, 2 * index, &left));
    KV_TRY(fetch(ctx, level - 1, 2 * index + 1, &right));
    return kv_merkle_node(&left, &right, ret_hash);
}

static struct kv_hash root_of(const struct whole *whole, uint64_t size)
{
    struct kv_frontier frontier = {0};
    struct kv_hash root;
    for (uint64_t i = 0; i < size; i++) {
        cr_assert(eq(int, kv_frontier_append(&frontier, &whole->leaves[i], NULL, NULL), KV_OK));
    }
    cr_assert(eq(int, kv_frontier_root(&frontier, &root), KV_OK));
    return root;
}

static void check_head(const struct whole *whole)
{
    struct kv_hash root = root_of(whole, whole->head.size);
    cr_assert(eq(int, memcmp(root.b, whole->head.root.b, sizeof root.b), 0));
}

static void check_inclusion(const struct kv_id *log, const struct whole *whole, uint64_t index, uint64_t size)
{
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX],
        root = size == whole->head.size ? whole->head.root : root_of(whole, size);
    size_t count = 0;
    cr_assert(eq(int, svc_inclusion_proof(rig.call.pg, log, index, size, &rig.info, proof, &count), KV_OK),
              "%s: %zu of %zu", rig.info.text, (size_t)index, (size_t)size);
    cr_assert(eq(int, kv_merkle_verify_inclusion(&whole->leaves[index], index, size, proof, count, &root), KV_OK));
    /* The control: at another place it does not verify. */
    uint64_t other = index == 0 ? size - 1 : index - 1;
    if (other != index) {
        cr_assert(eq(int, kv_merkle_verify_inclusion(&whole->leaves[other], index, size, proof, count, &root),
                     KV_E_TAMPERED));
    }
}

/* --- tests ------------------------------------------------------------------------------------------------------- */

Test(sequencer, thousand_entries_in_several_logs_have_proofs_that_verify)
{
    static struct whole whole;
    open_logs();
    srandom(20260722);
    while (counts[0] + counts[1] + counts[2] + counts[3] < 1000) {
        cr_assert(eq(int, add((unsigned)random() % LOGS, 1 + (unsigned)random() % 40, false), KV_OK), "%s",
                  rig.info.text);
        if (random() % 4 == 0) {
            cr_assert(eq(int, svc_sequence(rig.svc, rig.call.pg, &rig.info, NULL), KV_OK));
        }
    }
    sequence_all();
    for (unsigned i = 0; i < LOGS; i++) {
        read_whole(&logs[i], &whole);
        cr_assert(eq(u64, whole.size, counts[i]));
        cr_assert(eq(u64, whole.head.size, counts[i]));
        check_head(&whole);
        for (int n = 0; n < 25; n++) {
            check_inclusion(&logs[i], &whole, (uint64_t)random() % whole.size, whole.size);
        }
        check_inclusion(&logs[i], &whole, 0, whole.size);
        check_inclusion(&logs[i], &whole, whole.size - 1, whole.size);
    }
    kvt_svc_done(&rig);
}

Test(sequencer, entries_keep_the_order_of_their_transactions_and_are_found_by_their_ref)
{
    open_logs();
    for (int i = 0; i < 30; i++) {
        cr_assert(eq(int, add(0, 3, false), KV_OK));
        cr_assert(eq(int, add(1, 1, false), KV_OK));
    }
    sequence_all();
    for (uint32_t i = 0; i < counts[0]; i++) {
        uint8_t ref[4];
        uint64_t index = 0;
        struct kv_writer writer = kv_writer_of(ref, sizeof ref);
        kv_write_u32(&writer, i);
        cr_assert(
            eq(int, kv_store_leaf_find(rig.call.pg, &logs[0], KV_BYTES(ref, sizeof ref), &rig.info, &index), KV_OK));
        cr_assert(eq(u64, index, i));
    }
    kvt_svc_done(&rig);
}

/* Tiles are kept from the 256th leaf on; every edge has to be found again. */
Test(sequencer, tiles_hold_over_their_edges)
{
    static struct whole whole;
    static const unsigned steps[] = {255, 1, 1, 254, 1, 1, 87, 168}; /* 255 256 257 511 512 513 600 768 */
    open_logs();
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        cr_assert(eq(int, add(0, steps[i], false), KV_OK));
        sequence_all();
        read_whole(&logs[0], &whole);
        cr_assert(eq(u64, whole.head.size, counts[0]));
        check_head(&whole);
        uint64_t size = whole.size;
        uint64_t places[] = {0, 1, 127, 254, 255, 256, 257, 510, 511, 512, 513, 599, size - 2, size - 1};
        for (size_t n = 0; n < sizeof places / sizeof places[0]; n++) {
            if (places[n] < size) {
                check_inclusion(&logs[0], &whole, places[n], size);
            }
        }
    }
    cr_assert(eq(llong,
                 kvt_db_number(&rig, "SELECT octet_length(hashes) FROM kvrun.audit_tile WHERE level = 1 AND "
                                     "log_id = '\\x10000000000000000000000000000001'"),
                 3 * 32));
    /* Also against an earlier head. */
    for (uint64_t size = 250; size < 600; size += 29) {
        check_inclusion(&logs[0], &whole, size / 2, size);
        check_inclusion(&logs[0], &whole, size - 1, size);
    }
    kvt_svc_done(&rig);
}

Test(sequencer, proof_outside_of_the_tree_is_refused)
{
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    size_t count = 0;
    open_logs();
    cr_assert(eq(int, add(0, 5, false), KV_OK));
    sequence_all();
    cr_assert(
        eq(int, svc_inclusion_proof(rig.call.pg, &logs[0], 5, 5, &rig.info, proof, &count), KV_E_INVALID_REQUEST));
    cr_assert(svc_inclusion_proof(rig.call.pg, &logs[0], 0, 50, &rig.info, proof, &count) != KV_OK);
    cr_assert(svc_inclusion_proof(rig.call.pg, &logs[3], 0, 5, &rig.info, proof, &count) != KV_OK, "no such log");
    cr_assert(eq(int, svc_inclusion_proof(rig.call.pg, &logs[0], 4, 5, &rig.info, proof, &count), KV_OK),
              "the control");
    kvt_svc_done(&rig);
}

Test(sequencer, later_head_is_consistent_with_an_earlier_one)
{
    static struct whole early, late;
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    size_t count = 0;
    open_logs();
    cr_assert(eq(int, add(0, 300, false), KV_OK));
    sequence_all();
    read_whole(&logs[0], &early);
    for (unsigned i = 0; i < 5; i++) {
        cr_assert(eq(int, add(0, 61, false), KV_OK));
        sequence_all();
    }
    read_whole(&logs[0], &late);
    cr_assert(eq(u64, late.head.size, 605));
    cr_assert(eq(int, kv_merkle_consistency(fetch, &late, 300, 605, proof, &count), KV_OK));
    cr_assert(eq(int, kv_merkle_verify_consistency(300, 605, &early.head.root, &late.head.root, proof, count), KV_OK));
    cr_assert(
        eq(int, kv_merkle_verify_consistency(300, 605, &late.head.root, &late.head.root, proof, count), KV_E_TAMPERED));
    cr_assert(eq(str, early.head.origin, late.head.origin));
    cr_assert(eq(int, strncmp(early.head.origin, "test.local/audit/t_", 19), 0), "%s", early.head.origin);
    kvt_svc_done(&rig);
}

Test(sequencer, entry_of_a_transaction_that_failed_is_in_no_log)
{
    static struct whole whole;
    open_logs();
    cr_assert(eq(int, add(0, 3, false), KV_OK));
    cr_assert(eq(int, add(0, 3, true), KV_E_FORBIDDEN));
    cr_assert(eq(int, add(0, 2, false), KV_OK));
    sequence_all();
    read_whole(&logs[0], &whole);
    cr_assert(eq(u64, whole.size, 5));
    kvt_svc_done(&rig);
}

Test(sequencer, head_that_does_not_follow_from_what_is_stored_is_not_signed)
{
    static struct whole whole;
    struct kv_id log;
    open_logs();
    log = logs[0];
    cr_assert(eq(int, add(0, 9, false), KV_OK));
    sequence_all();
    kvt_db_run(&rig, "UPDATE kvrun.audit_log SET root = sha256('else'), size = size + 1 WHERE "
                     "id = '\\x10000000000000000000000000000001'");
    enum kv_err rc = svc_sequence(rig.svc, rig.call.pg, &rig.info, NULL);
    cr_assert(eq(int, rc, KV_E_CORRUPT), "%s", rig.info.text);
    read_whole(&log, &whole);
    cr_assert(eq(u64, whole.head.size, 9), "the head from before stays");
    check_head(&whole);
    kvt_svc_done(&rig);
}

/* --- transfer records -------------------------------------------------------------------------------------------- */

#ifdef KV_FAULTS
/* The answer to a commit is lost: the records are read again and must not be put in twice. */
Test(sequencer, record_shipped_twice_is_one_entry)
{
    static struct whole whole;
    struct kvt_engine engine;
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    sequence_all();
    read_whole(&rig.tenant, &whole);
    uint64_t before = whole.size;
    kv_fault_set("store/ship-journal/committed=fail@1once");
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, i, 1, KV_WAIT_DRAM), KV_OK));
    }
    cr_assert(eq(int, kv_journal_drain(rig.svc->journal, kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS), KV_OK));
    kv_fault_set(NULL);
    sequence_all();
    read_whole(&rig.tenant, &whole);
    cr_assert(eq(u64, whole.size, before + 4));
    check_head(&whole);
    cr_expect_eq(kvt_db_number(&rig, "SELECT sum(offloaded_blocks) FROM kvrun.tenant_usage_hour"), 4, "counted once");
    kvt_engine_close(&engine);
    kvt_svc_done(&rig);
}
#endif

Test(sequencer, records_of_transfers_survive_a_stop_without_the_database)
{
    static struct whole whole;
    struct kvt_engine engine;
    kvt_svc_open(&rig);
    kvt_engine_open(&rig.call, &engine);
    struct kv_id session = kvt_svc_session(&rig.call);
    cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, 9, 1, KV_WAIT_DRAM), KV_OK),
              "the first use asks it");
    cr_assert(eq(int, kv_journal_drain(rig.svc->journal, kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS), KV_OK));
    sequence_all();
    read_whole(&rig.tenant, &whole);
    uint64_t before = whole.size;
    kvt_db_stop(&rig);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert(eq(int, kvt_svc_offload(&rig.call, &engine, session, i, 1, KV_WAIT_DRAM), KV_OK));
    }
    kvt_svc_stop(&rig);
    kvt_engine_close(&engine);
    kvt_db_back(&rig);
    kvt_svc_start(&rig);
    cr_assert(eq(int, kv_journal_drain(rig.svc->journal, kv_now_ns(&kv_env_system) + KVT_WAIT_S * KV_S_NS), KV_OK));
    sequence_all();
    read_whole(&rig.tenant, &whole);
    cr_assert(eq(u64, whole.size, before + 3));
    check_head(&whole);
    kvt_svc_done(&rig);
}

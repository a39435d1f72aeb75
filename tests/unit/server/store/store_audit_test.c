/* The outbox gives back what went in, places are taken once, heads and notes go forward only. */
#include "server/store/store_audit.h"

#include "dataplane/base/id.h"
#include "tests/lib/store_rows.h"
#include "tests/lib/temp_postgres.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEMP_POSTGRES_HOOKS

static struct kv_errinfo info;
static struct kv_pg *pg;
static const char *url;
static struct kv_id ops, mine;
static const uint8_t empty_root[32] = {0xe3};

static void set_up(void)
{
    url = temp_postgres_url();
    pg = temp_postgres_connect(url, "test");
    ops = (struct kv_id){{0}};
    mine = store_id(5);
    cr_assert(eq(int, IN_TX(pg, kv_store_log_ensure(pg, &ops, "h/audit/ops", empty_root, &info)), KV_OK), "%s",
              info.text);
    cr_assert(eq(int, IN_TX(pg, kv_store_log_ensure(pg, &mine, "h/audit/t_5", empty_root, &info)), KV_OK));
}

static void tear_down(void)
{
    kv_pg_close(pg);
}

TestSuite(log, .init = set_up, .fini = tear_down);
TestSuite(outbox, .init = set_up, .fini = tear_down);
TestSuite(leaf, .init = set_up, .fini = tear_down);
TestSuite(tile, .init = set_up, .fini = tear_down);
TestSuite(journal, .init = set_up, .fini = tear_down);

Test(log, is_made_once_and_keeps_its_origin)
{
    struct kv_store_log log;
    struct kv_id unknown = store_id(99);
    cr_assert(eq(int, IN_TX(pg, kv_store_log_ensure(pg, &mine, "h/audit/t_5", empty_root, &info)), KV_OK));
    cr_assert(
        eq(int, IN_TX(pg, kv_store_log_ensure(pg, &mine, "h/audit/other", empty_root, &info)), KV_E_INVALID_STATE));
    cr_assert(eq(int, kv_store_log_get(pg, &mine, &info, &log), KV_OK));
    cr_assert(eq(str, log.origin, "h/audit/t_5"));
    cr_assert(eq(u64, log.size, 0));
    cr_assert(eq(sz, log.frontier_len, 0));
    cr_assert(eq(int, memcmp(log.root, empty_root, 32), 0));
    cr_assert(eq(int, kv_store_log_get(pg, &unknown, &info, &log), KV_E_NOT_FOUND));
}

Test(log, head_moves_only_from_what_was_seen_and_only_up)
{
    struct kv_store_log log, got;
    cr_assert(eq(int, IN_TX(pg, kv_store_log_lock(pg, &mine, &info, &log)), KV_OK));
    log.size = 3;
    log.frontier_len = 64;
    memset(log.frontier, 7, 64);
    memset(log.root, 8, 32);
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_head(pg, &log, 1, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_head(pg, &log, 0, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_head(pg, &log, 3, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_log_get(pg, &mine, &info, &got), KV_OK));
    cr_assert(eq(u64, got.size, 3));
    cr_assert(eq(sz, got.frontier_len, 64));
    cr_assert(eq(u8, got.frontier[63], 7));
    log.size = 4;
    log.frontier_len = 33;
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_head(pg, &log, 3, &info)), KV_E_INVALID_STATE));
}

Test(log, note_covers_no_more_than_there_is_and_never_less_than_before)
{
    struct kv_store_log log;
    struct kv_buf buf;
    struct kv_id unsigned_logs[2];
    uint64_t size = 0;
    size_t count = 9;
    kv_buf_init(&buf, 16384);
    cr_assert(eq(int, kv_store_log_note(pg, &mine, &info, &buf, &size), KV_E_MISSING));
    cr_assert(eq(int, kv_store_log_get(pg, &mine, &info, &log), KV_OK));
    cr_assert(eq(int, kv_store_log_list_unsigned(pg, 2, &info, unsigned_logs, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    log.size = 5;
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_head(pg, &log, 0, &info)), KV_OK));
    cr_assert(eq(int, kv_store_log_list_unsigned(pg, 2, &info, unsigned_logs, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(kv_id_equal(&unsigned_logs[0], &mine));
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_note(pg, &mine, 6, KV_BYTES("six", 3), T0, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_note(pg, &mine, 5, KV_BYTES("five", 4), T0, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_log_set_note(pg, &mine, 4, KV_BYTES("four", 4), T0, &info)), KV_E_STALE));
    cr_assert(eq(int, kv_store_log_note(pg, &mine, &info, &buf, &size), KV_OK));
    cr_assert(eq(u64, size, 5));
    cr_assert(eq(str, (char *)buf.data, "five"));
    cr_assert(eq(int, kv_store_log_list_unsigned(pg, 2, &info, unsigned_logs, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    kv_buf_done(&buf);
}

static void put(const struct kv_id *log, const char *entry, const char *ref)
{
    cr_assert(eq(int,
                 IN_TX(pg, kv_store_outbox_insert(pg, log, KV_BYTES(entry, strlen(entry)), KV_BYTES(ref, strlen(ref)),
                                                  T0, &info)),
                 KV_OK),
              "%s", info.text);
}

Test(outbox, rows_come_back_by_log_in_their_order_and_go_once_deleted)
{
    struct kv_store_outbox outbox = {0};
    uint64_t count = 9, oldest = 9;
    cr_assert(eq(int, kv_store_outbox_stats(pg, &info, &count, &oldest), KV_OK));
    cr_assert(eq(u64, count, 0));
    cr_assert(eq(u64, oldest, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_outbox_fetch(pg, 10, &info, &outbox)), KV_OK));
    cr_assert(eq(sz, outbox.count, 0));
    put(&mine, "m1", "ref1");
    put(&ops, "o1", "");
    put(&mine, "m2", "");
    put(&ops, "o2", "r");
    cr_assert(eq(int, kv_store_outbox_stats(pg, &info, &count, &oldest), KV_OK));
    cr_assert(eq(u64, count, 4));
    cr_assert(eq(u64, oldest, T0));
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_outbox_fetch(pg, 3, &info, &outbox), KV_OK), "%s", info.text);
    cr_assert(eq(sz, outbox.count, 3));
    cr_assert(kv_id_is_zero(&outbox.rows[0].log));
    cr_assert(eq(int, memcmp(outbox.rows[0].entry.data, "o1", 2), 0));
    cr_assert(eq(sz, outbox.rows[0].ref.len, 0));
    cr_assert(eq(int, memcmp(outbox.rows[1].entry.data, "m1", 2), 0));
    cr_assert(eq(sz, outbox.rows[1].ref.len, 4));
    cr_assert(eq(int, memcmp(outbox.rows[1].ref.data, "ref1", 4), 0));
    cr_assert(eq(int, memcmp(outbox.rows[2].entry.data, "m2", 2), 0));
    cr_assert(eq(int, kv_store_outbox_delete(pg, &outbox, &info), KV_OK));
    cr_assert(eq(int, kv_store_outbox_delete(pg, &outbox, &info), KV_E_STALE));
    temp_postgres_end(pg, KV_OK);
    kv_store_outbox_done(&outbox);
    cr_assert(eq(int, kv_store_outbox_stats(pg, &info, &count, &oldest), KV_OK));
    cr_assert(eq(u64, count, 1));
}

Test(outbox, lower_number_that_commits_later_is_not_lost)
{
    struct kv_pg *slow = temp_postgres_connect(url, "slow");
    struct kv_store_outbox outbox = {0};
    temp_postgres_begin(slow);
    cr_assert(eq(int, kv_store_outbox_insert(slow, &mine, KV_BYTES("slow", 4), KV_BYTES("", 0), T0, &info), KV_OK));
    put(&mine, "fast", "");
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_outbox_fetch(pg, 10, &info, &outbox), KV_OK));
    cr_assert(eq(sz, outbox.count, 1));
    cr_assert(eq(int, kv_store_outbox_delete(pg, &outbox, &info), KV_OK));
    temp_postgres_end(pg, KV_OK);
    kv_store_outbox_done(&outbox);
    cr_assert(eq(int, temp_postgres_end(slow, KV_OK), KV_OK));
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_outbox_fetch(pg, 10, &info, &outbox), KV_OK));
    cr_assert(eq(sz, outbox.count, 1));
    cr_assert(eq(int, memcmp(outbox.rows[0].entry.data, "slow", 4), 0));
    temp_postgres_end(pg, KV_OK);
    kv_store_outbox_done(&outbox);
    kv_pg_close(slow);
}

Test(outbox, entry_goes_with_the_transaction_that_put_it_there)
{
    uint64_t count = 9, oldest = 0;
    temp_postgres_begin(pg);
    cr_assert(eq(int, kv_store_outbox_insert(pg, &mine, KV_BYTES("x", 1), KV_BYTES("", 0), T0, &info), KV_OK));
    temp_postgres_end(pg, KV_E_FORBIDDEN);
    cr_assert(eq(int, kv_store_outbox_stats(pg, &info, &count, &oldest), KV_OK));
    cr_assert(eq(u64, count, 0));
}

Test(outbox, entry_at_the_limit_is_taken_and_one_byte_more_is_not)
{
    char *big = calloc(1, 65536);
    struct kv_bytes ref = {0};
    cr_assert(eq(int, IN_TX(pg, kv_store_outbox_insert(pg, &mine, KV_BYTES(big, 65535), ref, T0, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_outbox_insert(pg, &mine, KV_BYTES(big, 65536), ref, T0, &info)),
                 KV_E_INVALID_STATE));
    cr_assert(
        eq(int, IN_TX(pg, kv_store_outbox_insert(pg, &mine, KV_BYTES(big, 0), ref, T0, &info)), KV_E_INVALID_STATE));
    cr_assert(eq(int, IN_TX(pg, kv_store_outbox_insert(pg, &mine, KV_BYTES(big, 1), KV_BYTES(big, 65), T0, &info)),
                 KV_E_INVALID_STATE));
    free(big);
}

static void append(uint64_t first, size_t count, enum kv_err expected)
{
    static char entries[KV_OUTBOX_BATCH_MAX][16];
    static struct kv_store_leaf leaves[KV_OUTBOX_BATCH_MAX];
    for (size_t i = 0; i < count; i++) {
        snprintf(entries[i], sizeof entries[i], "e%zu", (size_t)first + i);
        leaves[i] = (struct kv_store_leaf){.entry = KV_BYTES(entries[i], strlen(entries[i]))};
        if (i % 2 == 1) {
            leaves[i].ref = leaves[i].entry;
        }
        memset(leaves[i].hash, (int)(first + i), 32);
    }
    cr_assert(eq(int, IN_TX(pg, kv_store_leaf_append(pg, &mine, first, leaves, count, &info)), expected), "%s",
              info.text);
}

Test(leaf, places_are_taken_once_and_found_by_their_reference)
{
    uint8_t hashes[256 * 32];
    uint64_t idx = 0;
    append(0, 5, KV_OK);
    append(4, 2, KV_E_STALE);
    append(5, 3, KV_OK);
    cr_assert(eq(int, kv_store_leaf_hashes(pg, &mine, 2, 6, &info, hashes), KV_OK));
    for (int i = 0; i < 6; i++) {
        cr_assert(eq(u8, hashes[i * 32 + 31], (uint8_t)(i + 2)));
    }
    cr_assert(eq(int, kv_store_leaf_hashes(pg, &mine, 2, 7, &info, hashes), KV_E_MISSING));
    cr_assert(eq(int, kv_store_leaf_hashes(pg, &ops, 0, 1, &info, hashes), KV_E_MISSING));
    cr_assert(eq(int, kv_store_leaf_find(pg, &mine, KV_BYTES("e3", 2), &info, &idx), KV_OK));
    cr_assert(eq(u64, idx, 3));
    cr_assert(eq(int, kv_store_leaf_find(pg, &mine, KV_BYTES("e2", 2), &info, &idx), KV_E_MISSING));
    cr_assert(eq(int, kv_store_leaf_find(pg, &ops, KV_BYTES("e3", 2), &info, &idx), KV_E_MISSING));
}

Test(leaf, entries_are_read_from_a_place_on)
{
    struct kv_store_entries entries = {0};
    append(0, KV_OUTBOX_BATCH_MAX, KV_OK);
    cr_assert(eq(int, kv_store_leaf_entries(pg, &mine, 10, 3, &info, &entries), KV_OK));
    cr_assert(eq(sz, entries.count, 3));
    cr_assert(eq(u64, entries.rows[2].idx, 12));
    cr_assert(eq(sz, entries.rows[2].entry.len, 3));
    cr_assert(eq(int, memcmp(entries.rows[2].entry.data, "e12", 3), 0));
    kv_store_entries_done(&entries);
    cr_assert(eq(int, kv_store_leaf_entries(pg, &mine, KV_OUTBOX_BATCH_MAX, 3, &info, &entries), KV_OK));
    cr_assert(eq(sz, entries.count, 0));
    kv_store_entries_done(&entries);
}

Test(leaf, nobody_changes_deletes_or_truncates_a_place)
{
    append(0, 2, KV_OK);
    cr_assert(eq(int, temp_postgres_run(pg, "update audit_leaf set entry = 'x'"), KV_E_INVALID_STATE));
    cr_assert(eq(int, temp_postgres_run(pg, "delete from audit_leaf where idx = 1"), KV_E_INVALID_STATE));
    cr_assert(eq(int, temp_postgres_run(pg, "truncate audit_leaf"), KV_E_INVALID_STATE));
}

Test(tile, grows_but_never_changes)
{
    uint8_t hashes[KV_TILE_BYTES_MAX + 32], got[KV_TILE_BYTES_MAX];
    size_t len = 0;
    memset(hashes, 3, sizeof hashes);
    cr_assert(eq(int, kv_store_tile_get(pg, &mine, 0, 0, &info, got, &len), KV_E_MISSING));
    cr_assert(eq(int, IN_TX(pg, kv_store_tile_put(pg, &mine, 0, 0, KV_BYTES(hashes, 64), &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_tile_put(pg, &mine, 0, 0, KV_BYTES(hashes, 64), &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_tile_put(pg, &mine, 0, 0, KV_BYTES(hashes, 32), &info)), KV_E_STALE));
    cr_assert(
        eq(int, IN_TX(pg, kv_store_tile_put(pg, &mine, 0, 0, KV_BYTES(hashes, KV_TILE_BYTES_MAX), &info)), KV_OK));
    hashes[0] = 4;
    cr_assert(
        eq(int, IN_TX(pg, kv_store_tile_put(pg, &mine, 0, 0, KV_BYTES(hashes, KV_TILE_BYTES_MAX), &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_tile_put(pg, &mine, 0, 1, KV_BYTES(hashes, sizeof hashes), &info)),
                 KV_E_INVALID_STATE));
    cr_assert(eq(int, IN_TX(pg, kv_store_tile_put(pg, &mine, 0, 1, KV_BYTES(hashes, 33), &info)), KV_E_INVALID_STATE));
    cr_assert(eq(int, kv_store_tile_get(pg, &mine, 0, 0, &info, got, &len), KV_OK));
    cr_assert(eq(sz, len, KV_TILE_BYTES_MAX));
    cr_assert(eq(u8, got[0], 3));
}

Test(journal, records_are_shipped_once)
{
    struct kv_id instance = store_id(60);
    uint64_t seq = 9;
    cr_assert(eq(int, IN_TX(pg, kv_store_journal_lock(pg, &instance, &info, &seq)), KV_OK), "%s", info.text);
    cr_assert(eq(u64, seq, 0));
    cr_assert(eq(int, IN_TX(pg, kv_store_journal_advance(pg, &instance, 0, 12, &info)), KV_OK));
    cr_assert(eq(int, IN_TX(pg, kv_store_journal_advance(pg, &instance, 0, 12, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_journal_advance(pg, &instance, 12, 12, &info)), KV_E_STALE));
    cr_assert(eq(int, IN_TX(pg, kv_store_journal_lock(pg, &instance, &info, &seq)), KV_OK));
    cr_assert(eq(u64, seq, 12));
}

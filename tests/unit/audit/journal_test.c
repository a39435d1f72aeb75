/* The journal: what is durable is there after a reopen, what is not written refuses, and limits are limits. */
#include "audit/journal.h"
#include "audit/journal_int.h"
#include "dataplane/base/fault.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_NS (UINT64_C(20) * KV_S_NS)
#define RESERVED_BYTES ((1 << 20) / 8) /* of each file, at the size that the tests open with */

static char folder[KVT_PATH_BYTES], files[2][KVT_PATH_BYTES];
static struct kv_journal *journal;
static const struct kv_audit_sink *sink;

/* A clock that stands still unless a test moves it, beside the real one. */
static uint64_t clock_offset_ns;

static uint64_t moved_monotonic_ns(void *ctx)
{
    return kv_env_system.monotonic_ns(kv_env_system.ctx) + __atomic_load_n(&clock_offset_ns, __ATOMIC_SEQ_CST);
}

static struct kv_env env; /* set before any journal's thread runs */

static uint64_t deadline(void)
{
    return moved_monotonic_ns(NULL) + WAIT_NS;
}

static enum kv_err open_with(uint64_t bytes_max, uint64_t lag_max_ns, struct kv_errinfo *info)
{
    const struct kv_journal_conf conf = {
        .folder = folder, .bytes_max = bytes_max, .lag_max_ns = lag_max_ns, .env = &env};
    enum kv_err rc = kv_journal_open(&conf, info, &journal);
    sink = rc == KV_OK ? kv_journal_sink(journal) : NULL;
    return rc;
}

static void open_journal(void)
{
    struct kv_errinfo info = {.text = ""};
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_OK), "%s", info.text);
}

static void reopen(void)
{
    kv_journal_close(journal);
    open_journal();
}

static void setup(void)
{
    env = kv_env_system;
    env.monotonic_ns = moved_monotonic_ns;
    kvt_folder_make(folder);
    kvt_path_join(files[0], folder, "journal.0");
    kvt_path_join(files[1], folder, "journal.1");
}

static void teardown(void)
{
    kv_fault_set(NULL);
    kv_journal_close(journal);
    journal = NULL;
    kvt_folder_remove(folder);
}

TestSuite(journal, .init = setup, .fini = teardown);

static enum kv_err append(uint64_t number, uint64_t *seq)
{
    static struct kv_block_id ids[3];
    memset(ids, (int)number, sizeof(ids));
    const struct kv_transfer_record record = {.kind = KV_RECORD_OFFLOAD,
                                              .tier = KV_TIER_NVME,
                                              .blocks = 3,
                                              .bytes = number,
                                              .realtime_us = number * 10,
                                              .duration_us = 7,
                                              .outcome = KV_E_NO_SPACE,
                                              .has_policy = number % 2 == 0,
                                              .policy_versions = {number % 2 == 0 ? number : 0, 7 * (number % 2 == 0)},
                                              .block_ids = ids,
                                              .op = {{1}},
                                              .tenant = {{2}},
                                              .scope = {{3}}};
    return sink->append(sink->ctx, &record, seq);
}

/* Real waiting, in steps too short to notice, for what another thread does. */
static void await_durable(uint64_t seq)
{
    uint64_t until = deadline();
    while (sink->durable(sink->ctx) < seq) {
        cr_assert(lt(u64, moved_monotonic_ns(NULL), until), "not durable in time");
        usleep(500);
    }
}

static void append_durably(uint64_t from, uint64_t to)
{
    uint64_t seq = 0;
    for (uint64_t i = from; i <= to; i++) {
        cr_assert(eq(int, append(i, &seq), KV_OK));
    }
    await_durable(seq);
}

static bool without_policies; /* the records are of a time when nobody recorded them */

/* The records `from` to `to`, numbered from `first_seq`, are what there is to ship. */
static void check_pending(uint64_t first_seq, uint64_t from, uint64_t to)
{
    static struct kv_journal_record records[10000];
    size_t count = 0;
    cr_assert(eq(int, kv_journal_read(journal, records, 10000, &count), KV_OK));
    cr_assert(eq(u64, count, to - from + 1));
    for (size_t i = 0; i < count; i++) {
        struct kv_block_id ids[3];
        struct kv_hash root;
        memset(ids, (int)(from + i), sizeof(ids));
        cr_assert(eq(int, kv_merkle_root_of(ids[0].b, 32, 3, &root), KV_OK));
        cr_assert(eq(u64, records[i].seq, first_seq + i));
        cr_assert(eq(u64, records[i].record.bytes, from + i));
        cr_assert(eq(u64, records[i].record.realtime_us, (from + i) * 10));
        cr_assert(eq(int, (int)records[i].record.outcome, KV_E_NO_SPACE));
        cr_assert(eq(int, records[i].record.tenant.b[0], 2));
        bool has_policy = !without_policies && (from + i) % 2 == 0;
        cr_assert(eq(int, records[i].record.has_policy, has_policy));
        cr_assert(eq(u64, records[i].record.policy_versions[0], has_policy ? from + i : 0));
        cr_assert(eq(u64, records[i].record.policy_versions[1], has_policy ? 7 : 0));
        cr_assert(records[i].record.block_ids == NULL);
        cr_assert(eq(int, memcmp(records[i].block_root.b, root.b, 32), 0));
    }
}

static bool sink_is_ok(void)
{
    struct kv_journal_stats stats;
    kv_journal_stats(journal, &stats);
    return stats.ok;
}

static void await_sink(bool ok)
{
    uint64_t until = deadline();
    while (sink_is_ok() != ok) {
        cr_assert(lt(u64, moved_monotonic_ns(NULL), until), "sink did not change in time");
        usleep(500);
    }
}

Test(journal, records_come_back_as_they_were)
{
    open_journal();
    append_durably(1, 5);
    check_pending(1, 1, 5);
}

Test(journal, numbers_of_the_sink_start_at_one_and_those_of_the_journal_go_on)
{
    uint64_t seq = 0;
    open_journal();
    append_durably(1, 5);
    cr_assert(eq(int, kv_journal_shipped(journal, 5), KV_OK));
    reopen();
    cr_assert(eq(u64, sink->durable(sink->ctx), 0));
    cr_assert(eq(int, append(6, &seq), KV_OK));
    cr_assert(eq(u64, seq, 1));
    await_durable(1);
    check_pending(6, 6, 6);
    struct kv_journal_stats stats;
    kv_journal_stats(journal, &stats);
    cr_assert(eq(u64, stats.last_seq, 6));
}

Test(journal, what_was_not_shipped_is_there_after_a_reopen)
{
    open_journal();
    append_durably(1, 9);
    cr_assert(eq(int, kv_journal_shipped(journal, 4), KV_OK));
    reopen();
    check_pending(5, 5, 9);
}

Test(journal, what_was_shipped_is_not_there_after_a_close)
{
    size_t count = 99;
    struct kv_journal_record record;
    open_journal();
    append_durably(1, 9);
    cr_assert(eq(int, kv_journal_shipped(journal, 9), KV_OK));
    reopen();
    cr_assert(eq(int, kv_journal_read(journal, &record, 1, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
}

Test(journal, a_close_writes_what_was_only_queued)
{
    uint64_t seq = 0;
    open_journal();
    for (uint64_t i = 1; i <= 700; i++) { /* more than one group */
        cr_assert(eq(int, append(i, &seq), KV_OK));
    }
    reopen();
    check_pending(1, 1, 700);
}

/* --- files of the time before policies were recorded --- */

/* One group of `page`, whose records become shorter and say nothing of policies. Returns its new length. */
static size_t make_old_group(const uint8_t *group, uint8_t *target)
{
    struct kv_reader reader = kv_reader_of(KV_BYTES(group + 8, 8));
    uint32_t payload = kv_read_u32(&reader), count = kv_read_u32(&reader);
    cr_assert(eq(u32, payload, count * KV_JOURNAL_RECORD_BYTES));
    memcpy(target, group, KV_JOURNAL_GROUP_HEADER_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *record = target + KV_JOURNAL_GROUP_HEADER_BYTES + i * KV_JOURNAL_OLD_RECORD_BYTES;
        memcpy(record, group + KV_JOURNAL_GROUP_HEADER_BYTES + i * KV_JOURNAL_RECORD_BYTES,
               KV_JOURNAL_OLD_RECORD_BYTES);
        memset(record + 84, 0, 4);
    }
    uint32_t len = count * KV_JOURNAL_OLD_RECORD_BYTES;
    struct kv_writer writer = kv_writer_of(target + 8, 4);
    kv_write_u32(&writer, len);
    writer = kv_writer_of(target + 4, 4);
    kv_write_u32(&writer, kv_crc32c(0, target + 8, KV_JOURNAL_GROUP_HEADER_BYTES - 8 + len));
    return KV_JOURNAL_GROUP_HEADER_BYTES + len;
}

static size_t whole_pages(size_t len)
{
    return (len + KV_JOURNAL_PAGE - 1) / KV_JOURNAL_PAGE * KV_JOURNAL_PAGE;
}

static void make_old_file(const char *path)
{
    static uint8_t now[1 << 20], then[1 << 20];
    FILE *file = fopen(path, "r+");
    cr_assert(file != NULL);
    size_t len = fread(now, 1, sizeof now, file), to = KV_JOURNAL_PAGE;
    memcpy(then, now, KV_JOURNAL_PAGE);
    for (size_t from = KV_JOURNAL_PAGE; from < len && now[from] != 0;) {
        struct kv_reader reader = kv_reader_of(KV_BYTES(now + from + 8, 4));
        size_t old = make_old_group(now + from, then + to);
        from += whole_pages(KV_JOURNAL_GROUP_HEADER_BYTES + kv_read_u32(&reader));
        to += whole_pages(old);
    }
    rewind(file);
    cr_assert(eq(sz, fwrite(then, 1, to, file), to));
    cr_assert(eq(int, fclose(file), 0));
    cr_assert(eq(int, truncate(path, (off_t)to), 0));
}

Test(journal, records_of_a_time_without_policies_come_back_and_new_ones_go_behind_them)
{
    uint64_t seq = 0;
    open_journal();
    append_durably(1, 3);
    for (uint64_t i = 4; i <= 700; i++) {
        cr_assert(eq(int, append(i, &seq), KV_OK));
    }
    kv_journal_close(journal);
    make_old_file(files[0]);
    open_journal();
    without_policies = true;
    check_pending(1, 1, 700);
    cr_assert(eq(int, kv_journal_shipped(journal, 698), KV_OK));
    cr_assert(eq(int, append(701, &seq), KV_OK));
    await_durable(1);
    reopen();
    check_pending(699, 699, 701);
    cr_assert(eq(int, kv_journal_shipped(journal, 701), KV_OK));
    append_durably(702, 704);
    without_policies = false;
    reopen();
    check_pending(702, 702, 704);
}

Test(journal, more_than_is_durable_cannot_be_shipped)
{
    open_journal();
    append_durably(1, 2);
    cr_assert(eq(int, kv_journal_shipped(journal, 3), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_journal_shipped(journal, 2), KV_OK));
    cr_assert(eq(int, kv_journal_shipped(journal, 1), KV_OK)); /* again, and older: nothing happens */
    cr_assert(eq(int, kv_journal_drain(journal, deadline()), KV_OK));
}

Test(journal, the_sink_is_full_at_its_limit_and_takes_again_after_shipping)
{
    struct kv_errinfo info;
    uint64_t seq = 0;
    struct kv_journal_stats stats;
    cr_assert(eq(int, open_with(10 * KV_JOURNAL_RECORD_BYTES, 0, &info), KV_OK));
    append_durably(1, 10);
    cr_assert(eq(int, append(11, &seq), KV_E_AUDIT_UNAVAILABLE));
    cr_assert(eq(u64, seq, 0));
    kv_journal_stats(journal, &stats);
    cr_assert(eq(u64, stats.pending_bytes, 10 * KV_JOURNAL_RECORD_BYTES));
    cr_assert(eq(u64, stats.refused, 1));
    cr_assert(eq(u64, stats.records, 10));
    cr_assert(not(stats.ok));
    cr_assert(eq(int, kv_journal_shipped(journal, 1), KV_OK));
    cr_assert(eq(int, append(11, &seq), KV_OK));
    cr_assert(eq(int, append(12, &seq), KV_E_AUDIT_UNAVAILABLE));
    await_durable(11);
    check_pending(2, 2, 11);
}

Test(journal, the_sink_refuses_when_shipping_lags)
{
    struct kv_errinfo info;
    uint64_t seq = 0;
    struct kv_journal_stats stats;
    cr_assert(eq(int, open_with(1 << 20, 3600 * KV_S_NS, &info), KV_OK));
    append_durably(1, 1);
    __atomic_store_n(&clock_offset_ns, 3500 * KV_S_NS, __ATOMIC_SEQ_CST);
    cr_assert(eq(int, append(2, &seq), KV_OK));
    __atomic_store_n(&clock_offset_ns, 3601 * KV_S_NS, __ATOMIC_SEQ_CST);
    cr_assert(eq(int, append(3, &seq), KV_E_AUDIT_UNAVAILABLE));
    kv_journal_stats(journal, &stats);
    cr_assert(ge(u64, stats.oldest_pending_us, UINT64_C(3600000000)));
    await_durable(2);
    cr_assert(eq(int, kv_journal_shipped(journal, 1), KV_OK)); /* the next one is young */
    cr_assert(eq(int, append(3, &seq), KV_OK));
}

static void check_failing(const char *spec)
{
    uint64_t seq = 0;
    open_journal();
    append_durably(1, 3);
    kv_fault_set(spec);
    cr_assert(eq(int, append(4, &seq), KV_OK)); /* queued; it is durable only once the journal works */
    await_sink(false);
    cr_assert(eq(int, append(5, &seq), KV_E_AUDIT_UNAVAILABLE));
    cr_assert(eq(u64, sink->durable(sink->ctx), 3));
    kv_fault_set(NULL);
    await_sink(true);
    await_durable(4);
    cr_assert(eq(int, append(5, &seq), KV_OK));
    await_durable(5);
    reopen();
    check_pending(1, 1, 5);
}

Test(journal, a_write_that_fails_refuses_until_one_succeeds)
{
    check_failing("audit/journal/write=EIO");
}

Test(journal, a_sync_that_fails_refuses_until_one_succeeds)
{
    check_failing("audit/journal/sync=EIO");
}

Test(journal, a_write_that_stops_half_way_refuses_until_one_succeeds)
{
    check_failing("audit/journal/torn=EIO");
}

Test(journal, a_deleted_file_refuses_until_the_next_open)
{
    uint64_t seq = 0;
    struct kv_journal_record record;
    size_t count = 0;
    open_journal();
    append_durably(1, 2);
    cr_assert(eq(int, unlink(files[1]), 0)); /* not even the one in use */
    cr_assert(eq(int, append(3, &seq), KV_OK));
    await_sink(false);
    cr_assert(eq(int, append(4, &seq), KV_E_AUDIT_UNAVAILABLE));
    cr_assert(eq(u64, sink->durable(sink->ctx), 2));
    /* What is durable can still be shipped. */
    cr_assert(eq(int, kv_journal_read(journal, &record, 1, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    reopen();
    cr_assert(eq(int, append(5, &seq), KV_OK));
}

Test(journal, a_replaced_file_is_noticed_without_an_append)
{
    open_journal();
    append_durably(1, 2);
    cr_assert(eq(int, unlink(files[0]), 0));
    kvt_file_write(files[0], "", 0, 0600);
    __atomic_store_n(&clock_offset_ns, 5 * KV_S_NS, __ATOMIC_SEQ_CST);
    await_sink(false);
}

static off_t size_of(const char *path)
{
    struct stat status;
    cr_assert(eq(int, stat(path, &status), 0));
    return status.st_size;
}

static void damage(const char *path, off_t offset)
{
    uint8_t byte;
    FILE *file = fopen(path, "r+");
    cr_assert(file != NULL);
    cr_assert(eq(int, fseeko(file, offset, SEEK_SET), 0));
    cr_assert(eq(sz, fread(&byte, 1, 1, file), 1));
    byte ^= 0x10;
    cr_assert(eq(int, fseeko(file, offset, SEEK_SET), 0));
    cr_assert(eq(sz, fwrite(&byte, 1, 1, file), 1));
    cr_assert(eq(int, fclose(file), 0));
}

/* Three groups of one record each, on pages 1 to 3. */
static void three_groups(void)
{
    open_journal();
    for (uint64_t i = 1; i <= 3; i++) {
        append_durably(i, i);
        cr_assert(eq(u64, sink->durable(sink->ctx), i));
    }
    kv_journal_close(journal);
    journal = NULL;
    cr_assert(eq(i64, size_of(files[0]), RESERVED_BYTES));
}

Test(journal, a_torn_tail_ends_the_journal_there)
{
    const off_t cuts[] = {4 * KV_JOURNAL_PAGE - KV_JOURNAL_PAGE + 100, 3 * KV_JOURNAL_PAGE + 47,
                          3 * KV_JOURNAL_PAGE + 1, 3 * KV_JOURNAL_PAGE};
    three_groups();
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        cr_assert(eq(int, truncate(files[0], cuts[i]), 0));
        open_journal();
        check_pending(1, 1, 2);
        kv_journal_close(journal);
        journal = NULL;
    }
    /* The number of the lost record is given again: nobody was told that it was durable. */
    open_journal();
    append_durably(7, 7);
    reopen();
    static struct kv_journal_record records[4];
    size_t count = 0;
    cr_assert(eq(int, kv_journal_read(journal, records, 4, &count), KV_OK));
    cr_assert(eq(sz, count, 3));
    cr_assert(eq(u64, records[2].seq, 3));
    cr_assert(eq(u64, records[2].record.bytes, 7));
}

Test(journal, a_flipped_bit_in_the_last_group_ends_the_journal_there)
{
    three_groups();
    damage(files[0], 3 * KV_JOURNAL_PAGE + 100);
    open_journal();
    check_pending(1, 1, 2);
}

static void overwrite(const char *path, off_t offset, const char *bytes, size_t len)
{
    FILE *file = fopen(path, "r+");
    cr_assert(file != NULL);
    cr_assert(eq(int, fseeko(file, offset, SEEK_SET), 0));
    cr_assert(eq(sz, fwrite(bytes, 1, len, file), len));
    cr_assert(eq(int, fclose(file), 0));
}

static bool is_zero(const char *path, off_t from, size_t len)
{
    static char bytes[KV_JOURNAL_GROUP_BYTES_MAX];
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL);
    cr_assert(eq(int, fseeko(file, from, SEEK_SET), 0));
    cr_assert(eq(sz, fread(bytes, 1, len, file), len));
    cr_assert(eq(int, fclose(file), 0));
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

Test(journal, what_an_interrupted_group_left_is_wiped_at_the_next_open)
{
    static char left[KV_JOURNAL_GROUP_BYTES_MAX];
    three_groups();
    memset(left, 'x', sizeof left);
    overwrite(files[0], 4 * KV_JOURNAL_PAGE, left, sizeof left);
    cr_assert(not(is_zero(files[0], 4 * KV_JOURNAL_PAGE, sizeof left)));
    open_journal();
    check_pending(1, 1, 3);
    cr_assert(is_zero(files[0], 4 * KV_JOURNAL_PAGE, sizeof left));
}

Test(journal, groups_change_no_length_and_a_file_that_grew_goes_back)
{
    uint64_t seq = 0;
    open_journal();
    cr_assert(eq(i64, size_of(files[0]), RESERVED_BYTES));
    cr_assert(eq(i64, size_of(files[1]), RESERVED_BYTES));
    for (uint64_t i = 1; i < RESERVED_BYTES / KV_JOURNAL_PAGE - 1; i++) { /* one page each: the last but one */
        append_durably(i, i);
        cr_assert(eq(i64, size_of(files[0]), RESERVED_BYTES));
    }
    for (uint64_t i = 1; i <= 4000; i++) { /* none shipped: both files grow */
        cr_assert(eq(int, append(i, &seq), KV_OK));
    }
    await_durable(seq);
    cr_assert(gt(i64, size_of(files[1]), RESERVED_BYTES));
    for (unsigned turn = 0; turn < 3; turn++) {
        cr_assert(eq(int, kv_journal_shipped(journal, seq), KV_OK));
        cr_assert(eq(int, append(1, &seq), KV_OK));
        await_durable(seq);
    }
    reopen();
    cr_assert(eq(i64, size_of(files[0]), RESERVED_BYTES));
    cr_assert(eq(i64, size_of(files[1]), RESERVED_BYTES));
}

/* A page each, 31 of them in files[0], the older one; files[1] has the others. */
static void fill_both(uint64_t shipped)
{
    open_journal();
    for (uint64_t i = 1; i <= 40; i++) {
        append_durably(i, i);
    }
    cr_assert(eq(int, kv_journal_shipped(journal, shipped), KV_OK));
    kv_journal_close(journal);
    journal = NULL;
}

Test(journal, a_turn_whose_header_was_interrupted_is_a_file_that_is_not_in_use)
{
    static char torn[KV_JOURNAL_PAGE];
    fill_both(36); /* the close gives files[0] back */
    cr_assert(is_zero(files[0], 0, KV_JOURNAL_PAGE));
    cr_assert(not(is_zero(files[0], KV_JOURNAL_PAGE, KV_JOURNAL_PAGE)), "its groups are still there");
    memset(torn, 'x', 512);
    overwrite(files[0], 0, torn, sizeof torn);
    open_journal();
    check_pending(37, 37, 40);
    for (uint64_t i = 41; i <= 80; i++) { /* and on into the file, over the groups of its earlier turn */
        append_durably(i, i);
    }
    reopen();
    check_pending(37, 37, 80);
}

Test(journal, a_lost_header_of_the_older_file_is_damage_while_its_records_are_not_shipped)
{
    static const char zeroes[KV_JOURNAL_PAGE];
    struct kv_errinfo info = {.text = ""};
    fill_both(10);
    cr_assert(not(is_zero(files[0], 0, KV_JOURNAL_PAGE)));
    overwrite(files[0], 0, zeroes, sizeof zeroes);
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_E_CORRUPT));
}

Test(journal, a_lost_header_of_the_newer_file_is_damage)
{
    static const char zeroes[KV_JOURNAL_PAGE];
    struct kv_errinfo info = {.text = ""};
    fill_both(36);
    overwrite(files[1], 0, zeroes, sizeof zeroes);
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_E_CORRUPT));
    cr_assert(strstr(info.text, "no valid header") != NULL);
}

Test(journal, damage_before_the_end_stops_the_opening)
{
    struct kv_errinfo info = {.text = ""};
    three_groups();
    damage(files[0], 2 * KV_JOURNAL_PAGE + 100);
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_E_CORRUPT));
    cr_assert(strstr(info.text, "damaged before its end") != NULL);
    damage(files[0], 2 * KV_JOURNAL_PAGE + 100); /* the control: the same bit back */
    open_journal();
    check_pending(1, 1, 3);
}

Test(journal, a_broken_header_before_records_stops_the_opening)
{
    struct kv_errinfo info = {.text = ""};
    three_groups();
    damage(files[0], 17);
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_E_CORRUPT));
    cr_assert(strstr(info.text, "no valid header") != NULL);
    damage(files[0], 17);
    open_journal();
}

Test(journal, files_take_turns_and_give_their_room_back)
{
    uint64_t seq = 0;
    off_t largest = 0;
    open_journal(); /* switches at 128 KiB */
    for (uint64_t round = 0; round < 40; round++) {
        for (uint64_t i = 0; i < 200; i++) {
            cr_assert(eq(int, append(round * 200 + i, &seq), KV_OK));
        }
        await_durable(seq);
        check_pending(round * 200 + 1, round * 200, round * 200 + 199);
        cr_assert(eq(int, kv_journal_shipped(journal, seq), KV_OK));
        off_t now = size_of(files[0]) + size_of(files[1]);
        largest = now > largest ? now : largest;
    }
    cr_assert(lt(i64, largest, 600000));
    append_durably(9, 9);
    reopen();
    check_pending(8001, 9, 9);
}

Test(journal, records_of_both_files_come_back_in_order)
{
    uint64_t seq = 0;
    open_journal();
    for (uint64_t i = 1; i <= 3000; i++) { /* 360 KB: over the switch, none shipped */
        cr_assert(eq(int, append(i, &seq), KV_OK));
        if (i % 400 == 0) {
            await_durable(seq);
        }
    }
    await_durable(3000);
    cr_assert(not(is_zero(files[1], KV_JOURNAL_PAGE, KV_JOURNAL_PAGE)));
    cr_assert(eq(int, kv_journal_shipped(journal, 100), KV_OK));
    reopen();
    check_pending(101, 101, 3000);
    /* A hole between the two is damage. */
    kv_journal_close(journal);
    journal = NULL;
    struct kv_errinfo info;
    cr_assert(eq(int, truncate(files[0], size_of(files[0]) - KV_JOURNAL_PAGE), 0));
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_E_CORRUPT));
}

Test(journal, a_turn_that_fails_refuses_and_loses_nothing)
{
    uint64_t seq = 0, last = 0;
    open_journal();
    append_durably(1, 3);
    last = 3;
    kv_fault_set("audit/journal/begun=EIO"); /* the other file has its header, but nobody knows */
    uint64_t until = deadline();
    while (sink_is_ok()) {
        cr_assert(lt(u64, moved_monotonic_ns(NULL), until));
        if (append(last + 1, &seq) == KV_OK) {
            last++;
        }
        usleep(20);
    }
    cr_assert(lt(u64, sink->durable(sink->ctx), last));
    kv_fault_set(NULL);
    await_sink(true);
    await_durable(last);
    reopen();
    check_pending(1, 1, last);
}

Test(journal, a_pending_record_survives_a_smaller_limit)
{
    struct kv_errinfo info;
    uint64_t seq = 0;
    open_journal();
    append_durably(1, 50);
    kv_journal_close(journal);
    cr_assert(eq(int, open_with(10 * KV_JOURNAL_RECORD_BYTES, 0, &info), KV_OK));
    check_pending(1, 1, 50);
    cr_assert(eq(int, append(51, &seq), KV_E_AUDIT_UNAVAILABLE));
    cr_assert(eq(int, kv_journal_shipped(journal, 50), KV_OK));
    cr_assert(eq(int, append(51, &seq), KV_OK));
}

Test(journal, one_process_at_a_time)
{
    struct kv_errinfo info = {.text = ""};
    open_journal();
    struct kv_journal *first = journal;
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_E_BUSY));
    journal = first;
    reopen();
}

Test(journal, a_folder_open_to_others_is_refused)
{
    struct kv_errinfo info = {.text = ""};
    cr_assert(eq(int, chmod(folder, 0755), 0));
    cr_assert(eq(int, open_with(1 << 20, 0, &info), KV_E_CONFIG));
    cr_assert(strstr(info.text, "0700") != NULL);
    cr_assert(eq(int, chmod(folder, 0700), 0));
    open_journal();
}

Test(journal, a_limit_out_of_range_is_refused)
{
    struct kv_errinfo info;
    cr_assert(eq(int, open_with(KV_JOURNAL_RECORD_BYTES - 1, 0, &info), KV_E_CONFIG));
    cr_assert(eq(int, open_with((uint64_t)KV_MAX_JOURNAL_BYTES + 1, 0, &info), KV_E_CONFIG));
    cr_assert(eq(int, open_with(KV_JOURNAL_RECORD_BYTES, 0, &info), KV_OK));
}

Test(journal, drain_waits_for_shipping_and_gives_up_at_its_deadline)
{
    uint64_t seq = 0;
    open_journal();
    cr_assert(eq(int, kv_journal_drain(journal, deadline()), KV_OK));
    cr_assert(eq(int, append(1, &seq), KV_OK));
    cr_assert(eq(int, kv_journal_drain(journal, moved_monotonic_ns(NULL)), KV_E_TIMEOUT));
    await_durable(1);
    cr_assert(eq(int, kv_journal_shipped(journal, 1), KV_OK));
    cr_assert(eq(int, kv_journal_drain(journal, deadline()), KV_OK));
}

Test(journal, wait_returns_when_something_is_durable)
{
    uint64_t seq = 0;
    struct kv_journal_record record;
    size_t count = 0;
    open_journal();
    kv_journal_wait(journal, moved_monotonic_ns(NULL)); /* nothing there, deadline now */
    cr_assert(eq(int, append(1, &seq), KV_OK));
    kv_journal_wait(journal, deadline());
    cr_assert(eq(int, kv_journal_read(journal, &record, 1, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
}

static unsigned woken;

static void on_wake(void *arg)
{
    __atomic_add_fetch((unsigned *)arg, 1, __ATOMIC_SEQ_CST);
}

Test(journal, wake_is_called_when_durable_grew)
{
    open_journal();
    sink->set_wake(sink->ctx, on_wake, &woken);
    append_durably(1, 1);
    uint64_t until = deadline();
    while (__atomic_load_n(&woken, __ATOMIC_SEQ_CST) == 0) {
        cr_assert(lt(u64, moved_monotonic_ns(NULL), until));
        usleep(500);
    }
}

Test(journal, a_record_without_ids_has_the_root_of_nothing)
{
    const struct kv_transfer_record record = {.kind = KV_RECORD_DROP, .blocks = 12, .outcome = KV_OK};
    struct kv_journal_record back;
    struct kv_hash empty;
    uint64_t seq = 0;
    size_t count = 0;
    open_journal();
    cr_assert(eq(int, sink->append(sink->ctx, &record, &seq), KV_OK));
    await_durable(seq);
    cr_assert(eq(int, kv_journal_read(journal, &back, 1, &count), KV_OK));
    cr_assert(eq(int, kv_merkle_empty(&empty), KV_OK));
    cr_assert(eq(int, memcmp(back.block_root.b, empty.b, 32), 0));
    cr_assert(eq(u32, back.record.blocks, 12));
}

Test(journal, each_failing_allocation_is_an_error_of_the_open)
{
    struct kv_errinfo info;
    unsigned nth = 1;
    for (;; nth++) {
        char spec[64];
        (void)snprintf(spec, sizeof(spec), "base/mem=fail@%uonce", nth);
        kv_fault_set(spec);
        enum kv_err rc = open_with(1 << 20, 0, &info);
        kv_fault_set(NULL);
        if (rc == KV_OK) {
            break;
        }
        journal = NULL;
        cr_assert(eq(int, rc, KV_E_NO_MEMORY));
        cr_assert(lt(u32, nth, 10));
    }
    cr_assert(ge(u32, nth, 4));
}

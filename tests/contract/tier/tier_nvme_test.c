/*
 * The nvme tier over both I/O backends: what is completed is there, what is dropped is gone, what is refused is refused
 * for its reason.
 */
#include "dataplane/base/fault.h"
#include "dataplane/tier/nvme_read.h"
#include "tests/lib/temp_folder.h"
#include "tests/lib/tier_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

static char folder[KVT_PATH_BYTES];
static struct kvt_rig rig;
static struct kvt_found found;

static void begin(void)
{
    kvt_folder_make(folder);
}

static void end(void)
{
    kv_fault_set(NULL);
    kvt_rig_close(&rig);
    kvt_folder_remove(folder);
}

TestSuite(nvme, .init = begin, .fini = end);

static void must_open(enum kv_io_kind kind)
{
    enum kv_err rc = kvt_rig_open(&rig, folder, 8 * MIB, MIB, kind);
    cr_assert(eq(int, rc, KV_OK), "%s", rig.info.text);
}

static void reopen(void)
{
    cr_assert(eq(int, kvt_rig_close_tier(&rig), KV_OK));
    enum kv_err rc = kvt_rig_open_tier(&rig);
    cr_assert(eq(int, rc, KV_OK), "%s", rig.info.text);
    kvt_scan(&rig, &found);
}

static void must_put(uint64_t number, uint64_t bytes, uint64_t *ret_where)
{
    enum kv_err rc = kvt_put(&rig, number, bytes, ret_where);
    cr_assert(eq(int, rc, KV_OK));
}

static void round_trip(enum kv_io_kind kind)
{
    static const uint64_t sizes[] = {4 * KIB, 64 * KIB, 132 * KIB, 4 * KIB, 256 * KIB};
    uint64_t where[5], total = 0;
    must_open(kind);
    for (unsigned i = 0; i < 5; i++) {
        must_put(i, sizes[i], &where[i]);
        total += sizes[i];
    }
    for (unsigned i = 0; i < 5; i++) {
        cr_assert(eq(int, kvt_get(&rig, i, sizes[i], where[i]), KV_OK));
    }
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, total));
    cr_assert(eq(u64, kvt_stats(&rig).objects, 5));
    cr_assert(eq(int, kvt_drop(&rig, 1, where[1]), KV_OK));
    cr_assert(eq(u64, kvt_stats(&rig).objects, 4));
    cr_assert(eq(int, kvt_get(&rig, 1, sizes[1], where[1]), KV_E_MISSING));
    cr_assert(eq(int, kvt_drop(&rig, 1, where[1]), KV_E_MISSING));
    reopen();
    cr_assert(eq(uint, found.count, 4));
    cr_assert(eq(u64, found.bytes, total - sizes[1]));
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, total - sizes[1]));
    cr_assert(kvt_all_verify(&rig, &found));
    for (unsigned i = 0; i < found.count; i++) {
        cr_assert(eq(int, found.promised[i], found.number[i] % 2 == 1));
        cr_assert(eq(u64, found.size[i], sizes[found.number[i]]));
    }
    cr_assert(eq(u64, kvt_stats(&rig).read_bytes, found.bytes));
}

Test(nvme, put_get_drop_and_reopen_threads)
{
    round_trip(KV_IO_THREADS);
}

Test(nvme, put_get_drop_and_reopen_auto)
{
    round_trip(KV_IO_AUTO);
}

struct many {
    struct kv_tier_op op;
    unsigned *ended;
    bool *done_may_run;
    enum kv_err rc;
};

static void many_done(struct kv_tier_op *op, enum kv_err rc)
{
    struct many *m = op->owner;
    cr_assert(eq(int, *m->done_may_run, true));
    m->rc = rc;
    (*m->ended)++;
}

static bool submit_many(struct many *m, uint64_t number, uint8_t *data)
{
    m->op = (struct kv_tier_op){.kind = KV_TIER_PUT, .data = data, .bytes = 4096, .done = many_done, .owner = m};
    kvt_block_key(number, &m->op.key);
    return rig.tier->ops->submit(rig.tier, &m->op) == KV_OK;
}

/* More than the ring and the tier take at once: some are told to come again, none is lost. */
static void many_puts(enum kv_io_kind kind)
{
    enum { COUNT = 1000 };
    static struct many many[COUNT];
    static _Alignas(4096) uint8_t data[COUNT][4096];
    unsigned ended = 0, submitted = 0, refused = 0;
    bool polling = false;
    must_open(kind);
    while (ended < COUNT) {
        while (submitted < COUNT) {
            many[submitted].ended = &ended;
            many[submitted].done_may_run = &polling;
            kvt_block_fill(submitted, data[submitted], 4096);
            if (!submit_many(&many[submitted], submitted, data[submitted])) {
                refused++;
                break;
            }
            submitted++;
        }
        rig.io->ops->reap(rig.io, 32);
        polling = true;
        rig.tier->ops->poll(rig.tier, 32);
        polling = false;
    }
    cr_assert(gt(uint, refused, 0));
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert(eq(int, many[i].rc, KV_OK));
    }
    reopen();
    cr_assert(eq(uint, found.count, COUNT));
    cr_assert(kvt_all_verify(&rig, &found));
}

Test(nvme, many_puts_at_once_all_complete_threads)
{
    many_puts(KV_IO_THREADS);
}

Test(nvme, many_puts_at_once_all_complete_auto)
{
    many_puts(KV_IO_AUTO);
}

/* ---- room ---- */

static unsigned fill_up(uint64_t first, uint64_t bytes, uint64_t *ret_where)
{
    unsigned count = 0;
    enum kv_err rc;
    while ((rc = kvt_put(&rig, first + count, bytes, &ret_where[count])) == KV_OK) {
        count++;
        cr_assert(lt(uint, count, 4000));
    }
    cr_assert(eq(int, rc, KV_E_NO_SPACE));
    return count;
}

Test(nvme, full_arena_says_so_and_takes_again_after_a_drop)
{
    static uint64_t where[4000];
    must_open(KV_IO_AUTO);
    unsigned count = fill_up(0, 256 * KIB, where);
    struct kv_tier_stats stats = kvt_stats(&rig);
    cr_assert(eq(u64, stats.used_bytes, stats.capacity_bytes));
    cr_assert(eq(u64, stats.used_bytes, count * 256 * KIB));
    cr_assert(stats.up);
    cr_assert(eq(int, kvt_drop(&rig, 3, where[3]), KV_OK));
    cr_assert(eq(int, kvt_put(&rig, 9000, 256 * KIB, NULL), KV_E_BUSY)); /* its record is not durable yet */
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, stats.capacity_bytes));
    kvt_rig_run(&rig, NULL);
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, stats.capacity_bytes - 256 * KIB));
    must_put(9000, 256 * KIB, NULL);
    reopen();
    cr_assert(eq(uint, found.count, count));
    cr_assert(eq(int, kvt_find(&found, 3), -1));
    cr_assert(ge(int, kvt_find(&found, 9000), 0));
    cr_assert(kvt_all_verify(&rig, &found));
}

Test(nvme, slot_is_not_reused_before_its_drop_is_durable)
{
    static uint64_t where[4000];
    must_open(KV_IO_AUTO);
    fill_up(0, 256 * KIB, where);
    kv_fault_set("tier/nvme/log-sync=fail@1once");
    cr_assert(eq(int, kvt_drop(&rig, 5, where[5]), KV_OK));
    cr_assert(eq(int, kvt_put(&rig, 9000, 256 * KIB, NULL), KV_E_BUSY));
    uint64_t full = kvt_stats(&rig).used_bytes;
    unsigned polls = 0;
    while (kvt_stats(&rig).errors == 0) { /* until the flush of the drop has failed */
        rig.io->ops->reap(rig.io, 8);
        rig.tier->ops->poll(rig.tier, 8);
        cr_assert(lt(uint, ++polls, 100000000u));
    }
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, full));
    cr_assert(eq(int, kvt_put(&rig, 9000, 256 * KIB, NULL), KV_E_BUSY));
    kvt_rig_run(&rig, NULL); /* a new generation heals it */
    must_put(9000, 256 * KIB, NULL);
    reopen();
    cr_assert(kvt_all_verify(&rig, &found));
    cr_assert(eq(int, kvt_find(&found, 5), -1));
}

Test(nvme, entries_are_limited_and_a_block_over_a_slab_never_fits)
{
    must_open(KV_IO_AUTO);
    cr_assert(eq(int, kvt_put_many(&rig, 0, 1024, 4 * KIB, NULL), KV_OK));
    cr_assert(eq(int, kvt_put(&rig, 1024, 4 * KIB, NULL), KV_E_NO_SPACE));
    static _Alignas(4096) uint8_t large[MIB + 4 * KIB];
    struct kv_tier_op op = {.kind = KV_TIER_PUT, .data = large, .bytes = sizeof(large), .done = many_done};
    enum kv_err rc = rig.tier->ops->submit(rig.tier, &op);
    cr_assert(eq(int, rc, KV_E_LIMIT));
    reopen();
    cr_assert(eq(uint, found.count, 1024));
}

Test(nvme, blocks_of_many_sizes_come_and_go_and_stats_stay_a_recount)
{
    static uint64_t where[64], number[64], size[64];
    static const uint64_t sizes[] = {4 * KIB, 20 * KIB, 132 * KIB, 256 * KIB};
    unsigned held = 0;
    uint64_t used = 0;
    must_open(KV_IO_AUTO);
    for (unsigned i = 0; i < 600; i++) {
        uint64_t bytes = sizes[(i * 7 + i / 5) % 4];
        enum kv_err rc = held == 64 ? KV_E_NO_SPACE : kvt_put(&rig, i, bytes, &where[held]);
        if (rc == KV_E_BUSY) {
            kvt_rig_run(&rig, NULL);
        } else if (rc == KV_E_NO_SPACE) {
            unsigned victim = (i * 13) % held;
            cr_assert(eq(int, kvt_drop(&rig, number[victim], where[victim]), KV_OK));
            used -= size[victim];
            held--;
            number[victim] = number[held], where[victim] = where[held], size[victim] = size[held];
        } else {
            cr_assert(eq(int, rc, KV_OK));
            number[held] = i, size[held] = bytes;
            used += bytes;
            held++;
        }
    }
    kvt_rig_run(&rig, NULL);
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, used));
    cr_assert(eq(u64, kvt_stats(&rig).objects, held));
    reopen();
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, used));
    cr_assert(eq(uint, found.count, held));
    cr_assert(eq(u64, found.bytes, used));
    cr_assert(kvt_all_verify(&rig, &found));
}

/* More records than a log may hold: generations follow one another and the files stay small. */
Test(nvme, log_is_replaced_by_checkpoints_and_the_folder_stays_under_its_cap)
{
    must_open(KV_IO_AUTO);
    static uint64_t where[500];
    must_put(77, 4 * KIB, NULL);
    for (unsigned round = 0; round < 4; round++) {
        cr_assert(eq(int, kvt_put_many(&rig, 1000 + round * 500, 500, 4 * KIB, where), KV_OK));
        for (unsigned i = 0; i < 500; i++) {
            cr_assert(eq(int, kvt_drop(&rig, 1000 + round * 500 + i, where[i]), KV_OK));
        }
        kvt_rig_run(&rig, NULL);
    }
    cr_assert(eq(int, kvt_put_many(&rig, 5000, 600, 4 * KIB, NULL), KV_OK));
    static const char *const names[] = {"arena",       "index.ckpt",  "index.1.log",
                                        "index.2.log", "index.3.log", "index.4.log"};
    uint64_t total = 0;
    unsigned logs = 0;
    for (unsigned i = 0; i < 6; i++) {
        char path[KVT_PATH_BYTES];
        struct stat st;
        kvt_path_join(path, folder, names[i]);
        if (stat(path, &st) == 0) {
            total += (uint64_t)st.st_blocks * 512;
            logs += i >= 2 ? 1 : 0;
            cr_assert(i != 2, "the first log is still there");
        }
    }
    cr_assert(eq(uint, logs, 1));
    cr_assert(le(u64, total, 8 * MIB));
    reopen();
    cr_assert(eq(uint, found.count, 601));
    cr_assert(kvt_all_verify(&rig, &found));
}

static void count_walk(void *ctx, const struct kv_tier_key *key, uint64_t offset, uint64_t bytes, bool promised)
{
    static uint8_t data[KVT_RIG_BLOCK_BYTES];
    char path[KVT_PATH_BYTES];
    kvt_path_join(path, folder, "arena");
    cr_assert(eq(sz, kvt_file_read(path, offset, data, bytes), (size_t)bytes));
    cr_assert(kvt_block_holds(kvt_block_number(key), data, bytes));
    (*(unsigned *)ctx)++;
}

Test(nvme, offline_walk_finds_the_same_blocks_while_the_tier_runs)
{
    must_open(KV_IO_AUTO);
    for (unsigned i = 0; i < 20; i++) {
        must_put(i, (i % 3 + 1) * 4 * KIB, NULL);
    }
    unsigned count = 0;
    cr_assert(eq(int, kv_nvme_walk(folder, count_walk, &count), KV_OK));
    cr_assert(eq(uint, count, 20));
    cr_assert(eq(int, kv_nvme_walk("/nowhere/at/all", count_walk, &count), KV_E_MISSING));
}

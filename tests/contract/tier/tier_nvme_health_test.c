/*
 * The nvme tier when its drive fails: nothing is found of what failed, the tier goes down with a reason and comes back.
 */
#include "dataplane/base/fault.h"
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

TestSuite(nvme_health, .init = begin, .fini = end);

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

/* One failure of each step: the put fails, nothing is found of it, the next one works. */
static void one_fault(const char *name, enum kv_err expected)
{
    char spec[64];
    must_open(KV_IO_AUTO);
    must_put(1, 64 * KIB, NULL);
    uint64_t used = kvt_stats(&rig).used_bytes;
    snprintf(spec, sizeof(spec), "%s=fail@1once", name);
    kv_fault_set(spec);
    cr_assert(eq(int, kvt_put(&rig, 2, 64 * KIB, NULL), expected));
    kv_fault_set(NULL);
    kvt_rig_run(&rig, NULL);
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, used));
    cr_assert(eq(u64, kvt_stats(&rig).errors, 1));
    cr_assert(kvt_stats(&rig).up);
    must_put(3, 64 * KIB, NULL);
    reopen();
    cr_assert(eq(uint, found.count, 2));
    cr_assert(eq(int, kvt_find(&found, 2), -1));
    cr_assert(kvt_all_verify(&rig, &found));
}

Test(nvme_health, failed_data_write_leaves_nothing)
{
    one_fault("tier/nvme/data-write", KV_E_IO);
}

Test(nvme_health, failed_data_flush_leaves_nothing)
{
    one_fault("tier/nvme/data-sync", KV_E_IO);
}

Test(nvme_health, failed_log_write_leaves_nothing)
{
    one_fault("tier/nvme/log-write", KV_E_IO);
}

Test(nvme_health, failed_log_flush_leaves_nothing)
{
    one_fault("tier/nvme/log-sync", KV_E_IO);
}

/* Durable, and no earlier: also when the first try failed. With every mark that was taken on the way. */
static void drop_with(const char *fault)
{
    uint64_t where[2];
    struct kv_tier_mark before = {.taken = false}, after = {.taken = false}, late = {.taken = false};
    must_open(KV_IO_AUTO);
    must_put(1, 64 * KIB, &where[0]);
    must_put(2, 64 * KIB, &where[1]);
    cr_assert(rig.tier->ops->dropped(rig.tier, &before), "nothing was dropped yet");
    kv_fault_set(fault);
    cr_assert(eq(int, kvt_drop(&rig, 1, where[0]), KV_OK));
    cr_assert(rig.tier->ops->dropped(rig.tier, &before), "what comes later is not meant");
    cr_assert_not(rig.tier->ops->dropped(rig.tier, &after));
    kvt_rig_run(&rig, NULL);
    kv_fault_set(NULL);
    kvt_rig_run(&rig, NULL);
    cr_assert(rig.tier->ops->dropped(rig.tier, &after) && rig.tier->ops->dropped(rig.tier, &late));
    reopen();
    cr_assert(eq(uint, found.count, 1));
    cr_assert(ge(int, kvt_find(&found, 2), 0));
}

Test(nvme_health, a_drop_is_durable_once_that_is_said)
{
    drop_with(NULL);
}

Test(nvme_health, a_drop_whose_record_could_not_be_flushed_is_durable_later)
{
    drop_with("tier/nvme/log-sync=fail@1once");
}

Test(nvme_health, a_drop_whose_record_could_not_be_written_is_durable_later)
{
    drop_with("tier/nvme/log-write=fail@1once");
}

Test(nvme_health, a_drop_is_never_called_durable_while_its_record_cannot_be_written)
{
    uint64_t where;
    struct kv_tier_mark mark = {.taken = false};
    must_open(KV_IO_AUTO);
    must_put(1, 64 * KIB, &where);
    kv_fault_set("tier/nvme/log-sync=fail@1,tier/nvme/ckpt-write=fail@1");
    cr_assert(eq(int, kvt_drop(&rig, 1, where), KV_OK));
    while (kvt_stats(&rig).up) {
        rig.io->ops->reap(rig.io, 8);
        rig.tier->ops->poll(rig.tier, 8);
        cr_assert_not(rig.tier->ops->dropped(rig.tier, &mark));
    }
    kv_fault_set(NULL);
    kvt_rig_run(&rig, NULL);
    cr_assert(rig.tier->ops->dropped(rig.tier, &mark));
}

/* The log is bad and the new generation fails as well, at each of its steps; the tier goes down, stays whole, and
 * heals. */
static void failing_generation(const char *name)
{
    char spec[96];
    must_open(KV_IO_AUTO);
    must_put(1, 64 * KIB, NULL);
    snprintf(spec, sizeof(spec), "tier/nvme/log-sync=fail@1once,%s=fail@1", name);
    kv_fault_set(spec);
    cr_assert(eq(int, kvt_put(&rig, 2, 64 * KIB, NULL), KV_E_IO));
    for (unsigned i = 0; i < 4 && kvt_stats(&rig).up; i++) {
        cr_assert(eq(int, kvt_put(&rig, 3 + i, 64 * KIB, NULL), KV_E_IO));
    }
    while (kvt_stats(&rig).up) { /* the retries go on by themselves */
        rig.io->ops->reap(rig.io, 8);
        rig.tier->ops->poll(rig.tier, 8);
    }
    cr_assert(ne(ptr, (void *)(uintptr_t)kvt_stats(&rig).reason, NULL));
    cr_assert(eq(int, kvt_put(&rig, 8, 64 * KIB, NULL), KV_E_IO));
    kv_fault_set(NULL);
    kvt_rig_run(&rig, NULL);
    cr_assert(kvt_stats(&rig).up);
    must_put(9, 64 * KIB, NULL);
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, 2 * 64 * KIB));
    reopen();
    cr_assert(eq(uint, found.count, 2));
    cr_assert(kvt_all_verify(&rig, &found));
}

Test(nvme_health, checkpoint_write_that_fails_takes_the_tier_down_until_it_works)
{
    failing_generation("tier/nvme/ckpt-write");
}

Test(nvme_health, checkpoint_rename_that_fails_takes_the_tier_down_until_it_works)
{
    failing_generation("tier/nvme/ckpt-rename");
}

Test(nvme_health, folder_flush_that_fails_takes_the_tier_down_until_it_works)
{
    failing_generation("tier/nvme/renamed-sync");
}

Test(nvme_health, tier_goes_down_after_three_failed_writes_and_a_probe_brings_it_back)
{
    uint64_t where;
    must_open(KV_IO_AUTO);
    must_put(1, 64 * KIB, &where);
    kv_fault_set("tier/nvme/data-write=fail@1");
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(kvt_stats(&rig).up);
        cr_assert(eq(int, kvt_put(&rig, 2, 64 * KIB, NULL), KV_E_IO));
    }
    cr_assert(not(kvt_stats(&rig).up));
    cr_assert(eq(int, kvt_get(&rig, 1, 64 * KIB, where), KV_OK)); /* it still reads */
    cr_assert(eq(u64, kvt_stats(&rig).used_bytes, 64 * KIB));
    kv_fault_set(NULL);
    kvt_rig_run(&rig, NULL);
    cr_assert(kvt_stats(&rig).up);
    must_put(2, 64 * KIB, NULL);
}

/* A drive that fills up below a file that could not be reserved, by a small tmpfs. */
Test(nvme_health, full_drive_is_an_error_with_a_text_and_not_a_crash)
{
    char options[] = "size=6m";
    if (mount("tmpfs", folder, "tmpfs", 0, options) != 0) {
        cr_skip_test("a tmpfs cannot be mounted here");
    }
    enum kv_err rc = kvt_rig_open(&rig, folder, 32 * MIB, MIB, KV_IO_AUTO);
    cr_assert(eq(int, rc, KV_E_NO_SPACE));
    cr_assert(ne(int, rig.info.text[0], 0));
    rig.conf.bytes = 4 * MIB; /* what fits works, and its index has room as long as others leave it */
    cr_assert(eq(int, kvt_rig_open_tier(&rig), KV_OK));
    must_put(1, 64 * KIB, NULL);
    char path[KVT_PATH_BYTES];
    kvt_path_join(path, folder, "ballast");
    FILE *ballast = fopen(path, "w");
    static char zeroes[65536];
    while (fwrite(zeroes, sizeof(zeroes), 1, ballast) == 1 && fflush(ballast) == 0) {
    }
    fclose(ballast);
    enum kv_err last = KV_OK;
    for (unsigned i = 0; i < 200 && last == KV_OK; i++) {
        last = kvt_put(&rig, 100 + i, 4 * KIB, NULL);
    }
    cr_assert(eq(int, last, KV_E_NO_SPACE));
    unlink(path);
    kvt_rig_run(&rig, NULL);
    must_put(2, 64 * KIB, NULL);
    reopen();
    cr_assert(ge(int, kvt_find(&found, 1), 0));
    cr_assert(ge(int, kvt_find(&found, 2), 0));
    cr_assert(kvt_all_verify(&rig, &found));
    kvt_rig_close(&rig);
    umount(folder);
}

/*
 * The nvme tier under power cuts and failing drives, thousands of random histories from fixed seeds. After each cut:
 * every put that was completed and not dropped is there bit by bit, and whatever is there holds the bytes of that very
 * block.
 */
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_int.h"
#include "dataplane/tier/nvme_read.h"
#include "tests/lib/io_cut.h"
#include "tests/lib/temp_folder.h"
#include "tests/lib/tier_rig.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_MAX (16 * 1024u)
#define ACTIVE_MAX 12u
#define BLOCKS_MAX 8192u
#define STEPS 600u

enum fate { UNKNOWN, PUTTING, THERE, DROPPED, FAILED };

struct active {
    struct kv_tier_op op;
    uint64_t number;
    bool used;
};

static struct kv_io *io;
static struct kv_tier *tier;
static struct active active[ACTIVE_MAX];
static uint8_t *memory;
static enum fate fates[BLOCKS_MAX];
static uint64_t where[BLOCKS_MAX];
static uint32_t sizes[BLOCKS_MAX];
static uint64_t next_number;
static uint64_t clock_ns;
static unsigned completed, failed, images;
static char folder[KVT_PATH_BYTES];

static uint64_t fake_now(void *ctx)
{
    return clock_ns;
}

static KV_RC fake_random(void *ctx, void *target, size_t len)
{
    memset(target, 0x42, len);
    return KV_OK;
}

static const struct kv_env fake_env = {
    .monotonic_ns = fake_now, .boottime_ns = fake_now, .realtime_us = fake_now, .random = fake_random};

static void put_done(struct kv_tier_op *op, enum kv_err rc)
{
    struct active *a = op->owner;
    fates[a->number] = rc == KV_OK ? THERE : FAILED;
    where[a->number] = op->where;
    completed += rc == KV_OK ? 1 : 0;
    failed += rc == KV_OK ? 0 : 1;
    a->used = false;
}

static void try_put(void)
{
    unsigned slot = (unsigned)kvt_cut_random(io, ACTIVE_MAX);
    struct active *a = &active[slot];
    if (a->used || next_number == BLOCKS_MAX) {
        return;
    }
    uint64_t bytes = (kvt_cut_random(io, 8) == 0 ? 4 : 2) * 4096;
    a->op =
        (struct kv_tier_op){.kind = KV_TIER_PUT, .data = memory + slot * BLOCK_MAX, .bytes = bytes, .done = put_done};
    a->op.owner = a;
    a->number = next_number;
    kvt_block_key(a->number, &a->op.key);
    kvt_block_fill(a->number, a->op.data, bytes);
    if (tier->ops->submit(tier, &a->op) == KV_OK) {
        a->used = true;
        fates[next_number] = fates[next_number] == UNKNOWN ? PUTTING : fates[next_number];
        sizes[next_number++] = (uint32_t)bytes;
    }
}

static void try_drop(void)
{
    if (next_number == 0) {
        return;
    }
    uint64_t number = kvt_cut_random(io, next_number);
    struct kv_tier_key key;
    kvt_block_key(number, &key);
    if (fates[number] == THERE && tier->ops->drop(tier, &key, where[number]) == KV_OK) {
        fates[number] = DROPPED;
    }
}

struct walk {
    int arena;
    bool seen[BLOCKS_MAX];
};

static void check_block(void *ctx, const struct kv_tier_key *key, uint64_t offset, uint64_t bytes, bool promised)
{
    static uint8_t data[BLOCK_MAX];
    struct walk *walk = ctx;
    uint64_t number = kvt_block_number(key);
    cr_assert(lt(u64, number, next_number));
    cr_assert(eq(u64, bytes, sizes[number]));
    cr_assert(eq(int, (int)pread(walk->arena, data, bytes, (off_t)offset), (int)bytes));
    if (!kvt_block_holds(number, data, bytes)) {
        cr_assert(false, "block %llu stands over other bytes", (unsigned long long)number);
    }
    if (walk->seen[number]) {
        cr_assert(false, "block %llu is there twice", (unsigned long long)number);
    }
    walk->seen[number] = true;
}

static void check_folder(const char *path)
{
    static struct walk walk;
    char arena[KVT_PATH_BYTES];
    memset(walk.seen, 0, sizeof(walk.seen));
    kvt_path_join(arena, path, "arena");
    walk.arena = open(arena, O_RDONLY);
    cr_assert(ge(int, walk.arena, 0));
    enum kv_err rc = kv_nvme_walk(path, check_block, &walk);
    cr_assert(eq(int, rc, KV_OK));
    for (uint64_t i = 0; i < next_number; i++) {
        if (fates[i] == THERE && !walk.seen[i]) {
            cr_assert(false, "block %llu was completed and is lost", (unsigned long long)i);
        }
    }
    close(walk.arena);
}

/* The image is a folder like any other: it opens, and what was there is there and no more. */
static void check_reopens(const char *path)
{
    static struct kvt_found found;
    struct kvt_rig rig;
    enum kv_err rc = kvt_rig_open(&rig, path, 640 * 1024, 64 * 1024, KV_IO_THREADS);
    cr_assert(eq(int, rc, KV_OK), "%s", rig.info.text);
    kvt_scan(&rig, &found);
    for (uint64_t i = 0; i < next_number; i++) {
        cr_assert(fates[i] != THERE || kvt_find(&found, i) >= 0);
    }
    cr_assert(kvt_all_verify(&rig, &found));
    struct kv_tier_stats stats = kvt_stats(&rig);
    cr_assert(eq(u64, stats.used_bytes, found.bytes));
    cr_assert(eq(u64, stats.objects, found.count));
    kvt_rig_close(&rig);
}

static void cut_now(void)
{
    char image[KVT_PATH_BYTES];
    kvt_folder_make(image);
    kvt_cut_image(io, folder, image);
    check_folder(image);
    if (kvt_cut_random(io, 8) == 0) {
        check_reopens(image);
    }
    kvt_folder_remove(image);
    images++;
}

/* A new generation long before the log is full. */
static void rotate_early(void)
{
    ((struct kv_nvme *)tier)->rotate_asked = true;
}

static void step(void)
{
    if (kvt_cut_random(io, 60) == 0) {
        rotate_early();
    }
    uint64_t what = kvt_cut_random(io, 16);
    clock_ns += kvt_cut_random(io, 20) == 0 ? KV_S_NS : KV_MS_NS;
    if (what < 6) {
        try_put();
    } else if (what < 9) {
        try_drop();
    } else if (what < 12) {
        io->ops->reap(io, 4);
    } else if (what < 15) {
        tier->ops->poll(tier, 4);
    } else {
        cut_now();
    }
}

static void settle(void)
{
    kvt_cut_set_failures(io, 0);
    bool busy = true;
    for (unsigned i = 0; i < 100000 && busy; i++) {
        clock_ns += KV_MS_NS;
        io->ops->reap(io, 64);
        tier->ops->poll(tier, 64);
        busy = io->ops->in_flight(io) > 0 || tier->ops->next_due_ns(tier) != UINT64_MAX;
    }
    cr_assert(not(busy));
}

static void history(uint64_t seed, unsigned fail_one_in)
{
    struct kvt_cut_conf cut = {.seed = seed};
    kvt_folder_make(folder);
    cr_assert(eq(int, kvt_cut_open(&cut, &io), KV_OK));
    memory = kv_alloc_aligned(4096, ACTIVE_MAX * BLOCK_MAX);
    memset(fates, 0, sizeof(fates));
    memset(active, 0, sizeof(active));
    next_number = 0;
    struct kv_tier_conf conf = {
        .path = folder, .bytes = 640 * 1024, .slab_bytes = 64 * 1024, .entries_max = 48, .io = io, .env = &fake_env};
    struct kv_errinfo info = {0};
    enum kv_err rc = kv_tier_nvme.open(&conf, &info, &tier);
    cr_assert(eq(int, rc, KV_OK), "seed %llu: %s", (unsigned long long)seed, info.text);
    kvt_cut_names_are_durable(io, folder); /* open flushed the folder itself */
    kvt_cut_set_failures(io, fail_one_in);
    for (unsigned i = 0; i < STEPS; i++) {
        step();
    }
    settle();
    cut_now();
    rc = tier->ops->close(tier);
    cr_assert(eq(int, rc, KV_OK));
    check_folder(folder);
    check_reopens(folder);
    io->ops->close(io);
    kv_free(memory);
    kvt_folder_remove(folder);
}

static void histories(uint64_t first, unsigned count, unsigned fail_one_in)
{
    const char *asked = getenv("KV_SEEDS"); /* a longer run by hand */
    count = asked != NULL ? (unsigned)atoi(asked) : count;
    for (uint64_t seed = first; seed < first + count; seed++) {
        history(seed, fail_one_in);
    }
    cr_assert(gt(uint, completed, 20 * count));
    cr_assert(gt(uint, images, 10 * count));
}

Test(nvme_cut, power_cut_at_any_moment_loses_nothing_completed)
{
    histories(1000, 40, 0);
    cr_assert(eq(uint, failed, 0));
}

Test(nvme_cut, failing_drive_and_power_cut_lose_nothing_completed)
{
    histories(5000, 60, 12);
    cr_assert(gt(uint, failed, 0));
}

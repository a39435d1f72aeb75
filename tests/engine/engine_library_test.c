/*
 * The riskiest join, in one process and without a server: a real engine's KV cache through pool, sealing, dram, nvme
 * and back, compared bit for bit. Each test runs on the simulated engine and, where it was built in, on llama.cpp.
 */
#include "dataplane/base/mem.h"
#include "dataplane/engine/engine.h"
#include "tests/engine/bench.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TOKENS 1024u
#define BLOCKS (TOKENS / KV_REF_BLOCK_TOKENS)
#define PATIENCE_NS (30 * KV_S_NS)

struct lab {
    struct kv_bench bench;
    struct kv_keyring *ring;
    struct kv_engine *engine;
    struct kv_pool *pool;
    struct kv_id tenant, session;
    struct kv_block_id block_ids[BLOCKS];
    uint32_t slots[BLOCKS];
    char folder[KVT_PATH_BYTES], nvme[KVT_PATH_BYTES];
};

/* What became of one transfer. */
struct outcome {
    enum kv_err rc;
    enum kv_block_result results[BLOCKS];
    uint8_t tiers[BLOCKS];
    uint32_t done, leading;
};

#define OK(expr)                                                    \
    do {                                                            \
        enum kv_err rc_ = (expr);                                   \
        cr_assert(rc_ == KV_OK, "%s: %s", #expr, kv_err_name(rc_)); \
    } while (0)
#define FINE(expr)                                      \
    do {                                                \
        const char *why_ = (expr);                      \
        cr_assert(why_ == NULL, "%s: %s", #expr, why_); \
    } while (0)

static struct kv_id new_id(void)
{
    struct kv_id id;
    OK(kv_env_system.random(NULL, &id, sizeof(id)));
    return id;
}

static void start_engine(struct lab *lab)
{
    struct kv_engine_conf conf = {.dram_bytes = 64u << 20,
                                  .nvme_path = lab->nvme,
                                  .nvme_bytes = 256u << 20,
                                  .io_depth = 32,
                                  .io_threads = 2,
                                  .watermark_high_percent = 90,
                                  .watermark_low_percent = 70,
                                  .staging_bytes = 4u << 20,
                                  .keyring = lab->ring,
                                  .env = &kv_env_system};
    struct kv_errinfo info = {.text = ""};
    enum kv_err rc = kv_engine_start(&conf, &info, &lab->engine);
    cr_assert(rc == KV_OK, "kv_engine_start: %s: %s", kv_err_name(rc), info.text);
}

static void attach_pool(struct lab *lab)
{
    const struct kv_pool_memory *memory = &lab->bench.pool;
    struct kv_region region = {.stride_bytes = memory->slot_bytes, .run_bytes = memory->slot_bytes};
    struct kv_pool_spec spec = {.id = new_id(),
                                .engine = new_id(),
                                .tenant = lab->tenant,
                                .fd = dup(memory->fd),
                                .size_bytes = memory->size_bytes,
                                .slots = memory->slot_count,
                                .region_count = 1,
                                .regions = &region,
                                .bytes_per_block = memory->slot_bytes,
                                .kind = "opaque",
                                .format = lab->bench.format,
                                .engine_version = lab->bench.ref->ops->engine_version,
                                .tokens_per_block = KV_REF_BLOCK_TOKENS};
    struct kv_errinfo info = {.text = ""};
    enum kv_err rc = kv_pool_attach(&spec, &info, &lab->pool);
    cr_assert(rc == KV_OK, "kv_pool_attach: %s: %s", kv_err_name(rc), info.text);
}

static void open_session(struct lab *lab)
{
    struct kv_secret *secret;
    OK(kv_secret_random(&kv_env_system, 32, &secret));
    OK(kv_keyring_open(lab->ring, &lab->tenant, &lab->session, secret));
    kv_secret_free(secret);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        OK(kv_hex_decode(lab->bench.prompt.hashes[i], lab->block_ids[i].b, sizeof(lab->block_ids[i].b)));
        lab->slots[i] = i;
    }
}

/* `model` NULL: the simulated engine. */
static struct lab *lab_open(const char *model)
{
    struct lab *lab = kv_alloc(sizeof(*lab));
    struct kv_bench_conf conf = {.model_path = model, .text_path = KV_TEXT_DEFAULT, .tokens = TOKENS, .threads = 1};
    kvt_folder_make(lab->folder);
    kvt_path_join(lab->nvme, lab->folder, "nvme");
    FINE(kv_bench_open(&conf, &lab->bench));
    OK(kv_secret_arena_init(1u << 20));
    OK(kv_keyring_new(&kv_env_system, 16, &lab->ring));
    kv_keyring_set_lease(lab->ring, UINT64_MAX);
    lab->tenant = new_id();
    lab->session = new_id();
    open_session(lab);
    start_engine(lab);
    attach_pool(lab);
    return lab;
}

static void lab_close(struct lab *lab)
{
    OK(kv_engine_close_pool(lab->engine, lab->pool, kv_now_ns(&kv_env_system) + PATIENCE_NS));
    OK(kv_engine_stop(lab->engine));
    kv_pool_unref(lab->pool);
    kv_keyring_free(lab->ring);
    kv_secret_arena_done();
    kv_bench_done(&lab->bench);
    kvt_folder_remove(lab->folder);
    kv_free(lab);
}

static struct outcome transfer(struct lab *lab, enum kv_transfer_kind kind)
{
    struct outcome outcome = {.rc = KV_OK};
    struct kv_transfer job = {.kind = kind,
                              .wait = KV_WAIT_DURABLE,
                              .op = new_id(),
                              .tenant = lab->tenant,
                              .scope = lab->session,
                              .pool = lab->pool,
                              .count = BLOCKS,
                              .block_ids = lab->block_ids,
                              .slots = lab->slots,
                              .tiers_allowed = 1u << KV_TIER_DRAM | 1u << KV_TIER_NVME,
                              .deadline_ns = kv_now_ns(&kv_env_system) + PATIENCE_NS,
                              .results = outcome.results,
                              .tiers = outcome.tiers};
    OK(kv_future_new(&job.future));
    OK(kv_engine_submit(lab->engine, &job));
    outcome.rc = kv_future_wait(job.future, kv_now_ns(&kv_env_system) + 2 * PATIENCE_NS);
    cr_assert(outcome.rc != KV_E_TIMEOUT, "an operation did not end");
    kv_future_free(job.future);
    outcome.done = job.done_blocks;
    outcome.leading = job.leading_blocks;
    return outcome;
}

static void store_prompt(struct lab *lab)
{
    double cold_ms;
    FINE(kv_bench_cold(&lab->bench, &cold_ms));
    FINE(kv_bench_export(&lab->bench));
    struct outcome stored = transfer(lab, KV_TRANSFER_OFFLOAD);
    cr_assert(stored.rc == KV_OK);
    cr_assert(eq(u32, stored.done, BLOCKS));
}

static struct outcome restore(struct lab *lab)
{
    FINE(kv_bench_forget(&lab->bench));
    return transfer(lab, KV_TRANSFER_RESTORE);
}

static void drain(struct lab *lab)
{
    uint64_t blocks = 0;
    OK(kv_engine_drain_dram(lab->engine, kv_now_ns(&kv_env_system) + PATIENCE_NS, &blocks));
}

static void resume_is_identical(struct lab *lab, uint32_t usable)
{
    bool logits = false, blocks = false;
    FINE(kv_bench_resume(&lab->bench, usable, &logits));
    FINE(kv_bench_compare_blocks(&lab->bench, usable, &blocks));
    cr_assert(logits, "logits differ");
    cr_assert(blocks, "blocks differ");
}

static void restore_is_whole(struct lab *lab, enum kv_tier_id tier)
{
    struct outcome outcome = restore(lab);
    cr_assert(outcome.rc == KV_OK);
    cr_assert(eq(u32, outcome.leading, BLOCKS));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        cr_assert(eq(int, outcome.results[i], KV_BLOCK_RESTORED));
        cr_assert(eq(int, outcome.tiers[i], tier));
    }
    resume_is_identical(lab, BLOCKS);
}

static bool slot_is_zero(const struct lab *lab, uint32_t slot)
{
    const uint8_t *data = kv_pool_memory_slot(&lab->bench.pool, slot);
    for (size_t i = 0; i < lab->bench.pool.slot_bytes; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

/* --- the sealed bytes on the drive -------------------------------------------------------------------------------- */

#define PAGE 4096u
#define HEADER_BLOCK_ID 40u
#define HEADER_COMMITMENT 152u

static bool page_is_header_of(const uint8_t *page, const struct kv_block_id *id)
{
    return memcmp(page, "KVR1", 4) == 0 && memcmp(page + HEADER_BLOCK_ID, id->b, sizeof(id->b)) == 0;
}

static void flip_byte_at(int fd, off_t at)
{
    uint8_t byte;
    cr_assert(pread(fd, &byte, 1, at) == 1);
    byte ^= 0x10;
    cr_assert(pwrite(fd, &byte, 1, at) == 1);
    cr_assert(fsync(fd) == 0);
}

/* In every copy in the file: an earlier one, whose room was not used again yet, may still lie there. How many there
 * were. */
static unsigned flip_in_file(const char *path, const struct kv_block_id *id, uint64_t offset)
{
    unsigned copies = 0;
    uint8_t page[PAGE];
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert(fd >= 0);
    for (off_t at = 0; pread(fd, page, PAGE, at) == (ssize_t)PAGE; at += PAGE) {
        if (page_is_header_of(page, id)) {
            flip_byte_at(fd, at + (off_t)offset);
            copies++;
        }
    }
    close(fd);
    return copies;
}

/* Flips one bit of block `index`, `offset` bytes into its sealed form. */
static void flip_bit(const struct lab *lab, uint32_t index, uint64_t offset)
{
    unsigned copies = 0;
    DIR *folder = opendir(lab->nvme);
    cr_assert(folder != NULL);
    struct dirent *item;
    while ((item = readdir(folder)) != NULL) {
        if (item->d_type == DT_REG) {
            char path[KVT_PATH_BYTES];
            kvt_path_join(path, lab->nvme, item->d_name);
            copies += flip_in_file(path, &lab->block_ids[index], offset);
        }
    }
    closedir(folder);
    cr_assert(copies > 0, "the block is nowhere on the drive");
}

/* --- tests ---------------------------------------------------------------------------------------------------------
 */

static void restores_identical_from_dram(const char *model)
{
    struct lab *lab = lab_open(model);
    store_prompt(lab);
    restore_is_whole(lab, KV_TIER_DRAM);
    lab_close(lab);
}

static void restores_identical_from_nvme_after_a_drain(const char *model)
{
    struct lab *lab = lab_open(model);
    store_prompt(lab);
    drain(lab);
    restore_is_whole(lab, KV_TIER_NVME);
    lab_close(lab);
}

static void restores_identical_after_a_restart(const char *model)
{
    struct lab *lab = lab_open(model);
    store_prompt(lab);
    OK(kv_engine_stop(lab->engine));
    start_engine(lab);
    restore_is_whole(lab, KV_TIER_NVME);
    lab_close(lab);
}

/* One bit anywhere in the sealed form: the block is quarantined, its page untouched, the rest of the prompt computed
 * again; the control is the restore before it. Then the computed block is stored anew, and everything is as it was. */
static void spoilt_block_is_quarantined_and_recomputed(const char *model)
{
    struct lab *lab = lab_open(model);
    const uint64_t block_bytes = lab->bench.pool.slot_bytes, header = kv_sealed_header_bytes(block_bytes);
    const uint64_t offsets[] = {header + 12345,    header,    header + block_bytes - 1, KV_SEALED_FIXED_BYTES + 3,
                                HEADER_COMMITMENT, header - 1};
    store_prompt(lab);
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        uint32_t victim = 1 + (uint32_t)i % (BLOCKS - 1);
        drain(lab);
        restore_is_whole(lab, KV_TIER_NVME);
        drain(lab);
        flip_bit(lab, victim, offsets[i]);
        struct outcome outcome = restore(lab);
        cr_assert(eq(int, outcome.results[victim], KV_BLOCK_QUARANTINED), "offset %zu", (size_t)offsets[i]);
        cr_assert(eq(u32, outcome.leading, victim));
        cr_assert(eq(u32, outcome.done, BLOCKS - 1));
        cr_assert(slot_is_zero(lab, victim), "a page that was not restored was written");
        resume_is_identical(lab, outcome.leading);
        FINE(kv_bench_export(&lab->bench));
        struct outcome again = transfer(lab, KV_TRANSFER_OFFLOAD);
        cr_assert(eq(int, again.results[victim], KV_BLOCK_STORED));
    }
    lab_close(lab);
}

static void spoilt_after_a_restart_is_quarantined_too(const char *model)
{
    struct lab *lab = lab_open(model);
    store_prompt(lab);
    OK(kv_engine_stop(lab->engine));
    flip_bit(lab, 0, kv_sealed_header_bytes(lab->bench.pool.slot_bytes) + 77);
    start_engine(lab);
    struct outcome outcome = restore(lab);
    cr_assert(eq(int, outcome.results[0], KV_BLOCK_QUARANTINED));
    cr_assert(eq(u32, outcome.leading, 0));
    cr_assert(slot_is_zero(lab, 0));
    resume_is_identical(lab, 0);
    lab_close(lab);
}

static void nothing_comes_back_of_a_fenced_session(const char *model)
{
    struct lab *lab = lab_open(model);
    store_prompt(lab);
    restore_is_whole(lab, KV_TIER_DRAM);
    OK(kv_engine_fence(lab->engine, &lab->session, kv_now_ns(&kv_env_system) + PATIENCE_NS));
    OK(kv_keyring_drop(lab->ring, &lab->session, true, kv_now_ns(&kv_env_system) + PATIENCE_NS));
    struct outcome outcome = restore(lab);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        cr_assert(eq(int, outcome.results[i], KV_BLOCK_ERASED));
        cr_assert(slot_is_zero(lab, i));
    }
    cr_assert(eq(u32, outcome.leading, 0));
    lab_close(lab);
}

/* Another model's layout is another context: a miss or a refusal, never bytes. */
static void blocks_of_another_layout_do_not_fit(const char *model)
{
    struct lab *lab = lab_open(model);
    store_prompt(lab);
    struct kv_pool *own = lab->pool;
    snprintf(lab->bench.format, sizeof(lab->bench.format), "another/format");
    attach_pool(lab);
    struct outcome outcome = restore(lab);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        cr_assert(ne(int, outcome.results[i], KV_BLOCK_RESTORED));
        cr_assert(slot_is_zero(lab, i));
    }
    OK(kv_engine_close_pool(lab->engine, lab->pool, kv_now_ns(&kv_env_system) + PATIENCE_NS));
    kv_pool_unref(lab->pool);
    lab->pool = own;
    lab_close(lab);
}

#ifdef KV_HAVE_LLAMA
#define ON_EACH_ENGINE(body)         \
    Test(engine_library_sim, body)   \
    {                                \
        body(NULL);                  \
    }                                \
    Test(engine_library_llama, body) \
    {                                \
        body(KV_MODEL_DEFAULT);      \
    }
#else
#define ON_EACH_ENGINE(body)       \
    Test(engine_library_sim, body) \
    {                              \
        body(NULL);                \
    }
#endif

ON_EACH_ENGINE(restores_identical_from_dram)
ON_EACH_ENGINE(restores_identical_from_nvme_after_a_drain)
ON_EACH_ENGINE(restores_identical_after_a_restart)
ON_EACH_ENGINE(spoilt_block_is_quarantined_and_recomputed)
ON_EACH_ENGINE(spoilt_after_a_restart_is_quarantined_too)
ON_EACH_ENGINE(nothing_comes_back_of_a_fenced_session)
ON_EACH_ENGINE(blocks_of_another_layout_do_not_fit)

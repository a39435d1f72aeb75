/* Prompt, pool and simulated engine: the ground that the other tests stand on. */
#include "tests/engine/bench.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void fine(const char *why)
{
    cr_assert(why == NULL, "%s", why);
}

Test(prompt, hash_chain_is_the_one_others_would_compute)
{
    struct kv_prompt prompt;
    fine(kv_prompt_read(KV_TEXT_DEFAULT, 512, &prompt));
    cr_assert(eq(uint, prompt.block_count, 2));
    cr_assert(eq(str, prompt.hashes[0], "4a65ff551da83f07a1155a39324a36165e8cde8746ac18bb355afbf9d5141476"));
    cr_assert(eq(str, prompt.hashes[1], "01cd0481221dc9afd217222890be26fc709bc5620aeec60456523ac0b3ac6780"));
    cr_assert(eq(int, prompt.tokens[0], 3 + 'C'));
    kv_prompt_done(&prompt);
}

Test(prompt, repeats_a_short_text_and_still_hashes_each_block_differently)
{
    char folder[KVT_PATH_BYTES], path[KVT_PATH_BYTES];
    struct kv_prompt prompt;
    kvt_folder_make(folder);
    kvt_path_join(path, folder, "text");
    kvt_file_write(path, "ab", 2, 0600);
    fine(kv_prompt_read(path, 512, &prompt));
    cr_assert(eq(int, prompt.tokens[511], 3 + 'b'));
    cr_assert(eq(int, prompt.tokens[512], 3 + 'a'));
    cr_assert(ne(str, prompt.hashes[0], prompt.hashes[1]));
    kv_prompt_done(&prompt);
    kvt_file_write(path, "", 0, 0600);
    cr_assert(kv_prompt_read(path, 512, &prompt) != NULL);
    kvt_folder_remove(folder);
}

Test(prompt, takes_whole_blocks_only)
{
    struct kv_prompt prompt;
    cr_assert(kv_prompt_read(KV_TEXT_DEFAULT, 0, &prompt) != NULL);
    cr_assert(kv_prompt_read(KV_TEXT_DEFAULT, 255, &prompt) != NULL);
    cr_assert(kv_prompt_read(KV_TEXT_DEFAULT, 257, &prompt) != NULL);
    cr_assert(kv_prompt_read("/nonexistent", 256, &prompt) != NULL);
}

Test(pool_memory, cannot_shrink_and_ends_at_its_last_slot)
{
    struct kv_pool_memory pool;
    fine(kv_pool_memory_new(5000, 3, &pool));
    cr_assert(eq(sz, pool.size_bytes, 16384));
    int seals = fcntl(pool.fd, F_GET_SEALS);
    cr_assert(seals >= 0 && (seals & F_SEAL_SHRINK) != 0);
    cr_assert(ftruncate(pool.fd, 4096) != 0);
    cr_assert(kv_pool_memory_slot(&pool, 2) == pool.base + 10000);
    cr_assert(kv_pool_memory_slot(&pool, 3) == NULL);
    kv_pool_memory_done(&pool);
}

Test(pool_memory, sizes_that_make_no_sense_are_refused)
{
    struct kv_pool_memory pool;
    cr_assert(kv_pool_memory_new(0, 1, &pool) != NULL);
    cr_assert(kv_pool_memory_new(1, 0, &pool) != NULL);
    cr_assert(kv_pool_memory_new(SIZE_MAX / 2, 3, &pool) != NULL);
}

static struct kv_bench sim_bench(void)
{
    struct kv_bench bench;
    struct kv_bench_conf conf = {.text_path = KV_TEXT_DEFAULT, .tokens = 768};
    double ms;
    fine(kv_bench_open(&conf, &bench));
    fine(kv_bench_cold(&bench, &ms));
    fine(kv_bench_export(&bench));
    return bench;
}

Test(sim, every_bit_of_a_block_is_in_the_logits)
{
    struct kv_bench bench = sim_bench();
    uint8_t *slot = kv_pool_memory_slot(&bench.pool, 1);
    bool identical = false;
    for (size_t at = 40; at < bench.pool.slot_bytes; at += 99991) {
        slot[at] ^= 1;
        fine(bench.ref->ops->clear(bench.ref));
        fine(kv_bench_resume(&bench, 3, &identical));
        cr_assert(not(identical));
        slot[at] ^= 1;
    }
    fine(bench.ref->ops->clear(bench.ref));
    fine(kv_bench_resume(&bench, 3, &identical));
    cr_assert(identical);
    kv_bench_done(&bench);
}

Test(sim, block_in_another_place_is_refused)
{
    struct kv_bench bench = sim_bench();
    struct kv_ref *ref = bench.ref;
    fine(ref->ops->clear(ref));
    cr_assert(ref->ops->import_block(ref, 1, kv_pool_memory_slot(&bench.pool, 1)) != NULL, "out of order");
    cr_assert(ref->ops->import_block(ref, 0, kv_pool_memory_slot(&bench.pool, 1)) != NULL, "another block's bytes");
    fine(ref->ops->import_block(ref, 0, kv_pool_memory_slot(&bench.pool, 0)));
    cr_assert(ref->ops->export_block(ref, 1, kv_pool_memory_slot(&bench.pool, 1)) != NULL, "not held");
    kv_bench_done(&bench);
}

Test(sim, resume_with_fewer_blocks_computes_the_rest)
{
    struct kv_bench bench = sim_bench();
    for (uint32_t usable = 0; usable <= 3; usable++) {
        bool identical = false;
        fine(bench.ref->ops->clear(bench.ref));
        fine(kv_bench_resume(&bench, usable, &identical));
        cr_assert(identical);
    }
    bool identical = false;
    cr_assert(kv_bench_resume(&bench, 4, &identical) != NULL);
    kv_bench_done(&bench);
}

Test(bench, comparison_sees_a_block_that_changed)
{
    struct kv_bench bench = sim_bench();
    bool identical = false;
    fine(kv_bench_compare_blocks(&bench, 3, &identical));
    cr_assert(identical);
    kv_pool_memory_slot(&bench.pool, 2)[0] ^= 1;
    fine(kv_bench_compare_blocks(&bench, 3, &identical));
    cr_assert(not(identical));
    fine(kv_bench_compare_blocks(&bench, 2, &identical));
    cr_assert(identical, "what is not usable is not compared");
    kv_bench_done(&bench);
}

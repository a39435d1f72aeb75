/* What the commands share: an engine that is opened, a session that is stored, one resume that is timed. */
#include "tests/engine/commands_int.h"

#include <stdio.h>
#include <string.h>

int kv_command_fail(const char *what, const char *why)
{
    fprintf(stderr, "kvrun-engine: %s: %s\n", what, why);
    return KV_EXIT_FAILED;
}

static const char *engine_title(const struct kv_options *options)
{
#ifdef KV_HAVE_LLAMA
    if (options->model != NULL) {
        return kv_ref_llama.title;
    }
    return options->sim ? "simulated (asked for)" : "simulated (no model file)";
#else
    return options->sim ? "simulated (asked for)" : kv_ref_sim.title;
#endif
}

int kv_command_open_bench(const struct kv_options *options, struct kv_bench *ret_bench)
{
    struct kv_bench_conf conf = {.model_path = options->model,
                                 .text_path = options->text,
                                 .tokens = options->tokens,
                                 .us_per_token = options->us_per_token};
    const char *why = kv_bench_open(&conf, ret_bench);
    if (why != NULL) {
        return kv_command_fail("engine", why);
    }
    if (!options->json) {
        printf("engine: %s\n", engine_title(options));
        printf("%u tokens in %u blocks of %zu bytes\n", options->tokens, ret_bench->prompt.block_count,
               ret_bench->pool.slot_bytes);
        fflush(stdout);
    }
    return KV_EXIT_OK;
}

json_t *kv_command_describe(const struct kv_options *options, const struct kv_bench *bench, const struct kv_link *link)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I}", "engine", engine_title(options), "session", link->session_id,
                     "tokens", (json_int_t)options->tokens, "blocks", (json_int_t)bench->prompt.block_count,
                     "block_bytes", (json_int_t)bench->pool.slot_bytes);
}

void kv_command_print_json(json_t *object)
{
    json_dumpf(object, stdout, JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(object);
}

int kv_command_resume_once(struct kv_link *link, struct kv_bench *bench, struct kv_resumed *ret_resumed)
{
    struct kv_resumed resumed = {.ms = 0};
    struct kvrun_error error;
    const char *why = kv_bench_forget(bench);
    if (why != NULL) {
        return kv_command_fail("forget", why);
    }
    double start = kv_bench_now_ms();
    if (!kv_link_restore(link, &resumed.moved, &error)) {
        kv_link_print_error("restore", &error);
        return KV_EXIT_FAILED;
    }
    resumed.usable = resumed.moved.contiguous_blocks;
    why = kv_bench_resume(bench, resumed.usable, &resumed.logits_identical);
    resumed.ms = kv_bench_now_ms() - start;
    if (why == NULL) {
        why = kv_bench_compare_blocks(bench, resumed.usable, &resumed.blocks_identical);
    }
    if (why != NULL) {
        return kv_command_fail("resume", why);
    }
    *ret_resumed = resumed;
    return KV_EXIT_OK;
}

bool kv_command_identical(const struct kv_resumed *resumed)
{
    return resumed->logits_identical && resumed->blocks_identical;
}

const char *kv_command_word(bool same)
{
    return same ? "identical" : "differ";
}

void kv_command_print_resumed(const char *tier, const struct kv_resumed *resumed, const struct kv_link *link)
{
    printf("%-6s %8.1f ms   %u of %u blocks restored (%u dram, %u nvme), %.2f ms in the server\n", tier, resumed->ms,
           resumed->usable, link->count, kv_link_from_tier(link, KVRUN_DRAM), kv_link_from_tier(link, KVRUN_NVME),
           (double)resumed->moved.duration_us / 1e3);
}

int kv_command_store(struct kv_link *link, struct kv_bench *bench, struct kv_stored *ret_stored)
{
    const char *why = kv_bench_cold(bench, &ret_stored->cold_ms);
    if (why == NULL) {
        why = kv_bench_export(bench);
    }
    if (why != NULL) {
        return kv_command_fail("prefill", why);
    }
    double start = kv_bench_now_ms();
    struct kvrun_moved moved;
    if (!kv_link_offload(link, &moved)) {
        return KV_EXIT_FAILED;
    }
    ret_stored->offload_ms = kv_bench_now_ms() - start;
    return KV_EXIT_OK;
}

int kv_command_with_bench(const struct kv_options *options,
                          int (*body)(const struct kv_options *options, struct kv_bench *bench))
{
    struct kv_bench bench;
    int rc = kv_command_open_bench(options, &bench);
    if (rc == KV_EXIT_OK) {
        rc = body(options, &bench);
        kv_bench_done(&bench);
    }
    return rc;
}

/*
 * The scenarios. Times are those of a request that waits: from the moment the prompt is there to the logits of the next
 * token, cold or out of a tier.
 */
#include "tests/engine/commands.h"

#include "tests/engine/link.h"
#include "tests/engine/selfcheck.h"
#include "tests/engine/state_file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const char *why)
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

static int open_bench(const struct kv_options *options, struct kv_bench *ret_bench)
{
    struct kv_bench_conf conf = {.model_path = options->model,
                                 .text_path = options->text,
                                 .tokens = options->tokens,
                                 .us_per_token = options->us_per_token};
    const char *why = kv_bench_open(&conf, ret_bench);
    if (why != NULL) {
        return fail("engine", why);
    }
    if (!options->json) {
        printf("engine: %s\n", engine_title(options));
        printf("%u tokens in %u blocks of %zu bytes\n", options->tokens, ret_bench->prompt.block_count,
               ret_bench->pool.slot_bytes);
        fflush(stdout);
    }
    return KV_EXIT_OK;
}

static json_t *describe(const struct kv_options *options, const struct kv_bench *bench, const struct kv_link *link)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I}", "engine", engine_title(options), "session", link->session_id,
                     "tokens", (json_int_t)options->tokens, "blocks", (json_int_t)bench->prompt.block_count,
                     "block_bytes", (json_int_t)bench->pool.slot_bytes);
}

static void print_json(json_t *object)
{
    json_dumpf(object, stdout, JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(object);
}

/* One resume out of whatever tier the server takes. */
struct resumed {
    double ms;
    bool identical;
    uint32_t usable;
    struct kv_client_moved moved;
};

static int resume(struct kv_link *link, struct kv_bench *bench, struct resumed *ret_resumed)
{
    struct resumed resumed = {.ms = 0};
    struct kv_client_error error;
    const char *why = kv_bench_forget(bench);
    if (why != NULL) {
        return fail("forget", why);
    }
    double start = kv_bench_now_ms();
    if (!kv_link_restore(link, bench, &resumed.moved, &error)) {
        kv_link_print_error("restore", &error);
        return KV_EXIT_FAILED;
    }
    resumed.usable = resumed.moved.contiguous_blocks;
    why = kv_bench_resume(bench, resumed.usable, &resumed.identical);
    if (why != NULL) {
        return fail("resume", why);
    }
    resumed.ms = kv_bench_now_ms() - start;
    *ret_resumed = resumed;
    return KV_EXIT_OK;
}

static void print_resumed(const char *tier, const struct resumed *resumed, const struct kv_link *link)
{
    printf("%-6s %8.1f ms   %u of %u blocks restored (%u dram, %u nvme), %.2f ms in the server\n", tier, resumed->ms,
           resumed->usable, link->count, kv_link_from_tier(link, "dram"), kv_link_from_tier(link, "nvme"),
           (double)resumed->moved.duration_us / 1e3);
}

struct run_report {
    double cold_ms, offload_ms;
    struct resumed dram, nvme;
    bool drained, wrong;
    const char *why_no_nvme;
};

/* Every block must come back, from the tier that was meant, with the same logits. */
static bool complete(const struct resumed *resumed, const struct kv_link *link, const char *tier)
{
    bool all = resumed->usable == link->count;
    if (!all) {
        fprintf(stderr, "kvrun-engine: only %u of %u blocks came back\n", resumed->usable, link->count);
    }
    if (kv_link_from_tier(link, tier) != link->count) {
        fprintf(stderr, "kvrun-engine: not every block came from %s\n", tier);
        all = false;
    }
    return all && resumed->identical;
}

static int run_cold(struct kv_link *link, struct kv_bench *bench, struct run_report *report)
{
    const char *why = kv_bench_cold(bench, &report->cold_ms);
    if (why == NULL) {
        why = kv_bench_export(bench);
    }
    if (why != NULL) {
        return fail("prefill", why);
    }
    double start = kv_bench_now_ms();
    struct kv_client_moved moved;
    if (!kv_link_offload(link, bench, &moved)) {
        return KV_EXIT_FAILED;
    }
    report->offload_ms = kv_bench_now_ms() - start;
    return KV_EXIT_OK;
}

static int drain(const struct kv_options *options, struct run_report *report)
{
    struct kv_client *client;
    if (options->operator_token_file == NULL) {
        report->why_no_nvme = "no --operator-token-file";
        return KV_EXIT_OK;
    }
    if (!kv_link_client(options, options->operator_token_file, &client)) {
        return KV_EXIT_FAILED;
    }
    struct kv_client_error error;
    uint64_t blocks;
    bool fine = kv_client_drain_dram(client, &blocks, &error);
    kv_client_free(client);
    if (!fine) {
        kv_link_print_error("drain", &error);
        return KV_EXIT_FAILED;
    }
    report->drained = true;
    return KV_EXIT_OK;
}

static int run_steps(const struct kv_options *options, struct kv_link *link, struct kv_bench *bench,
                     struct run_report *report)
{
    int rc = run_cold(link, bench, report);
    if (rc == KV_EXIT_OK) {
        rc = resume(link, bench, &report->dram);
    }
    if (rc != KV_EXIT_OK) {
        return rc;
    }
    report->wrong = !complete(&report->dram, link, "dram");
    if (!options->json) {
        printf("%-6s %8.1f ms\n%-6s %8.1f ms   offload, durable\n", "cold", report->cold_ms, "store",
               report->offload_ms);
        print_resumed("dram", &report->dram, link);
    }
    rc = drain(options, report);
    if (rc != KV_EXIT_OK || !report->drained) {
        return rc;
    }
    rc = resume(link, bench, &report->nvme);
    if (rc != KV_EXIT_OK) {
        return rc;
    }
    report->wrong = !complete(&report->nvme, link, "nvme") || report->wrong;
    if (!options->json) {
        print_resumed("nvme", &report->nvme, link);
    }
    return KV_EXIT_OK;
}

static void print_run(const struct kv_options *options, const struct kv_bench *bench, const struct kv_link *link,
                      const struct run_report *report)
{
    bool identical = report->dram.identical && (!report->drained || report->nvme.identical);
    const char *logits = identical ? "identical" : "differ";
    if (!options->json) {
        if (!report->drained) {
            printf("nvme   skipped: %s\n", report->why_no_nvme);
        }
        printf("logits %s\nsession %s\n", logits, link->session_id);
        return;
    }
    json_t *object = describe(options, bench, link);
    json_object_set_new(object, "cold_ms", json_real(report->cold_ms));
    json_object_set_new(object, "offload_ms", json_real(report->offload_ms));
    json_object_set_new(object, "dram_ms", json_real(report->dram.ms));
    json_object_set_new(object, "nvme_ms", report->drained ? json_real(report->nvme.ms) : json_null());
    json_object_set_new(object, "logits", json_string(logits));
    print_json(object);
}

static int run_connected(const struct kv_options *options, struct kv_bench *bench)
{
    struct kv_link link;
    if (!kv_link_open(options, bench, &link)) {
        return KV_EXIT_FAILED;
    }
    struct run_report report = {.cold_ms = 0};
    int rc = kv_link_session(&link, options->session) ? run_steps(options, &link, bench, &report) : KV_EXIT_FAILED;
    if (rc == KV_EXIT_OK) {
        print_run(options, bench, &link, &report);
        rc = report.wrong ? KV_EXIT_WRONG : KV_EXIT_OK;
    }
    kv_link_done(&link);
    return rc;
}

/* Opens the bench, runs `body`, closes it. */
static int with_bench(const struct kv_options *options,
                      int (*body)(const struct kv_options *options, struct kv_bench *bench))
{
    struct kv_bench bench;
    int rc = open_bench(options, &bench);
    if (rc == KV_EXIT_OK) {
        rc = body(options, &bench);
        kv_bench_done(&bench);
    }
    return rc;
}

int kv_command_run(const struct kv_options *options)
{
    return with_bench(options, run_connected);
}

static int leave_state(const struct kv_options *options, const struct kv_bench *bench, const struct kv_link *link)
{
    if (options->state == NULL) {
        return KV_EXIT_OK;
    }
    struct kv_state state = {
        .tokens = options->tokens, .logits = bench->reference, .logits_bytes = bench->reference_bytes};
    memcpy(state.session, link->session_id, sizeof(state.session));
    const char *why = kv_state_write(options->state, &state);
    return why != NULL ? fail("state", why) : KV_EXIT_OK;
}

static int offload_connected(const struct kv_options *options, struct kv_bench *bench)
{
    struct kv_link link;
    if (!kv_link_open(options, bench, &link)) {
        return KV_EXIT_FAILED;
    }
    struct run_report report = {.cold_ms = 0};
    int rc = kv_link_session(&link, options->session) ? run_cold(&link, bench, &report) : KV_EXIT_FAILED;
    if (rc == KV_EXIT_OK) {
        rc = leave_state(options, bench, &link);
    }
    if (rc == KV_EXIT_OK && options->json) {
        json_t *object = describe(options, bench, &link);
        json_object_set_new(object, "cold_ms", json_real(report.cold_ms));
        json_object_set_new(object, "offload_ms", json_real(report.offload_ms));
        print_json(object);
    } else if (rc == KV_EXIT_OK) {
        printf("%-6s %8.1f ms\n%-6s %8.1f ms   offload, durable\nsession %s\n", "cold", report.cold_ms, "store",
               report.offload_ms, link.session_id);
    }
    kv_link_done(&link);
    return rc;
}

int kv_command_offload(const struct kv_options *options)
{
    return with_bench(options, offload_connected);
}

static int resume_connected(const struct kv_options *options, struct kv_bench *bench)
{
    struct kv_link link;
    if (!kv_link_open(options, bench, &link)) {
        return KV_EXIT_FAILED;
    }
    struct resumed resumed;
    int rc = kv_link_session(&link, options->session) ? resume(&link, bench, &resumed) : KV_EXIT_FAILED;
    if (rc == KV_EXIT_OK && options->json) {
        json_t *object = describe(options, bench, &link);
        json_object_set_new(object, "resume_ms", json_real(resumed.ms));
        json_object_set_new(object, "restored_blocks", json_integer((json_int_t)resumed.usable));
        json_object_set_new(object, "logits", json_string(resumed.identical ? "identical" : "differ"));
        print_json(object);
    } else if (rc == KV_EXIT_OK) {
        print_resumed("resume", &resumed, &link);
        printf("logits %s\nsession %s\n", resumed.identical ? "identical" : "differ", link.session_id);
    }
    kv_link_done(&link);
    return rc == KV_EXIT_OK && !resumed.identical ? KV_EXIT_WRONG : rc;
}

/* The state says how long the prompt was and, unless the command line does, which session it is. */
static void take_from_state(const struct kv_state *state, struct kv_options *options)
{
    options->tokens = state->tokens;
    if (options->session == NULL) {
        options->session = state->session;
    }
}

int kv_command_resume(const struct kv_options *options)
{
    struct kv_options own = *options;
    struct kv_state state;
    if (options->state == NULL) {
        return fail("resume", "--state of an earlier offload is needed");
    }
    const char *why = kv_state_read(options->state, &state);
    if (why != NULL) {
        return fail("state", why);
    }
    take_from_state(&state, &own);
    struct kv_bench bench;
    int rc = open_bench(&own, &bench);
    if (rc == KV_EXIT_OK) {
        why = kv_bench_set_reference(&bench, state.logits, state.logits_bytes);
        rc = why != NULL ? fail("resume", why) : resume_connected(&own, &bench);
        kv_bench_done(&bench);
    }
    kv_state_done(&state);
    return rc;
}

/* Prints what became of each block; wrong when a single one came back. */
static int judge_blocks(const struct kv_link *link)
{
    uint32_t restored = 0, other = 0;
    for (uint32_t i = 0; i < link->count; i++) {
        const struct kv_client_block *block = &link->blocks[i];
        printf("block %u %s %s\n", i, block->result, block->tier);
        bool gone = kv_client_block_is(block, "missing") || kv_client_block_is(block, "erased");
        restored += kv_client_block_is(block, "restored");
        other += !gone && !kv_client_block_is(block, "restored");
    }
    printf("%u of %u blocks came back\n", restored, link->count);
    return restored > 0 ? KV_EXIT_WRONG : other > 0 ? KV_EXIT_FAILED : KV_EXIT_OK;
}

static bool all_zero(const struct kv_bench *bench)
{
    for (size_t i = 0; i < bench->pool.size_bytes; i++) {
        if (bench->pool.base[i] != 0) {
            return false;
        }
    }
    return true;
}

static int try_connected(const struct kv_options *options, struct kv_bench *bench)
{
    struct kv_link link;
    if (!kv_link_open(options, bench, &link)) {
        return KV_EXIT_FAILED;
    }
    struct kv_client_error error;
    struct kv_client_moved moved;
    int rc = KV_EXIT_FAILED;
    if (!kv_link_session(&link, options->session)) {
        rc = KV_EXIT_FAILED;
    } else if (kv_link_restore(&link, bench, &moved, &error)) {
        rc = judge_blocks(&link);
    } else if (strcmp(error.code, "session_erased") == 0) {
        printf("refused: %s\n", error.code);
        rc = KV_EXIT_OK;
    } else {
        kv_link_print_error("restore", &error);
    }
    if (rc == KV_EXIT_OK && !all_zero(bench)) {
        puts("the pool was written to");
        rc = KV_EXIT_WRONG;
    }
    kv_link_done(&link);
    return rc;
}

int kv_command_try_restore(const struct kv_options *options)
{
    struct kv_options own = *options;
    struct kv_state state = {.logits = NULL};
    own.json = false;
    if (options->state != NULL) {
        const char *why = kv_state_read(options->state, &state);
        if (why != NULL) {
            return fail("state", why);
        }
        take_from_state(&state, &own);
    }
    int rc = own.session == NULL ? fail("try-restore", "--session or --state of an earlier offload is needed")
                                 : with_bench(&own, try_connected);
    kv_state_done(&state);
    return rc;
}

int kv_command_erase(const struct kv_options *options)
{
    struct kv_client *client;
    if (options->session == NULL) {
        return fail("erase", "--session is needed");
    }
    if (!kv_link_client(options, options->token_file, &client)) {
        return KV_EXIT_FAILED;
    }
    struct kv_client_erasure erasure;
    struct kv_client_error error;
    bool fine = kv_client_erase(client, options->session, NULL, NULL, 30, &erasure, &error);
    kv_client_free(client);
    if (!fine) {
        kv_link_print_error("erase", &error);
        return KV_EXIT_FAILED;
    }
    if (options->json) {
        print_json(
            json_pack("{s:s, s:s, s:s}", "erasure", erasure.id, "state", erasure.state, "session", options->session));
    } else {
        printf("erasure %s\nstate %s\n", erasure.id, erasure.state);
    }
    return KV_EXIT_OK;
}

static int selfcheck_bench(const struct kv_options *options, struct kv_bench *bench)
{
    (void)options;
    return kv_selfcheck(bench) ? KV_EXIT_OK : KV_EXIT_WRONG;
}

int kv_command_selfcheck(const struct kv_options *options)
{
    return with_bench(options, selfcheck_bench);
}

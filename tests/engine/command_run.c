/*
 * The whole scenario in one process. Times are those of a request that waits: from the moment the prompt is there to
 * the logits of the next token, cold or out of a tier. Also the check of the engine alone.
 */
#include "tests/engine/commands_int.h"

#include "tests/engine/selfcheck.h"

#include <stdio.h>

struct run_report {
    struct kv_stored stored;
    struct kv_resumed dram, nvme;
    bool drained, wrong;
    const char *why_no_nvme;
};

/* Every block must come back, from the tier that was meant, with the same logits. */
static bool complete(const struct kv_resumed *resumed, const struct kv_link *link, enum kvrun_tier tier)
{
    bool all = resumed->usable == link->count;
    if (!all) {
        fprintf(stderr, "kvrun-engine: only %u of %u blocks came back\n", resumed->usable, link->count);
    }
    if (kv_link_from_tier(link, tier) != link->count) {
        fprintf(stderr, "kvrun-engine: not every block came from %s\n", kvrun_tiers_name(tier));
        all = false;
    }
    return all && kv_command_identical(resumed);
}

static int drain(const struct kv_options *options, struct run_report *report)
{
    struct kvrun_client *client;
    if (options->operator_token_file == NULL) {
        report->why_no_nvme = "no --operator-token-file";
        return KV_EXIT_OK;
    }
    if (!kv_link_client(options, options->operator_token_file, &client)) {
        return KV_EXIT_FAILED;
    }
    struct kvrun_error error;
    bool fine = kv_link_drain_dram(client, &error);
    kvrun_client_free(client);
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
    int rc = kv_command_store(link, bench, &report->stored);
    if (rc == KV_EXIT_OK) {
        rc = kv_command_resume_once(link, bench, &report->dram);
    }
    if (rc != KV_EXIT_OK) {
        return rc;
    }
    report->wrong = !complete(&report->dram, link, KVRUN_DRAM);
    if (!options->json) {
        printf("%-6s %8.1f ms\n%-6s %8.1f ms   offload, durable\n", "cold", report->stored.cold_ms, "store",
               report->stored.offload_ms);
        kv_command_print_resumed("dram", &report->dram, link);
    }
    rc = drain(options, report);
    if (rc != KV_EXIT_OK || !report->drained) {
        return rc;
    }
    rc = kv_command_resume_once(link, bench, &report->nvme);
    if (rc != KV_EXIT_OK) {
        return rc;
    }
    report->wrong = !complete(&report->nvme, link, KVRUN_NVME) || report->wrong;
    if (!options->json) {
        kv_command_print_resumed("nvme", &report->nvme, link);
    }
    return KV_EXIT_OK;
}

static void print_run(const struct kv_options *options, const struct kv_bench *bench, const struct kv_link *link,
                      const struct run_report *report)
{
    bool logits = report->dram.logits_identical && (!report->drained || report->nvme.logits_identical);
    bool blocks = report->dram.blocks_identical && (!report->drained || report->nvme.blocks_identical);
    if (!options->json) {
        if (!report->drained) {
            printf("nvme   skipped: %s\n", report->why_no_nvme);
        }
        printf("blocks %s\nlogits %s\nsession %s\n", kv_command_word(blocks), kv_command_word(logits),
               link->session_id);
        return;
    }
    json_t *object = kv_command_describe(options, bench, link);
    json_object_set_new(object, "cold_ms", json_real(report->stored.cold_ms));
    json_object_set_new(object, "offload_ms", json_real(report->stored.offload_ms));
    json_object_set_new(object, "dram_ms", json_real(report->dram.ms));
    json_object_set_new(object, "nvme_ms", report->drained ? json_real(report->nvme.ms) : json_null());
    json_object_set_new(object, "blocks_compared", json_string(kv_command_word(blocks)));
    json_object_set_new(object, "logits", json_string(kv_command_word(logits)));
    kv_command_print_json(object);
}

static int run_connected(const struct kv_options *options, struct kv_bench *bench)
{
    struct kv_link link;
    if (!kv_link_open(options, bench, &link)) {
        return KV_EXIT_FAILED;
    }
    struct run_report report = {.drained = false};
    int rc = kv_link_session(&link, options->session) ? run_steps(options, &link, bench, &report) : KV_EXIT_FAILED;
    if (rc == KV_EXIT_OK) {
        print_run(options, bench, &link, &report);
        rc = report.wrong ? KV_EXIT_WRONG : KV_EXIT_OK;
    }
    kv_link_done(&link);
    return rc;
}

int kv_command_run(const struct kv_options *options)
{
    return kv_command_with_bench(options, run_connected);
}

static int selfcheck_bench(const struct kv_options *options, struct kv_bench *bench)
{
    (void)options;
    return kv_selfcheck(bench) ? KV_EXIT_OK : KV_EXIT_WRONG;
}

int kv_command_selfcheck(const struct kv_options *options)
{
    return kv_command_with_bench(options, selfcheck_bench);
}

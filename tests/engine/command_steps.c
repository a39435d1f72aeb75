/*
 * The scenario in steps, each a process of its own: store, resume, try what must not work, erase. What one step leaves
 * for the next is the state file.
 */
#include "tests/engine/commands_int.h"

#include "tests/engine/state_file.h"

#include <stdio.h>
#include <string.h>

static int leave_state(const struct kv_options *options, const struct kv_bench *bench, const struct kv_link *link)
{
    if (options->state == NULL) {
        return KV_EXIT_OK;
    }
    struct kv_state state = {.tokens = options->tokens,
                             .logits = bench->reference,
                             .logits_bytes = bench->reference_bytes,
                             .block_hashes = bench->exported[0],
                             .block_hashes_bytes = bench->prompt.block_count * sizeof(bench->exported[0])};
    memcpy(state.session, link->session_id, sizeof(state.session));
    const char *why = kv_state_write(options->state, &state);
    return why != NULL ? kv_command_fail("state", why) : KV_EXIT_OK;
}

static int offload_connected(const struct kv_options *options, struct kv_bench *bench)
{
    struct kv_link link;
    if (!kv_link_open(options, bench, &link)) {
        return KV_EXIT_FAILED;
    }
    struct kv_stored stored;
    int rc = kv_link_session(&link, options->session) ? kv_command_store(&link, bench, &stored) : KV_EXIT_FAILED;
    if (rc == KV_EXIT_OK) {
        rc = leave_state(options, bench, &link);
    }
    if (rc == KV_EXIT_OK && options->json) {
        json_t *object = kv_command_describe(options, bench, &link);
        json_object_set_new(object, "cold_ms", json_real(stored.cold_ms));
        json_object_set_new(object, "offload_ms", json_real(stored.offload_ms));
        kv_command_print_json(object);
    } else if (rc == KV_EXIT_OK) {
        printf("%-6s %8.1f ms\n%-6s %8.1f ms   offload, durable\nsession %s\n", "cold", stored.cold_ms, "store",
               stored.offload_ms, link.session_id);
    }
    kv_link_done(&link);
    return rc;
}

int kv_command_offload(const struct kv_options *options)
{
    return kv_command_with_bench(options, offload_connected);
}

static int resume_connected(const struct kv_options *options, struct kv_bench *bench)
{
    struct kv_link link;
    if (!kv_link_open(options, bench, &link)) {
        return KV_EXIT_FAILED;
    }
    struct kv_resumed resumed;
    int rc = kv_link_session(&link, options->session) ? kv_command_resume_once(&link, bench, &resumed) : KV_EXIT_FAILED;
    if (rc == KV_EXIT_OK && options->json) {
        json_t *object = kv_command_describe(options, bench, &link);
        json_object_set_new(object, "resume_ms", json_real(resumed.ms));
        json_object_set_new(object, "restored_blocks", json_integer((json_int_t)resumed.usable));
        json_object_set_new(object, "blocks_compared", json_string(kv_command_word(resumed.blocks_identical)));
        json_object_set_new(object, "logits", json_string(kv_command_word(resumed.logits_identical)));
        kv_command_print_json(object);
    } else if (rc == KV_EXIT_OK) {
        kv_command_print_resumed("resume", &resumed, &link);
        printf("blocks %s\nlogits %s\nsession %s\n", kv_command_word(resumed.blocks_identical),
               kv_command_word(resumed.logits_identical), link.session_id);
    }
    kv_link_done(&link);
    return rc == KV_EXIT_OK && !kv_command_identical(&resumed) ? KV_EXIT_WRONG : rc;
}

/* The state says how long the prompt was and, unless the command line does, which session it is. */
static void take_from_state(const struct kv_state *state, struct kv_options *options)
{
    options->tokens = state->tokens;
    if (options->session == NULL) {
        options->session = state->session;
    }
}

static const char *expect_state(struct kv_bench *bench, const struct kv_state *state)
{
    if (state->block_hashes_bytes != bench->prompt.block_count * sizeof(bench->exported[0])) {
        return "the state file belongs to a prompt of another length";
    }
    memcpy(bench->exported, state->block_hashes, state->block_hashes_bytes);
    return kv_bench_set_reference(bench, state->logits, state->logits_bytes);
}

int kv_command_resume(const struct kv_options *options)
{
    struct kv_options own = *options;
    struct kv_state state;
    if (options->state == NULL) {
        return kv_command_fail("resume", "--state of an earlier offload is needed");
    }
    const char *why = kv_state_read(options->state, &state);
    if (why != NULL) {
        return kv_command_fail("state", why);
    }
    take_from_state(&state, &own);
    struct kv_bench bench;
    int rc = kv_command_open_bench(&own, &bench);
    if (rc == KV_EXIT_OK) {
        why = expect_state(&bench, &state);
        rc = why != NULL ? kv_command_fail("resume", why) : resume_connected(&own, &bench);
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
        const struct kvrun_block *block = &link->blocks[i];
        printf("block %u %s %s\n", i, kvrun_result_name(block->result), kvrun_tiers_name(block->tiers));
        bool gone = block->result == KVRUN_MISSING || block->result == KVRUN_ERASED;
        restored += block->result == KVRUN_RESTORED;
        other += !gone && block->result != KVRUN_RESTORED;
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
    struct kvrun_error error;
    struct kvrun_moved moved;
    int rc = KV_EXIT_FAILED;
    if (!kv_link_session(&link, options->session)) {
        rc = KV_EXIT_FAILED;
    } else if (kv_link_restore(&link, &moved, &error)) {
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
            return kv_command_fail("state", why);
        }
        take_from_state(&state, &own);
    }
    int rc = own.session == NULL
                 ? kv_command_fail("try-restore", "--session or --state of an earlier offload is needed")
                 : kv_command_with_bench(&own, try_connected);
    kv_state_done(&state);
    return rc;
}

int kv_command_erase(const struct kv_options *options)
{
    struct kvrun_client *client;
    if (options->session == NULL) {
        return kv_command_fail("erase", "--session is needed");
    }
    if (!kv_link_client(options, options->token_file, &client)) {
        return KV_EXIT_FAILED;
    }
    struct kvrun_erasure erasure;
    struct kvrun_error error;
    bool fine = kvrun_erase(client, options->session, NULL, NULL, 30, &erasure, &error);
    kvrun_client_free(client);
    if (!fine) {
        kv_link_print_error("erase", &error);
        return KV_EXIT_FAILED;
    }
    if (options->json) {
        kv_command_print_json(
            json_pack("{s:s, s:s, s:s}", "erasure", erasure.id, "state", erasure.state, "session", options->session));
    } else {
        printf("erasure %s\nstate %s\n", erasure.id, erasure.state);
    }
    if (strcmp(erasure.state, "certified") != 0) {
        return kv_command_fail("erase", "the request was taken, but the certificate is not there yet");
    }
    return KV_EXIT_OK;
}

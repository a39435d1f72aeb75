/* Registration, heartbeat and transfers of a bench. It must never print a key. */
#include "tests/engine/link.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES_MAX 512
/* It shows what the server does: it takes the time that the server takes. */
#define PATIENCE_MS 60000u
#define DEADLINE_MS 30000u

void kv_link_print_error(const char *what, const struct kvrun_error *error)
{
    fprintf(stderr, "kvrun-engine: %s: %s (%d): %s\n", what, error->code, error->status, error->detail);
}

static bool print_error(const char *what, const struct kvrun_error *error)
{
    kv_link_print_error(what, error);
    return false;
}

static bool read_token(const char *path, char token[TOKEN_BYTES_MAX])
{
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    bool fine = file != NULL && fgets(token, TOKEN_BYTES_MAX, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (fine) {
        token[strcspn(token, "\r\n")] = '\0';
    } else {
        fprintf(stderr, "kvrun-engine: the key file %s cannot be read\n", path != NULL ? path : "(--token-file)");
    }
    return fine;
}

bool kv_link_client(const struct kv_options *options, const char *token_file, struct kvrun_client **ret_client)
{
    if (options->socket == NULL) {
        fputs("kvrun-engine: --socket is needed\n", stderr);
        return false;
    }
    char token[TOKEN_BYTES_MAX];
    if (!read_token(token_file, token)) {
        return false;
    }
    struct kvrun_conf conf = {.socket_path = options->socket,
                              .fd_socket_path = options->fd_socket,
                              .token = token,
                              .timeout_ms = PATIENCE_MS,
                              .control_timeout_ms = PATIENCE_MS,
                              .deadline_ms = DEADLINE_MS};
    struct kvrun_error error;
    bool fine = kvrun_client_new(&conf, ret_client, &error);
    explicit_bzero(token, sizeof(token));
    return fine ? true : print_error("client", &error);
}

/* The restores that follow are refused by the server; people who watch should know why. */
static void tell_revoked(void *ctx, const char *session_id)
{
    (void)ctx;
    fprintf(stderr, "kvrun-engine: session %s was revoked\n", session_id);
}

static void tell_link(void *ctx, bool up, const struct kvrun_error *why)
{
    (void)ctx;
    if (!up) {
        kv_link_print_error("the server is away", why);
    }
}

static bool register_engine(struct kv_link *link, const struct kv_bench *bench)
{
    struct kvrun_engine engine = {.name = "reference",
                                  .kind = bench->ref->ops->kind,
                                  .engine_version = bench->ref->ops->engine_version,
                                  .model = link->model,
                                  .revoked = tell_revoked,
                                  .link_changed = tell_link};
    struct kvrun_error error;
    return kvrun_register(link->client, &engine, &error) && kvrun_ready(link->client, &error)
               ? true
               : print_error("register", &error);
}

static bool register_pool(struct kv_link *link, const struct kv_bench *bench)
{
    struct kvrun_pool pool = {.fd = bench->pool.fd,
                              .size_bytes = bench->pool.size_bytes,
                              .format = bench->format,
                              .engine_version = bench->ref->ops->engine_version,
                              .tokens_per_block = KV_REF_BLOCK_TOKENS,
                              .slots = bench->pool.slot_count,
                              .block_bytes = bench->pool.slot_bytes};
    struct kvrun_error error;
    return kvrun_pool_register(link->client, &pool, &link->pool, &error) && kvrun_ready(link->client, &error)
               ? true
               : print_error("pool", &error);
}

static bool fill_columns(struct kv_link *link, const struct kv_bench *bench)
{
    link->hashes = calloc(link->count, sizeof(*link->hashes));
    link->slots = calloc(link->count, sizeof(*link->slots));
    link->blocks = calloc(link->count, sizeof(*link->blocks));
    bool fine = link->hashes != NULL && link->slots != NULL && link->blocks != NULL;
    for (uint32_t i = 0; fine && i < link->count; i++) {
        link->slots[i] = i;
        for (size_t byte = 0; byte < sizeof(link->hashes[i].bytes); byte++) {
            fine = fine && sscanf(bench->prompt.hashes[i] + 2 * byte, "%2hhx", &link->hashes[i].bytes[byte]) == 1;
        }
    }
    return fine;
}

bool kv_link_open(const struct kv_options *options, struct kv_bench *bench, struct kv_link *ret_link)
{
    struct kv_link link = {.count = bench->prompt.block_count,
                           .model = {.id = bench->ref->ops->kind, .revision = "1", .fingerprint = bench->fingerprint}};
    if (!kv_link_client(options, options->token_file, &link.client)) {
        return false;
    }
    if (!fill_columns(&link, bench) || !register_engine(&link, bench) || !register_pool(&link, bench)) {
        kv_link_done(&link);
        return false;
    }
    *ret_link = link;
    return true;
}

bool kv_link_drain_dram(struct kvrun_client *operator_client, struct kvrun_error *error)
{
    struct kvrun_request request = {.method = "POST", .path = "/v1/tiers/dram:drain", .wait_seconds = 60};
    char *text = NULL;
    if (!kvrun_ask(operator_client, &request, &text, error)) {
        return false;
    }
    json_t *operation = json_loads(text != NULL ? text : "", 0, NULL);
    const json_t *blocks = json_object_get(json_object_get(operation, "response"), "blocks");
    bool fine = json_is_integer(blocks);
    if (!fine) {
        *error = (struct kvrun_error){.code = "protocol", .detail = "the operation has not ended well"};
    }
    json_decref(operation);
    kvrun_text_free(text);
    return fine;
}

void kv_link_done(struct kv_link *link)
{
    struct kvrun_error error;
    if (link->client != NULL && !kvrun_unregister(link->client, &error) && error.status != 0) {
        kv_link_print_error("unregister", &error);
    }
    kvrun_client_free(link->client);
    free(link->hashes);
    free(link->slots);
    free(link->blocks);
    *link = (struct kv_link){.client = NULL};
}

bool kv_link_session(struct kv_link *link, const char *session_id)
{
    struct kvrun_error error;
    if (session_id != NULL) {
        snprintf(link->session_id, sizeof(link->session_id), "%s", session_id);
        return true;
    }
    struct kvrun_session session = {.model = link->model};
    return kvrun_session_open(link->client, &session, link->session_id, &error) ? true : print_error("session", &error);
}

static struct kvrun_blocks all_blocks(const struct kv_link *link)
{
    return (struct kvrun_blocks){.session_id = link->session_id,
                                 .pool = link->pool,
                                 .count = link->count,
                                 .hashes = link->hashes,
                                 .slots = link->slots};
}

static bool fail_with_cause(struct kv_link *link, const struct kvrun_moved *moved, struct kvrun_error *error)
{
    struct kvrun_error why = {.status = 0};
    if (!kvrun_ready(link->client, &why) && strcmp(why.code, moved->cause) == 0) {
        *error = why;
    } else {
        *error = (struct kvrun_error){.detail = "the server did not do it"};
        memcpy(error->code, moved->cause, sizeof(error->code));
    }
    return false;
}

bool kv_link_offload(struct kv_link *link, struct kvrun_moved *ret_moved)
{
    struct kvrun_blocks in = all_blocks(link);
    in.durable = true;
    struct kvrun_error error;
    if (!kvrun_offload(link->client, &in, link->blocks, ret_moved, &error)) {
        return print_error("offload", &error);
    }
    if (ret_moved->cause[0] != '\0') {
        fail_with_cause(link, ret_moved, &error);
        return print_error("offload", &error);
    }
    for (uint32_t i = 0; i < link->count; i++) {
        const struct kvrun_block *block = &link->blocks[i];
        if (block->result != KVRUN_STORED && block->result != KVRUN_PRESENT) {
            fprintf(stderr, "kvrun-engine: offload: block %u is %s\n", i, kvrun_result_name(block->result));
            return false;
        }
    }
    return true;
}

bool kv_link_restore(struct kv_link *link, struct kvrun_moved *ret_moved, struct kvrun_error *error)
{
    struct kvrun_blocks in = all_blocks(link);
    return kvrun_restore(link->client, &in, link->blocks, ret_moved, error) &&
           (ret_moved->cause[0] == '\0' || fail_with_cause(link, ret_moved, error));
}

uint32_t kv_link_from_tier(const struct kv_link *link, enum kvrun_tier tier)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < link->count; i++) {
        if (link->blocks[i].result == KVRUN_RESTORED && link->blocks[i].tiers == (unsigned)tier) {
            count++;
        }
    }
    return count;
}

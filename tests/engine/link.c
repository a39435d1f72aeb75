/* Registration, heartbeat and transfers of a bench. It must never print a key. */
#include "tests/engine/link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES_MAX 512

void kv_link_print_error(const char *what, const struct kv_client_error *error)
{
    fprintf(stderr, "kvrun-engine: %s: %s (%d): %s\n", what, error->code, error->status, error->detail);
}

static bool print_error(const char *what, const struct kv_client_error *error)
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

bool kv_link_client(const struct kv_options *options, const char *token_file, struct kv_client **ret_client)
{
    if (options->socket == NULL) {
        fputs("kvrun-engine: --socket is needed\n", stderr);
        return false;
    }
    char token[TOKEN_BYTES_MAX];
    if (!read_token(token_file, token)) {
        return false;
    }
    struct kv_client_conf conf = {.socket_path = options->socket, .fd_socket_path = options->fd_socket, .token = token};
    struct kv_client_error error;
    bool fine = kv_client_new(&conf, ret_client, &error);
    explicit_bzero(token, sizeof(token));
    return fine ? true : print_error("client", &error);
}

/* The restores that follow are refused by the server; people who watch should know why. */
static void tell_revoked(void *ctx, const char *session_id)
{
    (void)ctx;
    fprintf(stderr, "kvrun-engine: session %s was revoked\n", session_id);
}

static void tell_lost(void *ctx, const struct kv_client_error *error)
{
    (void)ctx;
    kv_link_print_error("heartbeat", error);
}

static bool register_engine(struct kv_link *link, const struct kv_bench *bench)
{
    struct kv_client_engine engine = {.name = "reference",
                                      .kind = bench->ref->ops->kind,
                                      .engine_version = bench->ref->ops->engine_version,
                                      .model = link->model};
    struct kv_client_heartbeat_conf heartbeat = {.revoked = tell_revoked, .lost = tell_lost};
    struct kv_client_lease lease;
    struct kv_client_error error;
    if (!kv_client_register(link->client, &engine, &lease, &error)) {
        return print_error("register", &error);
    }
    if (!kv_client_heartbeat_start(link->client, &heartbeat, &error)) {
        return print_error("heartbeat", &error);
    }
    return true;
}

static bool register_pool(struct kv_link *link, const struct kv_bench *bench)
{
    struct kv_client_pool pool = {.fd = bench->pool.fd,
                                  .size_bytes = bench->pool.size_bytes,
                                  .format = bench->format,
                                  .engine_version = bench->ref->ops->engine_version,
                                  .tokens_per_block = KV_REF_BLOCK_TOKENS,
                                  .slots = bench->pool.slot_count,
                                  .block_bytes = bench->pool.slot_bytes};
    struct kv_client_error error;
    return kv_client_pool_register(link->client, &pool, link->pool_id, &error) ? true : print_error("pool", &error);
}

bool kv_link_open(const struct kv_options *options, struct kv_bench *bench, struct kv_link *ret_link)
{
    struct kv_link link = {.count = bench->prompt.block_count,
                           .model = {.id = bench->ref->ops->kind, .revision = "1", .fingerprint = bench->fingerprint}};
    if (!kv_link_client(options, options->token_file, &link.client)) {
        return false;
    }
    link.slots = calloc(link.count, sizeof(*link.slots));
    link.blocks = calloc(link.count, sizeof(*link.blocks));
    bool fine = link.slots != NULL && link.blocks != NULL;
    for (uint32_t i = 0; fine && i < link.count; i++) {
        link.slots[i] = i;
    }
    if (!fine || !register_engine(&link, bench) || !register_pool(&link, bench)) {
        kv_link_done(&link);
        return false;
    }
    *ret_link = link;
    return true;
}

void kv_link_done(struct kv_link *link)
{
    struct kv_client_error error;
    if (link->client != NULL && !kv_client_unregister(link->client, &error) && error.status != 0) {
        kv_link_print_error("unregister", &error);
    }
    kv_client_free(link->client);
    free(link->slots);
    free(link->blocks);
    *link = (struct kv_link){.client = NULL};
}

bool kv_link_session(struct kv_link *link, const char *session_id)
{
    struct kv_client_error error;
    if (session_id != NULL) {
        snprintf(link->session_id, sizeof(link->session_id), "%s", session_id);
        return true;
    }
    return kv_client_session_create(link->client, &link->model, link->session_id, &error)
               ? true
               : print_error("session", &error);
}

static struct kv_client_blocks all_blocks(struct kv_link *link, struct kv_bench *bench)
{
    return (struct kv_client_blocks){.session_id = link->session_id,
                                     .pool_id = link->pool_id,
                                     .count = link->count,
                                     .hashes = bench->prompt.hashes,
                                     .slots = link->slots};
}

bool kv_link_offload(struct kv_link *link, struct kv_bench *bench, struct kv_client_moved *ret_moved)
{
    struct kv_client_blocks in = all_blocks(link, bench);
    in.durable = true;
    struct kv_client_error error;
    if (!kv_client_offload(link->client, &in, link->blocks, ret_moved, &error)) {
        return print_error("offload", &error);
    }
    for (uint32_t i = 0; i < link->count; i++) {
        const struct kv_client_block *block = &link->blocks[i];
        if (!kv_client_block_is(block, "stored") && !kv_client_block_is(block, "present")) {
            fprintf(stderr, "kvrun-engine: offload: block %u is %s\n", i, block->result);
            return false;
        }
    }
    return true;
}

bool kv_link_restore(struct kv_link *link, struct kv_bench *bench, struct kv_client_moved *ret_moved,
                     struct kv_client_error *error)
{
    struct kv_client_blocks in = all_blocks(link, bench);
    return kv_client_restore(link->client, &in, link->blocks, ret_moved, error);
}

uint32_t kv_link_from_tier(const struct kv_link *link, const char *tier)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < link->count; i++) {
        if (kv_client_block_is(&link->blocks[i], "restored") && strcmp(link->blocks[i].tier, tier) == 0) {
            count++;
        }
    }
    return count;
}

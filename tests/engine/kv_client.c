/* The calls of the client: a request body, one exchange, the members of the answer. */
#include "tests/engine/kv_client.h"

#include "tests/engine/kv_client_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TIMEOUT_MS_DEFAULT 60000u
#define LEASE_SECONDS_DEFAULT 5u

static bool start_locks(struct kv_client *client)
{
    pthread_condattr_t attributes;
    return pthread_mutex_init(&client->lock, NULL) == 0 && pthread_condattr_init(&attributes) == 0 &&
           pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(&client->wake, &attributes) == 0 && pthread_condattr_destroy(&attributes) == 0;
}

bool kv_client_new(const struct kv_client_conf *conf, struct kv_client **ret_client, struct kv_client_error *error)
{
    if (conf->socket_path == NULL || conf->token == NULL || strpbrk(conf->token, "\r\n") != NULL) {
        return kv_client_fail(error, "invalid_argument", "a socket path and an API key of one line are needed");
    }
    struct kv_client *client = calloc(1, sizeof(*client));
    if (client == NULL || !start_locks(client)) {
        free(client);
        return kv_client_fail(error, "memory", "no memory for a client");
    }
    client->timeout_ms = conf->timeout_ms != 0 ? conf->timeout_ms : TIMEOUT_MS_DEFAULT;
    client->lease_seconds = LEASE_SECONDS_DEFAULT;
    client->socket_path = strdup(conf->socket_path);
    client->fd_socket_path = conf->fd_socket_path != NULL ? strdup(conf->fd_socket_path) : NULL;
    bool fine = client->socket_path != NULL && (conf->fd_socket_path == NULL || client->fd_socket_path != NULL) &&
                asprintf(&client->authorization, "Authorization: Bearer %s", conf->token) > 0;
    if (!fine) {
        client->authorization = NULL; /* undefined after a failed asprintf */
        kv_client_fail(error, "memory", "no memory for a client");
    }
    if (!fine || !kv_client_http_open(&client->http, error)) {
        kv_client_free(client);
        return false;
    }
    *ret_client = client;
    return true;
}

void kv_client_free(struct kv_client *client)
{
    if (client == NULL) {
        return;
    }
    kv_client_heartbeat_stop(client);
    kv_client_http_close(&client->http);
    if (client->authorization != NULL) {
        explicit_bzero(client->authorization, strlen(client->authorization));
    }
    free(client->authorization);
    free(client->socket_path);
    free(client->fd_socket_path);
    pthread_cond_destroy(&client->wake);
    pthread_mutex_destroy(&client->lock);
    free(client);
}

static bool delete (struct kv_client *client, const char *path, struct kv_client_error *error)
{
    struct kv_client_request request = {.method = "DELETE", .path = path};
    json_t *answer = NULL;
    if (!kv_client_http_call(client, &client->http, &request, &answer, error)) {
        return false;
    }
    json_decref(answer);
    return true;
}

static bool read_boot_id(char boot_id[64], struct kv_client_error *error)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool fine = file != NULL && fgets(boot_id, 64, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (!fine) {
        return kv_client_fail(error, "system", "the boot id of this machine cannot be read");
    }
    boot_id[strcspn(boot_id, "\n")] = '\0';
    return true;
}

static json_t *model_json(const struct kv_client_model *model)
{
    return json_pack("{s:s, s:s, s:s*}", "id", model->id, "revision", model->revision, "fingerprint",
                     model->fingerprint);
}

static bool read_lease(const json_t *answer, struct kv_client_lease *ret_lease, struct kv_client_error *error)
{
    struct kv_client_lease lease = {.lease_seconds = LEASE_SECONDS_DEFAULT};
    if (!kv_client_member_text(answer, "id", lease.engine_id, sizeof(lease.engine_id), error) ||
        !kv_client_check_id(lease.engine_id, "eng", error) ||
        !kv_client_member_text(answer, "server_incarnation", lease.server_incarnation, sizeof(lease.server_incarnation),
                               error)) {
        return false;
    }
    json_int_t seconds = json_integer_value(json_object_get(answer, "lease_seconds"));
    if (seconds > 0 && seconds <= 3600) {
        lease.lease_seconds = (unsigned)seconds;
    }
    *ret_lease = lease;
    return true;
}

bool kv_client_register(struct kv_client *client, const struct kv_client_engine *engine,
                        struct kv_client_lease *ret_lease, struct kv_client_error *error)
{
    char boot_id[64];
    if (!read_boot_id(boot_id, error)) {
        return false;
    }
    json_t *body = json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "name", engine->name, "kind", engine->kind,
                             "engine_version", engine->engine_version, "pid", (json_int_t)getpid(), "boot_id", boot_id,
                             "model", model_json(&engine->model));
    if (body != NULL && engine->lease_seconds != 0) {
        json_object_set_new(body, "lease_seconds", json_integer((json_int_t)engine->lease_seconds));
    }
    json_t *answer = NULL;
    if (!kv_client_post(client, "/v1/engines", body, &answer, error)) {
        return false;
    }
    bool fine = read_lease(answer, ret_lease, error);
    json_decref(answer);
    if (fine) {
        memcpy(client->engine_id, ret_lease->engine_id, sizeof(client->engine_id));
        client->lease_seconds = ret_lease->lease_seconds;
    }
    return fine;
}

bool kv_client_unregister(struct kv_client *client, struct kv_client_error *error)
{
    char path[96];
    if (!kv_client_check_id(client->engine_id, "eng", error)) {
        return false;
    }
    kv_client_heartbeat_stop(client);
    snprintf(path, sizeof(path), "/v1/engines/%s", client->engine_id);
    if (!delete (client, path, error)) {
        return false;
    }
    client->engine_id[0] = '\0';
    return true;
}

static json_t *layout_json(const struct kv_client_pool *pool)
{
    json_t *layout = json_pack("{s:s, s:s, s:s, s:I, s:I}", "kind", pool->regions != NULL ? "regions" : "opaque",
                               "format", pool->format, "engine_version", pool->engine_version, "tokens_per_block",
                               (json_int_t)pool->tokens_per_block, "slots", (json_int_t)pool->slots);
    if (layout == NULL || pool->regions == NULL) {
        json_object_set_new(layout, "page_bytes", json_integer((json_int_t)pool->block_bytes));
        return layout;
    }
    json_t *regions = json_array();
    for (size_t i = 0; i < pool->region_count; i++) {
        const struct kv_client_region *region = &pool->regions[i];
        json_array_append_new(regions, json_pack("{s:I, s:I, s:I}", "offset_bytes", (json_int_t)region->offset_bytes,
                                                 "stride_bytes", (json_int_t)region->stride_bytes, "run_bytes",
                                                 (json_int_t)region->run_bytes));
    }
    json_object_set_new(layout, "bytes_per_block", json_integer((json_int_t)pool->block_bytes));
    json_object_set_new(layout, "regions", regions);
    return layout;
}

bool kv_client_pool_register(struct kv_client *client, const struct kv_client_pool *pool,
                             char ret_pool_id[KV_CLIENT_ID_SIZE], struct kv_client_error *error)
{
    char path[96], token[48];
    if (!kv_client_check_id(client->engine_id, "eng", error) || !kv_client_hand_over(client, pool->fd, token, error)) {
        return false;
    }
    snprintf(path, sizeof(path), "/v1/engines/%s/pools", client->engine_id);
    json_t *body = json_pack("{s:{s:s, s:s, s:I}, s:o}", "memory", "kind", "memfd", "fd_token", token, "size_bytes",
                             (json_int_t)pool->size_bytes, "layout", layout_json(pool));
    json_t *answer = NULL;
    if (!kv_client_post(client, path, body, &answer, error)) {
        return false;
    }
    char id[KV_CLIENT_ID_SIZE];
    bool fine = kv_client_member_text(answer, "id", id, sizeof(id), error) && kv_client_check_id(id, "poo", error);
    json_decref(answer);
    if (fine) {
        memcpy(ret_pool_id, id, sizeof(id));
    }
    return fine;
}

bool kv_client_pool_remove(struct kv_client *client, const char *pool_id, struct kv_client_error *error)
{
    char path[96];
    if (!kv_client_check_id(pool_id, "poo", error)) {
        return false;
    }
    snprintf(path, sizeof(path), "/v1/pools/%s", pool_id);
    return delete (client, path, error);
}

bool kv_client_session_create(struct kv_client *client, const struct kv_client_model *model,
                              char ret_session_id[KV_CLIENT_ID_SIZE], struct kv_client_error *error)
{
    json_t *answer = NULL;
    if (!kv_client_post(client, "/v1/sessions", json_pack("{s:o}", "model", model_json(model)), &answer, error)) {
        return false;
    }
    bool fine = kv_client_member_text(answer, "id", ret_session_id, KV_CLIENT_ID_SIZE, error);
    json_decref(answer);
    return fine;
}

bool kv_client_erase(struct kv_client *client, const char *session_id, const char *basis, const char *reason,
                     unsigned wait_seconds, struct kv_client_erasure *ret_erasure, struct kv_client_error *error)
{
    char prefer[32];
    snprintf(prefer, sizeof(prefer), "wait=%u", wait_seconds);
    struct kv_client_request request = {
        .method = "POST",
        .path = "/v1/erasures",
        .prefer = wait_seconds > 0 ? prefer : NULL,
        .needs_body = true,
        .body = json_pack("{s:{s:s}, s:s*, s:s*}", "scope", "session_id", session_id, "basis", basis, "reason", reason),
    };
    json_t *answer = NULL;
    if (!kv_client_http_call(client, &client->http, &request, &answer, error)) {
        return false;
    }
    struct kv_client_erasure erasure;
    bool fine = kv_client_member_text(answer, "id", erasure.id, sizeof(erasure.id), error) &&
                kv_client_member_text(answer, "state", erasure.state, sizeof(erasure.state), error);
    json_decref(answer);
    if (fine) {
        *ret_erasure = erasure;
    }
    return fine;
}

bool kv_client_drain_dram(struct kv_client *client, uint64_t *ret_blocks, struct kv_client_error *error)
{
    struct kv_client_request request = {.method = "POST", .path = "/v1/tiers/dram:drain", .prefer = "wait=60"};
    json_t *answer = NULL;
    if (!kv_client_http_call(client, &client->http, &request, &answer, error)) {
        return false;
    }
    const json_t *blocks = json_object_get(json_object_get(answer, "response"), "blocks");
    bool fine = json_is_integer(blocks) && json_integer_value(blocks) >= 0;
    uint64_t count = (uint64_t)json_integer_value(blocks);
    json_decref(answer);
    if (!fine) {
        return kv_client_fail(error, "protocol",
                              "the operation did not end well: no usable member \"blocks\" in its response");
    }
    *ret_blocks = count;
    return true;
}

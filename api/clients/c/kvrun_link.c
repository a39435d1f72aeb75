/*
 * The link to the server: the engine's registration, renewed as long as the client lives. The server's memory of an
 * engine ends with its lease and with its process; both are answered by registering again, the engine and its pools.
 * Sessions and their blocks are the server's, and stay.
 */
#include "api/clients/c/kvrun_int.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LEASE_SECONDS_DEFAULT 5u
#define LEASE_SECONDS_MAX 3600

static bool read_boot_id(char boot_id[64], struct kvrun_error *error)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    bool fine = file != NULL && fgets(boot_id, 64, file) != NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (!fine) {
        return kvrun_fail(error, "system", "the boot id of this machine cannot be read");
    }
    boot_id[strcspn(boot_id, "\n")] = '\0';
    return true;
}

static bool registration_of(const struct kvrun_engine *engine, json_t **ret_body, struct kvrun_error *error)
{
    char boot_id[64];
    if (!read_boot_id(boot_id, error)) {
        return false;
    }
    json_t *body =
        json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "name", engine->name, "kind", engine->kind, "engine_version",
                  engine->engine_version, "pid", (json_int_t)(engine->pid != 0 ? engine->pid : getpid()), "boot_id",
                  boot_id, "model", kvrun_model_json(&engine->model));
    if (body == NULL) {
        return kvrun_fail(error, "invalid_argument", "a text of the engine is missing or is not UTF-8");
    }
    if (engine->lease_seconds != 0) {
        json_object_set_new(body, "lease_seconds", json_integer((json_int_t)engine->lease_seconds));
    }
    *ret_body = body;
    return true;
}

/* Under link_lock. */
static bool take_lease(struct kvrun_client *client, const json_t *answer, struct kvrun_error *error)
{
    char id[KVRUN_ID_SIZE], incarnation[sizeof(client->incarnation)];
    if (!kvrun_member_text(answer, "id", id, sizeof(id), error) || !kvrun_check_id(id, "eng", error) ||
        !kvrun_member_text(answer, "server_incarnation", incarnation, sizeof(incarnation), error)) {
        return false;
    }
    json_int_t seconds = json_integer_value(json_object_get(answer, "lease_seconds"));
    bool restarted = strcmp(incarnation, client->incarnation) != 0;
    if (restarted || strcmp(id, client->engine_id) != 0) {
        kvrun_pools_forgotten(client, restarted);
    }
    client->lease_seconds = seconds > 0 && seconds <= LEASE_SECONDS_MAX ? (unsigned)seconds : LEASE_SECONDS_DEFAULT;
    memcpy(client->engine_id, id, sizeof(id));
    memcpy(client->incarnation, incarnation, sizeof(incarnation));
    return true;
}

static bool register_now(struct kvrun_client *client, struct kvrun_error *error)
{
    json_t *answer = NULL;
    if (!kvrun_http_post(client, "/v1/engines", json_incref(client->registration), &answer, error)) {
        return false;
    }
    bool fine = take_lease(client, answer, error);
    json_decref(answer);
    if (fine) {
        pthread_mutex_lock(&client->lock);
        client->stats.registrations++;
        pthread_mutex_unlock(&client->lock);
    }
    return fine;
}

static void tell_revocations(struct kvrun_client *client, const json_t *answer)
{
    const json_t *list = json_object_get(answer, "revocations");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *session = json_string_value(json_object_get(json_array_get(list, i), "session_id"));
        if (session == NULL) {
            continue;
        }
        pthread_mutex_lock(&client->lock);
        client->stats.revocations++;
        pthread_mutex_unlock(&client->lock);
        if (client->engine.revoked != NULL) {
            client->engine.revoked(client->engine.ctx, session);
        }
    }
}

static bool beat(struct kvrun_client *client, struct kvrun_error *error)
{
    char path[96];
    snprintf(path, sizeof(path), "/v1/engines/%s:heartbeat", client->engine_id);
    struct kvrun_exchange exchange = {.method = "POST",
                                      .path = path,
                                      .needs_body = true,
                                      .timeout_ms = client->timeout_ms,
                                      .body = json_pack("{s:I}", "seq", (json_int_t)++client->seq)};
    json_t *answer = NULL;
    bool fine = kvrun_http_call(client, &exchange, &answer, error);
    pthread_mutex_lock(&client->lock);
    client->stats.heartbeats++;
    client->stats.heartbeats_failed += !fine;
    pthread_mutex_unlock(&client->lock);
    if (fine) {
        tell_revocations(client, answer);
        json_decref(answer);
    }
    return fine;
}

static bool renew(struct kvrun_client *client, struct kvrun_error *error)
{
    bool known = client->engine_id[0] != '\0' && beat(client, error);
    if (!known && client->engine_id[0] != '\0') {
        if (!kvrun_error_is(error, "engine_unknown")) {
            return false;
        }
        client->engine_id[0] = '\0'; /* whatever it is called next: its pools are not there */
    }
    return (known || register_now(client, error)) && kvrun_pools_renew(client, error);
}

bool kvrun_link_renew(struct kvrun_client *client, bool trusted, struct kvrun_error *error)
{
    pthread_mutex_lock(&client->lock);
    client->suspected = false;
    pthread_mutex_unlock(&client->lock);
    bool fine = renew(client, error);
    pthread_mutex_lock(&client->lock);
    if (!fine) {
        client->why_down = *error;
    }
    fine = fine && trusted && !client->suspected;
    client->generation += fine && !client->stats.up;
    client->stats.up = fine;
    if (!fine) {
        *error = client->why_down;
    }
    pthread_mutex_unlock(&client->lock);
    return fine;
}

void kvrun_link_suspect(struct kvrun_client *client, uint64_t generation, const struct kvrun_error *why)
{
    pthread_mutex_lock(&client->lock);
    if (client->registered && client->generation == generation) {
        client->stats.up = false;
        client->suspected = true;
        client->why_down = *why;
        pthread_cond_signal(&client->wake);
    }
    pthread_mutex_unlock(&client->lock);
}

/* Under link_lock. */
static bool begin(struct kvrun_client *client, const struct kvrun_engine *engine, struct kvrun_error *error)
{
    if (client->registration != NULL) {
        return kvrun_fail(error, "invalid_argument", "this client's engine is registered already");
    }
    if (!registration_of(engine, &client->registration, error)) {
        return false;
    }
    client->lease_seconds = LEASE_SECONDS_DEFAULT;
    client->engine =
        (struct kvrun_engine){.revoked = engine->revoked, .link_changed = engine->link_changed, .ctx = engine->ctx};
    bool fine = kvrun_link_renew(client, true, error);
    if ((fine || kvrun_error_is_outage(error)) && kvrun_heartbeat_start(client, error)) {
        pthread_mutex_lock(&client->lock);
        client->registered = true;
        pthread_mutex_unlock(&client->lock);
        return true;
    }
    json_decref(client->registration);
    client->registration = NULL;
    return false;
}

bool kvrun_register(struct kvrun_client *client, const struct kvrun_engine *engine, struct kvrun_error *error)
{
    pthread_mutex_lock(&client->link_lock);
    bool fine = begin(client, engine, error);
    pthread_mutex_unlock(&client->link_lock);
    return fine;
}

/* Under link_lock. */
static bool end(struct kvrun_client *client, struct kvrun_error *error)
{
    char path[96];
    if (client->engine_id[0] == '\0') {
        return kvrun_fail(error, "invalid_argument", "no engine is registered");
    }
    snprintf(path, sizeof(path), "/v1/engines/%s", client->engine_id);
    struct kvrun_exchange exchange = {.method = "DELETE", .path = path, .timeout_ms = client->control_timeout_ms};
    json_t *answer = NULL;
    if (!kvrun_http_call(client, &exchange, &answer, error)) {
        return false;
    }
    json_decref(answer);
    client->engine_id[0] = '\0';
    return true;
}

bool kvrun_unregister(struct kvrun_client *client, struct kvrun_error *error)
{
    kvrun_heartbeat_stop(client);
    pthread_mutex_lock(&client->link_lock);
    bool fine = end(client, error);
    kvrun_pools_drop(client);
    json_decref(client->registration);
    client->registration = NULL;
    pthread_mutex_lock(&client->lock);
    client->registered = client->stats.up = false;
    kvrun_fail(&client->why_down, "down", "the engine is not registered");
    pthread_mutex_unlock(&client->lock);
    pthread_mutex_unlock(&client->link_lock);
    return fine;
}

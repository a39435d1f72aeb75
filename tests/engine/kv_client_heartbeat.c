/*
 * The heartbeat: an own thread with an own connection, so that a long transfer never costs the lease. A server that
 * does not answer is asked again at the next beat; one that does not know the engine ends it.
 */
#include "tests/engine/kv_client_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static uint64_t next_sequence(struct kv_client *client)
{
    pthread_mutex_lock(&client->lock);
    uint64_t seq = ++client->heartbeat_seq;
    pthread_mutex_unlock(&client->lock);
    return seq;
}

static void tell_revocations(const json_t *body, const struct kv_client_heartbeat_conf *conf)
{
    const json_t *list = json_object_get(body, "revocations");
    for (size_t i = 0; conf != NULL && conf->revoked != NULL && i < json_array_size(list); i++) {
        const char *session = json_string_value(json_object_get(json_array_get(list, i), "session_id"));
        if (session != NULL) {
            conf->revoked(conf->ctx, session);
        }
    }
}

static bool beat(struct kv_client *client, struct kv_client_http *http, const struct kv_client_heartbeat_conf *conf,
                 struct kv_client_error *error)
{
    char path[96];
    snprintf(path, sizeof(path), "/v1/engines/%s:heartbeat", client->engine_id);
    struct kv_client_request request = {.method = "POST",
                                        .path = path,
                                        .needs_body = true,
                                        .body = json_pack("{s:I}", "seq", (json_int_t)next_sequence(client))};
    json_t *body = NULL;
    if (!kv_client_http_call(client, http, &request, &body, error)) {
        return false;
    }
    tell_revocations(body, conf);
    json_decref(body);
    return true;
}

bool kv_client_heartbeat(struct kv_client *client, const struct kv_client_heartbeat_conf *conf,
                         struct kv_client_error *error)
{
    if (client->engine_id[0] == '\0') {
        return kv_client_fail(error, "invalid_argument", "register the engine first");
    }
    return beat(client, &client->http, conf, error);
}

/* True when it is time for a beat, false when the thread has to end. */
static bool wait_for_beat(struct kv_client *client)
{
    unsigned period_ms = client->lease_seconds * 1000 / 3;
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += period_ms / 1000;
    due.tv_nsec += (long)(period_ms % 1000) * 1000000;
    if (due.tv_nsec >= 1000000000) {
        due.tv_sec++;
        due.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&client->lock);
    int rc = 0;
    while (!client->heartbeat_stop && rc == 0) {
        rc = pthread_cond_timedwait(&client->wake, &client->lock, &due);
    }
    bool go_on = !client->heartbeat_stop;
    pthread_mutex_unlock(&client->lock);
    return go_on;
}

static void *heartbeat_thread(void *arg)
{
    struct kv_client *client = arg;
    const struct kv_client_heartbeat_conf *conf = &client->heartbeat_conf;
    while (wait_for_beat(client)) {
        struct kv_client_error error;
        bool alive = beat(client, &client->heartbeat_http, conf, &error);
        if (!alive && strcmp(error.code, "engine_unknown") == 0) {
            if (conf->lost != NULL) {
                conf->lost(conf->ctx, &error);
            }
            break;
        }
    }
    return NULL;
}

bool kv_client_heartbeat_start(struct kv_client *client, const struct kv_client_heartbeat_conf *conf,
                               struct kv_client_error *error)
{
    if (client->engine_id[0] == '\0' || client->heartbeat_running) {
        return kv_client_fail(error, "invalid_argument", "register the engine first, and start one heartbeat only");
    }
    if (!kv_client_http_open(&client->heartbeat_http, error)) {
        return false;
    }
    client->heartbeat_conf = conf != NULL ? *conf : (struct kv_client_heartbeat_conf){.ctx = NULL};
    client->heartbeat_stop = false;
    int rc = pthread_create(&client->heartbeat_thread, NULL, heartbeat_thread, client);
    if (rc != 0) {
        kv_client_http_close(&client->heartbeat_http);
        return kv_client_fail(error, "system", "the heartbeat's thread cannot start: %s", strerror(rc));
    }
    client->heartbeat_running = true;
    return true;
}

void kv_client_heartbeat_stop(struct kv_client *client)
{
    if (!client->heartbeat_running) {
        return;
    }
    pthread_mutex_lock(&client->lock);
    client->heartbeat_stop = true;
    pthread_cond_signal(&client->wake);
    pthread_mutex_unlock(&client->lock);
    pthread_join(client->heartbeat_thread, NULL);
    kv_client_http_close(&client->heartbeat_http);
    client->heartbeat_running = false;
}

/* Sessions: opened, erased. Neither is on an engine's path; both say what went wrong. */
#include "api/clients/c/kvrun_int.h"

#include <string.h>

#define WAIT_SECONDS_MAX 60u

static json_t *labels_json(const struct kvrun_session *session)
{
    json_t *labels = json_object();
    for (size_t i = 0; i < session->label_count; i++) {
        json_object_set_new(labels, session->labels[i].name, json_string(session->labels[i].value));
    }
    /* One that is missing or not UTF-8 is not put there: then the request must not go out either. */
    if (json_object_size(labels) != session->label_count) {
        json_decref(labels);
        return NULL;
    }
    return labels;
}

static json_t *session_json(const struct kvrun_session *session)
{
    json_t *body = json_pack("{s:o, s:s*, s:s*}", "model", kvrun_model_json(&session->model), "external_id",
                             session->external_id, "sharing_scope", session->sharing_scope);
    bool fine = body != NULL;
    if (fine && session->label_count > 0) {
        fine = json_object_set_new(body, "labels", labels_json(session)) == 0;
    }
    if (fine && session->ttl_seconds != 0) {
        fine = json_object_set_new(body, "ttl_seconds", json_integer((json_int_t)session->ttl_seconds)) == 0;
    }
    if (fine && session->idle_ttl_seconds != 0) {
        fine = json_object_set_new(body, "idle_ttl_seconds", json_integer((json_int_t)session->idle_ttl_seconds)) == 0;
    }
    if (!fine) {
        json_decref(body);
        return NULL;
    }
    return body;
}

/* An engine opens sessions as requests come in: it must not wait for a server of which it is known that it is away. */
static bool known_to_be_away(struct kvrun_client *client, uint64_t *ret_generation, struct kvrun_error *error)
{
    pthread_mutex_lock(&client->lock);
    bool away = client->registered && !client->stats.up;
    *ret_generation = client->generation;
    if (away) {
        kvrun_fail(error, "down", "the server is away: %s", client->why_down.detail);
        error->retryable = true;
    }
    pthread_mutex_unlock(&client->lock);
    return away;
}

bool kvrun_session_open(struct kvrun_client *client, const struct kvrun_session *session,
                        char ret_session_id[KVRUN_ID_SIZE], struct kvrun_error *error)
{
    json_t *answer = NULL;
    uint64_t generation;
    if (known_to_be_away(client, &generation, error)) {
        return false;
    }
    if (!kvrun_http_post(client, "/v1/sessions", session_json(session), &answer, error)) {
        if (kvrun_error_is(error, "transport")) {
            kvrun_link_suspect(client, generation, error);
        }
        return false;
    }
    bool fine = kvrun_member_text(answer, "id", ret_session_id, KVRUN_ID_SIZE, error);
    json_decref(answer);
    return fine;
}

bool kvrun_erase(struct kvrun_client *client, const char *session_id, const char *basis, const char *reason,
                 unsigned wait_seconds, struct kvrun_erasure *ret_erasure, struct kvrun_error *error)
{
    if (wait_seconds > WAIT_SECONDS_MAX) {
        return kvrun_fail(error, "invalid_argument", "at most %u s can be waited for", WAIT_SECONDS_MAX);
    }
    struct kvrun_exchange exchange = {
        .method = "POST",
        .path = "/v1/erasures",
        .wait_seconds = wait_seconds,
        .timeout_ms = client->control_timeout_ms + wait_seconds * 1000,
        .needs_body = true,
        .body = json_pack("{s:{s:s}, s:s*, s:s*}", "scope", "session_id", session_id, "basis", basis, "reason", reason),
    };
    json_t *answer = NULL;
    if (!kvrun_http_call(client, &exchange, &answer, error)) {
        return false;
    }
    struct kvrun_erasure erasure;
    bool fine = kvrun_member_text(answer, "id", erasure.id, sizeof(erasure.id), error) &&
                kvrun_member_text(answer, "state", erasure.state, sizeof(erasure.state), error);
    json_decref(answer);
    if (fine) {
        *ret_erasure = erasure;
    }
    return fine;
}

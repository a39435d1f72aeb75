/* The client itself: made, asked for what it counted, freed. The one process-wide state is libcurl's own. */
#include "api/clients/c/kvrun_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define TIMEOUT_MS_DEFAULT 1000u
#define CONTROL_TIMEOUT_MS_DEFAULT 10000u
#define DEADLINE_MS_DEFAULT 5000u
#define DEADLINE_MS_MAX 30000u

const char *kvrun_version(void)
{
    return KVRUN_VERSION;
}

static void start_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static bool start_locks(struct kvrun_client *client)
{
    pthread_condattr_t attributes;
    return pthread_mutex_init(&client->lock, NULL) == 0 && pthread_mutex_init(&client->link_lock, NULL) == 0 &&
           pthread_condattr_init(&attributes) == 0 && pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(&client->wake, &attributes) == 0 && pthread_condattr_destroy(&attributes) == 0;
}

static bool path_fits(const char *path)
{
    return strlen(path) < sizeof(((struct sockaddr_un *)NULL)->sun_path);
}

static bool check_conf(const struct kvrun_conf *conf, struct kvrun_error *error)
{
    if (conf->socket_path == NULL || conf->token == NULL || strpbrk(conf->token, "\r\n") != NULL) {
        return kvrun_fail(error, "invalid_argument", "a socket path and an API key of one line are needed");
    }
    if (!path_fits(conf->socket_path) || (conf->fd_socket_path != NULL && !path_fits(conf->fd_socket_path))) {
        return kvrun_fail(error, "invalid_argument", "the path of a socket is too long");
    }
    if (conf->deadline_ms > DEADLINE_MS_MAX) {
        return kvrun_fail(error, "invalid_argument", "a deadline is at most %u ms", DEADLINE_MS_MAX);
    }
    return true;
}

static unsigned or_default(unsigned value, unsigned otherwise)
{
    return value != 0 ? value : otherwise;
}

static char *authorization_line(const char *token)
{
    size_t size = strlen(token) + 32;
    char *line = kvrun_memory_new(1, size);
    if (line != NULL) {
        snprintf(line, size, "Authorization: Bearer %s", token);
    }
    return line;
}

bool kvrun_client_new(const struct kvrun_conf *conf, struct kvrun_client **ret_client, struct kvrun_error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!check_conf(conf, error)) {
        return false;
    }
    pthread_once(&once, start_curl);
    struct kvrun_client *client = kvrun_memory_new(1, sizeof(*client));
    if (client == NULL || !start_locks(client)) {
        kvrun_memory_free(client);
        return kvrun_fail(error, "memory", "no memory for a client");
    }
    client->timeout_ms = or_default(conf->timeout_ms, TIMEOUT_MS_DEFAULT);
    client->control_timeout_ms = or_default(conf->control_timeout_ms, CONTROL_TIMEOUT_MS_DEFAULT);
    client->deadline_ms = or_default(conf->deadline_ms, DEADLINE_MS_DEFAULT);
    client->socket_path = kvrun_memory_text(conf->socket_path);
    client->fd_socket_path = conf->fd_socket_path != NULL ? kvrun_memory_text(conf->fd_socket_path) : NULL;
    client->authorization = authorization_line(conf->token);
    kvrun_fail(&client->why_down, "down", "the engine is not registered");
    if (client->socket_path == NULL || client->authorization == NULL ||
        (conf->fd_socket_path != NULL && client->fd_socket_path == NULL)) {
        kvrun_client_free(client);
        return kvrun_fail(error, "memory", "no memory for a client");
    }
    *ret_client = client;
    return true;
}

void kvrun_client_free(struct kvrun_client *client)
{
    if (client == NULL) {
        return;
    }
    kvrun_heartbeat_stop(client);
    kvrun_pools_drop(client);
    kvrun_http_close_all(client);
    json_decref(client->registration);
    if (client->authorization != NULL) {
        explicit_bzero(client->authorization, strlen(client->authorization));
    }
    kvrun_memory_free(client->authorization);
    kvrun_memory_free(client->socket_path);
    kvrun_memory_free(client->fd_socket_path);
    pthread_cond_destroy(&client->wake);
    pthread_mutex_destroy(&client->lock);
    pthread_mutex_destroy(&client->link_lock);
    kvrun_memory_free(client);
}

bool kvrun_ready(struct kvrun_client *client, struct kvrun_error *error)
{
    pthread_mutex_lock(&client->lock);
    bool up = client->stats.up;
    if (!up) {
        *error = client->why_down;
    }
    pthread_mutex_unlock(&client->lock);
    return up;
}

void kvrun_stats(struct kvrun_client *client, struct kvrun_stats *ret_stats)
{
    pthread_mutex_lock(&client->lock);
    *ret_stats = client->stats;
    pthread_mutex_unlock(&client->lock);
}

bool kvrun_ask(struct kvrun_client *client, const struct kvrun_request *request, char **ret_body,
               struct kvrun_error *error)
{
    struct kvrun_exchange exchange = {.method = request->method,
                                      .path = request->path,
                                      .needs_body = request->body != NULL,
                                      .wait_seconds = request->wait_seconds,
                                      .timeout_ms = client->control_timeout_ms + request->wait_seconds * 1000};
    if (request->body != NULL) {
        exchange.body = json_loads(request->body, JSON_REJECT_DUPLICATES, NULL);
    }
    json_t *answer = NULL;
    if (!kvrun_http_call(client, &exchange, &answer, error)) {
        return false;
    }
    char *text = answer != NULL ? json_dumps(answer, JSON_COMPACT) : NULL;
    bool fine = answer == NULL || text != NULL;
    json_decref(answer);
    if (!fine) {
        return kvrun_fail(error, "memory", "no memory for an answer");
    }
    *ret_body = text;
    return true;
}

/*
 * The transport: JSON over HTTP over a UNIX socket, a connection for each call that runs at the moment. It must never
 * print or log the key, and it never follows a redirection or a proxy of the environment.
 */
#include "api/clients/c/kvrun_int.h"

#include <stdio.h>
#include <string.h>

#define ANSWER_BYTES_MAX ((size_t)4 << 20)
#define URL_BYTES_MAX 512
#define IDLE_MAX 4u /* connections kept open */

static size_t take_answer(char *data, size_t size, size_t count, void *ctx)
{
    struct kvrun_http *http = ctx;
    size_t bytes = size * count;
    if (bytes > ANSWER_BYTES_MAX - http->answer_len) {
        http->answer_too_long = true;
        return 0;
    }
    char *grown = kvrun_memory_resize(http->answer, http->answer_len + bytes + 1);
    if (grown == NULL) {
        return 0;
    }
    memcpy(grown + http->answer_len, data, bytes);
    http->answer = grown;
    http->answer_len += bytes;
    http->answer[http->answer_len] = '\0';
    return bytes;
}

static void close_http(struct kvrun_http *http)
{
    if (http->easy != NULL) {
        curl_easy_cleanup(http->easy);
    }
    kvrun_memory_free(http->answer);
    kvrun_memory_free(http);
}

void kvrun_http_close_all(struct kvrun_client *client)
{
    while (client->idle != NULL) {
        struct kvrun_http *http = client->idle;
        client->idle = http->next;
        close_http(http);
    }
}

static struct kvrun_http *borrow(struct kvrun_client *client)
{
    pthread_mutex_lock(&client->lock);
    struct kvrun_http *http = client->idle;
    if (http != NULL) {
        client->idle = http->next;
        client->idle_count--;
    }
    pthread_mutex_unlock(&client->lock);
    if (http != NULL) {
        return http;
    }
    http = kvrun_memory_new(1, sizeof(*http));
    if (http != NULL && (http->easy = curl_easy_init()) == NULL) {
        kvrun_memory_free(http);
        http = NULL;
    }
    return http;
}

static void give_back(struct kvrun_client *client, struct kvrun_http *http)
{
    pthread_mutex_lock(&client->lock);
    bool keep = client->idle_count < IDLE_MAX;
    if (keep) {
        http->next = client->idle;
        client->idle = http;
        client->idle_count++;
    }
    pthread_mutex_unlock(&client->lock);
    if (!keep) {
        close_http(http);
    }
}

static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (longer == NULL) {
        return false;
    }
    *list = longer;
    return true;
}

/* libcurl keeps its own copies of the lines, with the key in them. */
static void free_headers(struct curl_slist *list)
{
    for (struct curl_slist *line = list; line != NULL; line = line->next) {
        explicit_bzero(line->data, strlen(line->data));
    }
    curl_slist_free_all(list);
}

static struct curl_slist *make_headers(const struct kvrun_client *client, const struct kvrun_exchange *exchange)
{
    char prefer[64];
    struct curl_slist *list = NULL;
    bool fine = add_header(&list, client->authorization) && add_header(&list, "Accept: application/json") &&
                add_header(&list, "Content-Type: application/json") && add_header(&list, "Expect:");
    if (fine && exchange->wait_seconds != 0) {
        snprintf(prefer, sizeof(prefer), "Prefer: wait=%u", exchange->wait_seconds);
        fine = add_header(&list, prefer);
    }
    if (!fine) {
        free_headers(list);
        return NULL;
    }
    return list;
}

static bool set_options(const struct kvrun_client *client, struct kvrun_http *http,
                        const struct kvrun_exchange *exchange, const char *body)
{
    CURL *easy = http->easy;
    char url[URL_BYTES_MAX];
    snprintf(url, sizeof(url), "http://kvrun%s", exchange->path);
    curl_easy_reset(easy); /* the connection stays open */
    bool fine = curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, client->socket_path) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)exchange->timeout_ms) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, exchange->method) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_WRITEDATA, http) == CURLE_OK;
    if (fine && body != NULL) {
        fine = curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body)) == CURLE_OK &&
               curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body) == CURLE_OK;
    }
    return fine;
}

static bool read_answer(struct kvrun_http *http, json_t **ret_answer, struct kvrun_error *error)
{
    long status = 0;
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
    json_t *answer = NULL;
    if (http->answer_len > 0) {
        answer = json_loadb(http->answer, http->answer_len, JSON_REJECT_DUPLICATES, NULL);
    }
    bool fine = status >= 200 && status < 300;
    if (!fine) {
        kvrun_fail_with_problem(answer, status, error);
    } else if (http->answer_len > 0 && !json_is_object(answer)) {
        fine = kvrun_fail(error, "protocol", "status %ld with a body that is not a JSON object", status);
        error->status = (int)status;
    }
    if (!fine) {
        json_decref(answer);
        return false;
    }
    *ret_answer = answer;
    return true;
}

static bool perform(const struct kvrun_client *client, struct kvrun_http *http, const struct kvrun_exchange *exchange,
                    const char *body, struct kvrun_error *error)
{
    http->answer_len = 0;
    http->answer_too_long = http->sent = false;
    struct curl_slist *headers = make_headers(client, exchange);
    if (headers == NULL || !set_options(client, http, exchange, body) ||
        curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, headers) != CURLE_OK) {
        free_headers(headers);
        return kvrun_fail(error, "memory", "the request cannot be built");
    }
    CURLcode rc = curl_easy_perform(http->easy);
    long sent_bytes = 0;
    curl_easy_getinfo(http->easy, CURLINFO_REQUEST_SIZE, &sent_bytes);
    http->sent = sent_bytes > 0;
    curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, NULL);
    free_headers(headers);
    if (http->answer_too_long) {
        return kvrun_fail(error, "protocol", "the answer is longer than %zu bytes", ANSWER_BYTES_MAX);
    }
    if (rc != CURLE_OK) {
        kvrun_fail(error, "transport", "%s %s: %s; is the server running on this socket?", exchange->method,
                   exchange->path, curl_easy_strerror(rc));
        error->retryable = true;
        return false;
    }
    return true;
}

/* NULL, and an error: a text in it is missing or is not UTF-8. `*ret_body` is owned by the caller. */
static bool write_body(const struct kvrun_exchange *exchange, char **ret_body, struct kvrun_error *error)
{
    *ret_body = NULL;
    if (exchange->body != NULL) {
        *ret_body = json_dumps(exchange->body, JSON_COMPACT);
        json_decref(exchange->body);
    }
    return *ret_body != NULL || !exchange->needs_body
               ? true
               : kvrun_fail(error, "invalid_argument", "a text of the request is missing or is not UTF-8");
}

bool kvrun_http_call(struct kvrun_client *client, const struct kvrun_exchange *exchange, json_t **ret_answer,
                     struct kvrun_error *error)
{
    char *body;
    if (!write_body(exchange, &body, error)) {
        return false;
    }
    struct kvrun_http *http = borrow(client);
    if (http == NULL) {
        kvrun_memory_free(body);
        return kvrun_fail(error, "memory", "no memory for a connection");
    }
    bool fine = perform(client, http, exchange, body, error) && read_answer(http, ret_answer, error);
    if (exchange->ret_sent != NULL) {
        *exchange->ret_sent = http->sent;
    }
    give_back(client, http);
    kvrun_memory_free(body);
    return fine;
}

bool kvrun_http_post(struct kvrun_client *client, const char *path, json_t *body, json_t **ret_answer,
                     struct kvrun_error *error)
{
    struct kvrun_exchange exchange = {
        .method = "POST", .path = path, .body = body, .needs_body = true, .timeout_ms = client->control_timeout_ms};
    return kvrun_http_call(client, &exchange, ret_answer, error);
}

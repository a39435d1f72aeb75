/*
 * The client's transport: JSON over HTTP over a UNIX socket. It must never print or log the key, and it never follows a
 * redirection or a proxy of the environment.
 */
#include "tests/engine/kv_client_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_BYTES_MAX ((size_t)4 << 20)
#define URL_BYTES_MAX 512

bool kv_client_fail(struct kv_client_error *error, const char *code, const char *format, ...)
{
    *error = (struct kv_client_error){.status = 0};
    snprintf(error->code, sizeof(error->code), "%s", code);
    va_list args;
    va_start(args, format);
    vsnprintf(error->detail, sizeof(error->detail), format, args);
    va_end(args);
    return false;
}

bool kv_client_member_text(const json_t *body, const char *name, char *target, size_t size,
                           struct kv_client_error *error)
{
    const json_t *member = json_object_get(body, name);
    if (!json_is_string(member) || json_string_length(member) >= size) {
        return kv_client_fail(error, "protocol", "the answer has no usable member \"%s\"", name);
    }
    memcpy(target, json_string_value(member), json_string_length(member) + 1);
    return true;
}

bool kv_client_check_id(const char *id, const char *prefix, struct kv_client_error *error)
{
    size_t prefix_len = strlen(prefix);
    size_t good = id == NULL ? 0 : strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (id == NULL || id[good] != '\0' || good >= KV_CLIENT_ID_SIZE || strncmp(id, prefix, prefix_len) != 0 ||
        id[prefix_len] != '_') {
        return kv_client_fail(error, "invalid_argument", "an id that starts with %s_ is expected", prefix);
    }
    return true;
}

static size_t take_answer(char *data, size_t size, size_t count, void *ctx)
{
    struct kv_client_http *http = ctx;
    size_t bytes = size * count;
    if (bytes > ANSWER_BYTES_MAX - http->answer_len) {
        http->answer_too_long = true;
        return 0;
    }
    char *grown = realloc(http->answer, http->answer_len + bytes + 1);
    if (grown == NULL) {
        return 0;
    }
    memcpy(grown + http->answer_len, data, bytes);
    http->answer = grown;
    http->answer_len += bytes;
    http->answer[http->answer_len] = '\0';
    return bytes;
}

bool kv_client_http_open(struct kv_client_http *http, struct kv_client_error *error)
{
    *http = (struct kv_client_http){.easy = curl_easy_init()};
    return http->easy != NULL ? true : kv_client_fail(error, "memory", "libcurl cannot start");
}

void kv_client_http_close(struct kv_client_http *http)
{
    if (http->easy != NULL) {
        curl_easy_cleanup(http->easy);
    }
    free(http->answer);
    *http = (struct kv_client_http){.easy = NULL};
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

static struct curl_slist *make_headers(const struct kv_client *client, const struct kv_client_request *request)
{
    char prefer[64];
    struct curl_slist *list = NULL;
    bool fine = add_header(&list, client->authorization) && add_header(&list, "Accept: application/json") &&
                add_header(&list, "Content-Type: application/json") && add_header(&list, "Expect:");
    if (fine && request->prefer != NULL) {
        snprintf(prefer, sizeof(prefer), "Prefer: %s", request->prefer);
        fine = add_header(&list, prefer);
    }
    if (!fine) {
        curl_slist_free_all(list);
        return NULL;
    }
    return list;
}

/* libcurl keeps its own copies of the lines, with the key in them. */
static void free_headers(struct curl_slist *list)
{
    for (struct curl_slist *line = list; line != NULL; line = line->next) {
        explicit_bzero(line->data, strlen(line->data));
    }
    curl_slist_free_all(list);
}

static bool set_options(const struct kv_client *client, struct kv_client_http *http,
                        const struct kv_client_request *request, const char *body)
{
    CURL *easy = http->easy;
    char url[URL_BYTES_MAX];
    snprintf(url, sizeof(url), "http://kvrun%s", request->path);
    curl_easy_reset(easy); /* the connection stays open */
    bool fine = curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, client->socket_path) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)client->timeout_ms) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request->method) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer) == CURLE_OK &&
                curl_easy_setopt(easy, CURLOPT_WRITEDATA, http) == CURLE_OK;
    if (fine && body != NULL) {
        fine = curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body)) == CURLE_OK &&
               curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body) == CURLE_OK;
    }
    return fine;
}

/* A problem document (RFC 9457) as far as it is one. */
static bool fail_with_problem(const json_t *problem, long status, struct kv_client_error *error)
{
    const char *code = json_string_value(json_object_get(problem, "code"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    const char *title = json_string_value(json_object_get(problem, "title"));
    if (code == NULL) {
        kv_client_fail(error, "protocol", "status %ld without a problem document", status);
    } else {
        kv_client_fail(error, code, "%s", detail != NULL ? detail : title != NULL ? title : "");
    }
    error->status = (int)status;
    error->retryable = json_is_true(json_object_get(problem, "retryable"));
    return false;
}

static bool read_answer(struct kv_client_http *http, json_t **ret_body, struct kv_client_error *error)
{
    long status = 0;
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
    json_t *body = NULL;
    if (http->answer_len > 0) {
        body = json_loadb(http->answer, http->answer_len, JSON_REJECT_DUPLICATES, NULL);
    }
    bool fine = status >= 200 && status < 300;
    if (!fine) {
        fail_with_problem(body, status, error);
    } else if (http->answer_len > 0 && !json_is_object(body)) {
        fine = kv_client_fail(error, "protocol", "status %ld with a body that is not a JSON object", status);
        error->status = (int)status;
    }
    if (!fine) {
        json_decref(body);
        return false;
    }
    *ret_body = body;
    return true;
}

static bool perform(const struct kv_client *client, struct kv_client_http *http,
                    const struct kv_client_request *request, const char *body, struct kv_client_error *error)
{
    http->answer_len = 0;
    http->answer_too_long = false;
    struct curl_slist *headers = make_headers(client, request);
    if (headers == NULL || !set_options(client, http, request, body) ||
        curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, headers) != CURLE_OK) {
        free_headers(headers);
        return kv_client_fail(error, "memory", "the request cannot be built");
    }
    CURLcode rc = curl_easy_perform(http->easy);
    curl_easy_setopt(http->easy, CURLOPT_HTTPHEADER, NULL);
    free_headers(headers);
    if (http->answer_too_long) {
        return kv_client_fail(error, "protocol", "the answer is longer than %zu bytes", ANSWER_BYTES_MAX);
    }
    if (rc != CURLE_OK) {
        kv_client_fail(error, "transport", "%s %s: %s; is the server running on this socket?", request->method,
                       request->path, curl_easy_strerror(rc));
        error->retryable = true;
        return false;
    }
    return true;
}

bool kv_client_http_call(const struct kv_client *client, struct kv_client_http *http,
                         const struct kv_client_request *request, json_t **ret_body, struct kv_client_error *error)
{
    char *body = NULL;
    if (request->body == NULL && request->needs_body) {
        return kv_client_fail(error, "invalid_argument", "a text of the request is missing or is not UTF-8");
    }
    if (request->body != NULL) {
        body = json_dumps(request->body, JSON_COMPACT);
        json_decref(request->body);
        if (body == NULL) {
            return kv_client_fail(error, "invalid_argument", "the request cannot be written as JSON");
        }
    }
    bool fine = perform(client, http, request, body, error) && read_answer(http, ret_body, error);
    free(body);
    return fine;
}

bool kv_client_post(struct kv_client *client, const char *path, json_t *body, json_t **ret_answer,
                    struct kv_client_error *error)
{
    struct kv_client_request request = {.method = "POST", .path = path, .body = body, .needs_body = true};
    return kv_client_http_call(client, &client->http, &request, ret_answer, error);
}

/*
 * See httpc.h. Must never log a header: one of them is the bearer key.
 */
#include "dataplane/io/httpc.h"

#include "dataplane/base/mem.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

#define UNIX_PREFIX "unix://"

struct kv_httpc {
    CURL *curl;
    char base[300];
};

KV_RC kv_httpc_new(const char *address, struct kv_errinfo *info, struct kv_httpc **ret_client)
{
    struct kv_httpc *client = kv_alloc(sizeof *client);
    if (client == NULL) {
        return KV_E_NO_MEMORY;
    }
    client->curl = curl_easy_init();
    if (client->curl == NULL) {
        kv_free(client);
        return KV_E_NO_MEMORY;
    }
    if (strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
        curl_easy_setopt(client->curl, CURLOPT_UNIX_SOCKET_PATH, address + strlen(UNIX_PREFIX));
        snprintf(client->base, sizeof client->base, "http://localhost");
    } else if (strlen(address) < 256) {
        snprintf(client->base, sizeof client->base, "http://%s", address);
    } else {
        kv_httpc_free(client);
        return kv_fail(info, KV_E_CONFIG, "the server's address is too long");
    }
    *ret_client = client;
    return KV_OK;
}

void kv_httpc_free(struct kv_httpc *client)
{
    if (client != NULL) {
        curl_easy_cleanup(client->curl);
        kv_free(client);
    }
}

static size_t take_body(char *data, size_t size, size_t count, void *ctx)
{
    struct kv_buf *body = ctx;
    kv_buf_append(body, data, size * count);
    return body->failed ? 0 : size * count;
}

/* Appends "name: value"; a failure leaves the list as it was, and the request then lacks the header and is refused by
 * the server. */
static struct curl_slist *with_header(struct curl_slist *list, const char *name, const char *value)
{
    char line[512];
    if (value == NULL || snprintf(line, sizeof line, "%s: %s", name, value) >= (int)sizeof line) {
        return list;
    }
    struct curl_slist *longer = curl_slist_append(list, line);
    memset(line, 0, sizeof line);
    return longer == NULL ? list : longer;
}

static struct curl_slist *headers_of(const struct kv_httpc_request *request)
{
    char authorization[300] = "";
    struct curl_slist *list =
        with_header(NULL, "Accept", request->accept == NULL ? "application/json" : request->accept);
    list = with_header(list, "Prefer", request->prefer);
    list = with_header(list, "Expect", request->body == NULL ? NULL : "");
    list = with_header(list, "Content-Type", request->body == NULL ? NULL : "application/json");
    if (request->bearer != NULL) {
        snprintf(authorization, sizeof authorization, "Bearer %s", request->bearer);
        list = with_header(list, "Authorization", authorization);
        memset(authorization, 0, sizeof authorization);
    }
    return list;
}

KV_RC kv_httpc_do(struct kv_httpc *client, const struct kv_httpc_request *request, struct kv_errinfo *info,
                  int *ret_status, struct kv_buf *ret_body)
{
    char url[1024];
    if (snprintf(url, sizeof url, "%s%s", client->base, request->path) >= (int)sizeof url) {
        return kv_fail(info, KV_E_URI_TOO_LONG, "the request path is too long");
    }
    struct curl_slist *headers = headers_of(request);
    CURL *curl = client->curl;
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http");
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)request->timeout_ms);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, ret_body);
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, NULL);
    if (request->body != NULL || strcmp(request->method, "POST") == 0) {
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body == NULL ? "" : request->body);
    } else {
        curl_easy_setopt(curl, CURLOPT_HTTPGET, 1L);
    }
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
    CURLcode code = curl_easy_perform(curl);
    curl_slist_free_all(headers);
    if (code != CURLE_OK) {
        return kv_fail(info, KV_E_IO, "no answer from the server: %s", curl_easy_strerror(code));
    }
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    *ret_status = (int)status;
    return KV_OK;
}

/*
 * The caller of the REST interface, over io/httpc and jansson. Must never show a key or a body that it did not ask for.
 */
#include "server/cli/client.h"

#include "dataplane/base/mem.h"
#include "dataplane/io/httpc.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 70000

struct kv_client {
    struct kv_httpc *http;
};

KV_RC kv_client_new(const char *address, struct kv_errinfo *info, struct kv_client **ret_client)
{
    struct kv_client *client = kv_alloc(sizeof *client);
    if (client == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_httpc_new(address, info, &client->http);
    if (rc != KV_OK) {
        kv_free(client);
        return rc;
    }
    *ret_client = client;
    return KV_OK;
}

void kv_client_free(struct kv_client *client)
{
    if (client != NULL) {
        kv_httpc_free(client->http);
        kv_free(client);
    }
}

static json_t *load(const struct kv_buf *json)
{
    return json_loadb((const char *)json->data, json->len, JSON_REJECT_DUPLICATES, NULL);
}

static KV_RC problem(int status, const struct kv_buf *body, struct kv_errinfo *info)
{
    char code[64] = "", detail[160] = "";
    kv_client_text(body, "code", code, sizeof code);
    kv_client_text(body, "detail", detail, sizeof detail);
    for (int rc = KV_OK + 1; rc < KV_E_COUNT; rc++) {
        if (strcmp(kv_err_name((enum kv_err)rc), code) == 0) {
            return kv_fail(info, (enum kv_err)rc, "%s", detail);
        }
    }
    return kv_fail(info, KV_E_IO, "the server answered %d", status);
}

KV_RC kv_client_do(struct kv_client *client, const struct kv_client_call *call, struct kv_errinfo *info,
                   struct kv_buf *ret_body)
{
    char prefer[32];
    int status = 0;
    snprintf(prefer, sizeof prefer, "wait=%u", call->wait_seconds);
    struct kv_httpc_request request = {.method = call->method,
                                       .path = call->path,
                                       .bearer = call->key,
                                       .body = call->body,
                                       .accept = call->accept,
                                       .prefer = call->wait_seconds == 0 ? NULL : prefer,
                                       .timeout_ms = TIMEOUT_MS};
    kv_buf_reset(ret_body);
    KV_TRY(kv_httpc_do(client->http, &request, info, &status, ret_body));
    KV_TRY(kv_buf_check(ret_body));
    return status >= 200 && status < 300 ? KV_OK : problem(status, ret_body, info);
}

bool kv_client_text(const struct kv_buf *json, const char *name, char *ret_text, size_t size)
{
    json_t *root = load(json);
    const char *text = json_string_value(json_object_get(root, name));
    bool found = text != NULL && strlen(text) < size;
    if (found) {
        memcpy(ret_text, text, strlen(text) + 1);
    }
    json_decref(root);
    return found;
}

uint64_t kv_client_number(const struct kv_buf *json, const char *name)
{
    json_t *root = load(json);
    json_int_t number = json_integer_value(json_object_get(root, name));
    json_decref(root);
    return number > 0 ? (uint64_t)number : 0;
}

void kv_client_each(const struct kv_buf *json, const char *array, const char *name, const char *number,
                    void (*fn)(void *ctx, const char *text, const char *state, long long value), void *ctx)
{
    size_t index = 0;
    json_t *root = load(json), *item = NULL;
    json_array_foreach(json_object_get(root, array), index, item)
    {
        const char *text = json_string_value(json_object_get(item, name));
        const char *state = json_string_value(json_object_get(item, "state"));
        fn(ctx, text == NULL ? "" : text, state == NULL ? "" : state,
           json_integer_value(json_object_get(item, number)));
    }
    json_decref(root);
}

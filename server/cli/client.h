/*
 * A caller of the REST interface: one server, JSON in and out. Thread: one a client.
 */
#ifndef KV_CLI_CLIENT_H
#define KV_CLI_CLIENT_H

#include "dataplane/base/buf.h"

struct kv_client;

KV_RC kv_client_new(const char *address, struct kv_errinfo *info, struct kv_client **ret_client);
void kv_client_free(struct kv_client *client);

struct kv_client_call {
    const char *method, *path;
    const char *key;    /* bearer key; NULL: none */
    const char *body;   /* JSON; NULL: none */
    const char *accept; /* NULL: application/json */
    unsigned wait_seconds;
};

/* KV_OK for a 2xx answer, whose body is in `ret_body` (initialised by the caller). Else the problem's code, with its
 * detail in `info`. */
KV_RC kv_client_do(struct kv_client *client, const struct kv_client_call *call, struct kv_errinfo *info,
                   struct kv_buf *ret_body);

/* A text member at the top of a JSON object; false when it is not there or too long. */
bool kv_client_text(const struct kv_buf *json, const char *name, char *ret_text, size_t size);
/* A number member at the top of a JSON object; 0 when it is not there or negative. */
uint64_t kv_client_number(const struct kv_buf *json, const char *name);
/* Calls fn for each object of the array `array`, with the text of member `name` and the integer of member `number` (0
 * when absent). */
void kv_client_each(const struct kv_buf *json, const char *array, const char *name, const char *number,
                    void (*fn)(void *ctx, const char *text, const char *state, long long value), void *ctx);

#endif

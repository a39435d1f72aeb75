/*
 * A small blocking HTTP client over libcurl: what the command line and the demo speak to a server with. Bounded in time
 * and size; sends nothing but what it is told, follows no redirect, uses no proxy. Thread: one a client.
 */
#ifndef KV_IO_HTTPC_H
#define KV_IO_HTTPC_H

#include "dataplane/base/buf.h"

struct kv_httpc;

struct kv_httpc_request {
    const char *method; /* "GET", "POST", … */
    const char *path;   /* "/v1/tenants" */
    const char *bearer; /* NULL: none */
    const char *body;   /* JSON text; NULL: none */
    const char *accept; /* NULL: application/json */
    const char *prefer; /* NULL: none; "wait=30" */
    uint64_t timeout_ms;
};

/* `address`: "127.0.0.1:7433" or "unix:///path/to/socket". */
KV_RC kv_httpc_new(const char *address, struct kv_errinfo *info, struct kv_httpc **ret_client);
void kv_httpc_free(struct kv_httpc *client);
/* KV_OK whatever the status is; KV_E_IO when there was no answer. The body is put into `ret_body` (initialised by the
 * caller). */
KV_RC kv_httpc_do(struct kv_httpc *client, const struct kv_httpc_request *request, struct kv_errinfo *info,
                  int *ret_status, struct kv_buf *ret_body);

#endif

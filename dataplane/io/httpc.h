/*
 * A small blocking HTTP client over libcurl: what the command line and the demo speak to a server with. Bounded in time
 * and size; sends nothing but what it is told, follows no redirect, uses no proxy. Thread: one a client.
 */
#ifndef KV_IO_HTTPC_H
#define KV_IO_HTTPC_H

#include "dataplane/base/buf.h"

struct kv_httpc;

struct kv_httpc_request {
    const char *method;         /* "GET", "POST", … */
    const char *path;           /* "/v1/tenants" */
    const char *bearer;         /* NULL: none */
    const char *body;           /* JSON text; NULL: none */
    const char *accept;         /* NULL: application/json */
    const char *prefer;         /* NULL: none; "wait=30" */
    const char *content_type;   /* NULL: application/json */
    const char *const *headers; /* further ones, "Name: value", ended by NULL; NULL: none */
    uint64_t timeout_ms;        /* 0: none, for a stream */
    struct kv_buf *ret_headers; /* the answer's header lines, as they came; NULL: not wanted */
    /* Takes the body of a 2xx answer as it comes, instead of ret_body; false ends the transfer, which is no error.
     * NULL: ret_body takes it. */
    bool (*sink)(void *ctx, const void *data, size_t len);
    void *sink_ctx;
};

/* `address`: "127.0.0.1:7433", "http://…", "https://…" or "unix:///path/to/socket". */
KV_RC kv_httpc_new(const char *address, struct kv_errinfo *info, struct kv_httpc **ret_client);
void kv_httpc_free(struct kv_httpc *client);
/* Trust the authorities of this PEM file and no others, for https. */
KV_RC kv_httpc_trust(struct kv_httpc *client, const char *ca_file, struct kv_errinfo *info);
/* Show this certificate (PEM, with what leads to its authority) to a server that asks for one, for https. The key may
 * be in the same file: NULL. */
KV_RC kv_httpc_identify(struct kv_httpc *client, const char *cert_file, const char *key_file, struct kv_errinfo *info);
/* KV_OK whatever the status is; KV_E_IO when there was no answer, KV_E_UNAUTHENTICATED when the server is not who it
 * should be (its TLS certificate), or the files of kv_httpc_identify cannot be used. The body is put into `ret_body`
 * (initialised by the caller). */
KV_RC kv_httpc_do(struct kv_httpc *client, const struct kv_httpc_request *request, struct kv_errinfo *info,
                  int *ret_status, struct kv_buf *ret_body);

/* The value of a header of `headers` (see ret_headers), without regard to case; false when it is not there or too long.
 */
bool kv_httpc_header(const struct kv_buf *headers, const char *name, char *ret_value, size_t size);
/* "libcurl/7.88.1 …" */
const char *kv_httpc_version(void);

#endif

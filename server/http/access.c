/*
 * A request's way through the listener's thread:
 *
 *   NEW ─ guard, route ─► BODY ─ upload complete ─► QUEUED ─ service thread ─► ANSWERED ─► DONE
 *    │                     │                                                     ▲
 *    │                     │                          │  ▲                         │
 *    │                     │                          ▼  │                         │
 *    │                     │                         PARKED                        │
 *    └── refused ──────────┴── refused, or an inline route ──────────────────────┘
 *
 * While it is QUEUED or PARKED its connection is suspended; the car park (parking.h) takes it from a service thread and
 * puts it back into the line.
 *
 * Must never answer a connection twice, or resume one that is not suspended.
 */
#include "server/http/access.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/crypto/secret.h"
#include "server/http/count.h"
#include "server/http/headers.h"
#include "server/http/line.h"
#include "server/http/problem.h"
#include "server/http/reaper.h"
#include "server/http/stream.h"
#include "server/http/tls.h"
#include "server/http/worker.h"

#include <microhttpd.h>
#include <stdio.h>
#include <string.h>

/* --- answering --------------------------------------------------------------------------------------------------- */

static void add_header(void *ctx, const char *name, const char *value)
{
    if (MHD_add_response_header(ctx, name, value) != MHD_YES) {
        kv_log(KV_LOG_WARN, "http", "header-not-added", KV_FT("name", name));
    }
}

static enum MHD_Result send_answer(struct kv_req *req, struct MHD_Connection *connection)
{
    struct kv_buf *body = &req->response.body;
    KV_ASSERT(req->state == KV_REQ_ANSWERED);
    req->state = KV_REQ_DONE;
    req->response.close = req->response.close || atomic_load(&req->httpd->closing);
    uint64_t now_ns = kv_now_ns(req->httpd->conf.env);
    atomic_store(&req->httpd->last_ns, now_ns);
    size_t len = req->response.status == 204 || req->response.status == 304 ? 0 : body->len;
    kv_http_count(req, req->head ? 0 : len, now_ns);
    /* The body is the request's, which lives until the answer is sent: kv_access_completed frees it. */
    struct MHD_Response *response = req->stream != NULL
                                        ? kv_stream_response(req->stream, connection)
                                        : MHD_create_response_from_buffer(len, body->data, MHD_RESPMEM_PERSISTENT);
    if (response == NULL) {
        return MHD_NO;
    }
    kv_headers(req, add_header, response);
    enum MHD_Result rc = MHD_queue_response(connection, (unsigned)req->response.status, response);
    MHD_destroy_response(response);
    return rc;
}

static enum MHD_Result refuse(struct kv_req *req, struct MHD_Connection *connection, enum kv_err rc,
                              const struct kv_errinfo *info, bool close)
{
    kv_http_count_reject(rc);
    kv_problem(req, rc, info, NULL);
    req->response.close = close;
    req->state = KV_REQ_ANSWERED;
    return send_answer(req, connection);
}

/* --- the access handler ------------------------------------------------------------------------------------------ */

static bool too_long(const char *length)
{
    unsigned long long bytes = 0;
    return length != NULL && (strlen(length) > 18 || sscanf(length, "%llu", &bytes) != 1 ||
                              bytes > (unsigned long long)KV_MAX_BODY_BYTES);
}

static enum MHD_Result answer_options(struct kv_req *req, struct MHD_Connection *connection)
{
    req->response.status = 204;
    req->state = KV_REQ_ANSWERED;
    return send_answer(req, connection);
}

static int fd_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info == NULL ? -1 : info->connect_fd;
}

/* Who is at the other end, as far as the connection itself knows: a user of the socket, a certificate. */
static KV_RC check_peer(struct kv_listener *listener, struct kv_req *req, struct MHD_Connection *connection,
                        struct kv_errinfo *info)
{
    struct kv_httpd *httpd = listener->httpd;
    if (listener == &httpd->listeners[LISTEN_SOCKET] && !kv_listen_uid_ok(&httpd->socket_uids, req->fd)) {
        return kv_fail(info, KV_E_FORBIDDEN, "this user may not use the socket; see http.socket_allow_uids");
    }
    req->tls = listener == &httpd->listeners[LISTEN_API] && httpd->tls != NULL;
    if (req->tls) {
        const union MHD_ConnectionInfo *at = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
        if (!kv_tls_client_ok(httpd->tls, at == NULL ? NULL : at->tls_session)) {
            return kv_fail(info, KV_E_UNAUTHENTICATED, "connect with a certificate of an authority that is known here");
        }
    }
    return KV_OK;
}

static enum MHD_Result first_call(struct kv_listener *listener, struct kv_req *req, struct MHD_Connection *connection,
                                  const char *method, const char *version)
{
    struct kv_errinfo info = {0};
    req->connection = connection;
    req->fd = fd_of(connection);
    req->begun_ns = kv_now_ns(req->httpd->conf.env);
    enum kv_err rc = kv_req_guard(req, connection, method, version, &info);
    if (rc == KV_OK) {
        rc = check_peer(listener, req, connection, &info);
    }
    if (rc != KV_OK) {
        return refuse(req, connection, rc, &info, true);
    }
    if (strcmp(req->path, "*") == 0) {
        snprintf(req->response.allow, sizeof req->response.allow, "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        req->response.close = req->uploads;
        return answer_options(req, connection);
    }
    rc = kv_route_find(listener->kind, req->method, req->path, req->captures, req->response.allow, &req->route);
    if (rc != KV_OK) {
        rc = rc == KV_E_NOT_FOUND ? kv_fail(&info, rc, "no such route; GET /v1/openapi.yaml has them all")
                                  : kv_fail(&info, rc, "allowed here: %s", req->response.allow);
        return refuse(req, connection, rc, &info, req->uploads);
    }
    if (req->route == NULL) {
        req->response.close = req->uploads;
        return answer_options(req, connection);
    }
    if (too_long(req->content_length)) {
        rc = kv_fail(&info, KV_E_BODY_TOO_LARGE, "at most %d bytes", (int)KV_MAX_BODY_BYTES);
        return refuse(req, connection, rc, &info, true);
    }
    req->state = KV_REQ_BODY;
    return MHD_YES;
}

/* Bodies are read before the key is known, so all of them together have a bound. */
static bool within_budget(struct kv_req *req, size_t size)
{
    uint64_t before = atomic_fetch_add(&req->httpd->body_bytes, size);
    if (before + size > (uint64_t)KV_MAX_BODIES_BYTES) {
        atomic_fetch_sub(&req->httpd->body_bytes, size);
        return false;
    }
    req->counted += size;
    return true;
}

/* Past the limit the rest is read and dropped for a while, so that the caller gets to read the 413; then the connection
 * ends. */
static enum MHD_Result take_body(struct kv_req *req, const char *data, size_t *size)
{
    if (req->body.len + *size > (size_t)KV_MAX_BODY_BYTES || req->drained > 0) {
        req->drained += *size;
    } else if (!within_budget(req, *size)) {
        req->starved = true;
        req->drained += *size;
    } else {
        kv_buf_append(&req->body, data, *size);
    }
    *size = 0;
    return req->drained > (uint64_t)KV_MAX_BODY_DRAIN_BYTES ? MHD_NO : MHD_YES;
}

/* What memory holds needs no service thread. */
static bool from_memory(struct kv_req *req)
{
    struct kv_svc *svc = (req->route->flags & KV_ROUTE_MEMORY) != 0 ? kv_httpd_svc(req->httpd) : NULL;
    return svc != NULL && kv_worker_run_from_memory(svc, req);
}

static enum MHD_Result enqueue(struct kv_req *req, struct MHD_Connection *connection)
{
    struct kv_httpd *httpd = req->httpd;
    struct kv_errinfo info = {0};
    if (kv_httpd_svc(httpd) == NULL) {
        enum kv_err rc = kv_fail(&info, KV_E_STARTING, "the server is starting; see /startupz");
        return refuse(req, connection, rc, &info, false);
    }
    /* Suspended before the push: a service thread may finish, and resume, before this function returns. */
    req->state = KV_REQ_QUEUED;
    req->queued_ns = kv_now_ns(httpd->conf.env);
    atomic_fetch_add(&httpd->running, 1);
    MHD_suspend_connection(connection);
    enum kv_err rc = kv_line_push(httpd->line, req, (req->route->flags & KV_ROUTE_RESERVED) != 0);
    if (rc != KV_OK) {
        kv_http_count_reject(KV_E_BUSY);
        kv_problem(req, rc, NULL, NULL);
        req->state = KV_REQ_ANSWERED;
        MHD_resume_connection(connection);
        atomic_fetch_sub(&httpd->running, 1);
    }
    return MHD_YES;
}

static enum MHD_Result body_complete(struct kv_req *req, struct MHD_Connection *connection)
{
    struct kv_errinfo info = {0};
    if (req->starved) {
        enum kv_err rc = kv_fail(&info, KV_E_BUSY, "too many request bodies at once; try again");
        return refuse(req, connection, rc, &info, true);
    }
    if (req->drained > 0) {
        enum kv_err rc = kv_fail(&info, KV_E_BODY_TOO_LARGE, "at most %d bytes", (int)KV_MAX_BODY_BYTES);
        return refuse(req, connection, rc, &info, true);
    }
    if (kv_buf_check(&req->body) != KV_OK) {
        return refuse(req, connection, KV_E_BUSY, NULL, true);
    }
    unsigned flags = req->route->flags;
    bool guarded = (flags & KV_ROUTE_METRICS) != 0 && req->httpd->conf.metrics_auth; /* a key is looked up: may wait */
    if ((flags & KV_ROUTE_INLINE) != 0 && !guarded) {
        kv_worker_run(NULL, req);
    } else if (!from_memory(req)) {
        return enqueue(req, connection);
    }
    req->state = KV_REQ_ANSWERED;
    return send_answer(req, connection);
}

enum MHD_Result kv_access_access(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                 const char *version, const char *upload, size_t *upload_size, void **request)
{
    struct kv_listener *listener = ctx;
    struct kv_req *req = *request;
    (void)url;
    if (req == NULL) {
        return MHD_NO; /* there was no memory for it */
    }
    switch (req->state) {
    case KV_REQ_NEW:
        kv_reaper_headers_seen(listener->httpd->reaper, connection);
        return first_call(listener, req, connection, method, version);
    case KV_REQ_BODY:
        if (*upload_size > 0) {
            return take_body(req, upload, upload_size);
        }
        kv_reaper_body_seen(listener->httpd->reaper, connection);
        return body_complete(req, connection);
    case KV_REQ_ANSWERED:
        return send_answer(req, connection);
    case KV_REQ_QUEUED:
    case KV_REQ_PARKED:
    case KV_REQ_DONE:
        *upload_size = 0; /* nothing is due; what is still uploaded after an early answer is dropped */
        return MHD_YES;
    }
    return MHD_NO;
}

void *kv_access_target(void *ctx, const char *target, struct MHD_Connection *connection)
{
    struct kv_listener *listener = ctx;
    (void)connection;
    return kv_req_new(listener->httpd, target);
}

void kv_access_completed(void *ctx, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode code)
{
    struct kv_listener *listener = ctx;
    const struct kv_req *req = *request;
    (void)code;
    if (req != NULL) {
        atomic_fetch_sub(&listener->httpd->body_bytes, req->counted);
    }
    kv_req_free(*request);
    *request = NULL;
    kv_reaper_request_done(listener->httpd->reaper, connection);
    kv_forget();
}

void kv_access_connection(void *ctx, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct kv_listener *listener = ctx;
    struct kv_httpd *httpd = listener->httpd;
    bool started = code == MHD_CONNECTION_NOTIFY_STARTED;
    started ? atomic_fetch_add(&httpd->connected, 1) : atomic_fetch_sub(&httpd->connected, 1);
    atomic_store(&httpd->last_ns, kv_now_ns(httpd->conf.env));
    kv_reaper_connection(httpd->reaper, connection, socket_context, started);
}

/* Targets are compared as they were sent; nothing is decoded behind the guard's back. */
size_t kv_access_unescape(void *ctx, struct MHD_Connection *connection, char *text)
{
    (void)ctx;
    (void)connection;
    return strlen(text);
}

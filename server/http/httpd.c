/*
 * The listeners over libmicrohttpd. A request's life:
 *
 *   target seen ─► NEW ─ guard, route ─► BODY ─ upload complete ─► QUEUED (suspended) ─ service thread ─► ANSWERED
 * (resumed) ─► DONE └─ refused ──────────────────────────────────────────────────────────────────────► ANSWERED
 *
 * Must never answer a connection twice, resume one that is not suspended, or stop the library while one is suspended.
 */
#include "server/http/httpd.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/base/queue.h"
#include "server/http/problem.h"
#include "server/http/reaper.h"
#include "server/http/worker.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define POOL_BYTES (32u * 1024)
#define THREADS_MAX 64

struct listener {
    struct kv_httpd *httpd;
    struct MHD_Daemon *daemon;
    unsigned kind; /* KV_ROUTE_API or KV_ROUTE_ADMIN */
    int fd;
    unsigned port;
};

enum { LISTEN_API, LISTEN_ADMIN, LISTEN_SOCKET, LISTENERS };

struct kv_httpd {
    struct kv_httpd_conf conf;
    struct listener listeners[LISTENERS];
    struct kv_queue *queue;
    struct kv_reaper *reaper;
    _Atomic(struct kv_svc *) svc;
    pthread_t threads[THREADS_MAX];
    unsigned thread_count;
    atomic_uint running; /* requests between the queue's push and their resume */
};

struct kv_svc *kv_httpd_svc(struct kv_httpd *httpd)
{
    return atomic_load(&httpd->svc);
}

const struct kv_env *kv_httpd_env(const struct kv_httpd *httpd)
{
    return httpd->conf.env;
}

unsigned kv_httpd_port(const struct kv_httpd *httpd)
{
    return httpd->listeners[LISTEN_API].port;
}

unsigned kv_httpd_admin_port(const struct kv_httpd *httpd)
{
    return httpd->listeners[LISTEN_ADMIN].port;
}

/* --- answering --------------------------------------------------------------------------------------------------- */

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    if (MHD_add_response_header(response, name, value) != MHD_YES) {
        kv_log(KV_LOG_WARN, "http", "header-not-added", KV_FT("name", name));
    }
}

static void add_headers(struct MHD_Response *response, const struct kv_req *req)
{
    const struct kv_response *answer = &req->response;
    char text[32];
    add_header(response, "X-Request-Id", req->request_id[0] == '\0' ? "none" : req->request_id);
    add_header(response, "X-Content-Type-Options", "nosniff");
    add_header(response, "Cache-Control", "no-store");
    add_header(response, "Referrer-Policy", "no-referrer");
    if (answer->content_type != NULL && answer->status != 204) {
        add_header(response, "Content-Type", answer->content_type);
    }
    if (answer->status == 401) {
        add_header(response, "WWW-Authenticate", "Bearer realm=\"kvrun\", error=\"invalid_token\"");
    }
    if (answer->retry_after_seconds > 0) {
        snprintf(text, sizeof text, "%u", answer->retry_after_seconds);
        add_header(response, "Retry-After", text);
    }
    if (answer->location[0] != '\0') {
        add_header(response, "Location", answer->location);
    }
    if (answer->allow[0] != '\0') {
        add_header(response, "Allow", answer->allow);
    }
    if (answer->close) {
        add_header(response, "Connection", "close");
    }
}

static enum MHD_Result send_answer(struct kv_req *req, struct MHD_Connection *connection)
{
    struct kv_buf *body = &req->response.body;
    KV_ASSERT(req->state == KV_REQ_ANSWERED);
    req->state = KV_REQ_DONE;
    kv_http_count(req, kv_now_ns(req->httpd->conf.env));
    size_t len = req->response.status == 204 ? 0 : body->len;
    struct MHD_Response *response = MHD_create_response_from_buffer(len, body->data, MHD_RESPMEM_MUST_COPY);
    if (response == NULL) {
        return MHD_NO;
    }
    add_headers(response, req);
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

static const char *length_header(struct MHD_Connection *connection)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
}

static bool has_upload(struct MHD_Connection *connection)
{
    const char *length = length_header(connection);
    bool chunked = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Transfer-Encoding") != NULL;
    return chunked || (length != NULL && strcmp(length, "0") != 0);
}

static bool too_long(struct MHD_Connection *connection)
{
    const char *length = length_header(connection);
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

static enum MHD_Result first_call(struct listener *listener, struct kv_req *req, struct MHD_Connection *connection,
                                  const char *method, const char *version)
{
    struct kv_errinfo info = {0};
    bool upload = has_upload(connection); /* an early answer leaves it unread, so the connection must close */
    req->connection = connection;
    req->begun_ns = kv_now_ns(req->httpd->conf.env);
    enum kv_err rc = kv_req_guard(req, connection, method, version, &info);
    if (rc != KV_OK) {
        return refuse(req, connection, rc, &info, true);
    }
    if (strcmp(req->path, "*") == 0) {
        snprintf(req->response.allow, sizeof req->response.allow, "GET, HEAD, POST, DELETE, OPTIONS");
        req->response.close = upload;
        return answer_options(req, connection);
    }
    rc = kv_route_find(listener->kind, req->method, req->path, req->captures, req->response.allow, &req->route);
    if (rc != KV_OK) {
        return refuse(req, connection, rc, NULL, upload);
    }
    if (req->route == NULL) {
        req->response.close = upload;
        return answer_options(req, connection);
    }
    if (too_long(connection)) {
        rc = kv_fail(&info, KV_E_BODY_TOO_LARGE, "at most %d bytes", (int)KV_MAX_BODY_BYTES);
        return refuse(req, connection, rc, &info, true);
    }
    req->state = KV_REQ_BODY;
    return MHD_YES;
}

/* Past the limit the rest is read and dropped for a while, so that the caller gets to read the 413; then the connection
 * ends. */
static enum MHD_Result take_body(struct kv_req *req, const char *data, size_t *size)
{
    if (req->body.len + *size > (size_t)KV_MAX_BODY_BYTES || req->drained > 0) {
        req->drained += *size;
    } else {
        kv_buf_append(&req->body, data, *size);
    }
    *size = 0;
    return req->drained > (uint64_t)KV_MAX_BODY_DRAIN_BYTES ? MHD_NO : MHD_YES;
}

static enum MHD_Result answer_inline(struct kv_req *req, struct MHD_Connection *connection)
{
    kv_worker_run(NULL, req);
    req->state = KV_REQ_ANSWERED;
    return send_answer(req, connection);
}

static enum MHD_Result enqueue(struct kv_req *req, struct MHD_Connection *connection)
{
    struct kv_httpd *httpd = req->httpd;
    struct kv_errinfo info = {0};
    if (kv_httpd_svc(httpd) == NULL) {
        enum kv_err rc = kv_fail(&info, KV_E_BUSY, "the server is starting; see /startupz");
        return refuse(req, connection, rc, &info, false);
    }
    /* Suspended before the push: a service thread may finish, and resume, before this function returns. */
    req->state = KV_REQ_QUEUED;
    atomic_fetch_add(&httpd->running, 1);
    MHD_suspend_connection(connection);
    enum kv_err rc = kv_queue_push(httpd->queue, req);
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
    if (req->drained > 0) {
        enum kv_err rc = kv_fail(&info, KV_E_BODY_TOO_LARGE, "at most %d bytes", (int)KV_MAX_BODY_BYTES);
        return refuse(req, connection, rc, &info, true);
    }
    if (kv_buf_check(&req->body) != KV_OK) {
        return refuse(req, connection, KV_E_BUSY, NULL, true);
    }
    return (req->route->flags & KV_ROUTE_INLINE) != 0 ? answer_inline(req, connection) : enqueue(req, connection);
}

static enum MHD_Result on_access(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                 const char *version, const char *upload, size_t *upload_size, void **request)
{
    struct listener *listener = ctx;
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
        return body_complete(req, connection);
    case KV_REQ_ANSWERED:
        return send_answer(req, connection);
    case KV_REQ_QUEUED:
    case KV_REQ_DONE:
        *upload_size = 0; /* nothing is due; what is still uploaded after an early answer is dropped */
        return MHD_YES;
    }
    return MHD_NO;
}

static void *on_target(void *ctx, const char *target, struct MHD_Connection *connection)
{
    struct listener *listener = ctx;
    (void)connection;
    return kv_req_new(listener->httpd, target);
}

static void on_completed(void *ctx, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode code)
{
    struct listener *listener = ctx;
    (void)code;
    kv_req_free(*request);
    *request = NULL;
    kv_reaper_request_done(listener->httpd->reaper, connection);
}

static void on_connection(void *ctx, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct listener *listener = ctx;
    kv_reaper_connection(listener->httpd->reaper, connection, socket_context, code == MHD_CONNECTION_NOTIFY_STARTED);
}

/* Targets are compared as they were sent; nothing is decoded behind the guard's back. */
static size_t keep_escapes(void *ctx, struct MHD_Connection *connection, char *text)
{
    (void)ctx;
    (void)connection;
    return strlen(text);
}

static void on_library_log(void *ctx, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));
static void on_library_log(void *ctx, const char *format, va_list arguments)
{
    char text[256];
    (void)ctx;
    vsnprintf(text, sizeof text, format, arguments);
    kv_log(KV_LOG_DEBUG, "http", "library", KV_FT("text", text));
}

/* --- service threads --------------------------------------------------------------------------------------------- */

static void *serve_queue(void *arg)
{
    struct kv_httpd *httpd = arg;
    struct kv_call call;
    if (kv_call_init(kv_httpd_svc(httpd), &call) != KV_OK) {
        kv_log(KV_LOG_ERROR, "http", "service-thread-failed");
        return NULL;
    }
    for (struct kv_req *req = kv_queue_pop(httpd->queue); req != NULL; req = kv_queue_pop(httpd->queue)) {
        struct MHD_Connection *connection = req->connection;
        kv_call_reset(&call);
        kv_worker_run(&call, req);
        req->state = KV_REQ_ANSWERED;
        MHD_resume_connection(connection); /* from here on the request is the listener's */
        atomic_fetch_sub(&httpd->running, 1);
    }
    kv_call_done(&call);
    return NULL;
}

KV_RC kv_httpd_serve(struct kv_httpd *httpd, struct kv_svc *svc, struct kv_errinfo *info)
{
    atomic_store(&httpd->svc, svc);
    while (httpd->thread_count < httpd->conf.threads && httpd->thread_count < THREADS_MAX) {
        if (pthread_create(&httpd->threads[httpd->thread_count], NULL, serve_queue, httpd) != 0) {
            return kv_fail(info, KV_E_NO_MEMORY, "cannot start a service thread");
        }
        pthread_setname_np(httpd->threads[httpd->thread_count], "kv-service");
        httpd->thread_count++;
    }
    return KV_OK;
}

/* --- listening --------------------------------------------------------------------------------------------------- */

static KV_RC bind_tcp(const char *address, struct kv_errinfo *info, int *ret_fd, unsigned *ret_port)
{
    char host[64];
    const char *colon = strrchr(address, ':');
    unsigned port = 0;
    struct sockaddr_in at = {.sin_family = AF_INET};
    if (colon == NULL || (size_t)(colon - address) >= sizeof host || sscanf(colon + 1, "%5u", &port) != 1 ||
        port > 65535) {
        return kv_fail(info, KV_E_CONFIG, "\"%.60s\" is not an address; write 127.0.0.1:7433", address);
    }
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    at.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1 || (ntohl(at.sin_addr.s_addr) >> 24) != 127) {
        return kv_fail(info, KV_E_CONFIG, "%.60s is not a loopback address; this version listens on 127.0.0.0/8 only",
                       host);
    }
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = sizeof at;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, (struct sockaddr *)&at, size) != 0 || listen(fd, 511) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
        enum kv_err rc = kv_fail(info, KV_E_CONFIG, "cannot listen on %.60s: %s", address, strerror(errno));
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    *ret_port = ntohs(at.sin_port);
    return KV_OK;
}

static KV_RC bind_unix(const char *path, struct kv_errinfo *info, int *ret_fd)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path) {
        return kv_fail(info, KV_E_CONFIG, "the socket's path is over %zu bytes; set http.socket to a shorter one",
                       sizeof at.sun_path - 1);
    }
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || chmod(path, 0660) != 0 || listen(fd, 511) != 0) {
        enum kv_err rc = kv_fail(info, KV_E_CONFIG, "cannot listen on the engine socket: %s", strerror(errno));
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return KV_OK;
}

static KV_RC start_listener(struct kv_httpd *httpd, struct listener *listener, unsigned kind, struct kv_errinfo *info)
{
    listener->kind = kind;
    listener->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        on_access, listener, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL, MHD_OPTION_LISTEN_SOCKET, listener->fd,
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK, on_target, listener, MHD_OPTION_UNESCAPE_CALLBACK,
        keep_escapes, NULL, MHD_OPTION_NOTIFY_COMPLETED, on_completed, listener, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, listener, MHD_OPTION_CONNECTION_LIMIT, httpd->conf.connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(httpd->conf.idle_timeout_ms / 1000), MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
        MHD_OPTION_END);
    return listener->daemon != NULL ? KV_OK : kv_fail(info, KV_E_INTERNAL, "the HTTP library did not start");
}

static KV_RC start_listeners(struct kv_httpd *httpd, struct kv_errinfo *info)
{
    struct listener *api = &httpd->listeners[LISTEN_API], *admin = &httpd->listeners[LISTEN_ADMIN],
                    *sock = &httpd->listeners[LISTEN_SOCKET];
    KV_TRY(bind_tcp(httpd->conf.listen, info, &api->fd, &api->port));
    KV_TRY(start_listener(httpd, api, KV_ROUTE_API, info));
    KV_TRY(bind_tcp(httpd->conf.admin_listen, info, &admin->fd, &admin->port));
    KV_TRY(start_listener(httpd, admin, KV_ROUTE_ADMIN, info));
    if (httpd->conf.socket == NULL) {
        return KV_OK;
    }
    KV_TRY(bind_unix(httpd->conf.socket, info, &sock->fd));
    return start_listener(httpd, sock, KV_ROUTE_API, info);
}

KV_RC kv_httpd_start(const struct kv_httpd_conf *conf, struct kv_errinfo *info, struct kv_httpd **ret_httpd)
{
    struct kv_httpd *httpd = kv_alloc(sizeof *httpd);
    if (httpd == NULL) {
        return KV_E_NO_MEMORY;
    }
    httpd->conf = *conf;
    for (int i = 0; i < LISTENERS; i++) {
        httpd->listeners[i].httpd = httpd;
        httpd->listeners[i].fd = -1;
    }
    kv_http_metrics_init();
    kv_probes_init(httpd);
    enum kv_err rc = kv_queue_new((size_t)KV_MAX_SERVICE_QUEUE, &httpd->queue);
    if (rc == KV_OK) {
        rc = kv_reaper_new(conf->env, conf->header_timeout_ms, conf->idle_timeout_ms, &httpd->reaper);
    }
    if (rc == KV_OK) {
        rc = start_listeners(httpd, info);
    }
    if (rc != KV_OK) {
        kv_httpd_stop(httpd);
        return rc;
    }
    *ret_httpd = httpd;
    return KV_OK;
}

/* --- the end ----------------------------------------------------------------------------------------------------- */

KV_RC kv_httpd_quiesce(struct kv_httpd *httpd, uint64_t grace_ns)
{
    uint64_t deadline = kv_now_ns(httpd->conf.env) + grace_ns;
    for (int i = 0; i < LISTENERS; i++) {
        if (httpd->listeners[i].daemon != NULL &&
            MHD_quiesce_daemon(httpd->listeners[i].daemon) != MHD_INVALID_SOCKET) {
            close(httpd->listeners[i].fd);
            httpd->listeners[i].fd = -1;
        }
    }
    while (atomic_load(&httpd->running) > 0 && kv_now_ns(httpd->conf.env) < deadline) {
        struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    return atomic_load(&httpd->running) == 0 ? KV_OK : KV_E_TIMEOUT;
}

void kv_httpd_stop(struct kv_httpd *httpd)
{
    if (httpd == NULL) {
        return;
    }
    if (httpd->queue != NULL) {
        kv_queue_close(httpd->queue); /* the threads answer what is queued, then end: nothing stays suspended */
    }
    for (unsigned i = 0; i < httpd->thread_count; i++) {
        pthread_join(httpd->threads[i], NULL);
    }
    for (int i = 0; i < LISTENERS; i++) {
        if (httpd->listeners[i].daemon != NULL) {
            MHD_stop_daemon(httpd->listeners[i].daemon);
        } else if (httpd->listeners[i].fd >= 0) {
            close(httpd->listeners[i].fd);
        }
    }
    if (httpd->conf.socket != NULL) {
        unlink(httpd->conf.socket);
    }
    kv_probes_done(httpd);
    kv_reaper_free(httpd->reaper);
    kv_queue_free(httpd->queue);
    kv_free(httpd);
}

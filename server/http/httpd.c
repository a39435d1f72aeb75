/*
 * The listeners' life over libmicrohttpd: bind, start, hand requests to service threads, stop. What happens to a
 * request is in access.c. Must never stop the library while a connection is suspended.
 */
#include "server/http/access.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/secret.h"
#include "server/http/count.h"
#include "server/http/line.h"
#include "server/http/listen.h"
#include "server/http/once.h"
#include "server/http/parking.h"
#include "server/http/reaper.h"
#include "server/http/tls.h"
#include "server/http/worker.h"

#include <errno.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG 511
#define LIBRARY_ACCEPTS 16         /* what the library may take in while it is told to take in nobody */
#define SETTLE_NS (200 * KV_MS_NS) /* of silence on a connection that is kept open */
#define FAREWELL_NS (1 * KV_S_NS)
#define POOL_BYTES (32u * 1024)
/* Up to 0.9.75 being strict only means that the library refuses a missing Host itself, and it writes the head of its
 * own refusals twice; the guard does it with a proper document. Later versions refuse much more, and once. */
#define STRICT (MHD_VERSION > 0x00097500 ? 1 : 0)

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

void kv_httpd_set_rates(struct kv_httpd *httpd, const struct kv_httpd_rates *rates)
{
    kv_rate_set(httpd->rate, KV_RATE_USUAL, rates->usual);
    kv_rate_set(httpd->rate, KV_RATE_ERASE, rates->erase);
    kv_rate_set(httpd->rate, KV_RATE_PEER, rates->peer);
    kv_rate_set(httpd->rate, KV_RATE_STRANGER, rates->stranger);
    kv_rate_set(httpd->rate, KV_RATE_STRANGER_ERASE, rates->stranger);
}

static void on_library_log(void *ctx, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));
static void on_library_log(void *ctx, const char *format, va_list arguments)
{
    char text[256];
    (void)ctx;
    vsnprintf(text, sizeof text, format, arguments);
    kv_log(KV_LOG_DEBUG, "http", "library", KV_FT("text", text));
}

unsigned kv_httpd_connections(struct kv_httpd *httpd, unsigned listener)
{
    struct MHD_Daemon *daemon = httpd->listeners[listener].daemon;
    const union MHD_DaemonInfo *info =
        daemon == NULL ? NULL : MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info == NULL ? 0 : info->num_connections;
}

/* --- service threads --------------------------------------------------------------------------------------------- */

static void work(struct kv_httpd *httpd, struct kv_call *call, struct kv_req *req)
{
    struct kv_work item = {.req = req};
    pthread_mutex_lock(&httpd->work_mutex);
    LIST_INSERT_HEAD(&httpd->work, &item, link);
    pthread_mutex_unlock(&httpd->work_mutex);
    kv_worker_run(call, req);
    pthread_mutex_lock(&httpd->work_mutex);
    LIST_REMOVE(&item, link);
    pthread_mutex_unlock(&httpd->work_mutex);
    kv_forget(); /* a thread sleeps with what it copied last in its registers */
}

/* One request, until it is answered or waits elsewhere. */
static void serve(struct kv_httpd *httpd, struct kv_call *call, struct kv_req *req)
{
    do {
        kv_call_reset(call);
        work(httpd, call, req);
        if (req->parks && kv_parking_take(httpd->parking, req)) {
            return;
        }
    } while (req->parks);
    struct MHD_Connection *connection = req->connection;
    req->state = KV_REQ_ANSWERED;
    MHD_resume_connection(connection); /* from here on the request is the listener's */
    atomic_fetch_sub(&httpd->running, 1);
}

static void serve_line(struct kv_httpd *httpd, bool urgent_only)
{
    struct kv_call call;
    if (kv_call_init(kv_httpd_svc(httpd), &call) != KV_OK) {
        kv_log(KV_LOG_ERROR, "http", "service-thread-failed");
        return;
    }
    for (struct kv_req *req = kv_line_pop(httpd->line, urgent_only); req != NULL;
         req = kv_line_pop(httpd->line, urgent_only)) {
        serve(httpd, &call, req);
    }
    kv_call_done(&call);
}

static void *serve_all(void *arg)
{
    serve_line(arg, false);
    return NULL;
}

/* So that an erasure is accepted while everything else that is slow has all the other threads. */
static void *serve_urgent(void *arg)
{
    serve_line(arg, true);
    return NULL;
}

KV_RC kv_httpd_serve(struct kv_httpd *httpd, struct kv_svc *svc, struct kv_errinfo *info)
{
    atomic_store(&httpd->svc, svc);
    KV_TRY(kv_parking_start(httpd->parking, info));
    while (httpd->thread_count < httpd->conf.threads + 1 && httpd->thread_count < KV_HTTPD_THREADS_MAX + 1) {
        bool first = httpd->thread_count == 0;
        if (pthread_create(&httpd->threads[httpd->thread_count], NULL, first ? serve_urgent : serve_all, httpd) != 0) {
            return kv_fail(info, KV_E_NO_MEMORY, "cannot start a service thread");
        }
        pthread_setname_np(httpd->threads[httpd->thread_count], first ? "kv-urgent" : "kv-service");
        httpd->thread_count++;
    }
    return KV_OK;
}

/* --- listening --------------------------------------------------------------------------------------------------- */

static struct MHD_OptionItem text_option(enum MHD_OPTION option, const char *text)
{
    return (struct MHD_OptionItem){option, 0, (void *)(uintptr_t)text}; /* the library only reads it */
}

static KV_RC start_listener(struct kv_httpd *httpd, struct kv_listener *listener, unsigned kind,
                            struct kv_errinfo *info)
{
    bool tls = listener == &httpd->listeners[LISTEN_API] && httpd->tls != NULL;
    unsigned n = 0;
    struct MHD_OptionItem more[5] = {{MHD_OPTION_END, 0, NULL}};
    listener->kind = kind;
    if (httpd->conf.per_ip > 0) {
        more[n++] = (struct MHD_OptionItem){MHD_OPTION_PER_IP_CONNECTION_LIMIT, httpd->conf.per_ip, NULL};
    }
    if (tls) {
        more[n++] = text_option(MHD_OPTION_HTTPS_PRIORITIES, kv_tls_priorities(httpd->tls));
        more[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, kv_tls_retrieve()};
    }
    if (tls && kv_tls_client_ca(httpd->tls) != NULL) { /* so that clients are asked for one; judged in access.c */
        more[n++] = text_option(MHD_OPTION_HTTPS_MEM_TRUST, kv_tls_client_ca(httpd->tls));
    }
    more[n] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    listener->daemon = MHD_start_daemon(
        (tls ? (unsigned)MHD_USE_TLS : 0) | MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
            MHD_USE_ERROR_LOG,
        0, NULL, NULL, kv_access_access, listener, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, listener->fd, MHD_OPTION_STRICT_FOR_CLIENT, STRICT, MHD_OPTION_URI_LOG_CALLBACK,
        kv_access_target, listener, MHD_OPTION_UNESCAPE_CALLBACK, kv_access_unescape, NULL, MHD_OPTION_NOTIFY_COMPLETED,
        kv_access_completed, listener, MHD_OPTION_NOTIFY_CONNECTION, kv_access_connection, listener,
        MHD_OPTION_CONNECTION_LIMIT, httpd->conf.connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(httpd->conf.idle_timeout_ms / 1000), MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES,
        MHD_OPTION_ARRAY, more, MHD_OPTION_END);
    return listener->daemon != NULL ? KV_OK : kv_fail(info, KV_E_INTERNAL, "the HTTP library did not start");
}

static KV_RC start_listeners(struct kv_httpd *httpd, struct kv_errinfo *info)
{
    struct kv_listener *api = &httpd->listeners[LISTEN_API], *admin = &httpd->listeners[LISTEN_ADMIN],
                       *sock = &httpd->listeners[LISTEN_SOCKET];
    bool local = false;
    KV_TRY(kv_listen_tcp(httpd->conf.listen, info, &api->fd, &api->port, &local));
    if (!local && httpd->tls == NULL && !httpd->conf.insecure_listen) {
        return kv_fail(info, KV_E_CONFIG,
                       "http.listen is not loopback and API keys would cross the network in the clear: set "
                       "http.tls.cert_file and key_file, or http.insecure_listen=true behind a proxy with TLS");
    }
    if (!local && httpd->tls == NULL) {
        kv_log(KV_LOG_WARN, "http", "insecure-listen",
               KV_FT("text", "API keys are not encrypted here; a proxy in front has to do it"));
    }
    KV_TRY(start_listener(httpd, api, KV_ROUTE_API, info));
    KV_TRY(kv_listen_tcp(httpd->conf.admin_listen, info, &admin->fd, &admin->port, &local));
    if (!local) {
        kv_log(KV_LOG_WARN, "http", "admin-listener-is-not-loopback",
               KV_FT("text", "others than this machine see probes and, without metrics.auth, metrics"));
    }
    KV_TRY(start_listener(httpd, admin, KV_ROUTE_ADMIN, info));
    if (httpd->conf.socket == NULL) {
        return KV_OK;
    }
    unsigned mode = httpd->conf.socket_mode == 0 ? 0660 : httpd->conf.socket_mode;
    KV_TRY(kv_listen_unix(httpd->conf.socket, mode, info, &sock->fd));
    return start_listener(httpd, sock, KV_ROUTE_API, info);
}

KV_RC kv_httpd_start(const struct kv_httpd_conf *conf, struct kv_errinfo *info, struct kv_httpd **ret_httpd)
{
    struct kv_httpd *httpd = kv_alloc(sizeof *httpd);
    if (httpd == NULL) {
        return KV_E_NO_MEMORY;
    }
    httpd->conf = *conf;
    pthread_mutex_init(&httpd->work_mutex, NULL);
    kv_request_ids_init(&httpd->request_ids);
    LIST_INIT(&httpd->work);
    for (int i = 0; i < LISTENERS; i++) {
        httpd->listeners[i].httpd = httpd;
        httpd->listeners[i].fd = -1;
    }
    kv_http_metrics_init();
    kv_probes_init(httpd);
    enum kv_err rc = kv_line_new((size_t)KV_MAX_SERVICE_QUEUE, (size_t)KV_MAX_SERVICE_QUEUE_RESERVED, &httpd->line);
    if (rc == KV_OK) {
        rc = kv_parking_new(httpd, &httpd->parking);
    }
    if (rc == KV_OK) {
        rc = kv_reaper_new(conf->env, conf->header_timeout_ms, conf->idle_timeout_ms, &httpd->reaper);
    }
    if (rc == KV_OK) {
        rc = kv_rate_new(conf->env, &httpd->rate);
    }
    if (rc == KV_OK) {
        kv_httpd_set_rates(httpd, &conf->rates);
        rc = kv_secret_answers_new(conf->env, &httpd->secret_answers);
    }
    if (rc == KV_OK) {
        rc = kv_listen_uids_parse(conf->socket_allow_uids, info, &httpd->socket_uids);
    }
    if (rc == KV_OK && conf->tls.cert_file != NULL && conf->tls.cert_file[0] != '\0') {
        rc = kv_tls_new(&conf->tls, conf->env, info, &httpd->tls);
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

void kv_httpd_look_at_tls(struct kv_httpd *httpd, bool now)
{
    if (httpd->tls != NULL) {
        kv_tls_look(httpd->tls, now);
    }
}

/* --- the end ----------------------------------------------------------------------------------------------------- */

/* Who is not going to get an answer: a line each for those that are worked on, and how many never came to that. */
static void say_what_is_cut(struct kv_httpd *httpd)
{
    unsigned all = atomic_load(&httpd->running), working = 0;
    uint64_t now = kv_now_ns(httpd->conf.env);
    const struct kv_work *item = NULL;
    pthread_mutex_lock(&httpd->work_mutex);
    LIST_FOREACH(item, &httpd->work, link)
    {
        working++;
        kv_log(KV_LOG_WARN, "http", "cut-off", KV_FT("method", item->req->method),
               KV_FT("route", item->req->route->pattern), KV_FT("request_id", item->req->request_id),
               KV_FU("after_ms", (now - item->req->begun_ns) / KV_MS_NS));
    }
    pthread_mutex_unlock(&httpd->work_mutex);
    if (all > working) {
        kv_log(KV_LOG_WARN, "http", "cut-off-in-the-queue", KV_FU("requests", all - working));
    }
}

/* Callers that the kernel took in already are let in: their request may be under way, and closing the socket would
 * reset it. With a backlog of one hardly any come meanwhile. Never more than there is room for: what is handed over
 * here the library counts late, and it (0.9.75) stops for good when it finds its limit passed then. Its own thread may
 * be accepting just now, ten at a time. */
static void let_in_the_rest(struct kv_listener *listener)
{
    struct kv_httpd *httpd = listener->httpd;
    unsigned taken = kv_httpd_connections(httpd, (unsigned)(listener - httpd->listeners)) + LIBRARY_ACCEPTS;
    unsigned room = httpd->conf.connections > taken ? httpd->conf.connections - taken : 0;
    if (listen(listener->fd, 1) != 0) {
        return;
    }
    for (unsigned i = 0; i < BACKLOG && i < room; i++) {
        struct sockaddr_storage from;
        socklen_t size = sizeof from;
        int fd = accept4(listener->fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 || MHD_add_connection(listener->daemon, fd, (struct sockaddr *)&from, size) != MHD_YES) {
            return; /* the library closes what it does not take */
        }
    }
}

static void stop_accepting(struct kv_listener *listener)
{
    if (listener->daemon != NULL && MHD_quiesce_daemon(listener->daemon) != MHD_INVALID_SOCKET) {
        let_in_the_rest(listener);
        shutdown(listener->fd, SHUT_RDWR); /* refuses callers; its thread may still use the number, so it stays open */
        listener->quiesced = true;
    }
}

/* Nobody is owed an answer: no request is under way, and those who are still connected have said nothing for a while.
 */
static bool is_settled(struct kv_httpd *httpd, uint64_t now_ns)
{
    return atomic_load(&httpd->running) == 0 &&
           (atomic_load(&httpd->connected) == 0 || now_ns > atomic_load(&httpd->last_ns) + SETTLE_NS);
}

KV_RC kv_httpd_quiesce(struct kv_httpd *httpd, uint64_t grace_ns)
{
    uint64_t deadline = kv_now_ns(httpd->conf.env) + grace_ns;
    atomic_store(&httpd->last_ns, kv_now_ns(httpd->conf.env));
    atomic_store(&httpd->closing, true);
    for (int i = 0; i < LISTENERS; i++) {
        stop_accepting(&httpd->listeners[i]);
    }
    kv_parking_drain(httpd->parking);
    uint64_t farewell = kv_now_ns(httpd->conf.env) + FAREWELL_NS; /* for one who does not read it */
    farewell = farewell < deadline ? farewell : deadline;
    for (uint64_t now = kv_now_ns(httpd->conf.env);
         (!is_settled(httpd, now) && now < deadline) || (kv_parking_streams(httpd->parking) > 0 && now < farewell);
         now = kv_now_ns(httpd->conf.env)) {
        struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    if (atomic_load(&httpd->running) == 0) {
        return KV_OK;
    }
    say_what_is_cut(httpd);
    return KV_E_TIMEOUT;
}

void kv_httpd_stop(struct kv_httpd *httpd)
{
    if (httpd == NULL) {
        return;
    }
    if (httpd->parking != NULL) {
        kv_parking_drain(httpd->parking);
        kv_parking_stop(httpd->parking);
    }
    if (httpd->line != NULL) {
        kv_line_close(httpd->line); /* the threads answer what is in it, then end: nothing stays suspended */
    }
    for (unsigned i = 0; i < httpd->thread_count; i++) {
        pthread_join(httpd->threads[i], NULL);
    }
    for (int i = 0; i < LISTENERS; i++) {
        struct kv_listener *listener = &httpd->listeners[i];
        if (listener->daemon != NULL) {
            MHD_stop_daemon(listener->daemon); /* closes the socket unless it was quiesced */
        }
        if (listener->fd >= 0 && (listener->daemon == NULL || listener->quiesced)) {
            close(listener->fd);
        }
    }
    if (httpd->conf.socket != NULL) {
        unlink(httpd->conf.socket);
    }
    kv_probes_done(httpd);
    kv_parking_free(httpd->parking);
    kv_tls_free(httpd->tls);
    kv_reaper_free(httpd->reaper);
    kv_rate_free(httpd->rate);
    kv_secret_answers_free(httpd->secret_answers);
    kv_line_free(httpd->line);
    kv_request_ids_done(&httpd->request_ids);
    pthread_mutex_destroy(&httpd->work_mutex);
    kv_free(httpd);
}

const char *kv_httpd_library(void)
{
    return MHD_get_version();
}

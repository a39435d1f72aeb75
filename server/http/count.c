/* See count.h. Must never log or label with what a client chose, but for the request id and the trace id, whose
 * characters were checked. */
#include "server/http/count.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/metric.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (unsigned)(sizeof(array) / sizeof(array)[0])
#define ROUTES_MAX 160 /* the table and `other` */
#define CODE_CLASSES 5
#define LOG_ONE_IN 100

static const double seconds_bounds[] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10};

enum reject {
    REJECT_FRAMING,
    REJECT_TOO_LARGE,
    REJECT_QUEUE_FULL,
    REJECT_RATE_LIMITED,
    REJECT_AUTH,
    REJECT_AUTH_RATE,
    REJECT_ROUTE,
    REJECT_SLOW,
    REJECTS,
};
static const char *const reject_names[REJECTS] = {"framing", "too_large", "queue_full", "rate_limited",
                                                  "auth",    "auth_rate", "route",      "slow"};

/* Of one row of the table. Made at its first use: most servers see a few of the routes. */
struct route_series {
    _Atomic(struct kv_metric *) codes[CODE_CLASSES], seconds, request_bytes, response_bytes;
};

static struct route_series routes[ROUTES_MAX];
static struct kv_metric *rejects[REJECTS], *queue_wait, *dropped;

/* 0 is `other`; a row of the table is its place plus one. */
static unsigned index_of(const struct kv_req *req)
{
    size_t place = req->route == NULL ? ROUTES_MAX : (size_t)(req->route - kv_routes);
    return place + 1 < ROUTES_MAX ? (unsigned)place + 1 : 0;
}

static const char *method_of(const struct kv_req *req)
{
    return req->route == NULL ? "other" : req->route->method;
}

static const char *route_of(const struct kv_req *req)
{
    return req->route == NULL ? "other" : req->route->pattern;
}

static struct kv_metric *code_series(const struct kv_req *req, unsigned class)
{
    _Atomic(struct kv_metric *) *at = &routes[index_of(req)].codes[class];
    struct kv_metric *metric = atomic_load(at);
    if (metric == NULL) {
        char labels[160];
        snprintf(labels, sizeof labels, "method=\"%s\",route=\"%s\",code=\"%uxx\"", method_of(req), route_of(req),
                 class + 1);
        metric = kv_metric_counter("kvrun_http_requests_total", "Requests answered", labels);
        atomic_store(at, metric); /* two that come here at once got the same */
    }
    return metric;
}

static struct kv_metric *seconds_series(const struct kv_req *req)
{
    _Atomic(struct kv_metric *) *at = &routes[index_of(req)].seconds;
    struct kv_metric *metric = atomic_load(at);
    if (metric == NULL) {
        char labels[160];
        snprintf(labels, sizeof labels, "method=\"%s\",route=\"%s\"", method_of(req), route_of(req));
        metric =
            kv_metric_histogram("kvrun_http_request_duration_seconds", "Time from a request's headers to its answer",
                                labels, seconds_bounds, COUNT_OF(seconds_bounds));
        atomic_store(at, metric);
    }
    return metric;
}

static struct kv_metric *bytes_series(const struct kv_req *req, bool response)
{
    _Atomic(struct kv_metric *) *at =
        response ? &routes[index_of(req)].response_bytes : &routes[index_of(req)].request_bytes;
    struct kv_metric *metric = atomic_load(at);
    if (metric == NULL) {
        char labels[120]; /* several rows of the table may share a pattern, and this series */
        snprintf(labels, sizeof labels, "route=\"%s\"", route_of(req));
        metric = response ? kv_metric_counter("kvrun_http_response_bytes_total", "Bytes of answers' bodies", labels)
                          : kv_metric_counter("kvrun_http_request_bytes_total", "Bytes of requests' bodies", labels);
        atomic_store(at, metric);
    }
    return metric;
}

void kv_http_metrics_init(void)
{
    for (unsigned i = 0; i < REJECTS; i++) {
        char labels[48];
        snprintf(labels, sizeof labels, "reason=\"%s\"", reject_names[i]);
        rejects[i] = kv_metric_counter("kvrun_http_rejects_total", "Requests refused before a handler", labels);
    }
    dropped = kv_metric_counter("kvrun_events_dropped_total", "Events that readers were too slow for", NULL);
    queue_wait = kv_metric_histogram("kvrun_service_wait_seconds", "Time a request waited for a service thread", NULL,
                                     seconds_bounds, COUNT_OF(seconds_bounds));
    const struct kv_req other = {.route = NULL};
    for (unsigned class = 0; class < CODE_CLASSES; class ++) {
        code_series(&other, class);
    }
    seconds_series(&other);
    bytes_series(&other, false);
    bytes_series(&other, true);
}

/* --- the log line ------------------------------------------------------------------------------------------------ */

/* What succeeds on the data plane, and probes, come often and all look alike. */
static bool is_logged(const struct kv_req *req)
{
    bool often = req->route != NULL && (req->route->flags & (KV_ROUTE_BULK | KV_ROUTE_INLINE)) != 0;
    return !often || req->response.status >= 400 ||
           atomic_fetch_add_explicit(&req->httpd->log_turn, 1, memory_order_relaxed) % LOG_ONE_IN == 0;
}

static void log_request(const struct kv_req *req, uint64_t sent, uint64_t took_ns)
{
    bool known = !kv_id_is_zero(&req->key);
    kv_log_often(req->response.status >= 500 ? KV_LOG_WARN : KV_LOG_INFO, "http", "request",
                 KV_FT("req", req->request_id[0] == '\0' ? NULL : req->request_id),
                 KV_FT("trace_id", req->trace.present ? req->trace.id : NULL), KV_FT("method", method_of(req)),
                 KV_FT("route", route_of(req)), KV_FU("status", req->response.status), KV_FU("dur_us", took_ns / 1000),
                 KV_FU("bytes", sent), KV_FID("key_id", "key", known ? &req->key : NULL));
}

void kv_http_count(struct kv_req *req, uint64_t sent, uint64_t now_ns)
{
    const struct kv_env *env = req->httpd->conf.env;
    uint64_t took_ns = now_ns - req->begun_ns;
    int class = req->response.status / 100 - 1;
    uint8_t trace[KV_TRACE_BYTES] = {0};
    if (req->trace.present && kv_hex_decode(req->trace.id, trace, sizeof trace) != KV_OK) {
        memset(trace, 0, sizeof trace);
    }
    if (class >= 0 && class < CODE_CLASSES) {
        kv_metric_add(code_series(req, (unsigned)class), 1);
    }
    kv_metric_observe_traced(seconds_series(req), (double)took_ns / 1e9, trace, env->realtime_us(env->ctx));
    kv_metric_add(bytes_series(req, false), req->body.len);
    kv_metric_add(bytes_series(req, true), sent);
    if (is_logged(req)) {
        log_request(req, sent, took_ns);
    }
}

void kv_http_count_dropped(uint64_t events)
{
    kv_metric_add(dropped, events);
}

void kv_http_count_wait(uint64_t queue_ns)
{
    kv_metric_observe(queue_wait, (double)queue_ns / 1e9);
}

static enum reject reject_of(enum kv_err rc)
{
    switch (rc) {
    case KV_E_BODY_TOO_LARGE:
    case KV_E_HEADERS_TOO_LARGE:
        return REJECT_TOO_LARGE;
    case KV_E_BUSY:
    case KV_E_SHUTTING_DOWN:
    case KV_E_STARTING:
        return REJECT_QUEUE_FULL;
    case KV_E_RATE_LIMITED:
        return REJECT_RATE_LIMITED;
    case KV_E_UNAUTHENTICATED:
    case KV_E_FORBIDDEN:
        return REJECT_AUTH;
    case KV_E_NOT_FOUND:
    case KV_E_METHOD_NOT_ALLOWED:
        return REJECT_ROUTE;
    case KV_E_TIMEOUT:
        return REJECT_SLOW;
    default:
        return REJECT_FRAMING;
    }
}

void kv_http_count_reject(enum kv_err rc)
{
    kv_metric_add(rejects[reject_of(rc)], 1);
}

void kv_http_count_stranger(void)
{
    kv_metric_add(rejects[REJECT_AUTH_RATE], 1);
}

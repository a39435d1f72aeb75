/* See worker.h. Must never run a handler for a caller that the route table does not name. */
#include "server/http/worker.h"

#include "dataplane/base/log.h"
#include "dataplane/base/metric.h"
#include "server/http/problem.h"

#include <stdio.h>
#include <string.h>

static const double seconds_bounds[] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10};
#define CODE_CLASSES 5

static struct kv_metric *requests[CODE_CLASSES], *seconds, *rejects[3];

void kv_http_metrics_init(void)
{
    for (int i = 0; i < CODE_CLASSES; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "code=\"%dxx\"", i + 1);
        requests[i] = kv_metric_counter("kvrun_http_requests_total", "HTTP requests by class of answer", labels);
    }
    seconds =
        kv_metric_histogram("kvrun_http_request_duration_seconds", "Time from the request's headers to its answer",
                            NULL, seconds_bounds, sizeof seconds_bounds / sizeof seconds_bounds[0]);
    rejects[0] = kv_metric_counter("kvrun_http_rejects_total", "Requests refused before a handler", "reason=\"guard\"");
    rejects[1] =
        kv_metric_counter("kvrun_http_rejects_total", "Requests refused before a handler", "reason=\"queue_full\"");
    rejects[2] = kv_metric_counter("kvrun_http_rejects_total", "Requests refused before a handler", "reason=\"auth\"");
}

void kv_http_count(const struct kv_req *req, uint64_t now_ns)
{
    int class = req->response.status / 100;
    if (class >= 1 && class <= CODE_CLASSES) {
        kv_metric_add(requests[class - 1], 1);
    }
    kv_metric_observe(seconds, (double)(now_ns - req->begun_ns) / 1e9);
}

void kv_http_count_reject(enum kv_err rc)
{
    kv_metric_add(rejects[rc == KV_E_BUSY ? 1 : rc == KV_E_UNAUTHENTICATED || rc == KV_E_FORBIDDEN ? 2 : 0], 1);
}

static bool wants_body(const struct kv_req *req)
{
    return strcmp(req->route->method, "POST") == 0 && req->body.len > 0;
}

static KV_RC check_types(struct kv_call *call, const struct kv_req *req)
{
    struct kv_errinfo *info = call == NULL ? NULL : &call->info;
    if (wants_body(req) && !req->json_body) {
        return kv_fail(info, KV_E_UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/json");
    }
    if (!wants_body(req) && req->body.len > 0) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "this route takes no body");
    }
    if (!req->accepts_json && (req->route->flags & KV_ROUTE_ANY_ACCEPT) == 0) {
        return kv_fail(info, KV_E_NOT_ACCEPTABLE, "this route answers application/json");
    }
    return KV_OK;
}

static KV_RC authorise(struct kv_call *call, struct kv_req *req)
{
    if ((req->route->flags & KV_ROUTE_PUBLIC) != 0) {
        return KV_OK;
    }
    enum kv_err rc = kv_svc_authenticate(call, req->has_bearer ? req->bearer : "");
    if (rc == KV_OK && (call->who.roles & req->route->roles) == 0) {
        rc = kv_fail(&call->info, KV_E_FORBIDDEN, "this key's roles do not include one that may call this route");
    }
    if (rc == KV_OK && (req->route->flags & KV_ROUTE_TENANT) != 0 && (call->who.roles & KV_ROLE_OPERATOR) != 0) {
        rc = kv_fail(&call->info, KV_E_FORBIDDEN,
                     "this route needs a tenant's key; make one with POST /v1/tenants/{id}/api-keys");
    }
    if (rc == KV_E_UNAUTHENTICATED || rc == KV_E_FORBIDDEN) {
        kv_http_count_reject(rc);
    }
    return rc;
}

static KV_RC handle(struct kv_call *call, struct kv_req *req)
{
    if (call != NULL) {
        KV_TRY(authorise(call, req));
    }
    KV_TRY(check_types(call, req));
    req->response.status = 200;
    req->response.content_type = "application/json";
    KV_TRY(req->route->handler(call, req));
    return kv_buf_check(&req->response.body);
}

void kv_worker_run(struct kv_call *call, struct kv_req *req)
{
    enum kv_err rc = handle(call, req);
    if (rc == KV_OK) {
        return;
    }
    enum kv_err_class class = kv_err_class_of(rc);
    if (class == KV_CLASS_INTERNAL || class == KV_CLASS_INTEGRITY) {
        kv_log(KV_LOG_ERROR, "http", "request-failed", KV_FT("req", req->request_id),
               KV_FT("route", req->route->pattern), KV_FRC(rc), KV_FT("text", call == NULL ? "" : call->info.text));
    }
    kv_problem(req, rc, call == NULL ? NULL : &call->info, call == NULL ? NULL : &call->erasure);
}

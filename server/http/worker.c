/* See worker.h. Must never run a handler for a caller that the route table does not name. */
#include "server/http/worker.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "server/http/count.h"
#include "server/http/manners.h"
#include "server/http/once.h"
#include "server/http/parking.h"
#include "server/http/problem.h"
#include "server/http/query.h"

#include <stdio.h>
#include <string.h>

/* --- what a route takes ------------------------------------------------------------------------------------------ */

static bool is_method(const struct kv_req *req, const char *method)
{
    return strcmp(req->route->method, method) == 0;
}

static bool may_have_body(const struct kv_req *req)
{
    return is_method(req, "POST") || is_method(req, "PUT") || is_method(req, "PATCH");
}

static KV_RC check_types(const struct kv_req *req, struct kv_errinfo *info)
{
    enum kv_body_type wanted = is_method(req, "PATCH") ? KV_BODY_MERGE_PATCH : KV_BODY_JSON;
    if (!may_have_body(req) && req->body.len > 0) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "this route takes no body");
    }
    if (req->body.len > 0 && req->body_type != wanted && (req->route->flags & KV_ROUTE_ANY_BODY) == 0) {
        return kv_fail(info, KV_E_UNSUPPORTED_MEDIA_TYPE, "send Content-Type: application/%s",
                       wanted == KV_BODY_JSON ? "json" : "merge-patch+json");
    }
    if (!req->accepts_json && (req->route->flags & KV_ROUTE_ANY_ACCEPT) == 0) {
        return kv_fail(info, KV_E_NOT_ACCEPTABLE, "this route answers application/json");
    }
    return KV_OK;
}

static bool needs_match(const struct kv_req *req)
{
    enum kv_match_rule rule = req->httpd->conf.require_if_match;
    return rule == KV_MATCH_ALL ||
           (rule == KV_MATCH_POLICY && is_method(req, "PUT")); /* policies are all that is PUT */
}

static KV_RC check_match(struct kv_call *call, const struct kv_req *req)
{
    bool reads = is_method(req, "GET");
    if ((req->route->flags & KV_ROUTE_MATCH) == 0) {
        return reads || req->given.if_match == NULL
                   ? KV_OK
                   : kv_fail(&call->info, KV_E_INVALID_REQUEST,
                             "what this route changes has no revision; send it without If-Match");
    }
    KV_TRY(kv_match_parse(req->given.if_match, &call->match, &call->info));
    if (!call->match.present && !call->dry_run && needs_match(req)) {
        return kv_fail(&call->info, KV_E_PRECONDITION_REQUIRED,
                       "read the resource and send its ETag as If-Match (http.require_if_match)");
    }
    return KV_OK;
}

/* --- who asks ---------------------------------------------------------------------------------------------------- */

/* The one public route that may ask for a key, by configuration. */
static bool is_guarded(const struct kv_req *req)
{
    return (req->route->flags & KV_ROUTE_METRICS) != 0 && req->httpd->conf.metrics_auth;
}

/* For a bucket by address: of an IPv6 address the network, because the rest is the caller's to choose. */
static void address_of(const struct kv_req *req, uint8_t ret_who[16])
{
    bool v4 = memcmp(req->peer, (const uint8_t[]){0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 12) == 0;
    memset(ret_who, 0, 16);
    memcpy(ret_who, req->peer, v4 ? 16 : 8);
}

static KV_RC refuse_stranger(struct kv_call *call)
{
    kv_http_count_stranger();
    return kv_fail(&call->info, KV_E_RATE_LIMITED, "too many requests without a valid key from this address");
}

/* Who sends no valid key has a bucket by address; when it is empty, only keys that are in memory pass, and the database
 * is asked about no other. What erases has a bucket of its own here, too. On the UNIX socket nobody is a stranger. */
static KV_RC authenticate(struct kv_call *call, struct kv_req *req)
{
    uint8_t who[16];
    struct kv_rate_state state = {0};
    bool erases = (req->route->flags & KV_ROUTE_RESERVED) != 0;
    enum kv_rate_kind kind = erases ? KV_RATE_STRANGER_ERASE : KV_RATE_STRANGER;
    address_of(req, who);
    call->known_keys_only = req->has_peer && !kv_rate_is_left(req->httpd->rate, kind, who);
    enum kv_err rc = kv_svc_authenticate(call, req->has_bearer ? req->bearer : "");
    if (rc == KV_E_RATE_LIMITED ||
        (rc == KV_E_UNAUTHENTICATED && req->has_peer && !kv_rate_take(req->httpd->rate, kind, who, &state))) {
        return refuse_stranger(call);
    }
    return rc;
}

static KV_RC authorise(struct kv_call *call, struct kv_req *req)
{
    unsigned roles = is_guarded(req) ? KV_ROLE_METRICS | KV_ROLE_OPERATOR | KV_ROLE_VIEWER : req->route->roles;
    if ((req->route->flags & KV_ROUTE_PUBLIC) != 0 && !is_guarded(req)) {
        return KV_OK;
    }
    enum kv_err rc = authenticate(call, req);
    if (rc == KV_OK && (call->who.roles & roles) == 0) {
        kv_svc_count_role_refused();
        rc = kv_fail(&call->info, KV_E_FORBIDDEN, "this key's roles do not include one that may call this route");
    }
    if (rc == KV_OK && (req->route->flags & KV_ROUTE_TENANT) != 0 && kv_id_is_zero(&call->who.tenant)) {
        rc = kv_fail(&call->info, KV_E_FORBIDDEN,
                     "this route needs a tenant's key; make one with POST /v1/tenants/{id}/api-keys");
    }
    if (rc == KV_E_UNAUTHENTICATED || rc == KV_E_FORBIDDEN) {
        kv_http_count_reject(rc);
    }
    return rc;
}

/* One bucket a caller; what erases has its own, so that nothing else can use it up. The data plane's calls are bounded
 * by their queue. */
static KV_RC check_rate(struct kv_call *call, struct kv_req *req)
{
    unsigned flags = req->route->flags;
    uint8_t who[16] = {0};
    enum kv_rate_kind kind = (flags & KV_ROUTE_RESERVED) != 0 ? KV_RATE_ERASE : KV_RATE_USUAL;
    if ((flags & KV_ROUTE_BULK) != 0) {
        return KV_OK;
    }
    if ((flags & KV_ROUTE_PUBLIC) != 0) {
        kind = KV_RATE_PEER;
        address_of(req, who);
    } else {
        memcpy(who, &call->who.key, sizeof who);
    }
    if (req->rated) {
        return KV_OK;
    }
    if (kv_rate_take(req->httpd->rate, kind, who, &req->response.rate)) {
        req->rated = true;
        return KV_OK;
    }
    kv_http_count_reject(KV_E_RATE_LIMITED);
    return kv_fail(&call->info, KV_E_RATE_LIMITED, "at most %u such requests a second", req->response.rate.limit);
}

static void prepare_call(struct kv_call *call, const struct kv_req *req)
{
    memcpy(call->request_id, req->request_id, sizeof call->request_id);
    call->has_peer = req->has_peer;
    memcpy(call->peer, req->peer, sizeof call->peer);
    memset(call->trace, 0, sizeof call->trace);
    if (req->trace.present) {
        KV_IGNORE(kv_hex_decode(req->trace.id, call->trace, sizeof call->trace), "its digits were checked");
    }
}

static KV_RC admit(struct kv_call *call, struct kv_req *req)
{
    uint64_t begun = kv_now_ns(req->httpd->conf.env);
    if (!call->from_memory) {
        req->queue_ns = begun - req->queued_ns;
        kv_http_count_wait(req->queue_ns);
    }
    prepare_call(call, req);
    enum kv_err rc = authorise(call, req);
    req->auth_ns = kv_now_ns(req->httpd->conf.env) - begun;
    req->tenant = call->who.tenant;
    req->key = call->who.key;
    return rc == KV_OK ? check_rate(call, req) : rc;
}

/* --- the handler ------------------------------------------------------------------------------------------------- */

static KV_RC finish(struct kv_req *req)
{
    struct kv_response *response = &req->response;
    KV_TRY(kv_buf_check(&response->body));
    if (response->etag_rev != 0 && response->etag[0] == '\0') {
        KV_TRY(kv_etag_make(response->etag_rev, kv_buf_bytes(&response->body), response->etag));
    }
    if (response->status == 200 && is_method(req, "GET") && kv_etag_listed(req->given.if_none_match, response->etag)) {
        response->status = 304;
        kv_buf_reset(&response->body);
    }
    response->waited = req->wait_seconds > 0 && (req->route->flags & KV_ROUTE_WAIT) != 0;
    return KV_OK;
}

static KV_RC call_handler(struct kv_call *call, struct kv_req *req)
{
    req->response.status = 200;
    req->response.content_type = "application/json";
    enum kv_err rc = req->route->handler(call, req);
    if (rc == KV_E_STALE && call != NULL && call->once != NULL && call->once->replay) {
        return kv_once_replay(call, req); /* its twin was quicker */
    }
    if (rc == KV_OK && call != NULL) {
        kv_once_keep_secret(call, req);
    }
    return rc;
}

/* The continuation of one that waited: it was admitted and checked when it came, but its key may have been revoked
 * meanwhile. */
static KV_RC go_on(struct kv_call *call, struct kv_req *req)
{
    prepare_call(call, req);
    KV_TRY(authorise(call, req));
    req->response.status = 200;
    req->response.content_type = "application/json";
    KV_TRY(req->park.resume(call, req));
    return finish(req);
}

static KV_RC handle(struct kv_call *call, struct kv_req *req, struct kv_errinfo *info)
{
    struct kv_once once = {0};
    if (req->resumed) {
        return go_on(call, req);
    }
    if (call != NULL) {
        KV_TRY(admit(call, req));
    }
    KV_TRY(check_types(req, info));
    KV_TRY(kv_query_check(req, req->route, info));
    if (call != NULL) {
        call->dry_run = kv_query_bool(req, "dry_run");
        KV_TRY(check_match(call, req));
        enum kv_err rc = kv_once_begin(call, req, &once);
        if (rc == KV_OK) {
            rc = once.replay ? kv_once_replay(call, req) : call_handler(call, req);
        }
        kv_once_done(&once);
        call->once = NULL;
        KV_TRY(rc);
    } else {
        KV_TRY(call_handler(NULL, req));
    }
    return finish(req);
}

/* The times, and a problem document for an error. */
static void conclude(struct kv_call *call, struct kv_req *req, enum kv_err rc, const struct kv_errinfo *info)
{
    if (call != NULL) {
        req->db_ns = kv_call_db_ns(call);
        req->engine_ns = call->engine_ns;
        req->timed = true;
    }
    if (rc == KV_OK) {
        return;
    }
    if (req->parks) {
        kv_parking_forget(req->httpd->parking, req);
    }
    enum kv_err_class class = kv_err_class_of(rc);
    if (class == KV_CLASS_INTERNAL || class == KV_CLASS_INTEGRITY) {
        kv_log(KV_LOG_ERROR, "http", "request-failed", KV_FT("req", req->request_id), KV_FT("trace", req->trace.id),
               KV_FT("route", req->route->pattern), KV_FRC(rc), KV_FT("text", info->text));
    }
    kv_problem(req, rc, info, call == NULL ? NULL : &call->erasure);
}

void kv_worker_run(struct kv_call *call, struct kv_req *req)
{
    struct kv_errinfo none = {0}, *info = call == NULL ? &none : &call->info;
    enum kv_err rc = handle(call, req, info);
    conclude(call, req, rc, info);
}

bool kv_worker_run_from_memory(struct kv_svc *svc, struct kv_req *req)
{
    struct kv_call call;
    kv_call_from_memory(svc, &call);
    enum kv_err rc = handle(&call, req, &call.info);
    if (call.missing) {
        kv_response_reset(&req->response);
        return false;
    }
    conclude(&call, req, rc, &call.info);
    return true;
}

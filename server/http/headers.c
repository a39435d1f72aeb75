/*
 * Writes the headers of answers. Must never send a value that a caller chose except a request id and an origin that
 * were checked.
 */
#include "server/http/headers.h"

#include "dataplane/base/check.h"
#include "server/http/httpd_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Routes that will go: {"GET", "/v1/old", since, sunset, "https://…"}, from the minor release before they do. */
const struct kv_deprecation kv_deprecations[] = {{NULL, NULL, 0, 0, NULL}};

struct sink {
    kv_header_fn *add;
    void *ctx;
};

static void put(const struct sink *to, const char *name, const char *value)
{
    if (value != NULL && value[0] != '\0') {
        to->add(to->ctx, name, value);
    }
}

/* A header's value in the making; all of them are short. */
struct value {
    char text[128];
    size_t len;
};

static void add_text(struct value *value, const char *text)
{
    size_t len = strlen(text);
    KV_ASSERT(len < sizeof value->text - value->len);
    memcpy(value->text + value->len, text, len + 1);
    value->len += len;
}

static void add_number(struct value *value, const char *before, uint64_t number)
{
    char digits[KV_DIGITS_SIZE + 1];
    digits[kv_digits(number, digits)] = '\0';
    add_text(value, before);
    add_text(value, digits);
}

/* Milliseconds with two decimals. */
static void add_ms(struct value *value, const char *before, uint64_t ns)
{
    uint64_t hundredths = (ns + 5000) / 10000;
    add_number(value, before, hundredths / 100);
    add_number(value, hundredths % 100 < 10 ? ".0" : ".", hundredths % 100);
}

static void put_safety(const struct sink *to, const struct kv_req *req)
{
    put(to, "X-Request-Id", req->request_id[0] == '\0' ? "none" : req->request_id);
    put(to, "X-Content-Type-Options", "nosniff");
    put(to, "Cache-Control", req->response.cache_control == NULL ? "no-store" : req->response.cache_control);
    put(to, "Referrer-Policy", "no-referrer");
    put(to, "Strict-Transport-Security", req->tls ? "max-age=31536000" : NULL);
    if (req->response.content_type != NULL && strncmp(req->response.content_type, "text/html", 9) == 0) {
        put(to, "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'");
    }
}

static void put_trace(const struct sink *to, const struct kv_req *req)
{
    char text[64];
    if (req->trace.present) {
        snprintf(text, sizeof text, "00-%s-%s-%02x", req->trace.id, req->trace.span, req->trace.flags);
        put(to, "traceparent", text);
    }
    if (req->timed) {
        struct value timing = {.len = 0};
        add_ms(&timing, "q;dur=", req->queue_ns);
        add_ms(&timing, ", auth;dur=", req->auth_ns);
        add_ms(&timing, ", db;dur=", req->db_ns);
        add_ms(&timing, ", engine;dur=", req->engine_ns);
        put(to, "Server-Timing", timing.text);
    }
}

static void put_manners(const struct sink *to, const struct kv_req *req)
{
    const struct kv_response *answer = &req->response;
    put(to, "ETag", answer->etag);
    put(to, "Link", answer->link.len == 0 ? NULL : (const char *)answer->link.data);
    put(to, "X-Accel-Buffering", req->stream == NULL ? NULL : "no"); /* nginx would keep events back */
    if (answer->waited) {
        struct value wait = {.len = 0};
        add_number(&wait, "wait=", req->wait_seconds);
        put(to, "Preference-Applied", wait.text);
    }
    if (answer->replayed) {
        put(to, "Idempotency-Replayed", "true");
        put(to, "Idempotency-Original-Request", answer->original_request);
    }
    if (answer->rate.present) {
        struct value rate = {.len = 0};
        add_number(&rate, "limit=", answer->rate.limit);
        add_number(&rate, ", remaining=", answer->rate.remaining);
        add_number(&rate, ", reset=", answer->rate.reset_seconds);
        put(to, "RateLimit", rate.text);
    }
}

/* --- other origins ----------------------------------------------------------------------------------------------- */

bool kv_origin_allowed(const char *list, const char *origin)
{
    if (list == NULL || origin == NULL || origin[0] == '\0') {
        return false;
    }
    size_t len = strlen(origin);
    for (const char *p = list; *p != '\0';) {
        p += strspn(p, ", ");
        size_t n = strcspn(p, ", ");
        if (n == len && memcmp(p, origin, len) == 0) {
            return true;
        }
        p += n;
    }
    return false;
}

static void put_origin(const struct sink *to, const struct kv_req *req)
{
    const char *list = req->httpd == NULL ? NULL : req->httpd->conf.cors_origins;
    if (list == NULL || list[0] == '\0') {
        return;
    }
    put(to, "Vary", "Origin");
    if (!kv_origin_allowed(list, req->given.origin)) {
        return;
    }
    put(to, "Access-Control-Allow-Origin", req->given.origin);
    put(to, "Access-Control-Expose-Headers",
        "ETag, Idempotency-Original-Request, Idempotency-Replayed, Link, Location, Preference-Applied, RateLimit, "
        "Retry-After, Server-Timing, X-Request-Id, traceparent");
    if (strcmp(req->method, "OPTIONS") == 0) {
        put(to, "Access-Control-Allow-Methods", req->response.allow);
        put(to, "Access-Control-Allow-Headers",
            "Accept, Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, Prefer, "
            "X-Request-Id, traceparent");
        put(to, "Access-Control-Max-Age", "600");
    }
}

/* --- what will go ------------------------------------------------------------------------------------------------ */

const struct kv_deprecation *kv_deprecation_of(const struct kv_deprecation *list, const struct kv_route *route)
{
    for (; route != NULL && list->method != NULL; list++) {
        if (strcmp(list->method, route->method) == 0 && strcmp(list->pattern, route->pattern) == 0) {
            return list;
        }
    }
    return NULL;
}

void kv_deprecation_headers(const struct kv_deprecation *deprecation, kv_header_fn *add, void *ctx)
{
    char text[256];
    snprintf(text, sizeof text, "@%" PRIu64, deprecation->since_s);
    add(ctx, "Deprecation", text);
    if (deprecation->sunset_s != 0) {
        time_t at = (time_t)deprecation->sunset_s;
        struct tm utc;
        gmtime_r(&at, &utc);
        strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
        add(ctx, "Sunset", text);
    }
    snprintf(text, sizeof text, "<%s>; rel=\"deprecation\"", deprecation->link);
    add(ctx, "Link", text);
}

/* ----------------------------------------------------------------------------------------------------------------- */

/* What a request of another type should have been. */
static void put_types(const struct sink *to, const struct kv_req *req)
{
    if (req->response.status != 415 || req->route == NULL) {
        return;
    }
    if (strcmp(req->route->method, "PATCH") == 0) {
        put(to, "Accept-Patch", "application/merge-patch+json");
    } else {
        put(to, "Accept", "application/json");
    }
}

void kv_headers(const struct kv_req *req, kv_header_fn *add, void *ctx)
{
    const struct sink to = {.add = add, .ctx = ctx};
    const struct kv_response *answer = &req->response;
    put_safety(&to, req);
    put_trace(&to, req);
    put_manners(&to, req);
    put_origin(&to, req);
    put_types(&to, req);
    if (req->route != NULL && (req->route->flags & KV_ROUTE_ANY_ACCEPT) != 0) {
        put(&to, "Vary", "Accept"); /* some of these may be cached, and have more than one form */
    }
    put(&to, "Content-Type", answer->status == 204 || answer->status == 304 ? NULL : answer->content_type);
    put(&to, "WWW-Authenticate", answer->status == 401 ? "Bearer realm=\"kvrun\", error=\"invalid_token\"" : NULL);
    if (answer->retry_after_seconds > 0) {
        struct value seconds = {.len = 0};
        add_number(&seconds, "", answer->retry_after_seconds);
        put(&to, "Retry-After", seconds.text);
    }
    put(&to, "Location", answer->location);
    put(&to, "Allow", answer->allow);
    put(&to, "Connection", answer->close ? "close" : NULL);
    const struct kv_deprecation *deprecation = kv_deprecation_of(kv_deprecations, req->route);
    if (deprecation != NULL) {
        kv_deprecation_headers(deprecation, add, ctx);
    }
}

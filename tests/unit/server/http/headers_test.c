/* Headers of answers: what is said of routes that will go, which origins may read, what is never sent. */
#include "server/http/headers.h"
#include "server/http/httpd_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>

static char seen[8192];

static void add(void *ctx, const char *name, const char *value)
{
    size_t len = strlen(seen);
    (void)ctx;
    snprintf(seen + len, sizeof seen - len, "%s: %s\n", name, value);
}

static bool has(const char *line)
{
    return strstr(seen, line) != NULL;
}

static struct kv_httpd httpd;
static struct kv_req *req;

static void start(void)
{
    httpd = (struct kv_httpd){.conf = {.env = &kv_env_system}};
    req = kv_req_new(&httpd, "/v1/x");
    snprintf(req->request_id, sizeof req->request_id, "req_test");
    snprintf(req->method, sizeof req->method, "GET");
    req->response.status = 200;
    req->response.content_type = "application/json";
    seen[0] = '\0';
}

static void end(void)
{
    kv_req_free(req);
}

TestSuite(headers, .init = start, .fini = end);

Test(headers, every_answer_has_those_that_keep_it_safe)
{
    kv_headers(req, add, NULL);
    cr_expect(has("X-Request-Id: req_test\n") && has("X-Content-Type-Options: nosniff\n") &&
              has("Cache-Control: no-store\n") && has("Referrer-Policy: no-referrer\n"));
    cr_expect(has("Content-Type: application/json\n"));
    cr_expect(not(has("ETag") || has("Link") || has("Server-Timing") || has("traceparent") || has("Deprecation") ||
                  has("Access-Control") || has("Vary") || has("RateLimit") || has("Idempotency")));
}

Test(headers, an_answer_says_what_it_is)
{
    struct kv_response *answer = &req->response;
    snprintf(answer->etag, sizeof answer->etag, "\"1.0\"");
    kv_buf_text(&answer->link, "</v1/x?cursor=y>; rel=\"next\"");
    answer->waited = answer->replayed = true;
    req->wait_seconds = 5;
    snprintf(answer->original_request, sizeof answer->original_request, "req_first");
    answer->rate = (struct kv_rate_state){.present = true, .limit = 10, .remaining = 3, .reset_seconds = 1};
    req->timed = true;
    req->queue_ns = 1500000;
    req->trace = (struct kv_trace){.present = true, .id = "4bf9", .span = "00f0", .flags = 1};
    kv_headers(req, add, NULL);
    cr_expect(has("ETag: \"1.0\"\n") && has("Link: </v1/x?cursor=y>; rel=\"next\"\n") &&
              has("Preference-Applied: wait=5\n") && has("Idempotency-Replayed: true\n") &&
              has("Idempotency-Original-Request: req_first\n") && has("RateLimit: limit=10, remaining=3, reset=1\n") &&
              has("Server-Timing: q;dur=1.50, auth;dur=0.00, db;dur=0.00, engine;dur=0.00\n") &&
              has("traceparent: 00-4bf9-00f0-01\n"));
}

Test(headers, times_have_two_decimals)
{
    req->timed = true;
    req->queue_ns = 4999;
    req->auth_ns = 5000;
    req->db_ns = 12345678901;
    req->engine_ns = 995000;
    kv_headers(req, add, NULL);
    cr_expect(has("Server-Timing: q;dur=0.00, auth;dur=0.01, db;dur=12345.68, engine;dur=1.00\n"), "%s", seen);
}

Test(headers, longest_numbers_have_room)
{
    req->timed = true;
    req->queue_ns = req->auth_ns = req->db_ns = req->engine_ns = UINT64_MAX - 5000;
    req->response.rate =
        (struct kv_rate_state){.present = true, .limit = UINT_MAX, .remaining = UINT_MAX, .reset_seconds = UINT_MAX};
    req->response.retry_after_seconds = UINT_MAX;
    kv_headers(req, add, NULL);
    cr_expect(has("engine;dur=18446744073709.55\n"), "%s", seen);
    cr_expect(has("RateLimit: limit=4294967295, remaining=4294967295, reset=4294967295\n"));
    cr_expect(has("Retry-After: 4294967295\n"));
}

Test(headers, an_answer_without_a_body_has_no_type)
{
    req->response.status = 304;
    kv_headers(req, add, NULL);
    cr_expect(not(has("\nContent-Type")));
}

Test(headers, what_comes_in_several_forms_says_so)
{
    static const struct kv_route forms = {"GET", "/problems", 0, KV_ROUTE_ANY_ACCEPT, NULL, NULL};
    kv_headers(req, add, NULL);
    cr_expect(not(has("Vary")));
    req->route = &forms;
    kv_headers(req, add, NULL);
    cr_expect(has("Vary: Accept\n"));
}

Test(headers, a_page_may_load_nothing)
{
    req->response.content_type = "text/html; charset=utf-8";
    kv_headers(req, add, NULL);
    cr_expect(has("Content-Security-Policy: default-src 'none'"));
}

Test(headers, a_wrong_type_is_told_the_right_one)
{
    static const struct kv_route patch = {"PATCH", "/v1/x", 0, 0, NULL, NULL},
                                 post = {"POST", "/v1/x", 0, 0, NULL, NULL};
    req->response.status = 415;
    req->route = &patch;
    kv_headers(req, add, NULL);
    cr_expect(has("Accept-Patch: application/merge-patch+json\n"));
    req->route = &post;
    kv_headers(req, add, NULL);
    cr_expect(has("Accept: application/json\n"));
}

/* --- other origins */

Test(headers, an_origin_is_allowed_to_the_letter)
{
    const char *list = "https://a.example, https://b.example:8443";
    cr_expect(kv_origin_allowed(list, "https://a.example") && kv_origin_allowed(list, "https://b.example:8443"));
    const char *no[] = {"",
                        "https://a.example.evil.example",
                        "https://a.exampl",
                        "http://a.example",
                        "null",
                        "https://A.example",
                        "https://a.example,",
                        ", ",
                        "https://b.example"};
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        cr_expect(not(kv_origin_allowed(list, no[i])), "%s", no[i]);
    }
    cr_expect(not(kv_origin_allowed("", "https://a.example")));
    cr_expect(not(kv_origin_allowed(NULL, "https://a.example")));
    cr_expect(not(kv_origin_allowed(list, NULL)));
    cr_expect(not(kv_origin_allowed("*", "https://a.example")), "there is no wildcard");
}

Test(headers, only_an_allowed_origin_is_named)
{
    httpd.conf.cors_origins = "https://a.example";
    req->given.origin = "https://evil.example";
    kv_headers(req, add, NULL);
    cr_expect(has("Vary: Origin\n") && !(has("Access-Control")));
    req->given.origin = "https://a.example";
    kv_headers(req, add, NULL);
    cr_expect(has("Access-Control-Allow-Origin: https://a.example\n") && has("Access-Control-Expose-Headers: "));
    cr_expect(not(has("Access-Control-Allow-Methods") || has("Access-Control-Allow-Credentials")));
    snprintf(req->method, sizeof req->method, "OPTIONS");
    snprintf(req->response.allow, sizeof req->response.allow, "GET, HEAD, OPTIONS");
    kv_headers(req, add, NULL);
    cr_expect(has("Access-Control-Allow-Methods: GET, HEAD, OPTIONS\n") && has("Access-Control-Max-Age: 600\n"));
}

/* --- what will go */

static const struct kv_route old = {"GET", "/v1/old", 0, 0, NULL, NULL}, young = {"GET", "/v1/new", 0, 0, NULL, NULL};

Test(headers, a_route_that_will_go_says_so)
{
    const struct kv_deprecation list[] = {
        {"GET", "/v1/old", UINT64_C(1767225600), UINT64_C(1798761600), "https://kvrun.example/changes"},
        {NULL, NULL, 0, 0, NULL}};
    cr_expect(kv_deprecation_of(list, &young) == NULL && kv_deprecation_of(list, NULL) == NULL);
    cr_assert(kv_deprecation_of(list, &old) == &list[0]);
    kv_deprecation_headers(&list[0], add, NULL);
    cr_expect(eq(str, seen,
                 "Deprecation: @1767225600\nSunset: Fri, 01 Jan 2027 00:00:00 GMT\n"
                 "Link: <https://kvrun.example/changes>; rel=\"deprecation\"\n"));
}

Test(headers, a_route_whose_end_is_open_has_no_sunset)
{
    const struct kv_deprecation row = {"GET", "/v1/old", UINT64_C(1767225600), 0, "https://kvrun.example/changes"};
    kv_deprecation_headers(&row, add, NULL);
    cr_expect(not(has("Sunset")));
}

Test(headers, routes_that_will_go_are_routes)
{
    for (const struct kv_deprecation *row = kv_deprecations; row->method != NULL; row++) {
        bool found = false;
        for (unsigned i = 0; i < kv_route_count; i++) {
            found = found || kv_deprecation_of(row, &kv_routes[i]) == row;
        }
        cr_expect(found, "%s %s", row->method, row->pattern);
    }
}

/* Problem documents: one for every code, with nothing in it that is not for the caller. */
#include "dataplane/base/id.h"
#include "server/http/problem.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>

#include <stdio.h>
#include <string.h>

static struct kv_req *req;

static void start(void)
{
    req = kv_req_new(NULL, "/v1/sessions/ses_x");
    snprintf(req->path, sizeof req->path, "/v1/sessions/ses_x");
    snprintf(req->request_id, sizeof req->request_id, "req_test");
}

static void end(void)
{
    kv_req_free(req);
}

TestSuite(problem, .init = start, .fini = end);

static json_t *document(enum kv_err rc, const struct kv_errinfo *info, const struct kv_id *erasure)
{
    kv_problem(req, rc, info, erasure);
    json_t *json =
        json_loadb((const char *)req->response.body.data, req->response.body.len, JSON_REJECT_DUPLICATES, NULL);
    cr_assert(json != NULL, "%s", (char *)req->response.body.data);
    return json;
}

static const char *text_of(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    return text == NULL ? "" : text;
}

Test(problem, every_code_makes_a_document)
{
    for (int code = KV_OK + 1; code < KV_E_COUNT; code++) {
        json_t *json = document((enum kv_err)code, NULL, NULL);
        char type[80];
        snprintf(type, sizeof type, "/problems/%s", text_of(json, "code"));
        cr_expect(eq(str, (char *)text_of(json, "type"), type));
        cr_expect(eq(int, (int)json_integer_value(json_object_get(json, "status")), req->response.status));
        cr_expect(ge(int, req->response.status, 400));
        cr_expect(ne(str, (char *)text_of(json, "detail"), ""));
        cr_expect(eq(str, (char *)text_of(json, "instance"), "/v1/sessions/ses_x"));
        cr_expect(eq(str, (char *)text_of(json, "request_id"), "req_test"));
        cr_expect(eq(int, json_is_true(json_object_get(json, "retryable")), req->response.retry_after_seconds > 0));
        cr_expect(eq(str, (char *)req->response.content_type, "application/problem+json"));
        json_decref(json);
    }
}

Test(problem, codes_of_the_inside_show_as_public_ones)
{
    const struct {
        enum kv_err inside;
        const char *shown;
    } rows[] = {{KV_E_IO, "internal"},        {KV_E_TAMPERED, "internal"},    {KV_E_WRONG_KEY, "internal"},
                {KV_E_TRUNCATED, "internal"}, {KV_E_CORRUPT, "internal"},     {KV_E_CRYPTO, "internal"},
                {KV_E_CONFIG, "internal"},    {KV_E_NO_MEMORY, "busy"},       {KV_E_NO_SPACE, "full"},
                {KV_E_MISSING, "not_found"},  {KV_E_FENCED, "session_erased"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *json = document(rows[i].inside, NULL, NULL);
        cr_expect(eq(str, (char *)text_of(json, "code"), (char *)rows[i].shown));
        json_decref(json);
    }
}

Test(problem, what_is_known_inside_stays_inside)
{
    struct kv_errinfo info = {.text = "SELECT * FROM key at /var/lib/kvrun failed", .pointer = "/secret"};
    const enum kv_err inside[] = {KV_E_INTERNAL, KV_E_IO, KV_E_CORRUPT, KV_E_CRYPTO, KV_E_TAMPERED, KV_E_WRONG_KEY};
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++) {
        json_t *json = document(inside[i], &info, NULL);
        cr_expect(strstr((const char *)req->response.body.data, "SELECT") == NULL);
        cr_expect(strstr((const char *)req->response.body.data, "/var") == NULL);
        cr_expect(eq(ptr, json_object_get(json, "errors"), NULL));
        json_decref(json);
    }
}

Test(problem, the_callers_mistake_is_told_with_its_place)
{
    struct kv_errinfo info = {.text = "must be 2 to 60", .pointer = "/lease_seconds"};
    json_t *json = document(KV_E_INVALID_REQUEST, &info, NULL);
    cr_assert(eq(str, (char *)text_of(json, "detail"), "must be 2 to 60"));
    const json_t *error = json_array_get(json_object_get(json, "errors"), 0);
    cr_assert(eq(str, (char *)text_of(error, "pointer"), "/lease_seconds"));
    json_decref(json);
}

Test(problem, an_erased_session_links_its_certificate)
{
    struct kv_id erasure = {{7}}, none = {{0}};
    json_t *json = document(KV_E_SESSION_ERASED, NULL, &erasure);
    cr_assert(eq(str, (char *)text_of(json, "certificate"), "/v1/erasures/era_07000000000000000000000000/certificate"));
    json_decref(json);
    json = document(KV_E_SESSION_ERASED, NULL, &none);
    cr_assert(eq(ptr, json_object_get(json, "certificate"), NULL));
    json_decref(json);
}

Test(problem, what_was_begun_of_an_answer_is_gone)
{
    kv_buf_text(&req->response.body, "{\"id\":");
    req->response.status = 201;
    json_t *json = document(KV_E_BUSY, NULL, NULL);
    cr_assert(eq(int, req->response.status, 503));
    json_decref(json);
}

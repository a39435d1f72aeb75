/* Queries: one decoding, one spelling of what is refused, and the check against a route's table. */
#include "server/http/query.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

static const struct kv_field fields[] = {
    {"state", KV_TEXT, false, 1, 16, "|active|erased|"},
    {"label", KV_TEXT, false, 3, 20, NULL},
    {"index", KV_INT, false, 0, 100, NULL},
    {"now", KV_BOOL, false, 0, 0, NULL},
    {NULL, 0, false, 0, 0, NULL},
};
static const struct kv_route list = {"GET", "/v1/x", 0, KV_ROUTE_API | KV_ROUTE_LIST, NULL, fields};
static const struct kv_route change = {"POST", "/v1/x", 0, KV_ROUTE_API | KV_ROUTE_DRY_RUN, NULL, NULL};
static const struct kv_route plain = {"GET", "/v1/x", 0, KV_ROUTE_API, NULL, NULL};

static struct kv_req *req;
static struct kv_errinfo info;

static void start(void)
{
    req = kv_req_new(NULL, "/v1/x");
}

static void end(void)
{
    kv_req_free(req);
}

TestSuite(query, .init = start, .fini = end);

static enum kv_err parse(const char *text)
{
    kv_req_free(req);
    req = kv_req_new(NULL, "/v1/x");
    info = (struct kv_errinfo){0};
    return kv_query_parse(req, text, &info);
}

static enum kv_err check(const struct kv_route *route, const char *text)
{
    enum kv_err rc = parse(text);
    return rc != KV_OK ? rc : kv_query_check(req, route, &info);
}

static const char *value_of(const char *text, const char *name)
{
    cr_assert(eq(int, parse(text), KV_OK), "%s: %s", text, info.text);
    const char *value = kv_query_get(req, name);
    return value == NULL ? "(none)" : value;
}

Test(query, is_decoded_once)
{
    cr_expect(eq(str, (char *)value_of("a=b", "a"), "b"));
    cr_expect(eq(str, (char *)value_of("a=%41%2b%26%3d%25", "a"), "A+&=%"));
    cr_expect(eq(str, (char *)value_of("a=%2541", "a"), "%41"));
    cr_expect(eq(str, (char *)value_of("a=x+y", "a"), "x y"));
    cr_expect(eq(str, (char *)value_of("a=%C3%A4%f0%9f%a6%8a", "a"), "\xc3\xa4\xf0\x9f\xa6\x8a"));
    cr_expect(eq(str, (char *)value_of("a=b=c", "a"), "b=c"));
    cr_expect(eq(str, (char *)value_of("a", "a"), ""));
    cr_expect(eq(str, (char *)value_of("a=", "a"), ""));
    cr_expect(eq(str, (char *)value_of("%61=1&b=2", "a"), "1"));
    cr_expect(eq(str, (char *)value_of("", "a"), "(none)"));
    cr_expect(eq(str, (char *)value_of("a=/?:@!$'()*,;-._~", "a"), "/?:@!$'()*,;-._~"));
}

Test(query, what_is_no_percent_encoded_utf8_is_refused)
{
    const char *bad[] = {"a=%",   "a=%4",  "a=%zz",    "a=%00",       "a=%0a",      "a=%7f", "a=\x7f",
                         "a=%ff", "a=%c3", "a=%c0%80", "a=%ed%a0%80", "a=\xc3\xa4", "a= b",  "a=\"",
                         "a=<",   "a=>",   "a=\\",     "a=^",         "a=`",        "a={",   "a=|",
                         "a=}",   "a=#",   "%zz=1",    "a=%u0041"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, parse(bad[i]), KV_E_INVALID_REQUEST), "%s", bad[i]);
        cr_expect(strstr(info.text, "percent") != NULL, "%s", info.text);
    }
}

Test(query, a_name_is_there_once)
{
    cr_expect(eq(int, parse("limit=1&limit=2"), KV_E_INVALID_REQUEST));
    cr_expect(strstr(info.text, "limit") != NULL);
    cr_expect(eq(int, parse("%6cimit=1&limit=2"), KV_E_INVALID_REQUEST), "the spelling makes no other name");
    cr_expect(eq(int, parse("Se-cret=1&Se-cret=2"), KV_E_INVALID_REQUEST));
    cr_expect(strstr(info.text, "Se-cret") == NULL, "what does not look like one of ours is not repeated");
    cr_expect(eq(int, parse("a=1&&b=2"), KV_OK));
    cr_expect(eq(int, kv_query_check(req, &plain, &info), KV_E_INVALID_REQUEST), "an empty name is unknown");
}

Test(query, has_a_bound_on_parameters)
{
    char text[512] = "";
    for (int i = 0; i < KV_PARAMS_MAX; i++) {
        size_t len = strlen(text);
        snprintf(text + len, sizeof text - len, "%sp%d=1", i == 0 ? "" : "&", i);
    }
    cr_expect(eq(int, parse(text), KV_OK));
    strcat(text, "&q=1");
    cr_expect(eq(int, parse(text), KV_E_INVALID_REQUEST));
}

Test(query, an_api_key_is_refused_wherever_it_stands)
{
    const char *bad[] = {"token=x",     "access_token=x",  "Authorization=x",      "api_key=x", "label=kvrun_live_00",
                         "x=1&secret=", "kvrun_live_00=1", "label=%6bvrun_live_00"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, parse(bad[i]), KV_E_INVALID_REQUEST), "%s", bad[i]);
        cr_expect(strstr(info.text, "Authorization: Bearer") != NULL && strstr(info.text, "_00") == NULL, "%s",
                  info.text);
    }
}

Test(query, a_route_takes_what_its_flags_and_its_table_name)
{
    cr_expect(eq(int, check(&list, "limit=200&order=asc&cursor=x&state=active&label=k:v&index=0&now=true"), KV_OK));
    cr_expect(eq(int, check(&list, "now"), KV_OK));
    cr_expect(eq(int, check(&change, "dry_run=true"), KV_OK));
    cr_expect(eq(int, check(&change, "dry_run"), KV_OK));
    cr_expect(kv_query_bool(req, "dry_run"));
    cr_expect(eq(int, check(&change, "dry_run=false"), KV_OK));
    cr_expect(not(kv_query_bool(req, "dry_run")));
    const struct {
        const struct kv_route *route;
        const char *query;
    } bad[] = {{&list, "dry_run=true"}, {&change, "limit=1"},   {&plain, "limit=1"},
               {&plain, "x=1"},         {&list, "limit=0"},     {&list, "limit=201"},
               {&list, "limit=-1"},     {&list, "limit=1.0"},   {&list, "limit="},
               {&list, "limit=+1"},     {&list, "limit=0x10"},  {&list, "limit=99999999999999999999"},
               {&list, "order=up"},     {&list, "order="},      {&list, "order=asc%7cdesc"},
               {&list, "cursor="},      {&list, "state=held"},  {&list, "state=active%7cerased"},
               {&list, "label=kv"},     {&list, "index=101"},   {&list, "now=1"},
               {&list, "now=yes"},      {&change, "dry_run=1"}, {&list, "label=012345678901234567890"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(bad[i].query, "="), bad[i].query);
        cr_expect(eq(int, check(bad[i].route, bad[i].query), KV_E_INVALID_REQUEST), "%s", bad[i].query);
        cr_expect(strstr(info.text, name) != NULL, "%s: %s", bad[i].query, info.text);
    }
    cr_expect(eq(int, check(&list, "Se-cret=1"), KV_E_INVALID_REQUEST));
    cr_expect(strstr(info.text, "Se-cret") == NULL);
}

Test(query, the_largest_page_is_the_limit)
{
    char text[32];
    snprintf(text, sizeof text, "limit=%d", (int)KV_MAX_PAGE_ITEMS);
    cr_expect(eq(int, check(&list, text), KV_OK));
    snprintf(text, sizeof text, "limit=%d", (int)KV_MAX_PAGE_ITEMS + 1);
    cr_expect(eq(int, check(&list, text), KV_E_INVALID_REQUEST));
}

Test(query, escaping_and_reading_are_each_others_inverse)
{
    struct kv_buf buf;
    const char *value = "k:v w+x&y=\xc3\xa4%/~";
    kv_buf_init(&buf, 4096);
    kv_buf_text(&buf, "a=");
    kv_query_escape(&buf, value);
    cr_expect(eq(str, (char *)value_of((const char *)buf.data, "a"), (char *)value));
    kv_buf_done(&buf);
}

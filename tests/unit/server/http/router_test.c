/* The table: every route is found, no path is found twice, methods and roles are what they should be. */
#include "server/http/handlers.h"
#include "server/http/router.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

static const unsigned listeners[] = {KV_ROUTE_API, KV_ROUTE_ADMIN};

struct found {
    enum kv_err rc;
    const struct kv_route *route;
    char captures[KV_CAPTURES][KV_CAPTURE_SIZE];
    char allow[64];
};

static struct found find(unsigned listener, const char *method, const char *path)
{
    struct found found = {0};
    found.rc = kv_route_find(listener, method, path, found.captures, found.allow, &found.route);
    return found;
}

/* A path that the pattern stands for. */
static void path_of(const char *pattern, const char *value, char path[256])
{
    size_t len = 0;
    for (const char *hole = strstr(pattern, "{}"); hole != NULL; hole = strstr(pattern, "{}")) {
        len += (size_t)snprintf(path + len, 256 - len, "%.*s%s", (int)(hole - pattern), pattern, value);
        pattern = hole + 2;
    }
    snprintf(path + len, 256 - len, "%s", pattern);
}

Test(router, every_route_is_found_on_its_listeners_and_nowhere_else)
{
    for (unsigned i = 0; i < kv_route_count; i++) {
        char path[256];
        path_of(kv_routes[i].pattern, "ses_01kbag4v5meb8rhyq1vttpmvs8", path);
        for (size_t l = 0; l < 2; l++) {
            struct found found = find(listeners[l], kv_routes[i].method, path);
            if ((kv_routes[i].flags & listeners[l]) != 0) {
                cr_expect(eq(int, found.rc, KV_OK), "%s", path);
                cr_expect(eq(ptr, (void *)found.route, (void *)&kv_routes[i]), "%s", path);
                cr_expect(eq(str, found.allow, ""), "%s", path);
            } else {
                cr_expect(eq(int, found.rc, KV_E_NOT_FOUND), "%s", path);
            }
        }
    }
}

/* Were a path to match two patterns of one method, the second one could never be found. */
Test(router, no_path_matches_two_routes)
{
    const char *values[] = {"x", "dram", "ten_01kbag4v5meb8rhyq1vttpmvs8"};
    for (unsigned i = 0; i < kv_route_count; i++) {
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            char path[256];
            path_of(kv_routes[i].pattern, values[v], path);
            for (size_t l = 0; l < 2; l++) {
                if ((kv_routes[i].flags & listeners[l]) != 0) {
                    struct found found = find(listeners[l], kv_routes[i].method, path);
                    cr_expect(eq(ptr, (void *)found.route, (void *)&kv_routes[i]), "%s", path);
                }
            }
        }
    }
}

Test(router, a_route_is_public_or_names_roles)
{
    for (unsigned i = 0; i < kv_route_count; i++) {
        const char *pattern = kv_routes[i].pattern;
        unsigned flags = kv_routes[i].flags;
        bool open = (flags & KV_ROUTE_PUBLIC) != 0;
        bool may_be_open = strncmp(pattern, "/v1/", 4) != 0 || strcmp(pattern, "/v1/openapi.yaml") == 0 ||
                           strcmp(pattern, "/v1/certificates:verify") == 0;
        bool admin_is_open = (flags & KV_ROUTE_ADMIN) == 0 || open;   /* that listener asks for no keys */
        bool inline_is_open = (flags & KV_ROUTE_INLINE) == 0 || open; /* keys are looked up by service threads */
        cr_expect(eq(int, open, kv_routes[i].roles == 0), "%s", pattern);
        cr_expect(open <= may_be_open, "%s", pattern);
        cr_expect(admin_is_open, "%s", pattern);
        cr_expect(inline_is_open, "%s", pattern);
        cr_expect(ne(ptr, (void *)(uintptr_t)kv_routes[i].handler, NULL), "%s", pattern);
    }
}

Test(router, only_operators_reach_what_is_no_tenants)
{
    for (unsigned i = 0; i < kv_route_count; i++) {
        bool for_operator = (kv_routes[i].roles & KV_ROLE_OPERATOR) != 0;
        bool for_tenant = (kv_routes[i].flags & KV_ROUTE_TENANT) != 0;
        bool both = for_operator && for_tenant;
        cr_expect(not(both), "%s", kv_routes[i].pattern);
    }
}

Test(router, head_is_get_without_a_body)
{
    struct found found = find(KV_ROUTE_API, "HEAD", "/v1/tiers");
    cr_assert(eq(int, found.rc, KV_OK));
    cr_assert(eq(str, (char *)found.route->pattern, "/v1/tiers"));
    cr_assert(eq(int, find(KV_ROUTE_API, "HEAD", "/v1/lookups").rc, KV_E_METHOD_NOT_ALLOWED));
}

Test(router, another_method_is_told_which_are_allowed)
{
    struct found found = find(KV_ROUTE_API, "GET", "/v1/lookups");
    cr_assert(eq(int, found.rc, KV_E_METHOD_NOT_ALLOWED));
    cr_assert(eq(str, found.allow, "POST, OPTIONS"));
    found = find(KV_ROUTE_API, "DELETE", "/v1/erasures/era_x/certificate");
    cr_assert(eq(int, found.rc, KV_E_METHOD_NOT_ALLOWED));
    cr_assert(eq(str, found.allow, "GET, HEAD, OPTIONS"));
    found = find(KV_ROUTE_API, "PATCH", "/v1/pools/poo_x");
    cr_assert(eq(str, found.allow, "DELETE, OPTIONS"));
}

Test(router, options_answers_for_every_known_path)
{
    struct found found = find(KV_ROUTE_API, "OPTIONS", "/v1/tiers/dram:drain");
    cr_assert(eq(int, found.rc, KV_OK));
    cr_assert(eq(ptr, (void *)found.route, NULL));
    cr_assert(eq(str, found.allow, "POST, OPTIONS"));
    cr_assert(eq(int, find(KV_ROUTE_API, "OPTIONS", "/v1/nothing").rc, KV_E_NOT_FOUND));
    cr_assert(eq(int, find(KV_ROUTE_ADMIN, "OPTIONS", "/v1/tiers").rc, KV_E_NOT_FOUND));
}

Test(router, what_is_captured_stops_at_a_verb_and_a_segment)
{
    struct found found = find(KV_ROUTE_API, "POST", "/v1/engines/eng_01ab:heartbeat");
    cr_assert(eq(int, found.rc, KV_OK));
    cr_assert(eq(str, found.captures[0], "eng_01ab"));
    found = find(KV_ROUTE_API, "GET", "/v1/erasures/era_9/certificate");
    cr_assert(eq(int, found.rc, KV_OK));
    cr_assert(eq(str, found.captures[0], "era_9"));
}

Test(router, what_is_no_plain_word_is_not_captured)
{
    const char *paths[] = {"/v1/sessions/",
                           "/v1/sessions/SES_A",
                           "/v1/sessions/a-b",
                           "/v1/sessions/a.b",
                           "/v1/sessions/a:b",
                           "/v1/sessions/a/b",
                           "/v1/sessions/a/",
                           "/v1/tenants/",
                           "/v1/engines/:heartbeat",
                           "/v1/engines/a:beat",
                           "/v1//sessions/a",
                           "/v1/erasures//certificate",
                           "/V1/tiers",
                           "/v1/tiers/object:drain",
                           "/livez/",
                           "/",
                           "",
                           "/v1"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cr_expect(eq(int, find(KV_ROUTE_API, "GET", paths[i]).rc, KV_E_NOT_FOUND), "%s", paths[i]);
        cr_expect(eq(int, find(KV_ROUTE_API, "POST", paths[i]).rc, KV_E_NOT_FOUND), "%s", paths[i]);
    }
}

Test(router, a_capture_has_a_longest)
{
    char path[128] = "/v1/sessions/";
    memset(path + 13, 'a', KV_CAPTURE_SIZE - 1);
    cr_assert(eq(int, find(KV_ROUTE_API, "GET", path).rc, KV_OK));
    path[13 + KV_CAPTURE_SIZE - 1] = 'a';
    cr_assert(eq(int, find(KV_ROUTE_API, "GET", path).rc, KV_E_NOT_FOUND));
}

/* See router.h. Must never match a path in two ways: patterns are compared segment by segment, and the table is tested
 * for overlaps. */
#include "server/http/router.h"

#include "server/http/handlers.h"

#include <stdio.h>
#include <string.h>

enum {
    O = KV_ROLE_OPERATOR,
    T = KV_ROLE_TENANT_ADMIN,
    E = KV_ROLE_ENGINE,
    A = KV_ROLE_AUDITOR,
    API = KV_ROUTE_API,
    ADMIN = KV_ROUTE_ADMIN,
    PUBLIC = KV_ROUTE_PUBLIC,
    INLINE = KV_ROUTE_INLINE,
    TENANT = KV_ROUTE_TENANT,
    ANY_ACCEPT = KV_ROUTE_ANY_ACCEPT,
};

const struct kv_route kv_routes[] = {
    {"GET", "/livez", 0, API | ADMIN | PUBLIC | INLINE | ANY_ACCEPT, kv_h_livez},
    {"GET", "/readyz", 0, API | ADMIN | PUBLIC | INLINE | ANY_ACCEPT, kv_h_readyz},
    {"GET", "/startupz", 0, ADMIN | PUBLIC | INLINE | ANY_ACCEPT, kv_h_startupz},
    {"GET", "/metrics", 0, ADMIN | PUBLIC | INLINE | ANY_ACCEPT, kv_h_metrics},
    {"GET", "/version", 0, API | ADMIN | PUBLIC | INLINE, kv_h_version},
    {"GET", "/v1/openapi.yaml", 0, API | PUBLIC | INLINE | ANY_ACCEPT, kv_h_openapi},
    {"GET", "/.well-known/kvrun/jwks.json", 0, API | PUBLIC | INLINE, kv_h_jwks},
    {"GET", "/.well-known/kvrun/log.vkey", 0, API | PUBLIC | INLINE | ANY_ACCEPT, kv_h_log_vkey},

    {"POST", "/v1/tenants", O, API, kv_h_tenant_create},
    {"GET", "/v1/tenants/{}", O | T, API, kv_h_tenant_get},
    {"POST", "/v1/tenants/{}/api-keys", O | T, API, kv_h_key_create},
    {"GET", "/v1/tiers", O, API, kv_h_tiers},
    {"POST", "/v1/tiers/dram:drain", O, API, kv_h_tier_drain},

    {"POST", "/v1/sessions", T | E, API | TENANT, kv_h_session_create},
    {"GET", "/v1/sessions/{}", T | E | A, API | TENANT, kv_h_session_get},

    {"POST", "/v1/engines", E, API | TENANT, kv_h_engine_register},
    {"POST", "/v1/engines/{}:heartbeat", E, API | TENANT, kv_h_engine_heartbeat},
    {"DELETE", "/v1/engines/{}", E, API | TENANT, kv_h_engine_remove},
    {"POST", "/v1/engines/{}/pools", E, API | TENANT, kv_h_pool_register},
    {"DELETE", "/v1/pools/{}", E, API | TENANT, kv_h_pool_remove},

    {"POST", "/v1/lookups", E, API | TENANT, kv_h_lookup},
    {"POST", "/v1/offloads", E, API | TENANT, kv_h_offload},
    {"POST", "/v1/restores", E, API | TENANT, kv_h_restore},

    {"POST", "/v1/erasures", T | E, API | TENANT, kv_h_erasure_create},
    {"GET", "/v1/erasures/{}", T | E | A, API | TENANT, kv_h_erasure_get},
    {"GET", "/v1/erasures/{}/certificate", T | E | A, API | TENANT | ANY_ACCEPT, kv_h_certificate},
};
const unsigned kv_route_count = sizeof kv_routes / sizeof kv_routes[0];

static const char capture_chars[] = "abcdefghijklmnopqrstuvwxyz0123456789_";

static bool matches(const char *pattern, const char *path, char captures[KV_CAPTURES][KV_CAPTURE_SIZE])
{
    unsigned captured = 0;
    while (*pattern != '\0') {
        if (pattern[0] == '{' && pattern[1] == '}') {
            size_t len = strspn(path, capture_chars);
            if (len == 0 || len >= KV_CAPTURE_SIZE || captured == KV_CAPTURES) {
                return false;
            }
            memcpy(captures[captured], path, len);
            captures[captured++][len] = '\0';
            pattern += 2;
            path += len;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

static void add_method(char allow[64], const char *method)
{
    size_t len = strlen(allow);
    snprintf(allow + len, 64 - len, "%s%s%s", len == 0 ? "" : ", ", method, strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

KV_RC kv_route_find(unsigned listener, const char *method, const char *path,
                    char captures[KV_CAPTURES][KV_CAPTURE_SIZE], char allow[64], const struct kv_route **ret_route)
{
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    char found[KV_CAPTURES][KV_CAPTURE_SIZE] = {{0}};
    allow[0] = '\0';
    for (unsigned i = 0; i < kv_route_count; i++) {
        if ((kv_routes[i].flags & listener) == 0 || !matches(kv_routes[i].pattern, path, found)) {
            continue;
        }
        if (strcmp(kv_routes[i].method, wanted) == 0) {
            memcpy(captures, found, sizeof found);
            *ret_route = &kv_routes[i];
            allow[0] = '\0';
            return KV_OK;
        }
        add_method(allow, kv_routes[i].method);
    }
    if (allow[0] == '\0') {
        return KV_E_NOT_FOUND;
    }
    add_method(allow, "OPTIONS");
    if (strcmp(method, "OPTIONS") == 0) {
        *ret_route = NULL;
        return KV_OK;
    }
    return KV_E_METHOD_NOT_ALLOWED;
}

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
    S = KV_ROLE_SECURITY_OFFICER,
    V = KV_ROLE_VIEWER,
    M = KV_ROLE_METRICS,
    API = KV_ROUTE_API,
    ADMIN = KV_ROUTE_ADMIN,
    PUBLIC = KV_ROUTE_PUBLIC,
    INLINE = KV_ROUTE_INLINE,
    TENANT = KV_ROUTE_TENANT,
    ANY_ACCEPT = KV_ROUTE_ANY_ACCEPT,
    LIST = KV_ROUTE_LIST,
    DRY_RUN = KV_ROUTE_DRY_RUN,
    ONCE = KV_ROUTE_ONCE,
    FOR_EVER = KV_ROUTE_ONCE | KV_ROUTE_ONCE_FOR_EVER,
    MATCH = KV_ROUTE_MATCH,
    MEMORY = KV_ROUTE_MEMORY,
    WAIT = KV_ROUTE_WAIT,
    RESERVED = KV_ROUTE_RESERVED,
    BULK = KV_ROUTE_BULK,
    STREAM = KV_ROUTE_STREAM,
    OPTIONAL_BODY = KV_ROUTE_OPTIONAL_BODY,
    ANY_BODY = KV_ROUTE_ANY_BODY,
};

const struct kv_route kv_routes[] = {
    {"GET", "/livez", 0, API | ADMIN | PUBLIC | INLINE | ANY_ACCEPT, kv_h_livez, NULL},
    {"GET", "/readyz", 0, API | ADMIN | PUBLIC | INLINE | ANY_ACCEPT, kv_h_readyz, kv_q_readyz},
    {"GET", "/startupz", 0, ADMIN | PUBLIC | INLINE | ANY_ACCEPT, kv_h_startupz, NULL},
    {"GET", "/metrics", 0, ADMIN | PUBLIC | INLINE | ANY_ACCEPT | KV_ROUTE_METRICS, kv_h_metrics, NULL},
    {"GET", "/version", 0, API | ADMIN | PUBLIC | INLINE, kv_h_version, NULL},
    {"GET", "/v1/openapi.yaml", 0, API | PUBLIC | INLINE | ANY_ACCEPT, kv_h_openapi, NULL},
    {"GET", "/problems", 0, API | PUBLIC | INLINE | ANY_ACCEPT, kv_h_problems, NULL},
    {"GET", "/problems/{}", 0, API | PUBLIC | INLINE | ANY_ACCEPT, kv_h_problem, NULL},
    {"GET", "/.well-known/kvrun/jwks.json", 0, API | PUBLIC | INLINE, kv_h_jwks, NULL},
    {"GET", "/.well-known/kvrun/log.vkey", 0, API | PUBLIC | INLINE | ANY_ACCEPT, kv_h_log_vkey, NULL},

    {"POST", "/v1/tenants", O, API | ONCE | DRY_RUN, kv_h_tenant_create, NULL},
    {"GET", "/v1/tenants", O | V, API | LIST, kv_h_tenant_list, kv_q_tenants},
    {"GET", "/v1/tenants/{}", O | T | V, API, kv_h_tenant_get, NULL},
    {"PATCH", "/v1/tenants/{}", O | T, API | MATCH | DRY_RUN, kv_h_tenant_update, NULL},
    {"DELETE", "/v1/tenants/{}", O, API | MATCH | DRY_RUN, kv_h_tenant_delete, kv_q_tenant_delete},
    {"POST", "/v1/tenants/{}:suspend", O, API | ONCE | MATCH | DRY_RUN | OPTIONAL_BODY, kv_h_tenant_suspend, NULL},
    {"POST", "/v1/tenants/{}:resume", O, API | ONCE | MATCH | DRY_RUN | OPTIONAL_BODY, kv_h_tenant_resume, NULL},
    {"POST", "/v1/tenants/{}:restore", O, API | ONCE | MATCH | DRY_RUN | OPTIONAL_BODY, kv_h_tenant_restore, NULL},
    {"GET", "/v1/tenants/{}/usage", O | T | V, API, kv_h_tenant_usage, kv_q_tenant_usage},
    {"POST", "/v1/tenants/{}/api-keys", O | T, API | ONCE | DRY_RUN, kv_h_key_create, NULL},
    {"GET", "/v1/tenants/{}/api-keys", O | T, API | LIST, kv_h_key_list, NULL},
    {"GET", "/v1/tenants/{}/api-keys/{}", O | T, API, kv_h_key_get, NULL},
    {"PATCH", "/v1/tenants/{}/api-keys/{}", O | T, API | MATCH | DRY_RUN, kv_h_key_update, NULL},
    {"DELETE", "/v1/tenants/{}/api-keys/{}", O | T, API | MATCH | DRY_RUN, kv_h_key_revoke, NULL},
    {"POST", "/v1/tenants/{}/api-keys/{}:rotate", O | T, API | ONCE | MATCH | DRY_RUN | OPTIONAL_BODY, kv_h_key_rotate,
     NULL},
    {"GET", "/v1/tenants/{}/encryption-keys", T | S, API | LIST, kv_h_tenant_keys, NULL},
    {"POST", "/v1/tenants/{}/encryption-keys:rotate", T | S, API | ONCE | WAIT | OPTIONAL_BODY, kv_h_tenant_key_rotate,
     NULL},
    {"POST", "/v1/api-keys", O, API | ONCE | DRY_RUN, kv_h_platform_key_create, NULL},
    {"GET", "/v1/api-keys", O, API | LIST, kv_h_platform_key_list, NULL},
    {"GET", "/v1/api-keys/{}", O, API, kv_h_platform_key_get, NULL},
    {"PATCH", "/v1/api-keys/{}", O, API | MATCH | DRY_RUN, kv_h_platform_key_update, NULL},
    {"DELETE", "/v1/api-keys/{}", O, API | MATCH | DRY_RUN, kv_h_platform_key_revoke, NULL},
    {"POST", "/v1/api-keys/{}:rotate", O, API | ONCE | MATCH | DRY_RUN | OPTIONAL_BODY, kv_h_platform_key_rotate, NULL},
    {"GET", "/v1/tenants/{}/policy", O | T | S | A | V, API, kv_h_policy_get, NULL},
    {"PUT", "/v1/tenants/{}/policy", T | S, API | DRY_RUN | MATCH, kv_h_policy_put, NULL},
    {"GET", "/v1/tenants/{}/policy/versions", O | T | S | A | V, API | LIST, kv_h_policy_versions, NULL},
    {"GET", "/v1/tenants/{}/policy/versions/{}", O | T | S | A | V, API, kv_h_policy_version, NULL},
    {"GET", "/v1/platform/policy", O | S | A | V, API, kv_h_platform_policy_get, NULL},
    {"PUT", "/v1/platform/policy", O | S, API | DRY_RUN | MATCH, kv_h_platform_policy_put, NULL},
    {"GET", "/v1/platform/policy/versions", O | S | A | V, API | LIST, kv_h_platform_policy_versions, NULL},
    {"GET", "/v1/platform/policy/versions/{}", O | S | A | V, API, kv_h_platform_policy_version, NULL},
    {"POST", "/v1/policies:evaluate", O | T | S | A, API, kv_h_policy_evaluate, NULL},
    {"POST", "/v1/policies:diff", O | T | S | A, API, kv_h_policy_diff, NULL},
    {"POST", "/v1/policies:dry-run", O | T | S | A, API, kv_h_policy_dry_run, NULL},

    {"GET", "/v1/tiers", O | V | T, API, kv_h_tiers, NULL},
    {"GET", "/v1/tiers/{}", O | V | T, API, kv_h_tier_get, NULL},
    {"PATCH", "/v1/tiers/{}", O, API | MATCH | DRY_RUN, kv_h_tier_update, NULL},
    {"POST", "/v1/tiers/dram:drain", O, API | ONCE | WAIT | OPTIONAL_BODY, kv_h_tier_drain, NULL},
    {"POST", "/v1/tiers/nvme:drain", O, API | ONCE | WAIT | OPTIONAL_BODY, kv_h_nvme_drain, NULL},

    {"GET", "/v1/events", O | T | A | V, API | STREAM | ANY_ACCEPT, kv_h_events, kv_q_events},

    {"POST", "/v1/sessions", T | E, API | TENANT | ONCE | DRY_RUN, kv_h_session_create, NULL},
    {"GET", "/v1/sessions", T | V | A, API | TENANT | LIST, kv_h_session_list, kv_q_sessions},
    {"GET", "/v1/sessions/{}", T | E | V | A, API | TENANT | MEMORY, kv_h_session_get, kv_q_session},
    {"PATCH", "/v1/sessions/{}", T, API | TENANT | MATCH | DRY_RUN, kv_h_session_update, NULL},
    {"DELETE", "/v1/sessions/{}", T | E, API | TENANT | WAIT | DRY_RUN | RESERVED, kv_h_session_delete, NULL},
    {"POST", "/v1/sessions/{}:touch", T | E, API | TENANT | OPTIONAL_BODY, kv_h_session_touch, NULL},
    {"POST", "/v1/sessions/{}:pin", T | E, API | TENANT | MATCH | DRY_RUN, kv_h_session_pin, NULL},
    {"POST", "/v1/sessions/{}:unpin", T | E, API | TENANT | MATCH | DRY_RUN | OPTIONAL_BODY, kv_h_session_unpin, NULL},
    {"POST", "/v1/sessions/{}:explain", T | O, API | OPTIONAL_BODY, kv_h_session_explain, NULL},

    {"GET", "/v1/status", O | V, API, kv_h_status, NULL},
    {"GET", "/v1/config", O, API, kv_h_config, NULL},
    {"GET", "/v1/loglevel", O, API, kv_h_log_level, NULL},
    {"PATCH", "/v1/loglevel", O, API, kv_h_log_level_change, NULL},
    {"GET", "/v1/backups", O, API, kv_h_backups, NULL},
    {"GET", "/v1/root", O | A | S | V, API, kv_h_root, NULL},
    {"POST", "/v1/root:rotate", O, API | ONCE | WAIT | OPTIONAL_BODY, kv_h_root_rotate, NULL},
    {"POST", "/v1/root:migrate", O, API | ONCE | WAIT, kv_h_root_migrate, NULL},

    {"GET", "/v1/engines", O | V | T | E, API | LIST, kv_h_engine_list, NULL},
    {"GET", "/v1/engines/{}", O | V | T | E, API, kv_h_engine_get, NULL},
    {"POST", "/v1/engines", E, API | TENANT, kv_h_engine_register, NULL},
    {"POST", "/v1/engines/{}:heartbeat", E, API | TENANT | BULK, kv_h_engine_heartbeat, NULL},
    {"DELETE", "/v1/engines/{}", E, API | TENANT, kv_h_engine_remove, NULL},
    {"POST", "/v1/engines/{}/pools", E, API | TENANT, kv_h_pool_register, NULL},
    {"DELETE", "/v1/pools/{}", E, API | TENANT, kv_h_pool_remove, NULL},

    {"POST", "/v1/lookups", E, API | TENANT | BULK, kv_h_lookup, NULL},
    {"POST", "/v1/offloads", E, API | TENANT | BULK, kv_h_offload, NULL},
    {"POST", "/v1/restores", E, API | TENANT | BULK, kv_h_restore, NULL},

    {"POST", "/v1/erasures", T | E, API | TENANT | FOR_EVER | DRY_RUN | WAIT | RESERVED, kv_h_erasure_create, NULL},
    {"GET", "/v1/erasures", T | A | E | V, API | TENANT | LIST, kv_h_erasures, kv_q_erasures},
    {"GET", "/v1/erasures/{}", T | E | A | V, API | TENANT | WAIT, kv_h_erasure_get, NULL},
    {"POST", "/v1/erasures/{}:cancel", T, API | TENANT | RESERVED | OPTIONAL_BODY, kv_h_erasure_cancel, NULL},
    {"POST", "/v1/erasures/{}:prove", T | A | S, API | TENANT | ONCE | WAIT | OPTIONAL_BODY, kv_h_erasure_prove, NULL},
    {"GET", "/v1/erasures/{}/certificate", T | E | A, API | TENANT | ANY_ACCEPT, kv_h_certificate, NULL},
    {"GET", "/v1/erasures/{}/certificate.txt", T | E | A, API | TENANT | ANY_ACCEPT, kv_h_certificate_text, NULL},
    {"GET", "/v1/erasures/{}/upgrade.txt", T | E | A, API | TENANT | ANY_ACCEPT, kv_h_upgrade_text, NULL},
    {"GET", "/v1/certificates", T | A, API | TENANT | LIST, kv_h_certificates, kv_q_certificates},
    {"GET", "/v1/certificates/{}", T | A, API | TENANT | ANY_ACCEPT, kv_h_certificate_get, NULL},
    {"GET", "/v1/certificates/{}/upgrade.txt", T | A, API | TENANT | ANY_ACCEPT, kv_h_certificate_upgrade_text, NULL},
    {"GET", "/v1/certificates:export", T | A, API | TENANT | ANY_ACCEPT, kv_h_certificates_export, kv_q_certificates},
    {"POST", "/v1/certificates:verify", 0, API | PUBLIC | ANY_BODY, kv_h_certificate_verify, NULL},

    {"POST", "/v1/holds", T | S, API | TENANT | ONCE | DRY_RUN, kv_h_hold_create, NULL},
    {"GET", "/v1/holds", T | S | A | V, API | TENANT | LIST, kv_h_holds, kv_q_holds},
    {"GET", "/v1/holds/{}", T | S | A | V, API | TENANT, kv_h_hold_get, NULL},
    {"DELETE", "/v1/holds/{}", T | S, API | TENANT | MATCH | DRY_RUN, kv_h_hold_release, NULL},

    {"GET", "/v1/approvals", O | T | S | A, API | LIST, kv_h_approvals, kv_q_approvals},
    {"GET", "/v1/approvals/{}", O | T | S | A, API, kv_h_approval_get, NULL},
    {"POST", "/v1/approvals/{}:approve", S, API | ONCE | DRY_RUN | OPTIONAL_BODY, kv_h_approval_approve, NULL},
    {"POST", "/v1/approvals/{}:reject", S, API | ONCE | DRY_RUN | OPTIONAL_BODY, kv_h_approval_reject, NULL},

    {"GET", "/v1/audit/entries", T | A | O, API | LIST, kv_h_audit_entries, kv_q_audit_entries},
    {"GET", "/v1/audit/checkpoint", T | A | O, API | ANY_ACCEPT, kv_h_audit_checkpoint, NULL},
    {"GET", "/v1/audit/proof/inclusion", T | A | O, API, kv_h_audit_inclusion, kv_q_audit_inclusion},
    {"GET", "/v1/audit/proof/consistency", T | A | O, API, kv_h_audit_consistency, kv_q_audit_consistency},
    {"POST", "/v1/audit:verify", T | A | O, API | ONCE | WAIT | OPTIONAL_BODY, kv_h_audit_verify, NULL},
    {"GET", "/v1/audit:export", T | A | O, API | ANY_ACCEPT, kv_h_audit_export, kv_q_audit_export},

    {"GET", "/v1/operations", T | A | O | S, API | LIST, kv_h_operations, kv_q_operations},
    {"GET", "/v1/operations/{}", T | A | O | S, API | WAIT, kv_h_operation_get, NULL},
    {"POST", "/v1/operations/{}:cancel", T | A | O | S, API | RESERVED | OPTIONAL_BODY, kv_h_operation_cancel, NULL},
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

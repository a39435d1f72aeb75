/*
 * Probes and version: answered by the listener's thread from cached state, so that they work when the service
 * threads are busy and the database is gone. Must never wait, and never ask the database.
 */
#include "kv_version.h"
#include "server/http/h_shared.h"
#include "server/http/headers.h"
#include "server/http/httpd_int.h"

#include <string.h>

#define TEXT "text/plain; charset=utf-8"

KV_RC kv_h_livez(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    req->response.content_type = TEXT;
    kv_buf_text(&req->response.body, "ok\n");
    return KV_OK;
}

static void not_ready(struct kv_req *req)
{
    req->response.status = 503;
    req->response.retry_after_seconds = 1;
}

const struct kv_field kv_q_readyz[] = {
    {"verbose", KV_BOOL, false, 0, 0, NULL}, /* as orchestrators ask; the lines are there in any case */
    {"exclude", KV_TEXT, false, 1, 128, NULL},
    {NULL, KV_TEXT, false, 0, 0, NULL},
};

static bool is_listed(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = list; p != NULL; p = strchr(p, ',') == NULL ? NULL : strchr(p, ',') + 1) {
        if (strcspn(p, ",") == len && strncmp(p, name, len) == 0) {
            return true;
        }
    }
    return false;
}

/* A list of checks that do not count; a name that is none would silently exclude nothing. */
static KV_RC check_excluded(const char *list, const struct kv_ready_check *checks)
{
    size_t known = 0, listed = list == NULL ? 0 : 1;
    for (const char *p = list; p != NULL && *p != '\0'; p++) {
        listed += *p == ',';
    }
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        known += is_listed(list, checks[i].name);
    }
    return known == listed ? KV_OK : KV_E_INVALID_REQUEST;
}

KV_RC kv_h_readyz(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    const char *exclude = kv_h_query_text(req, "exclude");
    struct kv_svc *svc = kv_httpd_svc(req->httpd);
    struct kv_ready_check checks[KV_READY_CHECKS];
    req->response.content_type = TEXT;
    if (svc == NULL) {
        kv_buf_text(&req->response.body, "[-]startup the server is starting\n");
        not_ready(req);
        return KV_OK;
    }
    kv_svc_ready(svc, checks);
    KV_TRY(check_excluded(exclude, checks));
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        if (is_listed(exclude, checks[i].name)) {
            kv_buf_printf(&req->response.body, "[ ]%s excluded\n", checks[i].name);
            continue;
        }
        if (!checks[i].ok) {
            not_ready(req);
        }
        bool silent = checks[i].detail == NULL || checks[i].detail[0] == '\0';
        kv_buf_printf(&req->response.body, "[%c]%s %s\n", checks[i].ok ? '+' : '-', checks[i].name,
                      silent ? (checks[i].ok ? "ok" : "failed") : checks[i].detail);
    }
    return KV_OK;
}

KV_RC kv_h_startupz(struct kv_call *call, struct kv_req *req)
{
    if (kv_httpd_svc(req->httpd) != NULL) {
        return kv_h_livez(call, req);
    }
    return kv_h_readyz(call, req);
}

/* --- version ----------------------------------------------------------------------------------------------------- */

static void optional_text(struct kv_buf *out, const char *name, const char *text)
{
    if (text != NULL) {
        kv_out_text(out, name, text);
    }
}

static void write_about(struct kv_buf *out, struct kv_svc *svc)
{
    struct kv_about about;
    kv_svc_about(svc, &about);
    optional_text(out, "engine_socket", about.engine_socket);
    optional_text(out, "fd_socket", about.fd_socket);
    optional_text(out, "io_engine", about.io_name);
    optional_text(out, "cipher", about.cipher_name);
    optional_text(out, "root_provider", about.root_provider);
    kv_out_id(out, "cluster", "clu", &about.cluster);
    kv_out_id(out, "instance", "ins", &about.instance);
}

/* Routes that will go, so that a client need not meet one to learn of it. */
static void write_deprecated(struct kv_buf *out)
{
    kv_out_array(out, "deprecated");
    for (const struct kv_deprecation *row = kv_deprecations; row->method != NULL; row++) {
        kv_out_open(out);
        kv_out_text(out, "method", row->method);
        kv_out_text(out, "path", row->pattern);
        kv_out_time(out, "deprecated_at", row->since_s * 1000000);
        if (row->sunset_s != 0) {
            kv_out_time(out, "sunset_at", row->sunset_s * 1000000);
        }
        kv_out_text(out, "link", row->link);
        kv_out_close(out);
    }
    kv_out_array_end(out);
}

KV_RC kv_h_version(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    struct kv_buf *out = &req->response.body;
    struct kv_svc *svc = kv_httpd_svc(req->httpd);
    kv_out_open(out);
    kv_out_text(out, "version", KV_VERSION);
    kv_out_text(out, "git", KV_REVISION);
    kv_out_array(out, "api");
    kv_out_text(out, NULL, "v1");
    kv_out_array_end(out);
    write_deprecated(out);
    if (svc != NULL) {
        write_about(out, svc);
    }
    kv_out_close(out);
    return KV_OK;
}

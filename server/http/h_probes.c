/*
 * Probes, metrics and version: answered by the listener's thread from cached state, so that they work when the service
 * threads are busy and the database is gone. Must never wait, and never ask the database.
 */
#include "dataplane/base/metric.h"
#include "kv_version.h"
#include "server/http/h_shared.h"
#include "server/http/headers.h"
#include "server/http/httpd_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

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

KV_RC kv_h_readyz(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    struct kv_svc *svc = kv_httpd_svc(req->httpd);
    struct kv_ready_check checks[KV_READY_CHECKS];
    req->response.content_type = TEXT;
    if (svc == NULL) {
        kv_buf_text(&req->response.body, "[-]startup the server is starting\n");
        not_ready(req);
        return KV_OK;
    }
    if (!kv_svc_ready(svc, checks)) {
        not_ready(req);
    }
    for (int i = 0; i < KV_READY_CHECKS; i++) {
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

/* --- metrics ----------------------------------------------------------------------------------------------------- */

/* The names that kv_svc_ready reports, known before the service is. */
static const char *const check_names[KV_READY_CHECKS] = {"db",    "migrations", "root_key", "audit",
                                                         "lease", "tiers",      "shutdown"};
static struct kv_metric *ready[KV_READY_CHECKS], *resident;

/* Seconds since the system's start at which this process was started; field 22 of stat, after a name that may hold
 * anything but ends with the last ')'. */
static double started_after_boot(void)
{
    char line[1024] = "";
    unsigned long long ticks = 0;
    FILE *file = fopen("/proc/self/stat", "re");
    if (file == NULL) {
        return 0;
    }
    size_t len = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    const char *rest = line + len;
    while (rest > line && *rest != ')') {
        rest--;
    }
    if (sscanf(rest, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) !=
        1) {
        return 0;
    }
    return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static double resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) {
        return 0;
    }
    if (fscanf(file, "%*u %llu", &pages) != 1) {
        pages = 0;
    }
    fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void refresh(void *ctx)
{
    struct kv_svc *svc = kv_httpd_svc(ctx);
    struct kv_ready_check checks[KV_READY_CHECKS] = {0};
    kv_metric_set(resident, resident_bytes());
    if (svc == NULL) {
        return;
    }
    kv_svc_ready(svc, checks);
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        kv_metric_set(ready[i], checks[i].ok ? 1 : 0);
    }
}

void kv_probes_init(struct kv_httpd *httpd)
{
    char labels[96];
    const struct kv_env *env = kv_httpd_env(httpd);
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        snprintf(labels, sizeof labels, "check=\"%s\"", check_names[i]);
        ready[i] = kv_metric_gauge("kvrun_ready", "1 when this check of readyz passes", labels);
        kv_metric_set(ready[i], 0);
    }
    snprintf(labels, sizeof labels, "version=\"%s\",revision=\"%s\"", KV_VERSION, KV_REVISION);
    kv_metric_set(kv_metric_gauge("kvrun_build_info", "Always 1; the labels say what was built", labels), 1);
    double now = (double)env->realtime_us(env->ctx) / 1e6, up = (double)env->boottime_ns(env->ctx) / 1e9;
    kv_metric_set(kv_metric_gauge("process_start_time_seconds", "Start of the process, in seconds since 1970", NULL),
                  now - up + started_after_boot());
    resident = kv_metric_gauge("process_resident_memory_bytes", "Resident memory of the process", NULL);
    kv_metric_on_print(refresh, httpd);
}

void kv_probes_done(struct kv_httpd *httpd)
{
    kv_metric_off_print(httpd);
}

KV_RC kv_h_metrics(struct kv_call *call, struct kv_req *req)
{
    (void)call;
    req->response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    kv_metric_print(&req->response.body, KV_METRIC_TEXT);
    return KV_OK;
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

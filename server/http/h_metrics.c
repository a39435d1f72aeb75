/*
 * GET /metrics. Answered by the listener's thread from memory, unless metrics.auth asks for a key. Must never wait, and
 * never ask the database.
 */
#include "dataplane/base/log.h"
#include "dataplane/base/metric.h"
#include "kv_version.h"
#include "server/http/h_shared.h"
#include "server/http/httpd_int.h"
#include "server/http/line.h"
#include "server/http/parking.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <unistd.h>

#define TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define BODY_MAX (4u << 20)

/* --- which format ------------------------------------------------------------------------------------------------ */

/* One range of Accept (RFC 9110 section 12.5.1), in thousandths. */
struct range {
    const char *type;
    size_t type_len;
    char version[16];
    int q;
};

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t");
}

/* "0.875"; what cannot be read counts as 0, so that nothing is sent that was not clearly asked for. */
static int weight_of(const char *p, size_t len)
{
    int value = 0, unit = 1000;
    if (len == 0 || len > 5 || (p[0] != '0' && p[0] != '1') || (len > 1 && p[1] != '.')) {
        return 0;
    }
    value = (p[0] - '0') * 1000;
    for (size_t i = 2; i < len; i++) {
        if (p[i] < '0' || p[i] > '9') {
            return 0;
        }
        unit /= 10;
        value += (p[i] - '0') * unit;
    }
    return value > 1000 ? 0 : value;
}

static void take_parameter(struct range *range, const char *p, size_t len)
{
    size_t quoted = len > 0 && p[len - 1] == '"' ? 1 : 0;
    if (len > 2 && strncasecmp(p, "q=", 2) == 0) {
        range->q = weight_of(p + 2, len - 2);
    } else if (len > 8 + 2 * quoted && strncasecmp(p, "version=", 8) == 0) {
        snprintf(range->version, sizeof range->version, "%.*s", (int)(len - 8 - 2 * quoted), p + 8 + quoted);
    }
}

/* Reads the range at `p`; returns where the next one is, or the end. */
static const char *take_range(const char *p, struct range *ret_range)
{
    const char *end = p + strcspn(p, ",");
    p = skip_blanks(p);
    *ret_range = (struct range){.type = p, .type_len = strcspn(p, ";, \t"), .q = 1000};
    for (const char *at = memchr(p, ';', (size_t)(end - p)); at != NULL; at = memchr(at, ';', (size_t)(end - at))) {
        at = skip_blanks(at + 1);
        take_parameter(ret_range, at, strcspn(at, ";, \t"));
    }
    return *end == ',' ? end + 1 : end;
}

static bool is_type(const struct range *range, const char *type)
{
    return range->type_len == strlen(type) && strncasecmp(range->type, type, range->type_len) == 0;
}

/* How closely a range names the text format: 0 not at all. */
static int names_text(const struct range *range)
{
    if (is_type(range, "text/plain") && (range->version[0] == '\0' || strcmp(range->version, "0.0.4") == 0)) {
        return 3;
    }
    return is_type(range, "text/*") ? 2 : is_type(range, "*/*") ? 1 : 0;
}

/* OpenMetrics is for those who name it; whoever takes anything gets what every tool reads. */
static bool names_openmetrics(const struct range *range)
{
    return is_type(range, "application/openmetrics-text") &&
           (range->version[0] == '\0' || strcmp(range->version, "1.0.0") == 0);
}

/* KV_METRIC_TEXT or KV_METRIC_OPENMETRICS; -1: neither is wanted. */
static int choose(const char *accept)
{
    int text = 0, open = 0, closest = 0;
    if (accept == NULL || accept[0] == '\0') {
        return KV_METRIC_TEXT;
    }
    for (const char *p = accept; *p != '\0';) {
        struct range range;
        p = take_range(p, &range);
        int closeness = names_text(&range);
        if (closeness > closest || (closeness == closest && closeness > 0 && range.q > text)) {
            closest = closeness;
            text = range.q;
        }
        open = names_openmetrics(&range) && range.q > open ? range.q : open;
    }
    return open > 0 && open >= text ? KV_METRIC_OPENMETRICS : text > 0 ? KV_METRIC_TEXT : -1;
}

KV_RC kv_h_metrics(struct kv_call *call, struct kv_req *req)
{
    const struct kv_httpd_conf *conf = &req->httpd->conf;
    int format = choose(req->given.accept);
    if (format == KV_METRIC_OPENMETRICS && conf->metrics_no_openmetrics) {
        format = KV_METRIC_TEXT;
    }
    if (format < 0) {
        return kv_fail(call == NULL ? NULL : &call->info, KV_E_NOT_ACCEPTABLE,
                       "metrics are text/plain; version=0.0.4 or application/openmetrics-text; version=1.0.0");
    }
    unsigned exemplars = conf->metrics_no_exemplars ? 0 : KV_METRIC_EXEMPLARS;
    req->response.content_type = format == KV_METRIC_OPENMETRICS ? OPENMETRICS_TYPE : TEXT_TYPE;
    kv_buf_done(&req->response.body);
    kv_buf_init(&req->response.body, BODY_MAX);
    kv_metric_print(&req->response.body, (unsigned)format | exemplars);
    return KV_OK;
}

/* --- what is read when somebody scrapes -------------------------------------------------------------------------- */

/* The names that kv_svc_ready reports, known before the service is. */
static const char *const check_names[KV_READY_CHECKS] = {"db",    "migrations", "root_key", "anchor",
                                                         "audit", "lease",      "tiers",    "shutdown"};
static const char *const listener_names[LISTENERS] = {
    [LISTEN_API] = "api", [LISTEN_ADMIN] = "admin", [LISTEN_SOCKET] = "socket"};
static const char *const level_names[] = {"debug", "info", "warn", "error"};
#define LEVELS (sizeof level_names / sizeof level_names[0])

static struct {
    struct kv_metric *ready[KV_READY_CHECKS], *resident, *virtual_size, *cpu, *open_fds, *max_fds;
    struct kv_metric *connections[LISTENERS], *connections_limit, *suspended, *queue_depth, *queue_limit, *subscribers;
    struct kv_metric *log[LEVELS];
    uint64_t logged[LEVELS]; /* what the counters have; under the registry's print lock */
    bool info_set;
} gauges;

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

static void refresh_memory(void)
{
    unsigned long long pages = 0, total = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) {
        return;
    }
    if (fscanf(file, "%llu %llu", &total, &pages) == 2) {
        kv_metric_set(gauges.virtual_size, (double)total * (double)sysconf(_SC_PAGESIZE));
        kv_metric_set(gauges.resident, (double)pages * (double)sysconf(_SC_PAGESIZE));
    }
    fclose(file);
}

static void refresh_descriptors(void)
{
    struct rlimit limit;
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) {
        return;
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    kv_metric_set(gauges.open_fds, count - 1); /* without the folder's own */
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        kv_metric_set(gauges.max_fds, (double)limit.rlim_cur);
    }
}

static void refresh_process(void)
{
    struct rusage usage;
    refresh_memory();
    refresh_descriptors();
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        kv_metric_set_total(gauges.cpu, (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                                            (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    }
    for (unsigned i = 0; i < LEVELS; i++) {
        uint64_t count = kv_log_count((enum kv_log_level)i);
        kv_metric_add(gauges.log[i], count - gauges.logged[i]);
        gauges.logged[i] = count;
    }
}

static void refresh_listeners(struct kv_httpd *httpd)
{
    for (unsigned i = 0; i < LISTENERS; i++) {
        kv_metric_set(gauges.connections[i], kv_httpd_connections(httpd, i));
    }
    kv_metric_set(gauges.connections_limit, httpd->conf.connections);
    kv_metric_set(gauges.suspended, atomic_load(&httpd->running));
    kv_metric_set(gauges.queue_depth, httpd->line == NULL ? 0 : (double)kv_line_len(httpd->line));
    kv_metric_set(gauges.subscribers, httpd->parking == NULL ? 0 : (double)kv_parking_streams(httpd->parking));
    kv_metric_set(gauges.queue_limit, (double)KV_MAX_SERVICE_QUEUE);
}

/* What this server runs on is known once the service is. */
static void set_info(struct kv_svc *svc)
{
    struct kv_about about;
    char labels[120];
    kv_svc_about(svc, &about);
    snprintf(labels, sizeof labels, "io_engine=\"%.16s\",device=\"host\",seal_path=\"host\",cipher=\"%.24s\"",
             about.io_name == NULL ? "" : about.io_name, about.cipher_name == NULL ? "" : about.cipher_name);
    kv_metric_set(kv_metric_gauge("kvrun_info", "Always 1; the labels say how this server works", labels), 1);
    gauges.info_set = true;
}

static void refresh(void *ctx)
{
    struct kv_svc *svc = kv_httpd_svc(ctx);
    struct kv_ready_check checks[KV_READY_CHECKS] = {0};
    refresh_process();
    refresh_listeners(ctx);
    if (svc == NULL) {
        return;
    }
    kv_svc_ready(svc, checks);
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        kv_metric_set(gauges.ready[i], checks[i].ok ? 1 : 0);
    }
    if (!gauges.info_set) {
        set_info(svc);
    }
}

static void register_process(const struct kv_env *env)
{
    double now = (double)env->realtime_us(env->ctx) / 1e6, up = (double)env->boottime_ns(env->ctx) / 1e9;
    double start = now - up + started_after_boot();
    kv_metric_set(kv_metric_gauge("process_start_time_seconds", "Start of the process, in seconds since 1970", NULL),
                  start);
    kv_metric_set(kv_metric_gauge("kvrun_start_time_seconds", "Start of the server, in seconds since 1970", NULL), now);
    gauges.resident = kv_metric_gauge("process_resident_memory_bytes", "Resident memory of the process", NULL);
    gauges.virtual_size = kv_metric_gauge("process_virtual_memory_bytes", "Virtual memory of the process", NULL);
    gauges.cpu = kv_metric_total("process_cpu_seconds_total", "User and system time of the process", NULL);
    gauges.open_fds = kv_metric_gauge("process_open_fds", "Open descriptors", NULL);
    gauges.max_fds = kv_metric_gauge("process_max_fds", "Descriptors that may be open at once", NULL);
}

static void register_listeners(void)
{
    char labels[64];
    for (unsigned i = 0; i < LISTENERS; i++) {
        snprintf(labels, sizeof labels, "listener=\"%s\"", listener_names[i]);
        gauges.connections[i] = kv_metric_gauge("kvrun_http_connections", "Connections that are open", labels);
    }
    gauges.connections_limit =
        kv_metric_gauge("kvrun_http_connections_limit", "Connections of one listener at once", NULL);
    gauges.suspended =
        kv_metric_gauge("kvrun_http_suspended", "Requests that wait for a service thread or are served by one", NULL);
    gauges.queue_depth = kv_metric_gauge("kvrun_service_queue_depth", "Requests that wait for a service thread", NULL);
    gauges.subscribers = kv_metric_gauge("kvrun_events_subscribers", "Streams of events that are open", NULL);
    gauges.queue_limit = kv_metric_gauge("kvrun_service_queue_limit", "Requests that may wait at once", NULL);
}

void kv_probes_init(struct kv_httpd *httpd)
{
    char labels[96];
    for (int i = 0; i < KV_READY_CHECKS; i++) {
        snprintf(labels, sizeof labels, "check=\"%s\"", check_names[i]);
        gauges.ready[i] = kv_metric_gauge("kvrun_ready", "1 when this check of readyz passes", labels);
        kv_metric_set(gauges.ready[i], 0);
    }
    for (unsigned i = 0; i < LEVELS; i++) {
        snprintf(labels, sizeof labels, "level=\"%s\"", level_names[i]);
        gauges.log[i] = kv_metric_counter("kvrun_log_messages_total", "Lines written to the log", labels);
    }
    snprintf(labels, sizeof labels, "version=\"%s\",revision=\"%s\"", KV_VERSION, KV_REVISION);
    kv_metric_set(kv_metric_gauge("kvrun_build_info", "Always 1; the labels say what was built", labels), 1);
    register_process(kv_httpd_env(httpd));
    register_listeners();
    kv_metric_on_print(refresh, httpd);
}

void kv_probes_done(struct kv_httpd *httpd)
{
    kv_metric_off_print(httpd);
}

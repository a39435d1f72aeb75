/*
 * The guard. libmicrohttpd 0.9.75 accepts requests that a proxy in front of it may read differently: two lengths, a
 * length and a transfer coding, spaces before a colon, encoded slashes, cut-off targets. Each of them is refused here
 * before the body is read, so that one connection never carries a request nobody sent. Must never pass on a target that
 * is not in its one canonical spelling.
 */
#include "server/http/request.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/http/httpd_int.h"
#include "server/http/manners.h"
#include "server/http/query.h"
#include "server/http/stream.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_alphanumeric(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_token(const char *name)
{
    const char *p = name;
    while (is_alphanumeric((unsigned char)*p) || (*p != '\0' && strchr("!#$%&'*+-.^_`|~", *p) != NULL)) {
        p++;
    }
    return p > name && *p == '\0';
}

struct kv_req *kv_req_new(struct kv_httpd *httpd, const char *target)
{
    struct kv_req *req = kv_alloc(sizeof *req);
    if (req == NULL) {
        return NULL;
    }
    req->httpd = httpd;
    req->target = kv_strdup(target);
    kv_buf_init(&req->body, (size_t)KV_MAX_BODY_BYTES);
    kv_buf_init(&req->response.body, 16 * (size_t)KV_MAX_BODY_BYTES);
    kv_buf_init(&req->response.link, 4 * (size_t)KV_MAX_QUERY_BYTES);
    return req;
}

void kv_req_free(struct kv_req *req)
{
    if (req == NULL) {
        return;
    }
    explicit_bzero(req->bearer, sizeof req->bearer);
    kv_stream_free(req->stream);
    if (req->response.secret && req->response.body.data != NULL) {
        explicit_bzero(req->response.body.data, req->response.body.size);
    }
    kv_buf_done(&req->body);
    kv_buf_done(&req->response.body);
    kv_buf_done(&req->response.link);
    kv_free(req->query);
    kv_free(req->target);
    kv_free(req);
}

void kv_response_reset(struct kv_response *response)
{
    struct kv_buf body = response->body, link = response->link;
    struct kv_rate_state rate = response->rate; /* it was counted once */
    kv_buf_reset(&body);
    kv_buf_reset(&link);
    *response = (struct kv_response){.body = body, .link = link, .rate = rate};
}

/* --- target ------------------------------------------------------------------------------------------------------ */

static bool path_byte_ok(const char *p)
{
    unsigned char c = (unsigned char)*p;
    if (c == '%') { /* nothing in our paths needs an escape, so none has two spellings */
        return false;
    }
    return is_alphanumeric(c) || (c > 0x20 && c <= 0x7e && strchr("\"<>\\^`{|}#", c) == NULL);
}

static bool path_ok(const char *path, size_t len)
{
    if (len == 0 || path[0] != '/') {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        if (!path_byte_ok(path + i)) {
            return false;
        }
        if (path[i] == '/' && i + 1 < len) {
            const char *segment = path + i + 1;
            size_t n = strcspn(segment, "/?");
            if ((n == 0 && segment[0] == '/') || (n == 1 && segment[0] == '.') ||
                (n == 2 && strncmp(segment, "..", 2) == 0)) {
                return false;
            }
        }
    }
    return true;
}

static KV_RC check_target(struct kv_req *req, struct kv_errinfo *info)
{
    const char *target = req->target;
    if (target == NULL) {
        return KV_E_NO_MEMORY;
    }
    size_t path_len = strcspn(target, "?");
    if (path_len > (size_t)KV_MAX_PATH_BYTES || strlen(target) - path_len > (size_t)KV_MAX_QUERY_BYTES + 1) {
        return kv_fail(info, KV_E_URI_TOO_LONG, "at most %d bytes of path and %d of query", (int)KV_MAX_PATH_BYTES,
                       (int)KV_MAX_QUERY_BYTES);
    }
    if (strcmp(target, "*") == 0 && strcmp(req->method, "OPTIONS") == 0) {
        memcpy(req->path, "*", 2);
        return KV_OK;
    }
    if (!path_ok(target, path_len)) {
        return kv_fail(info, KV_E_INVALID_REQUEST,
                       "the path must start with / and hold plain characters: no escapes, no empty, . or .. segments");
    }
    memcpy(req->path, target, path_len);
    req->path[path_len] = '\0';
    return target[path_len] == '?' ? kv_query_parse(req, target + path_len + 1, info) : KV_OK;
}

/* --- headers ----------------------------------------------------------------------------------------------------- */

enum header {
    ACCEPT,
    AUTHORIZATION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    LAST_EVENT_ID,
    ORIGIN,
    PREFER,
    TRACEPARENT,
    TRANSFER_ENCODING,
    REQUEST_ID,
    HEADERS
};

/* With their lengths, which tell most of them apart. */
#define NAME(text)            \
    {                         \
        text, sizeof text - 1 \
    }
static const struct {
    const char *name;
    size_t len;
} headers[HEADERS] = {
    NAME("Accept"),          NAME("Authorization"), NAME("Content-Length"),    NAME("Content-Type"),  NAME("Host"),
    NAME("Idempotency-Key"), NAME("If-Match"),      NAME("If-None-Match"),     NAME("Last-Event-ID"), NAME("Origin"),
    NAME("Prefer"),          NAME("traceparent"),   NAME("Transfer-Encoding"), NAME("X-Request-Id")};
#undef NAME

struct header_scan {
    unsigned count, seen[HEADERS];
    bool bad_name, te_not_chunked;
    const char *value[HEADERS]; /* of the last one */
};

static enum MHD_Result scan_header(void *ctx, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct header_scan *scan = ctx;
    (void)kind;
    size_t len = strlen(name);
    value = value == NULL ? "" : value;
    scan->count++;
    scan->bad_name = scan->bad_name || !is_token(name);
    for (int i = 0; i < HEADERS; i++) {
        if (len == headers[i].len && strcasecmp(name, headers[i].name) == 0) {
            scan->seen[i]++;
            scan->value[i] = value;
            scan->te_not_chunked =
                scan->te_not_chunked || (i == TRANSFER_ENCODING && strcasecmp(value, "chunked") != 0);
        }
    }
    return MHD_YES;
}

/* Headers that mean something else when there are two of them. */
static KV_RC check_once(const struct header_scan *scan, struct kv_errinfo *info)
{
    static const enum header once[] = {AUTHORIZATION, CONTENT_TYPE, IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH};
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++) {
        if (scan->seen[once[i]] > 1) {
            return kv_fail(info, KV_E_INVALID_REQUEST, "%s may be sent once", headers[once[i]].name);
        }
    }
    return KV_OK;
}

static KV_RC check_framing(const struct header_scan *scan, const char *version, struct kv_errinfo *info)
{
    bool http10 = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
    if (scan->count > (unsigned)KV_MAX_HEADERS_MAX) {
        return kv_fail(info, KV_E_HEADERS_TOO_LARGE, "at most %d header lines", (int)KV_MAX_HEADERS_MAX);
    }
    if (scan->bad_name) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "a header name is not a token (RFC 9110 section 5.1)");
    }
    unsigned lengths = scan->seen[CONTENT_LENGTH], codings = scan->seen[TRANSFER_ENCODING];
    if (lengths > 1 || (lengths > 0 && codings > 0)) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "send one Content-Length or one Transfer-Encoding, not several");
    }
    if (codings > 0 && http10) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
    }
    if (codings > 1 || scan->te_not_chunked) {
        return kv_fail(info, KV_E_NOT_IMPLEMENTED, "the only transfer coding here is chunked");
    }
    if (!http10 && scan->seen[HOST] != 1) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "send exactly one Host header");
    }
    return check_once(scan, info);
}

static void take_upload(struct kv_req *req, const struct header_scan *scan)
{
    req->content_length = scan->value[CONTENT_LENGTH];
    req->uploads = scan->value[TRANSFER_ENCODING] != NULL ||
                   (req->content_length != NULL && strcmp(req->content_length, "0") != 0);
}

static void take_bearer(struct kv_req *req, const char *value)
{
    if (value != NULL && strncasecmp(value, "Bearer ", 7) == 0 && strlen(value + 7) < sizeof req->bearer) {
        snprintf(req->bearer, sizeof req->bearer, "%s", value + 7);
        req->has_bearer = true;
    }
}

static const char *skip_blanks(const char *p)
{
    return p + strspn(p, " \t");
}

/* Does the range that starts at `p` carry q=0: named only to be left out? */
static bool is_left_out(const char *p)
{
    const char *end = p + strcspn(p, ",");
    for (p = memchr(p, ';', (size_t)(end - p)); p != NULL; p = memchr(p, ';', (size_t)(end - p))) {
        p = skip_blanks(p + 1);
        if ((p[0] == 'q' || p[0] == 'Q') && p[1] == '=' && p[2] == '0') {
            const char *digits = p[3] == '.' ? p + 4 + strspn(p + 4, "0") : p + 3;
            digits = skip_blanks(digits);
            return *digits == '\0' || *digits == ',' || *digits == ';';
        }
    }
    return false;
}

static bool lists(const char *accept, const char *type)
{
    size_t len = strlen(type);
    for (const char *p = accept; p != NULL; p = strchr(p, ',') == NULL ? NULL : strchr(p, ',') + 1) {
        p = skip_blanks(p);
        if (strncasecmp(p, type, len) == 0 && (p[len] == '\0' || strchr(",; \t", p[len]) != NULL)) {
            return !is_left_out(p);
        }
    }
    return false;
}

static void take_accept(struct kv_req *req, const char *accept)
{
    bool any = accept == NULL || accept[0] == '\0' || lists(accept, "*/*");
    req->accepts_json = any || lists(accept, "application/json") || lists(accept, "application/*") ||
                        lists(accept, "application/problem+json");
    req->accepts_text = lists(accept == NULL ? "" : accept, "text/plain");
    req->accepts_jose = lists(accept == NULL ? "" : accept, "application/jose");
    req->accepts_html = lists(accept == NULL ? "" : accept, "text/html");
    req->accepts_events = any || lists(accept, "text/event-stream");
}

/* One preference (RFC 7240): true when it is wait with a whole number, which may stand in quotes. What cannot be
 * understood is no preference. */
static bool is_wait(const char *p, unsigned *ret_seconds)
{
    if (strncasecmp(p, "wait", 4) != 0) {
        return false;
    }
    p = skip_blanks(p + 4);
    if (*p != '=') {
        return false;
    }
    p = skip_blanks(p + 1);
    p += *p == '"' ? 1 : 0;
    unsigned seconds = 0;
    const char *digit = p;
    for (; *digit >= '0' && *digit <= '9'; digit++) {
        seconds = seconds > (unsigned)KV_MAX_WAIT_SECONDS ? seconds : seconds * 10 + (unsigned)(*digit - '0');
    }
    *ret_seconds = seconds > (unsigned)KV_MAX_WAIT_SECONDS ? (unsigned)KV_MAX_WAIT_SECONDS : seconds;
    return digit > p && (*digit == '\0' || strchr("\",; \t", *digit) != NULL);
}

static void take_wait(struct kv_req *req, const char *prefer)
{
    for (const char *p = prefer; p != NULL; p = strchr(p, ',') == NULL ? NULL : strchr(p, ',') + 1) {
        if (is_wait(skip_blanks(p), &req->wait_seconds)) {
            return; /* the first one counts */
        }
        req->wait_seconds = 0;
    }
}

/* A caller's id is kept when it can do no harm in a log line; else the request gets one of ours. */
static KV_RC take_request_id(struct kv_req *req, const char *given)
{
    size_t len = given == NULL ? 0 : strlen(given);
    if (len >= 8 && len <= 64 &&
        strspn(given, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == len) {
        memcpy(req->request_id, given, len + 1);
        return KV_OK;
    }
    struct kv_id id;
    KV_TRY(kv_request_ids_next(&req->httpd->request_ids, &id));
    kv_id_text("req", &id, req->request_id);
    return KV_OK;
}

static enum kv_body_type body_type(const char *value)
{
    static const struct {
        const char *name;
        enum kv_body_type type;
    } types[] = {{"application/json", KV_BODY_JSON},
                 {"application/merge-patch+json", KV_BODY_MERGE_PATCH},
                 {"application/jose", KV_BODY_JOSE},
                 {"text/plain", KV_BODY_TEXT}};
    for (size_t i = 0; value != NULL && i < sizeof types / sizeof types[0]; i++) {
        size_t len = strlen(types[i].name);
        if (strncasecmp(value, types[i].name, len) == 0 &&
            (value[len] == '\0' || value[len] == ';' || value[len] == ' ')) {
            return types[i].type;
        }
    }
    return KV_BODY_OTHER;
}

static void take_peer(struct kv_req *req, struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *at = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (at == NULL || at->client_addr == NULL) {
        return;
    }
    if (at->client_addr->sa_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, at->client_addr, sizeof v4);
        memcpy(req->peer, (const uint8_t[]){0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 12);
        memcpy(req->peer + 12, &v4.sin_addr, 4);
        req->has_peer = true;
    } else if (at->client_addr->sa_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, at->client_addr, sizeof v6);
        memcpy(req->peer, &v6.sin6_addr, 16);
        req->has_peer = true;
    }
}

static KV_RC check_method(struct kv_req *req, const char *method, struct kv_errinfo *info)
{
    size_t len = strlen(method);
    if (len >= sizeof req->method || strspn(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != len ||
        strcmp(method, "TRACE") == 0 || strcmp(method, "CONNECT") == 0) {
        return kv_fail(info, KV_E_NOT_IMPLEMENTED, "this method is not served");
    }
    memcpy(req->method, method, len + 1);
    req->head = strcmp(method, "HEAD") == 0;
    return KV_OK;
}

KV_RC kv_req_guard(struct kv_req *req, struct MHD_Connection *connection, const char *method, const char *version,
                   struct kv_errinfo *info)
{
    struct header_scan scan = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, scan_header, &scan);
    KV_TRY(take_request_id(req, scan.value[REQUEST_ID]));
    take_accept(req, scan.value[ACCEPT]);
    take_bearer(req, scan.value[AUTHORIZATION]);
    take_wait(req, scan.value[PREFER]);
    take_upload(req, &scan);
    take_peer(req, connection);
    req->body_type = body_type(scan.value[CONTENT_TYPE]);
    req->given = (struct kv_given){.accept = scan.value[ACCEPT],
                                   .if_match = scan.value[IF_MATCH],
                                   .if_none_match = scan.value[IF_NONE_MATCH],
                                   .once_key = scan.value[IDEMPOTENCY_KEY],
                                   .origin = scan.value[ORIGIN],
                                   .last_event_id = scan.value[LAST_EVENT_ID]};
    KV_TRY(kv_trace_take(kv_httpd_env(req->httpd), scan.seen[TRACEPARENT] == 1 ? scan.value[TRACEPARENT] : NULL,
                         &req->trace));
    if (strcmp(version, MHD_HTTP_VERSION_1_1) != 0 && strcmp(version, MHD_HTTP_VERSION_1_0) != 0) {
        return kv_fail(info, KV_E_HTTP_VERSION, "HTTP/1.1 and HTTP/1.0 are served");
    }
    KV_TRY(check_method(req, method, info));
    KV_TRY(check_framing(&scan, version, info));
    return check_target(req, info);
}

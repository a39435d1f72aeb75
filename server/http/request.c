/*
 * The guard. libmicrohttpd 0.9.75 accepts requests that a proxy in front of it may read differently: two lengths, a
 * length and a transfer coding, spaces before a colon, encoded slashes, cut-off targets. Each of them is refused here
 * before the body is read, so that one connection never carries a request nobody sent. Must never pass on a target that
 * is not in its one canonical spelling.
 */
#include "server/http/request.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char token_chars[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

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
    return req;
}

void kv_req_free(struct kv_req *req)
{
    if (req == NULL) {
        return;
    }
    explicit_bzero(req->bearer, sizeof req->bearer);
    if (req->response.secret && req->response.body.data != NULL) {
        explicit_bzero(req->response.body.data, req->response.body.size);
    }
    kv_buf_done(&req->body);
    kv_buf_done(&req->response.body);
    kv_free(req->target);
    kv_free(req);
}

/* --- target ------------------------------------------------------------------------------------------------------ */

static bool path_byte_ok(const char *p)
{
    unsigned char c = (unsigned char)*p;
    if (c == '%') { /* nothing in our paths needs an escape, so none has two spellings */
        return false;
    }
    return c > 0x20 && c <= 0x7e && strchr("\"<>\\^`{|}#", c) == NULL;
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
    if (target[path_len] == '?' && target[path_len + 1] != '\0') {
        return kv_fail(info, KV_E_INVALID_REQUEST, "this route takes no query parameters");
    }
    return KV_OK;
}

/* --- headers ----------------------------------------------------------------------------------------------------- */

struct header_scan {
    struct kv_req *req;
    unsigned count, content_length, transfer_encoding, host, authorization, content_type;
    bool bad_name, te_not_chunked;
    const char *accept, *prefer, *request_id, *authorization_value, *content_type_value;
};

static enum MHD_Result scan_header(void *ctx, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct header_scan *scan = ctx;
    (void)kind;
    size_t len = strlen(name);
    value = value == NULL ? "" : value;
    scan->count++;
    scan->bad_name = scan->bad_name || len == 0 || strspn(name, token_chars) != len;
    if (strcasecmp(name, "Content-Length") == 0) {
        scan->content_length++;
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        scan->transfer_encoding++;
        scan->te_not_chunked = scan->te_not_chunked || strcasecmp(value, "chunked") != 0;
    } else if (strcasecmp(name, "Host") == 0) {
        scan->host++;
    } else if (strcasecmp(name, "Authorization") == 0) {
        scan->authorization++;
        scan->authorization_value = value;
    } else if (strcasecmp(name, "Content-Type") == 0) {
        scan->content_type++;
        scan->content_type_value = value;
    } else if (strcasecmp(name, "Accept") == 0) {
        scan->accept = value;
    } else if (strcasecmp(name, "Prefer") == 0) {
        scan->prefer = value;
    } else if (strcasecmp(name, "X-Request-Id") == 0) {
        scan->request_id = value;
    }
    return MHD_YES;
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
    if (scan->content_length > 1 || (scan->content_length > 0 && scan->transfer_encoding > 0)) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "send one Content-Length or one Transfer-Encoding, not several");
    }
    if (scan->transfer_encoding > 0 && http10) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "HTTP/1.0 has no Transfer-Encoding");
    }
    if (scan->transfer_encoding > 1 || scan->te_not_chunked) {
        return kv_fail(info, KV_E_NOT_IMPLEMENTED, "the only transfer coding here is chunked");
    }
    if (!http10 && scan->host != 1) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "send exactly one Host header");
    }
    if (scan->authorization > 1 || scan->content_type > 1) {
        return kv_fail(info, KV_E_INVALID_REQUEST, "Authorization and Content-Type may each be sent once");
    }
    return KV_OK;
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
    KV_TRY(kv_id_new(&kv_env_system, &id));
    kv_id_text("req", &id, req->request_id);
    return KV_OK;
}

static bool is_json(const char *type)
{
    const char *json = "application/json";
    size_t len = strlen(json);
    return type != NULL && strncasecmp(type, json, len) == 0 &&
           (type[len] == '\0' || type[len] == ';' || type[len] == ' ');
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
    struct header_scan scan = {.req = req};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, scan_header, &scan);
    KV_TRY(take_request_id(req, scan.request_id));
    take_accept(req, scan.accept);
    take_bearer(req, scan.authorization_value);
    take_wait(req, scan.prefer);
    req->json_body = is_json(scan.content_type_value);
    if (strcmp(version, MHD_HTTP_VERSION_1_1) != 0 && strcmp(version, MHD_HTTP_VERSION_1_0) != 0) {
        return kv_fail(info, KV_E_HTTP_VERSION, "HTTP/1.1 and HTTP/1.0 are served");
    }
    KV_TRY(check_method(req, method, info));
    KV_TRY(check_framing(&scan, version, info));
    return check_target(req, info);
}

/* The listeners while the service is not up: probes answer, everything else says so; the guard's refusals. */
#include "dataplane/base/env.h"
#include "server/http/httpd.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static struct kv_httpd *httpd;
static char answer[16384];

static void start(void)
{
    struct kv_errinfo info = {0};
    struct kv_httpd_conf conf = {.listen = "127.0.0.1:0",
                                 .admin_listen = "127.0.0.1:0",
                                 .connections = 32,
                                 .threads = 1,
                                 .header_timeout_ms = 700,
                                 .idle_timeout_ms = 5000,
                                 .env = &kv_env_system};
    cr_assert(eq(int, kv_httpd_start(&conf, &info, &httpd), KV_OK), "%s", info.text);
}

static void end(void)
{
    cr_expect(eq(int, kv_httpd_quiesce(httpd, KV_S_NS), KV_OK));
    kv_httpd_stop(httpd);
}

TestSuite(httpd, .init = start, .fini = end);

static int connect_to(unsigned port)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 10};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    cr_assert(eq(int, connect(fd, (struct sockaddr *)&at, sizeof at), 0));
    return fd;
}

static void read_all(int fd)
{
    size_t len = 0;
    ssize_t n = 0;
    while (len < sizeof answer - 1 && (n = recv(fd, answer + len, sizeof answer - 1 - len, 0)) > 0) {
        len += (size_t)n;
    }
    answer[len] = '\0';
    close(fd);
}

/* The status of the answer to a request; its text is in `answer`. The connection is asked to close. */
static int ask(unsigned port, const char *method, const char *target, const char *headers)
{
    char request[8192];
    int fd = connect_to(port), status = 0;
    int len = snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", method,
                       target, headers);
    cr_assert(eq(int, (int)send(fd, request, (size_t)len, MSG_NOSIGNAL), len));
    read_all(fd);
    cr_assert(eq(int, sscanf(answer, "HTTP/1.1 %d", &status), 1), "%s %.80s: %s", method, target, answer);
    return status;
}

static int get(const char *target)
{
    return ask(kv_httpd_port(httpd), "GET", target, "");
}

Test(httpd, probes_answer_before_the_service_is_up)
{
    unsigned admin = kv_httpd_admin_port(httpd);
    cr_assert(eq(int, get("/livez"), 200));
    cr_assert(eq(int, ask(admin, "GET", "/livez", ""), 200));
    cr_assert(eq(int, ask(admin, "GET", "/readyz", ""), 503));
    cr_assert(strstr(answer, "[-]startup") != NULL && strstr(answer, "Retry-After: 1") != NULL);
    cr_assert(eq(int, ask(admin, "GET", "/startupz", ""), 503));
    cr_assert(eq(int, ask(admin, "GET", "/metrics", ""), 200));
    cr_assert(strstr(answer, "kvrun_ready{check=\"db\"} 0") != NULL);
    cr_assert(eq(int, get("/version"), 200));
    cr_assert(eq(int, get("/v1/openapi.yaml"), 200));
}

Test(httpd, everything_else_says_that_the_server_is_starting)
{
    const char *paths[] = {"/v1/tiers", "/.well-known/kvrun/jwks.json", "/.well-known/kvrun/log.vkey"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cr_expect(eq(int, get(paths[i]), 503), "%s", paths[i]);
        cr_expect(strstr(answer, "\"code\":\"starting\"") != NULL && strstr(answer, "/startupz") != NULL, "%s", answer);
        cr_expect(strstr(answer, "Retry-After: 1") != NULL && strstr(answer, "\"retryable\":true") != NULL);
    }
}

Test(httpd, the_admin_listener_has_no_api_and_the_other_no_metrics)
{
    cr_assert(eq(int, ask(kv_httpd_admin_port(httpd), "GET", "/v1/tiers", ""), 404));
    cr_assert(eq(int, get("/metrics"), 404));
    cr_assert(eq(int, get("/startupz"), 404));
}

Test(httpd, a_path_has_one_spelling)
{
    const char *bad[] = {"/livez%00",  "/%6civez",      "/v1%2ftiers", "/%zz",           "/%",    "//livez",
                         "/v1//tiers", "/./livez",      "/../livez",   "/v1/..",         "/v1/.", "/a\\b",
                         "/a|b",       "/a\"b",         "/a<b>",       "/a{b}",          "/a^b",  "/a`b",
                         "/a\x7f",     "/a\xc3\xa4",    "livez",       "http://x/livez", "*",     "/livez#a",
                         "/livez?a=b", "/livez?verbose"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, get(bad[i]), 400), "%s", bad[i]);
    }
    const char *unknown[] = {"/",       "/livez/", "/livezz",       "/LIVEZ", "/v1/tiers/",
                             "/v1/..a", "/v1/a..", "/.well-known/", "/~a"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        cr_expect(eq(int, get(unknown[i]), 404), "%s", unknown[i]);
    }
    cr_assert(eq(int, get("/livez?"), 200));
}

Test(httpd, a_target_has_a_longest)
{
    char path[6000] = "/";
    memset(path + 1, 'a', (size_t)KV_MAX_PATH_BYTES - 1);
    cr_assert(eq(int, get(path), 404));
    path[KV_MAX_PATH_BYTES] = 'a';
    cr_assert(eq(int, get(path), 414));
    memset(path, 'a', sizeof path);
    memcpy(path, "/livez?", 7);
    path[7 + KV_MAX_QUERY_BYTES] = '\0';
    cr_assert(eq(int, get(path), 400), "no route takes a query");
    path[7 + KV_MAX_QUERY_BYTES] = 'a';
    path[8 + KV_MAX_QUERY_BYTES] = '\0';
    cr_assert(eq(int, get(path), 414));
}

Test(httpd, methods)
{
    unsigned port = kv_httpd_port(httpd);
    cr_assert(eq(int, ask(port, "HEAD", "/livez", ""), 200));
    cr_assert(eq(str, strstr(answer, "\r\n\r\n"), "\r\n\r\n"), "a HEAD has no body");
    cr_assert(strstr(answer, "Content-Length: 3") != NULL);
    cr_assert(eq(int, ask(port, "OPTIONS", "/livez", ""), 204));
    cr_assert(strstr(answer, "Allow: GET, HEAD, OPTIONS") != NULL);
    cr_assert(eq(int, ask(port, "OPTIONS", "*", ""), 204));
    cr_assert(eq(int, ask(port, "POST", "/livez", "Content-Length: 0\r\n"), 405));
    cr_assert(strstr(answer, "Allow: GET, HEAD, OPTIONS") != NULL);
    const char *unserved[] = {"TRACE", "CONNECT", "get", "Get", "AVERYLONGMETHODNAME"};
    for (size_t i = 0; i < sizeof unserved / sizeof unserved[0]; i++) {
        cr_expect(eq(int, ask(port, unserved[i], "/livez", ""), 501), "%s", unserved[i]);
    }
}

Test(httpd, accept_that_leaves_json_out_is_refused)
{
    unsigned port = kv_httpd_port(httpd);
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: text/html\r\n"), 406));
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: text/html, application/json;q=0.1\r\n"), 200));
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: application/*\r\n"), 200));
    cr_assert(eq(int, ask(port, "GET", "/livez", "Accept: image/png\r\n"), 200));
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: application/json;q=0\r\n"), 406));
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: */* ; level=1 ; q=0.000\r\n"), 406));
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: */*;q=0.001\r\n"), 200));
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: text/html;q=0, */*\r\n"), 200));
    cr_assert(eq(int, ask(port, "GET", "/version", "Accept: application/json, text/html;q=0\r\n"), 200));
}

Test(httpd, a_request_id_is_kept_when_it_is_harmless)
{
    unsigned port = kv_httpd_port(httpd);
    cr_assert(eq(int, ask(port, "GET", "/livez", "X-Request-Id: abc.DEF-123_4\r\n"), 200));
    cr_assert(strstr(answer, "X-Request-Id: abc.DEF-123_4\r\n") != NULL);
    const char *bad[] = {"short", "with space 123", "quote\"12345", "new%0aline123"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char header[128];
        snprintf(header, sizeof header, "X-Request-Id: %s\r\n", bad[i]);
        cr_expect(eq(int, ask(port, "GET", "/livez", header), 200));
        cr_expect(strstr(answer, "X-Request-Id: req_") != NULL, "%s", bad[i]);
    }
}

Test(httpd, headers_that_dawdle_end_the_connection)
{
    int fd = connect_to(kv_httpd_port(httpd));
    const char *line = "GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ";
    cr_assert(eq(int, (int)send(fd, line, strlen(line), MSG_NOSIGNAL), (int)strlen(line)));
    bool ended = false;
    uint64_t begun = kv_now_ns(&kv_env_system);
    while (!ended && kv_now_ns(&kv_env_system) - begun < 8 * KV_S_NS) { /* never idle: a byte every 50 ms */
        char byte;
        struct timeval limit = {.tv_usec = 50000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        ended = send(fd, "a", 1, MSG_NOSIGNAL) != 1 || recv(fd, &byte, 1, 0) == 0;
    }
    close(fd);
    cr_assert(ended);
    cr_assert(eq(int, get("/livez"), 200));
}

Test(httpd, addresses_that_are_not_loopback_are_refused)
{
    const char *bad[] = {"0.0.0.0:0", "8.8.8.8:1", "127.0.0.1", "127.0.0.1:65536", "localhost:1",
                         "",          ":1",        "[::]:0",    "[::1:0",          "::1:0"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kv_errinfo info = {0};
        struct kv_httpd *other = NULL;
        struct kv_httpd_conf conf = {.listen = bad[i],
                                     .admin_listen = "127.0.0.1:0",
                                     .connections = 8,
                                     .threads = 1,
                                     .header_timeout_ms = 1000,
                                     .idle_timeout_ms = 1000,
                                     .env = &kv_env_system};
        cr_expect(eq(int, kv_httpd_start(&conf, &info, &other), KV_E_CONFIG), "%s", bad[i]);
        cr_expect(ne(str, info.text, ""));
        cr_expect(eq(ptr, other, NULL));
    }
}

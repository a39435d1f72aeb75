/* The client of the REST interface and the subcommands built on it, against a server with canned answers. */
#include "server/cli/cli.h"
#include "server/cli/client.h"

#include "dataplane/base/mem.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <criterion/redirect.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- a server that answers one request --------------------------------------------------------------------------- */

struct canned {
    int listener;
    unsigned port;
    pthread_t thread;
    const char *answer; /* whole; NULL: closes the connection */
    char request[8192];
};

static bool whole(const char *request)
{
    const char *body = strstr(request, "\r\n\r\n");
    const char *length = strcasestr(request, "\r\ncontent-length:");
    return body != NULL && strlen(body + 4) >= (length == NULL ? 0 : strtoul(length + 17, NULL, 10));
}

static void *serve(void *arg)
{
    struct canned *canned = arg;
    int connection = accept(canned->listener, NULL, NULL);
    size_t len = 0;
    ssize_t n = 1;
    while (connection >= 0 && n > 0 && !whole(canned->request)) {
        n = read(connection, canned->request + len, sizeof canned->request - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    if (canned->answer != NULL && write(connection, canned->answer, strlen(canned->answer)) < 0) {
        perror("canned");
    }
    close(connection);
    return NULL;
}

static void canned_start(struct canned *canned, const char *answer)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    *canned = (struct canned){.answer = answer, .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    cr_assert(ge(int, canned->listener, 0));
    cr_assert(eq(int, bind(canned->listener, (struct sockaddr *)&address, size), 0));
    cr_assert(eq(int, listen(canned->listener, 4), 0));
    cr_assert(eq(int, getsockname(canned->listener, (struct sockaddr *)&address, &size), 0));
    canned->port = ntohs(address.sin_port);
    cr_assert(eq(int, pthread_create(&canned->thread, NULL, serve, canned), 0));
}

static void canned_stop(struct canned *canned)
{
    pthread_join(canned->thread, NULL);
    close(canned->listener);
}

static struct kv_errinfo info;
static struct kv_buf body;
static struct canned canned;

static enum kv_err ask(const char *answer, const struct kv_client_call *call)
{
    struct kv_client *client = NULL;
    char address[32];
    canned_start(&canned, answer);
    snprintf(address, sizeof address, "127.0.0.1:%u", canned.port);
    info = (struct kv_errinfo){0};
    kv_buf_init(&body, 65536);
    cr_assert(eq(int, kv_client_new(address, &info, &client), KV_OK), "%s", info.text);
    enum kv_err rc = kv_client_do(client, call, &info, &body);
    kv_client_free(client);
    canned_stop(&canned);
    return rc;
}

#define OK_HEAD "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
#define PROBLEM(status, json) \
    "HTTP/1.1 " status "\r\nContent-Type: application/problem+json\r\nConnection: close\r\n\r\n" json

/* --- the client -------------------------------------------------------------------------------------------------- */

Test(client, sends_method_path_key_body_and_wait)
{
    struct kv_client_call call = {
        .method = "POST", .path = "/v1/erasures", .key = "the-key", .body = "{\"a\":1}", .wait_seconds = 7};
    cr_assert(eq(int, ask(OK_HEAD "Content-Length: 10\r\n\r\n{\"id\":\"x\"}", &call), KV_OK), "%s", info.text);
    cr_assert(strncmp(canned.request, "POST /v1/erasures HTTP/1.1\r\n", 28) == 0, "%s", canned.request);
    cr_assert(strcasestr(canned.request, "\r\nAuthorization: Bearer the-key\r\n") != NULL);
    cr_assert(strcasestr(canned.request, "\r\nPrefer: wait=7\r\n") != NULL);
    cr_assert(strcasestr(canned.request, "\r\nContent-Type: application/json") != NULL);
    cr_assert(strstr(canned.request, "\r\n\r\n{\"a\":1}") != NULL);
    cr_assert(eq(sz, body.len, 10));
    kv_buf_done(&body);
}

Test(client, sends_no_key_and_no_wait_unless_told)
{
    struct kv_client_call call = {.method = "GET", .path = "/version"};
    cr_assert(eq(int, ask(OK_HEAD "Content-Length: 2\r\n\r\n{}", &call), KV_OK), "%s", info.text);
    cr_assert(strcasestr(canned.request, "\r\nAuthorization:") == NULL);
    cr_assert(strcasestr(canned.request, "\r\nPrefer:") == NULL);
    kv_buf_done(&body);
}

Test(client, problem_is_the_error_that_it_names)
{
    struct kv_client_call call = {.method = "GET", .path = "/v1/sessions/x", .key = "the-key"};
    cr_assert(eq(
        int, ask(PROBLEM("410 Gone", "{\"code\":\"session_erased\",\"detail\":\"it is gone\",\"status\":410}"), &call),
        KV_E_SESSION_ERASED));
    cr_assert(eq(str, info.text, "it is gone"));
    kv_buf_done(&body);
}

Test(client, answer_that_is_no_problem_is_an_io_error_with_its_status)
{
    static const char *const answers[] = {
        PROBLEM("500 Oops", ""),
        PROBLEM("500 Oops", "<html>no JSON</html>"),
        PROBLEM("500 Oops", "[]"),
        PROBLEM("500 Oops", "{\"code\":\"no_such_code\"}"),
        PROBLEM("500 Oops", "{\"code\":\"ok\"}"),
        PROBLEM("500 Oops", "{\"code\":7}"),
    };
    struct kv_client_call call = {.method = "GET", .path = "/x"};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        cr_assert(eq(int, ask(answers[i], &call), KV_E_IO), "answer %zu", i);
        cr_assert(strstr(info.text, "500") != NULL, "%s", info.text);
        kv_buf_done(&body);
    }
}

Test(client, connection_that_ends_is_an_error)
{
    struct kv_client_call call = {.method = "GET", .path = "/x", .key = "the-key"};
    enum kv_err rc = ask(NULL, &call);
    cr_assert(rc != KV_OK);
    cr_assert(strstr(info.text, "the-key") == NULL);
    kv_buf_done(&body);
}

Test(client, answer_over_the_buffer_s_maximum_is_refused)
{
    static char answer[70000];
    struct kv_client_call call = {.method = "GET", .path = "/x"};
    int len = snprintf(answer, sizeof answer, OK_HEAD "Content-Length: 66000\r\n\r\n");
    memset(answer + len, 'x', 66000);
    enum kv_err rc = ask(answer, &call);
    cr_assert(rc != KV_OK);
    kv_buf_done(&body);
}

static struct kv_buf json_of(const char *text)
{
    struct kv_buf json;
    kv_buf_init(&json, 65536);
    kv_buf_text(&json, text);
    return json;
}

Test(client, text_member_is_found_only_at_the_top_and_only_when_it_fits)
{
    char text[6] = "kept";
    struct kv_buf json = json_of("{\"a\":\"12345\",\"b\":\"123456\",\"c\":7,\"d\":{\"e\":\"x\"}}");
    cr_assert(kv_client_text(&json, "a", text, sizeof text));
    cr_assert(eq(str, text, "12345"));
    cr_assert(not(kv_client_text(&json, "b", text, sizeof text)));
    cr_assert(not(kv_client_text(&json, "c", text, sizeof text)));
    cr_assert(not(kv_client_text(&json, "e", text, sizeof text)));
    cr_assert(not(kv_client_text(&json, "z", text, sizeof text)));
    cr_assert(eq(str, text, "12345"));
    kv_buf_done(&json);
    json = json_of("{\"a\":\"1\",\"a\":\"2\"}");
    cr_assert(not(kv_client_text(&json, "a", text, sizeof text)), "the same member twice");
    kv_buf_done(&json);
    json = json_of("");
    cr_assert(not(kv_client_text(&json, "a", text, sizeof text)));
    kv_buf_done(&json);
}

static char seen[256];

static void note(void *ctx, const char *text, const char *state, long long value)
{
    size_t len = strlen(seen);
    snprintf(seen + len, sizeof seen - len, "%s/%s/%lld ", text, state, value);
    ++*(int *)ctx;
}

Test(client, each_object_of_an_array_is_told)
{
    int count = 0;
    struct kv_buf json =
        json_of("{\"data\":[{\"name\":\"dram\",\"state\":\"up\",\"n\":7},{\"name\":\"nvme\"},3,{\"n\":\"x\"}]}");
    kv_client_each(&json, "data", "name", "n", note, &count);
    cr_assert(eq(int, count, 4));
    cr_assert(eq(str, seen, "dram/up/7 nvme//0 //0 //0 "));
    kv_client_each(&json, "none", "name", "n", note, &count);
    cr_assert(eq(int, count, 4));
    kv_buf_done(&json);
}

/* --- subcommands ------------------------------------------------------------------------------------------------- */

static int healthcheck(const char *answer)
{
    static struct kv_conf conf;
    canned_start(&canned, answer);
    snprintf(conf.http_admin_listen, sizeof conf.http_admin_listen, "127.0.0.1:%u", canned.port);
    int code = kv_cli_healthcheck(&conf);
    canned_stop(&canned);
    return code;
}

Test(healthcheck, is_zero_for_two_hundred_and_one_for_everything_else)
{
    cr_assert(eq(int, healthcheck(OK_HEAD "Content-Length: 2\r\n\r\nok"), 0));
    cr_assert(strncmp(canned.request, "GET /livez HTTP/1.1\r\n", 21) == 0, "%s", canned.request);
    cr_assert(eq(int, healthcheck("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), 1));
    cr_assert(eq(int, healthcheck("HTTP/1.1 204 None\r\n\r\n"), 1));
    cr_assert(eq(int, healthcheck("what?\r\n\r\n"), 1));
    cr_assert(eq(int, healthcheck(NULL), 1));
}

Test(healthcheck, of_nobody_is_one)
{
    static struct kv_conf conf;
    canned_start(&canned, NULL);
    snprintf(conf.http_admin_listen, sizeof conf.http_admin_listen, "127.0.0.1:%u", canned.port);
    shutdown(canned.listener, SHUT_RDWR);
    canned_stop(&canned); /* its port is free again */
    cr_assert(eq(int, kv_cli_healthcheck(&conf), 1));
    snprintf(conf.http_admin_listen, sizeof conf.http_admin_listen, "no address");
    cr_assert(eq(int, kv_cli_healthcheck(&conf), 1));
}

static int config(const char *word, char *output, size_t size)
{
    static struct kv_conf conf;
    char program[] = "kvrun", text[32];
    char *argv[] = {program, NULL}, *words[] = {text, NULL};
    int argc = 1;
    enum kv_conf_origin *origins = kv_alloc_array(kv_conf_count(), sizeof *origins);
    cr_assert(eq(int, kv_conf_load(NULL, NULL, &argc, argv, &info, &conf, origins), KV_OK));
    snprintf(text, sizeof text, "%s", word == NULL ? "" : word);
    cr_redirect_stdout();
    cr_redirect_stderr();
    int code = kv_cli_config(&conf, origins, word == NULL ? 0 : 1, words);
    fflush(stdout);
    FILE *out = cr_get_redirected_stdout();
    size_t len = 0;
    if (code == 0) {
        len = fread(output, 1, size - 1, out);
    }
    output[len] = '\0';
    kv_free(origins);
    return code;
}

Test(config, other_words_are_usage_errors)
{
    char output[64];
    cr_assert(eq(int, config("shoe", output, sizeof output), 2));
}

Test(config, no_word_is_a_usage_error)
{
    char output[64];
    cr_assert(eq(int, config(NULL, output, sizeof output), 2));
}

Test(config, docs_is_the_table)
{
    static char output[65536];
    struct kv_buf docs;
    kv_buf_init(&docs, 65536);
    kv_conf_docs(&docs);
    cr_assert(eq(int, config("docs", output, docs.len + 1), 0));
    cr_assert(eq(str, output, (char *)docs.data));
    kv_buf_done(&docs);
}

/*
 * Requests to a server: address, key, trust, answers and refusals. Must never print a key, nor a body of others
 * uncleaned.
 */
#include "server/cli/cli_int.h"

#include "dataplane/io/httpc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_MS 30000u
#define ADDRESS "127.0.0.1:7433"

void cli_note(const struct cli *cli, const char *format, ...)
{
    va_list args;
    if (!cli->quiet) {
        va_start(args, format);
        fputs("kvrun: ", stderr);
        vfprintf(stderr, format, args);
        fputc('\n', stderr);
        va_end(args);
    }
}

/* --- files ------------------------------------------------------------------------------------------------------- */

int cli_read_file(const char *path, size_t max, struct kv_buf *ret)
{
    uint8_t piece[4096];
    ssize_t got = 1;
    bool standard = strcmp(path, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    while (fd >= 0 && got > 0 && ret->len <= max) {
        got = read(fd, piece, sizeof piece);
        kv_buf_append(ret, piece, got > 0 ? (size_t)got : 0);
    }
    int error = errno;
    if (fd >= 0 && !standard) {
        close(fd);
    }
    explicit_bzero(piece, sizeof piece); /* a key, perhaps */
    if (fd < 0 || got < 0) {
        fprintf(stderr, "kvrun: cannot read %s: %s\n", path, strerror(error));
        return CLI_USAGE;
    }
    if (ret->len > max || kv_buf_check(ret) != KV_OK) {
        fprintf(stderr, "kvrun: %s is over %zu bytes\n", path, max);
        return CLI_USAGE;
    }
    return CLI_OK;
}

int cli_new_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0) {
        fprintf(stderr, "kvrun: cannot make %s: %s\n", path, strerror(errno));
    }
    return fd;
}

/* --- who we are, and whom we speak to ---------------------------------------------------------------------------- */

static int take_token(struct cli *cli, const char *text, size_t len)
{
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) {
        len--;
    }
    bool fit = len < sizeof cli->token;
    for (size_t i = 0; i < len; i++) {
        fit = fit && text[i] > 0x20 && text[i] < 0x7f; /* what a header can carry */
    }
    if (!fit || len == 0) {
        fputs("kvrun: what was given as key is none; check KVRUN_TOKEN or the file\n", stderr);
        return CLI_USAGE;
    }
    memcpy(cli->token, text, len);
    cli->token[len] = '\0';
    return CLI_OK;
}

static int read_token_file(struct cli *cli, const char *path)
{
    struct stat st;
    struct kv_buf text;
    kv_buf_init(&text, 8192);
    int code = cli_read_file(path, 4096, &text);
    if (code == CLI_OK && stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 077) != 0) {
        cli_note(cli, "others can read %s: chmod 600 it", path);
    }
    code = code != CLI_OK ? code : take_token(cli, (const char *)text.data, text.len);
    if (text.data != NULL) {
        explicit_bzero(text.data, text.len);
    }
    kv_buf_done(&text);
    return code;
}

static int read_token(struct cli *cli)
{
    const char *file = cli_text(cli, "token-file"), *token = getenv("KVRUN_TOKEN");
    if (file == NULL && token != NULL && token[0] != '\0') {
        return take_token(cli, token, strlen(token));
    }
    file = file == NULL ? getenv("KVRUN_TOKEN_FILE") : file;
    return file == NULL || file[0] == '\0' ? CLI_OK : read_token_file(cli, file);
}

static const char *setting(const struct cli *cli, const char *flag, const char *variable)
{
    const char *text = cli_text(cli, flag);
    text = text == NULL ? getenv(variable) : text;
    return text == NULL || text[0] == '\0' ? NULL : text;
}

int cli_connect(struct cli *cli)
{
    struct kv_errinfo info = {0};
    const char *address = setting(cli, "addr", "KVRUN_ADDR"), *authorities = setting(cli, "ca-file", "KVRUN_CA_FILE"),
               *cert = setting(cli, "cert-file", "KVRUN_CERT_FILE");
    if (cli->http != NULL) {
        return CLI_OK;
    }
    int code = read_token(cli);
    if (code != CLI_OK) {
        return code;
    }
    enum kv_err rc = kv_httpc_new(address == NULL ? ADDRESS : address, &info, &cli->http);
    if (rc == KV_OK && authorities != NULL) {
        rc = kv_httpc_trust(cli->http, authorities, &info);
    }
    if (rc == KV_OK && cert != NULL) {
        rc = kv_httpc_identify(cli->http, cert, setting(cli, "key-file", "KVRUN_KEY_FILE"), &info);
    }
    if (rc != KV_OK) {
        fprintf(stderr, "kvrun: %s\n", info.text[0] == '\0' ? kv_err_title(rc) : info.text);
    }
    return cli_exit_of(rc);
}

/* --- a refusal --------------------------------------------------------------------------------------------------- */

static enum kv_err code_of(const char *name)
{
    for (int rc = KV_OK + 1; name != NULL && rc < KV_E_COUNT; rc++) {
        if (strcmp(kv_err_name((enum kv_err)rc), name) == 0) {
            return (enum kv_err)rc;
        }
    }
    return KV_OK;
}

static void print_clean(const char *before, const char *text)
{
    struct kv_buf out;
    kv_buf_init(&out, 8192);
    (void)cli_clean(&out, text, strnlen(text, 2000));
    fprintf(stderr, "%s%s", before, out.data == NULL ? "" : (const char *)out.data);
    kv_buf_done(&out);
}

static void print_problem(const json_t *problem, int status)
{
    const char *code = json_string_value(json_object_get(problem, "code"));
    const char *title = json_string_value(json_object_get(problem, "title"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    const char *hint = json_string_value(json_object_get(problem, "hint"));
    size_t index = 0;
    json_t *error = NULL;
    if (code == NULL) {
        fprintf(stderr, "kvrun: the server answered %d\n", status);
        return;
    }
    print_clean("kvrun: ", detail != NULL ? detail : title != NULL ? title : "refused");
    print_clean(" (", code);
    fputs(")\n", stderr);
    json_array_foreach(json_object_get(problem, "errors"), index, error)
    {
        const char *where = json_string_value(json_object_get(error, "pointer"));
        const char *why = json_string_value(json_object_get(error, "detail"));
        if (where != NULL && why != NULL && where[0] != '\0' && (detail == NULL || strcmp(why, detail) != 0)) {
            print_clean("  ", where);
            print_clean(": ", why);
            fputc('\n', stderr);
        } else if (where != NULL && where[0] != '\0') {
            print_clean("  at ", where);
            fputc('\n', stderr);
        }
    }
    if (hint != NULL) {
        print_clean("  try: ", hint);
        fputc('\n', stderr);
    }
}

int cli_problem(const struct cli *cli, const json_t *problem, int status, bool silent)
{
    const json_t *own = json_object_get(problem, "status");
    enum kv_err rc = code_of(json_string_value(json_object_get(problem, "code")));
    status = json_is_integer(own) ? (int)json_integer_value(own) : status;
    if (!silent) {
        print_problem(problem, status);
        if (rc == KV_E_UNAUTHENTICATED && cli->token[0] == '\0') {
            fputs("  no key was sent: set KVRUN_TOKEN_FILE or KVRUN_TOKEN, or use --token-file\n", stderr);
        }
    }
    int code = rc != KV_OK ? cli_exit_of(rc) : cli_exit_of_status(status);
    return code == CLI_OK ? CLI_NEGATIVE : code;
}

/* --- a request --------------------------------------------------------------------------------------------------- */

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static void tell(const struct cli *cli, const struct cli_request *request, uint64_t took_us)
{
    char id[80] = "-", timing[256] = "", replayed[16] = "";
    (void)kv_httpc_header(&cli->headers, "X-Request-Id", id, sizeof id);
    (void)kv_httpc_header(&cli->headers, "Server-Timing", timing, sizeof timing);
    (void)kv_httpc_header(&cli->headers, "Idempotency-Replayed", replayed, sizeof replayed);
    fprintf(stderr, "kvrun: %s %.*s %d %" PRIu64 ".%03" PRIu64 " ms", request->method, (int)strcspn(request->path, "?"),
            request->path, cli->status, took_us / 1000, took_us % 1000);
    print_clean(" ", id);
    print_clean(" ", timing);
    fputs(replayed[0] != '\0' ? " (replayed)\n" : "\n", stderr);
}

static const char *body_of(const struct cli_request *request, char **ret_text)
{
    *ret_text = request->json == NULL ? NULL : json_dumps(request->json, JSON_COMPACT);
    return *ret_text != NULL ? *ret_text : request->body;
}

static void free_text(char *text)
{
    json_free_t release = NULL;
    json_malloc_t unused = NULL;
    json_get_alloc_funcs(&unused, &release);
    release(text);
}

static size_t further_headers(const struct cli *cli, const struct cli_request *request, char (*lines)[320],
                              const char **ret_headers)
{
    size_t count = 0;
    const char *key = cli_text(cli, "idempotency-key");
    if (key != NULL && strcmp(request->method, "POST") == 0) {
        snprintf(lines[count], sizeof lines[count], "Idempotency-Key: %s", key);
        ret_headers[count] = lines[count];
        count++;
    }
    if (request->if_match != NULL) {
        snprintf(lines[count], sizeof lines[count], "If-Match: %s", request->if_match);
        ret_headers[count] = lines[count];
        count++;
    }
    ret_headers[count] = NULL;
    return count;
}

static enum kv_err send_it(struct cli *cli, const struct cli_request *request, const char *body,
                           struct kv_errinfo *info)
{
    char prefer[32], lines[2][320];
    const char *headers[3];
    snprintf(prefer, sizeof prefer, "wait=%u", request->wait_s);
    (void)further_headers(cli, request, lines, headers);
    uint64_t timeout = request->timeout_ms == UINT64_MAX ? 0
                       : request->timeout_ms != 0        ? request->timeout_ms
                       : cli->timeout_ms != 0            ? cli->timeout_ms
                                                         : TIMEOUT_MS;
    struct kv_httpc_request http = {.method = request->method,
                                    .path = request->path,
                                    .bearer = cli->token[0] == '\0' ? NULL : cli->token,
                                    .body = body,
                                    .content_type = request->content_type,
                                    .accept = request->accept,
                                    .prefer = request->wait_s == 0 ? NULL : prefer,
                                    .headers = headers,
                                    .timeout_ms = timeout,
                                    .ret_headers = &cli->headers,
                                    .sink = request->sink,
                                    .sink_ctx = request->sink_ctx};
    return kv_httpc_do(cli->http, &http, info, &cli->status, &cli->body);
}

int cli_ask(struct cli *cli, const struct cli_request *request)
{
    struct kv_errinfo info = {0};
    char *text = NULL;
    int code = cli_connect(cli);
    if (code != CLI_OK) {
        return code;
    }
    kv_buf_reset(&cli->body);
    kv_buf_reset(&cli->headers);
    json_decref(cli->answer);
    cli->answer = NULL;
    uint64_t begun = now_us();
    enum kv_err rc = send_it(cli, request, body_of(request, &text), &info);
    free_text(text);
    if (rc != KV_OK) {
        fprintf(stderr, "kvrun: %s\n", info.text);
        return rc == KV_E_IO ? CLI_UNAVAILABLE : cli_exit_of(rc);
    }
    if (cli->verbose) {
        tell(cli, request, now_us() - begun);
    }
    cli->answer = json_loadb((const char *)cli->body.data, cli->body.len, JSON_REJECT_DUPLICATES, NULL);
    if (cli->status >= 200 && cli->status < 300) {
        return CLI_OK;
    }
    return cli_problem(cli, cli->answer, cli->status, request->silent);
}

/* --- before something that cannot be undone ------------------------------------------------------------------------
 */

int cli_confirm(const struct cli *cli, const char *what, const char *name)
{
    char line[256] = "";
    if (cli->yes || cli->dry_run) {
        return CLI_OK;
    }
    if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
        return cli_usage_error(cli, "this %s %s; say --yes, nobody is there to be asked", what, name);
    }
    fprintf(stderr, "This %s %s. Type %s to go on: ", what, name, name);
    if (fgets(line, sizeof line, stdin) == NULL) {
        line[0] = '\0';
    }
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, name) != 0) {
        fputs("kvrun: nothing was done\n", stderr);
        return CLI_USAGE;
    }
    return CLI_OK;
}

/*
 * Running a row of the table, waiting for what outlives a request, and fetching files.
 */
#include "server/cli/cli_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WAIT_MS 600000u
#define STEP_S 20u
#define PAUSE_MS 300
#define PAGES_MAX 1000000u

static const char *id_of(const json_t *object)
{
    const char *id = json_string_value(json_object_get(object, "id"));
    return id == NULL ? "" : id;
}

/* --- lists ------------------------------------------------------------------------------------------------------- */

int cli_pages(struct cli *cli, const char *path)
{
    struct cli_list list = {.shown = 0};
    struct kv_buf page KV_CLEANUP(kv_buf_done);
    kv_buf_init(&page, CLI_PATH_SIZE);
    kv_buf_text(&page, path);
    for (unsigned n = 0; n < PAGES_MAX; n++) {
        char limit[16];
        uint64_t left = cli->limit == 0 ? KV_MAX_PAGE_ITEMS : cli->limit - list.shown;
        size_t len = page.len;
        snprintf(limit, sizeof limit, "%u", (unsigned)(left < KV_MAX_PAGE_ITEMS ? left : KV_MAX_PAGE_ITEMS));
        if ((cli->command->traits & CLI_WHOLE) == 0) {
            cli_add_query(&page, "limit", limit);
        }
        struct cli_request request = {.method = "GET", .path = (const char *)page.data};
        int code = cli_ask(cli, &request);
        const json_t *items = json_object_get(cli->answer, "data");
        if (code == CLI_OK && !json_is_array(items)) {
            fputs("kvrun: the server's answer is no list\n", stderr);
            code = CLI_NEGATIVE;
        }
        code = code != CLI_OK ? code : cli_list_items(cli, &list, items);
        const char *cursor = json_string_value(json_object_get(cli->answer, "next_cursor"));
        if (code != CLI_OK || cursor == NULL || (cli->limit != 0 && list.shown >= cli->limit)) {
            int end = code == CLI_OK || list.shown > 0 ? cli_list_end(cli, &list) : CLI_OK;
            return code != CLI_OK ? code : end;
        }
        page.len = len; /* the path without the page's own words */
        page.data[len] = '\0';
        struct kv_buf next;
        kv_buf_init(&next, CLI_PATH_SIZE);
        kv_buf_text(&next, path);
        cli_add_query(&next, "cursor", cursor);
        kv_buf_done(&page);
        page = next;
    }
    return CLI_NEGATIVE;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static bool is_one_of(const char *word, const char *const *words)
{
    while (*words != NULL && strcmp(*words, word) != 0) {
        words++;
    }
    return *words != NULL;
}

static int end_of_operation(const struct cli *cli)
{
    const json_t *error = json_object_get(cli->answer, "error");
    const char *state = json_string_value(json_object_get(cli->answer, "state"));
    if (state != NULL && strcmp(state, "canceled") == 0) {
        fputs("kvrun: it was canceled\n", stderr);
        return CLI_NEGATIVE;
    }
    return json_is_object(error) ? cli_problem(cli, error, 500, false) : CLI_OK;
}

/* -1: not at its end. */
static int end_of_erasure(const struct cli *cli)
{
    static const char *const stuck[] = {"blocked_hold", "needs_approval", "canceled", NULL};
    const char *state = json_string_value(json_object_get(cli->answer, "state"));
    if (state == NULL || strcmp(state, "quarantined") == 0) {
        fputs("kvrun: quarantined: an operator has to act\n", stderr);
        return CLI_INTEGRITY;
    }
    if (is_one_of(state, stuck)) {
        fprintf(stderr, "kvrun: it stopped as %s\n", state);
        return CLI_CONFLICT;
    }
    return strcmp(state, "certified") == 0 ? CLI_OK : -1;
}

int cli_wait(struct cli *cli, const char *id)
{
    char path[128], name[40];
    bool operation = strncmp(id, "opr_", 4) == 0;
    uint64_t end = now_ms() + (cli->timeout_ms == 0 ? WAIT_MS : cli->timeout_ms);
    snprintf(name, sizeof name, "%.39s", id);
    snprintf(path, sizeof path, "/v1/%s/%s", operation ? "operations" : "erasures", name);
    for (;;) {
        uint64_t now = now_ms();
        uint64_t left_s = end > now ? (end - now) / 1000u : 0;
        unsigned step = left_s < STEP_S ? (unsigned)left_s : STEP_S;
        struct cli_request request = {.method = "GET", .path = path, .wait_s = step, .timeout_ms = (step + 15) * 1000u};
        int code = cli_ask(cli, &request);
        if (code != CLI_OK) {
            return code;
        }
        if (operation && json_is_true(json_object_get(cli->answer, "done"))) {
            return end_of_operation(cli);
        }
        int done = operation ? -1 : end_of_erasure(cli);
        if (done >= 0) {
            return done;
        }
        if (now >= end) {
            fprintf(stderr, "kvrun: %s is not done yet; it goes on\n", name);
            return CLI_UNAVAILABLE;
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000L}, NULL);
    }
}

int cli_op_wait(struct cli *cli)
{
    int code = cli_wait(cli, cli->args[0]);
    int shown = json_is_object(cli->answer) && json_object_get(cli->answer, "code") == NULL ? cli_show(cli, cli->answer)
                                                                                            : CLI_OK;
    return code != CLI_OK ? code : shown;
}

/* --- a row -------------------------------------------------------------------------------------------------------- */

static int wait_for_answer(struct cli *cli)
{
    char id[64];
    snprintf(id, sizeof id, "%s", id_of(cli->answer));
    bool known = strncmp(id, "opr_", 4) == 0 || strncmp(id, "era_", 4) == 0;
    return cli->wait && !cli->dry_run && known ? cli_wait(cli, id) : CLI_OK;
}

int cli_run(struct cli *cli)
{
    const struct cli_command *command = cli->command;
    json_t *body = NULL;
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    int code = cli_target(cli, &path);
    if (code == CLI_OK && (command->traits & CLI_LISTS) != 0) {
        return cli_pages(cli, (const char *)path.data);
    }
    code = code != CLI_OK ? code : cli_body(cli, &body);
    if (code == CLI_OK && command->danger != NULL) {
        code = cli_confirm(cli, command->danger, cli->arg_count > 0 ? cli->args[0] : "all");
    }
    if (code == CLI_OK) {
        struct cli_request request = {
            .method = command->method,
            .path = (const char *)path.data,
            .json = body,
            .if_match = cli_text(cli, "if-match"),
            .content_type = strcmp(command->method, "PATCH") == 0 ? "application/merge-patch+json" : NULL};
        code = cli_ask(cli, &request);
    }
    json_decref(body);
    code = code != CLI_OK ? code : wait_for_answer(cli);
    bool is_answer = json_is_object(cli->answer) && cli->status < 300;
    int shown = is_answer ? cli_show(cli, cli->answer) : CLI_OK;
    return code != CLI_OK ? code : shown;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static bool into_file(void *ctx, const void *data, size_t len)
{
    int fd = *(int *)ctx;
    const char *p = data;
    while (len > 0) {
        ssize_t n = write(fd, p, len);
        if (n <= 0) {
            return false;
        }
        p += n;
        len -= (size_t)n;
    }
    return true;
}

struct fetch {
    int fd;
    bool failed;
};

static bool take_piece(void *ctx, const void *data, size_t len)
{
    struct fetch *fetch = ctx;
    fetch->failed = !into_file(&fetch->fd, data, len);
    return !fetch->failed;
}

/* Into -o FILE, or to standard output when that is no terminal. */
int cli_download(struct cli *cli, const char *path, const char *accept)
{
    bool text = strncmp(accept, "text/", 5) == 0 || strstr(accept, "jose") != NULL;
    if (cli->file == NULL && cli->tty && !text) {
        return cli_usage_error(cli, "that is an archive; say where to put it with -o FILE");
    }
    fflush(stdout);
    struct fetch fetch = {.fd = cli->file == NULL ? STDOUT_FILENO : cli_new_file(cli->file)};
    if (fetch.fd < 0) {
        return CLI_USAGE;
    }
    struct cli_request request = {.method = "GET",
                                  .path = path,
                                  .accept = accept,
                                  .sink = take_piece,
                                  .sink_ctx = &fetch,
                                  .timeout_ms = cli->timeout_ms == 0 ? WAIT_MS : cli->timeout_ms};
    int code = cli_ask(cli, &request);
    if (code == CLI_OK && fetch.failed) {
        fputs("kvrun: cannot write what was fetched\n", stderr);
        code = CLI_NEGATIVE;
    }
    if (cli->file != NULL) {
        code = close(fetch.fd) != 0 && code == CLI_OK ? CLI_NEGATIVE : code;
        if (code != CLI_OK) {
            unlink(cli->file); /* half an archive is none */
        } else {
            cli_note(cli, "wrote %s", cli->file);
        }
    }
    return code;
}

/* What goes on until somebody ends it: events, the end of the audit log, the status again and again. */
#include "server/cli/cli_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINES_USUAL 10
#define PAUSE_S 2
#define LINE_MAX_BYTES 65536u
#define EVENTS_BEGIN "0000000000000000-0" /* of no process: what is kept then comes from its beginning */
#define EVENT_PAGES_MAX 1000u

/* -1: not a number, or not given: `fallback`. */
static long number_of(const struct cli *cli, const char *flag, long fallback)
{
    const char *text = cli_text(cli, flag);
    if (text == NULL) {
        return fallback;
    }
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 7 || text[digits] != '\0' || strtol(text, NULL, 10) == 0) {
        (void)cli_usage_error(cli, "--%s is a whole number from 1", flag);
        return -1;
    }
    return strtol(text, NULL, 10);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

struct stream {
    struct cli *cli;
    struct cli_list list;
    struct kv_buf line;
    char id[80], event[64];
    json_t *data;
    uint64_t left;       /* 0: no end */
    bool again, counted; /* again: the server ended it, and one may come back */
};

static int put_event(struct stream *stream)
{
    json_t *items = json_array();
    (void)json_array_append(items, stream->data);
    int code = cli_list_items(stream->cli, &stream->list, items);
    json_decref(items);
    return code;
}

static bool is_one_of(const char *word, const char *a, const char *b)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

/* An empty line ends an event. */
static bool end_event(struct stream *stream)
{
    bool go_on = true, ends = is_one_of(stream->event, "bye", "lagged");
    if (is_one_of(stream->event, "resync", "lagged")) {
        cli_note(stream->cli, "events were missed");
    } else if (stream->event[0] != '\0' && !ends && stream->data != NULL) {
        go_on = put_event(stream) == CLI_OK;
        if (stream->counted && --stream->left == 0) {
            go_on = false;
        }
    }
    stream->again = stream->again || ends;
    stream->event[0] = '\0';
    json_decref(stream->data);
    stream->data = NULL;
    return go_on;
}

static const char *after_colon(const char *line)
{
    const char *value = strchr(line, ':') + 1;
    return *value == ' ' ? value + 1 : value;
}

static bool take_line(struct stream *stream, const char *line)
{
    if (line[0] == '\0') {
        return end_event(stream);
    }
    if (strncmp(line, "id:", 3) == 0) {
        snprintf(stream->id, sizeof stream->id, "%.79s", after_colon(line));
    } else if (strncmp(line, "event:", 6) == 0) {
        snprintf(stream->event, sizeof stream->event, "%.63s", after_colon(line));
    } else if (strncmp(line, "data:", 5) == 0) {
        json_decref(stream->data);
        stream->data = json_loads(after_colon(line), JSON_REJECT_DUPLICATES, NULL);
    }
    return true;
}

static bool take_stream(void *ctx, const void *data, size_t len)
{
    struct stream *stream = ctx;
    const char *p = data;
    for (size_t i = 0; i < len; i++) {
        if (p[i] != '\n') {
            kv_buf_append(&stream->line, &p[i], p[i] == '\r' ? 0 : 1);
            continue;
        }
        bool go_on = take_line(stream, stream->line.data == NULL ? "" : (const char *)stream->line.data);
        kv_buf_reset(&stream->line);
        if (stream->line.data != NULL) {
            stream->line.data[0] = '\0';
        }
        if (!go_on) {
            return false;
        }
    }
    return true;
}

static int follow_events(struct cli *cli, const char *path, long count)
{
    struct stream stream = {.cli = cli, .left = (uint64_t)count, .counted = count > 0};
    kv_buf_init(&stream.line, LINE_MAX_BYTES);
    if (cli->format == CLI_JSON) {
        cli->format = CLI_JSONL; /* a document that never ends is none */
    }
    int code = CLI_OK;
    do { /* a stream ends after an hour, so that the key is looked at again */
        struct kv_buf again;
        kv_buf_init(&again, CLI_PATH_SIZE);
        kv_buf_text(&again, path);
        const char *after = stream.id[0] != '\0' ? stream.id : cli_text(cli, "after");
        if (after != NULL) {
            cli_add_query(&again, "after", after);
        }
        stream.again = false;
        struct cli_request request = {.method = "GET",
                                      .path = (const char *)again.data,
                                      .accept = "text/event-stream, application/problem+json;q=0.1",
                                      .timeout_ms = cli->timeout_ms == 0 ? UINT64_MAX : cli->timeout_ms,
                                      .sink = take_stream,
                                      .sink_ctx = &stream};
        code = cli_ask(cli, &request);
        kv_buf_done(&again);
    } while (code == CLI_OK && stream.again && (!stream.counted || stream.left > 0));
    json_decref(stream.data);
    kv_buf_done(&stream.line);
    return code;
}

/* One page onto `rows`; *ret_more: there may be another one after `after`. */
static int past_page(struct cli *cli, const char *path, json_t *rows, char after[80], bool *ret_more)
{
    struct kv_buf page KV_CLEANUP(kv_buf_done);
    kv_buf_init(&page, CLI_PATH_SIZE);
    kv_buf_text(&page, path);
    cli_add_query(&page, "poll", "1");
    cli_add_query(&page, "after", after);
    struct cli_request request = {.method = "GET", .path = (const char *)page.data};
    int code = cli_ask(cli, &request);
    json_t *events = json_object_get(cli->answer, "data");
    const char *next = json_string_value(json_object_get(cli->answer, "next_after"));
    *ret_more = code == CLI_OK && json_array_size(events) > 0 && next != NULL;
    if (*ret_more) {
        (void)json_array_extend(rows, events);
        snprintf(after, 80, "%.79s", next);
    }
    return code;
}

/* What is kept of the past, the last `count` of it. */
static int past_events(struct cli *cli, const char *path, size_t count)
{
    struct cli_list list = {.shown = 0};
    json_t *rows = json_array();
    char after[80];
    bool more = true;
    int code = CLI_OK;
    snprintf(after, sizeof after, "%.79s", cli_given(cli, "after") ? cli_text(cli, "after") : EVENTS_BEGIN);
    for (unsigned page = 0; code == CLI_OK && more && page < EVENT_PAGES_MAX; page++) {
        code = past_page(cli, path, rows, after, &more);
    }
    while (count > 0 && json_array_size(rows) > count) {
        (void)json_array_remove(rows, 0);
    }
    code = code != CLI_OK ? code : cli_list_items(cli, &list, rows);
    json_decref(rows);
    return code != CLI_OK ? code : cli_list_end(cli, &list);
}

int cli_events(struct cli *cli)
{
    struct kv_buf path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&path, CLI_PATH_SIZE);
    long count = number_of(cli, "count", 0);
    int code = count < 0 ? CLI_USAGE : cli_target(cli, &path);
    if (code != CLI_OK) {
        return code;
    }
    return cli_given(cli, "follow") ? follow_events(cli, (const char *)path.data, count)
                                    : past_events(cli, (const char *)path.data, (size_t)count);
}

/* --- the end of the audit log ------------------------------------------------------------------------------------- */

static json_int_t index_of(const json_t *entry)
{
    return json_integer_value(json_object_get(entry, "index"));
}

/* Prints the newest entries that were not seen, oldest of them first. */
static int tail_once(struct cli *cli, struct cli_list *list, const char *path, json_int_t *last)
{
    json_t *rows = json_array(), *item = NULL;
    size_t index = 0;
    struct cli_request request = {.method = "GET", .path = path};
    int code = cli_ask(cli, &request);
    json_array_foreach(json_object_get(cli->answer, "data"), index, item)
    {
        if (index_of(item) > *last) {
            (void)json_array_insert(rows, 0, item);
        }
    }
    size_t n = json_array_size(rows);
    if (n > 0) {
        *last = index_of(json_array_get(rows, n - 1));
    }
    code = code != CLI_OK ? code : cli_list_items(cli, list, rows);
    json_decref(rows);
    return code;
}

int cli_audit_tail(struct cli *cli)
{
    struct cli_list list = {.shown = 0};
    json_int_t last = -1;
    long lines = number_of(cli, "lines", LINES_USUAL);
    bool follow = cli_given(cli, "follow");
    char limit[16];
    struct kv_buf first KV_CLEANUP(kv_buf_done), path KV_CLEANUP(kv_buf_done);
    kv_buf_init(&first, CLI_PATH_SIZE);
    kv_buf_init(&path, CLI_PATH_SIZE);
    int code = lines < 0 ? CLI_USAGE : cli_target(cli, &path);
    if (code != CLI_OK) {
        return code;
    }
    if (follow && cli->format == CLI_JSON) {
        cli->format = CLI_JSONL;
    }
    cli_add_query(&path, "order", "desc");
    kv_buf_text(&first, (const char *)path.data);
    snprintf(limit, sizeof limit, "%ld", lines < KV_MAX_PAGE_ITEMS ? lines : (long)KV_MAX_PAGE_ITEMS);
    cli_add_query(&first, "limit", limit);
    cli_add_query(&path, "limit", "200");
    code = tail_once(cli, &list, (const char *)first.data, &last);
    while (code == CLI_OK && follow) {
        nanosleep(&(struct timespec){.tv_sec = PAUSE_S}, NULL);
        code = tail_once(cli, &list, (const char *)path.data, &last);
    }
    return code != CLI_OK ? code : cli_list_end(cli, &list);
}

/* --- top -----------------------------------------------------------------------------------------------------------
 */

int cli_top(struct cli *cli)
{
    long delay = number_of(cli, "delay", PAUSE_S), count = number_of(cli, "count", cli->tty ? 1000000 : 1);
    struct cli_request request = {.method = "GET", .path = cli->command->target};
    if (delay < 0 || count < 0) {
        return CLI_USAGE;
    }
    for (long i = 0; i < count; i++) {
        int code = cli_ask(cli, &request);
        if (code != CLI_OK) {
            return code;
        }
        if (cli->tty && cli->format == CLI_TABLE) {
            fputs("\033[H\033[2J", stdout);
        }
        code = cli_show(cli, cli->answer);
        if (code != CLI_OK) {
            return code;
        }
        if (i + 1 < count) {
            nanosleep(&(struct timespec){.tv_sec = delay}, NULL);
        }
    }
    return CLI_OK;
}

/*
 * What the files of server/cli share: one run of one command, its requests, its output. Functions return exit codes
 * (exit_code.h) and have said on standard error what went wrong. Thread: main.
 */
#ifndef KV_CLI_INT_H
#define KV_CLI_INT_H

#include "dataplane/base/buf.h"
#include "server/cli/cli.h"
#include "server/cli/command.h"
#include "server/cli/exit_code.h"

#include <jansson.h>
#include <stdio.h>

#define CLI_VALUES_MAX 64
#define CLI_ARGS_MAX 32
#define CLI_TOKEN_SIZE 160
#define CLI_PATH_SIZE 4700 /* path and query, as long as the server takes */
#define CLI_ANSWER_MAX (16u << 20)

enum cli_format { CLI_TABLE, CLI_WIDE, CLI_JSON, CLI_JSONL, CLI_ID };

struct cli_value {
    const struct cli_flag *flag;
    const char *text; /* borrowed from argv; "" for a switch */
};

struct cli {
    const struct cli_command *command;
    struct cli_value values[CLI_VALUES_MAX];
    size_t value_count;
    const char *args[CLI_ARGS_MAX];
    size_t arg_count;
    enum cli_format format;
    const char *file; /* -o FILE; NULL: none */
    bool quiet, verbose, color, yes, dry_run, wait, help;
    bool tty;            /* standard output is a terminal */
    uint64_t timeout_ms; /* 0: not given */
    uint64_t limit;      /* 0: all */
    struct kv_httpc *http;
    char token[CLI_TOKEN_SIZE]; /* wiped at the end */
    struct kv_buf body, headers;
    int status;     /* of the last answer */
    json_t *answer; /* of the last cli_ask; owned */
};

/* --- parse.c */
/* Fills cli from the words after the command's own. Texts stay borrowed from argv. */
int cli_parse(struct cli *cli, int argc, char **argv);
const char *cli_text(const struct cli *cli, const char *flag); /* the last one given, or NULL */
bool cli_given(const struct cli *cli, const char *flag);
int cli_usage_error(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Seconds of "90s", "10m", "24h", "30d" or "90"; false when it is none. */
bool cli_duration(const char *text, uint64_t *ret_seconds);

/* --- value.c */
/* The JSON value of a flag's text; NULL and a message when it is none. Owned. */
json_t *cli_value_of(const struct cli *cli, const struct cli_flag *flag, const char *text);
/* Sets "a.b.c" in `root`, making the objects between; takes the value. False: no memory, or not an object. */
bool cli_set(json_t *root, const char *path, json_t *value);
const json_t *cli_get(const json_t *root, const char *path); /* NULL: not there */
/* Path with {0} and {t} filled in and the query of the flags behind it. */
int cli_target(const struct cli *cli, struct kv_buf *ret_path);
/* The body that the flags and arguments make; *ret_json NULL when there is none. */
int cli_body(const struct cli *cli, json_t **ret_json);
void cli_add_query(struct kv_buf *path, const char *name, const char *value);

/* --- ask.c */
struct cli_request {
    const char *method, *path;
    const json_t *json; /* body */
    const char *body;   /* or as text */
    const char *content_type, *accept, *if_match;
    unsigned wait_s;                                       /* Prefer: wait */
    uint64_t timeout_ms;                                   /* 0: that of --timeout, or 30 s; UINT64_MAX: none */
    bool (*sink)(void *ctx, const void *data, size_t len); /* see httpc.h */
    void *sink_ctx;
    bool silent; /* the caller says what a refusal means */
};
/* Once before the first request: address, key, trust. */
int cli_connect(struct cli *cli);
/* Sends it. cli->answer is the JSON of the answer or NULL, cli->body its bytes. A refusal has been printed, and its
 * exit code is returned. */
int cli_ask(struct cli *cli, const struct cli_request *request);
/* The exit code of a problem document (also of an operation's error); prints it unless silent. */
int cli_problem(const struct cli *cli, const json_t *problem, int status, bool silent);
/* The word typed to go on; CLI_OK: go on. */
int cli_confirm(const struct cli *cli, const char *what, const char *name);
void cli_note(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* --- show.c */
struct cli_list {
    size_t widths[16];
    uint64_t shown;
    bool begun;
};
/* One resource, in the format asked for. */
int cli_show(struct cli *cli, const json_t *object);
/* Some of the items of a list; the format's frame comes with the first and with cli_list_end. */
int cli_list_items(struct cli *cli, struct cli_list *list, const json_t *items);
int cli_list_end(struct cli *cli, struct cli_list *list);
/* All pages of a list route. */
int cli_pages(struct cli *cli, const char *path);

/* --- text.c */
/* Text of others, fit for a terminal: control characters, invalid UTF-8, and what turns the direction of text become
 * "?". Returns the number of characters. */
size_t cli_clean(struct kv_buf *out, const char *text, size_t len);
/* "3m ago", "in 4h"; false when it is no RFC 3339 time. */
bool cli_when(const char *text, int64_t now_s, char ret_text[32]);
void cli_size(uint64_t bytes, char ret_text[32]); /* "1.2 GiB" */
int cli_write(const struct kv_buf *out);          /* to standard output; an exit code */
/* The nearest of the words a row names, for "did you mean". */
unsigned cli_distance(const char *a, const char *b);

/* --- help.c */
void cli_help_all(FILE *out);
void cli_help_group(FILE *out, const char *group);
void cli_help_command(FILE *out, const struct cli_command *command);
void cli_unknown_command(int argc, char *const *argv);
int cli_completion(struct cli *cli);
int cli_man(struct cli *cli);

/* --- run*.c: what a row's `run` may be; run.c has the one for rows without. */
int cli_run(struct cli *cli);
int cli_wait(struct cli *cli, const char *id); /* an operation or an erasure, until it is done */
int cli_download(struct cli *cli, const char *path, const char *accept);
int cli_erase(struct cli *cli);
int cli_cert_get(struct cli *cli);
int cli_cert_verify(struct cli *cli);
int cli_cert_export(struct cli *cli);
int cli_audit_tail(struct cli *cli);
int cli_audit_verify(struct cli *cli); /* and of an erasure: an operation that says whether all is well */
int cli_audit_export(struct cli *cli);
int cli_events(struct cli *cli);
int cli_op_wait(struct cli *cli);
int cli_loglevel(struct cli *cli);
int cli_top(struct cli *cli);
int cli_key_create(struct cli *cli);
int cli_tenant_create(struct cli *cli);
int cli_policy_set(struct cli *cli);
int cli_policy_diff(struct cli *cli);
int cli_policy_eval(struct cli *cli);
int cli_policy_test(struct cli *cli);
int cli_version(struct cli *cli);
int cli_help(struct cli *cli);
/* Opens a file that did not exist, for this user only; -1 and a message. */
int cli_new_file(const char *path);
int cli_read_file(const char *path, size_t max, struct kv_buf *ret); /* "-": standard input */

#endif

/*
 * The command line as data: one row a command. The rows (commands.c) drive parsing, help, completion and the man page,
 * and most of them are the whole command: a method, a target, where each flag goes, which columns to show. Nothing here
 * does anything.
 */
#ifndef KV_CLI_COMMAND_H
#define KV_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

struct cli;

/* How a flag's text becomes a value. */
enum cli_type {
    CLI_SWITCH,   /* no text; true */
    CLI_TEXT,     /* as it is */
    CLI_WORDS,    /* may be repeated: an array of texts in a body */
    CLI_LABELS,   /* key=value, may be repeated: an object in a body */
    CLI_LABEL,    /* key=value: an object in a body, key:value in a query */
    CLI_NUMBER,   /* a whole number */
    CLI_DURATION, /* "90s", "24h", "30d" or seconds: whole seconds */
    CLI_PAST,     /* RFC 3339, or a duration before now */
    CLI_FUTURE,   /* RFC 3339, or a duration from now on */
};

enum cli_place { CLI_LOCAL, CLI_QUERY, CLI_BODY };

struct cli_flag {
    const char *name;  /* "display-name"; ends an array when NULL */
    const char *value; /* what its text is called in help; NULL: a switch */
    const char *help;
    enum cli_type type;
    enum cli_place place;
    const char *member; /* of the query or body, "model.id"; NULL with CLI_LOCAL */
    char letter;        /* 0: none */
    const char *words;  /* "a|b|c": the only texts; for completion and an early error. NULL: any */
};

enum cli_show { CLI_PLAIN, CLI_WHEN, CLI_SIZE, CLI_JOIN };

struct cli_column {
    const char *title; /* ends an array when NULL */
    const char *member;
    enum cli_show show;
    bool wide; /* with -o wide only */
};

enum {
    CLI_LISTS = 1 << 0,      /* answers are pages: {"data":[…],"next_cursor":…} */
    CLI_DRY = 1 << 1,        /* takes --dry-run */
    CLI_WAITS = 1 << 2,      /* takes --wait */
    CLI_MATCHES = 1 << 3,    /* takes --if-match */
    CLI_FILES = 1 << 4,      /* -o with another word than a format names a file for what was fetched */
    CLI_TENANT = 1 << 5,     /* takes --tenant (or KVRUN_TENANT) */
    CLI_CONFIG = 1 << 6,     /* reads the server's configuration, not a server */
    CLI_HOOK = 1 << 7,       /* lives outside of this folder: main.c gives the function */
    CLI_WORDS_ON = 1 << 8,   /* checks its words itself: they go on as they are */
    CLI_IDEMPOTENT = 1 << 9, /* takes --idempotency-key */
    CLI_WHOLE = 1 << 11,     /* a list that has no pages */
    CLI_ALONE = 1 << 10,     /* speaks to no server at all */
};

struct cli_command {
    const char *name; /* "tenants create"; ends the table when NULL */
    const char *args; /* "NAME", "[TENANT] FILE", "SESSION..."; "": none */
    const char *help;
    unsigned traits;
    const char *method, *target; /* {0} {1}: positional arguments; NULL with `run` */
    const char *tenant_target;   /* the target when a tenant was given; {t} is that tenant */
    const char *arg_member;      /* the body's member that the first argument is */
    const struct cli_flag *flags;
    const struct cli_column *columns;
    const char *danger; /* what is asked to be confirmed, "erases session"; NULL: harmless */
    int (*run)(struct cli *cli);
};

extern const struct cli_command cli_commands[];
extern const struct cli_flag cli_global_flags[];

struct cli_alias {
    const char *name, *target;
};
extern const struct cli_alias cli_aliases[]; /* ended by {NULL} */

/* The words at the front of argv that name a command; the longest match. NULL: none. ret_words: how many words. */
const struct cli_command *cli_find(int argc, char *const *argv, int *ret_words);
/* A flag of this command, its own, one that its traits bring, or a global one. */
const struct cli_flag *cli_find_flag(const struct cli_command *command, const char *name, size_t len);
const struct cli_flag *cli_find_letter(const struct cli_command *command, char letter);
/* The index-th flag of a command that is not global, own ones first; NULL after the last. */
const struct cli_flag *cli_flag_at(const struct cli_command *command, size_t index);
/* Whether `name` ("tenants") is the first word of more than itself. */
bool cli_is_group(const char *name);

#endif

/*
 * Help and the manual page, written from the table of commands.
 */
#include "server/cli/cli_int.h"

#include "kv_version.h"

#include <string.h>

static size_t group_len(const char *name)
{
    return strcspn(name, " ");
}

static bool same_group(const char *a, const char *b)
{
    size_t len = group_len(a);
    return group_len(b) == len && memcmp(a, b, len) == 0;
}

static const char *const intro[] = {
    "usage: kvrun COMMAND [WORDS] [FLAGS]",
    "",
};

/* "  tenants   ls get create …" for a group, one line a command for the rest. */
void cli_help_all(FILE *out)
{
    for (size_t i = 0; i < sizeof intro / sizeof intro[0]; i++) {
        fprintf(out, "%s\n", intro[i]);
    }
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const char *name = cli_commands[i].name;
        if (strchr(name, ' ') == NULL) {
            fprintf(out, "  %-12s %s\n", name, cli_commands[i].help);
            continue;
        }
        if (i > 0 && same_group(cli_commands[i - 1].name, name)) {
            continue;
        }
        fprintf(out, "  %-12.*s", (int)group_len(name), name);
        for (size_t j = i; cli_commands[j].name != NULL && same_group(cli_commands[j].name, name); j++) {
            fprintf(out, " %s", strchr(cli_commands[j].name, ' ') + 1);
        }
        fputc('\n', out);
    }
    fputs(
        "\n`kvrun help COMMAND` says more. Commands that speak to a server take --addr and --token-file (KVRUN_ADDR,\n"
        "KVRUN_TOKEN_FILE, KVRUN_TOKEN). serve, dev, doctor, config and db take configuration: --key=value, KVRUN_KEY "
        "in "
        "the\nenvironment, or a file (--config FILE, $KVRUN_CONFIG, ./kvrun.conf, /etc/kvrun/kvrun.conf); `kvrun "
        "config "
        "docs`\nlists the keys.\n",
        out);
}

void cli_help_group(FILE *out, const char *group)
{
    size_t len = strlen(group);
    fprintf(out, "usage: kvrun %s COMMAND\n\n", group);
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const char *name = cli_commands[i].name;
        if (strncmp(name, group, len) == 0 && name[len] == ' ') {
            char call[64];
            snprintf(call, sizeof call, "%s %s", name + len + 1, cli_commands[i].args);
            fprintf(out, "  %-24s %s\n", call, cli_commands[i].help);
        }
    }
}

static void put_flag(FILE *out, const struct cli_flag *flag)
{
    char left[64];
    if (flag->letter != 0) {
        snprintf(left, sizeof left, "-%c, --%s%s%s", flag->letter, flag->name, flag->value == NULL ? "" : " ",
                 flag->value == NULL ? "" : flag->value);
    } else {
        snprintf(left, sizeof left, "    --%s%s%s", flag->name, flag->value == NULL ? "" : " ",
                 flag->value == NULL ? "" : flag->value);
    }
    bool words = flag->words != NULL && strcmp(flag->words, flag->help) != 0;
    fprintf(out, "  %-30s %s%s%s%s\n", left, flag->help, words ? " (" : "", words ? flag->words : "", words ? ")" : "");
}

void cli_help_command(FILE *out, const struct cli_command *command)
{
    const struct cli_flag *flag = NULL;
    fprintf(out, "usage: kvrun %s%s%s [FLAGS]\n\n%s\n", command->name, command->args[0] == '\0' ? "" : " ",
            command->args, command->help);
    for (size_t i = 0; (flag = cli_flag_at(command, i)) != NULL; i++) {
        fputs(i == 0 ? "\n" : "", out);
        put_flag(out, flag);
    }
    if ((command->traits & CLI_FILES) != 0) {
        fputs("  -o FILE                        write what was fetched into a new file\n", out);
    }
    if ((command->traits & CLI_CONFIG) != 0) {
        fputs("\nconfiguration: --key=value, --config FILE; `kvrun config docs` lists the keys\n", out);
        return;
    }
    fputs("\nflags of every command:\n", out);
    for (size_t i = 0; cli_global_flags[i].name != NULL; i++) {
        put_flag(out, &cli_global_flags[i]);
    }
}

void cli_unknown_command(int argc, char *const *argv)
{
    const char *best = NULL;
    unsigned distance = 4;
    char text[64];
    if (argc == 1 && cli_is_group(argv[0])) {
        cli_help_group(stderr, argv[0]);
        return;
    }
    snprintf(text, sizeof text, "%.30s%s%.30s", argv[0], argc > 1 && cli_is_group(argv[0]) ? " " : "",
             argc > 1 && cli_is_group(argv[0]) ? argv[1] : "");
    bool whole = argc > 1 && cli_is_group(argv[0]);
    char nearest[64];
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const char *name = cli_commands[i].name;
        char word[64]; /* a misspelt group is compared with groups, not with "group command" */
        snprintf(word, sizeof word, "%.*s", whole ? (int)sizeof word : (int)strcspn(name, " "), name);
        unsigned d = cli_distance(text, word);
        if (d < distance) {
            distance = d;
            memcpy(nearest, word, sizeof nearest);
            best = nearest;
        }
    }
    struct kv_buf clean;
    kv_buf_init(&clean, 512);
    (void)cli_clean(&clean, text, strlen(text));
    fprintf(stderr, "kvrun: \"%s\" is no command%s%s%s\n", clean.data == NULL ? "" : (const char *)clean.data,
            best == NULL ? "" : "; did you mean ", best == NULL ? "" : best, best == NULL ? "" : "?");
    kv_buf_done(&clean);
    if (cli_is_group(argv[0])) {
        fputc('\n', stderr);
        cli_help_group(stderr, argv[0]);
    } else if (best == NULL) {
        fputc('\n', stderr);
        cli_help_all(stderr);
    }
}

/* --- the table as data, for tools and for the test that holds it to the contract ---------------------------------- */

static json_t *flag_json(const struct cli_flag *flag)
{
    static const char *const places[] = {[CLI_LOCAL] = "local", [CLI_QUERY] = "query", [CLI_BODY] = "body"};
    return json_pack("{s:s, s:s?, s:s, s:s?, s:s, s:s?}", "name", flag->name, "value", flag->value, "place",
                     places[flag->place], "member", flag->member, "help", flag->help, "words", flag->words);
}

static json_t *command_json(const struct cli_command *command)
{
    const struct cli_flag *flag = NULL;
    json_t *flags = json_array(), *columns = json_array();
    for (size_t i = 0; (flag = cli_flag_at(command, i)) != NULL; i++) {
        (void)json_array_append_new(flags, flag_json(flag));
    }
    for (size_t i = 0; command->columns != NULL && command->columns[i].title != NULL; i++) {
        (void)json_array_append_new(columns, json_string(command->columns[i].member));
    }
    return json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s?, s:s?, s:b, s:b, s:o, s:o}", "name", command->name, "args",
                     command->args, "help", command->help, "method", command->method, "target", command->target,
                     "tenant_target", command->tenant_target, "arg_member", command->arg_member, "pages",
                     (command->traits & CLI_LISTS) != 0 && (command->traits & CLI_WHOLE) == 0, "dry_run",
                     (command->traits & CLI_DRY) != 0, "flags", flags, "columns", columns);
}

static int help_json(struct cli *cli)
{
    json_t *all = json_array();
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        (void)json_array_append_new(all, command_json(&cli_commands[i]));
    }
    int code = cli_show(cli, all);
    json_decref(all);
    return code;
}

int cli_help(struct cli *cli)
{
    int words = 0;
    if (cli->format == CLI_JSON || cli->format == CLI_JSONL) {
        return help_json(cli);
    }
    if (cli->arg_count == 0) {
        cli_help_all(stdout);
        return CLI_OK;
    }
    char *const *argv = (char *const *)(uintptr_t)cli->args;
    const struct cli_command *command = cli_find((int)cli->arg_count, argv, &words);
    if (command != NULL && (size_t)words == cli->arg_count) {
        cli_help_command(stdout, command);
        return CLI_OK;
    }
    if (cli->arg_count == 1 && cli_is_group(cli->args[0])) {
        cli_help_group(stdout, cli->args[0]);
        return CLI_OK;
    }
    cli_unknown_command((int)cli->arg_count, argv);
    return CLI_USAGE;
}

/* --- the manual page --------------------------------------------------------------------------------------------- */

/* Text into roff: a hyphen that is one, and no line that begins like a request. */
static void roff(struct kv_buf *out, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '\\') {
            kv_buf_text(out, "\\e");
        } else if (*p == '-') {
            kv_buf_text(out, "\\-");
        } else if (p == text && (*p == '.' || *p == '\'')) {
            kv_buf_printf(out, "\\&%c", *p);
        } else {
            kv_buf_append(out, p, 1);
        }
    }
}

static void roff_flag(struct kv_buf *out, const struct cli_flag *flag)
{
    kv_buf_text(out, ".TP\n");
    if (flag->letter != 0) {
        kv_buf_printf(out, "\\fB\\-%c\\fR, ", flag->letter);
    }
    kv_buf_text(out, "\\fB\\-\\-");
    roff(out, flag->name);
    kv_buf_text(out, "\\fR");
    if (flag->value != NULL) {
        kv_buf_printf(out, " \\fI%s\\fR", flag->value);
    }
    kv_buf_text(out, "\n");
    roff(out, flag->help);
    if (flag->words != NULL && strcmp(flag->words, flag->help) != 0) {
        kv_buf_text(out, ": ");
        roff(out, flag->words);
    }
    kv_buf_text(out, "\n");
}

static void roff_command(struct kv_buf *out, const struct cli_command *command)
{
    const struct cli_flag *flag = NULL;
    kv_buf_text(out, ".SS \"kvrun ");
    roff(out, command->name);
    kv_buf_printf(out, "%s%s\"\n", command->args[0] == '\0' ? "" : " ", command->args);
    roff(out, command->help);
    kv_buf_text(out, ".\n");
    for (size_t i = 0; (flag = cli_flag_at(command, i)) != NULL; i++) {
        roff_flag(out, flag);
    }
}

int cli_man(struct cli *cli)
{
    (void)cli;
    struct kv_buf out KV_CLEANUP(kv_buf_done);
    kv_buf_init(&out, 1u << 20);
    kv_buf_text(&out,
                ".TH KVRUN 1 \"\" \"kvrun " KV_VERSION "\" \"User Commands\"\n.SH NAME\nkvrun \\- sealed KV cache "
                "of LLM sessions in tiers, with provable erasure\n.SH SYNOPSIS\n.B kvrun\n\\fICOMMAND\\fR "
                "[\\fIWORDS\\fR] [\\fIFLAGS\\fR]\n.SH DESCRIPTION\nOne program: the server, and the command line "
                "that speaks to one. On a terminal lists are aligned and times\nrelative; in a pipe times are RFC "
                "3339 and there is no colour. A key is never an argument.\n.SH COMMANDS\n");
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        roff_command(&out, &cli_commands[i]);
    }
    kv_buf_text(&out, ".SH FLAGS OF EVERY COMMAND THAT SPEAKS TO A SERVER\n");
    for (size_t i = 0; cli_global_flags[i].name != NULL; i++) {
        roff_flag(&out, &cli_global_flags[i]);
    }
    kv_buf_text(&out,
                ".SH ENVIRONMENT\nKVRUN_ADDR, KVRUN_TOKEN, KVRUN_TOKEN_FILE, KVRUN_CA_FILE, KVRUN_CERT_FILE, "
                "KVRUN_KEY_FILE, KVRUN_TENANT, "
                "NO_COLOR; KVRUN_CONFIG and one variable\nfor each configuration key (kvrun config docs).\n.SH EXIT "
                "STATUS\n");
    for (int code = 0; cli_exit_text(code) != NULL; code++) {
        kv_buf_printf(&out, ".TP\n\\fB%d\\fR\n", code);
        roff(&out, cli_exit_text(code));
        kv_buf_text(&out, "\n");
    }
    kv_buf_text(&out, ".TP\n\\fB130\\fR, \\fB143\\fR\nended by SIGINT, SIGTERM\n");
    return cli_write(&out);
}

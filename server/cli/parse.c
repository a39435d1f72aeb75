/*
 * Words into one run of a command. Must never take a key from the command line: other users of the machine see it.
 */
#include "server/cli/cli_int.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cli_usage_error(const struct cli *cli, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("kvrun: ", stderr);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "; see kvrun help %s\n", cli->command->name);
    return CLI_USAGE;
}

bool cli_duration(const char *text, uint64_t *ret_seconds)
{
    static const struct {
        const char *suffix;
        uint64_t factor;
    } units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 10) {
        return false;
    }
    uint64_t number = strtoull(text, NULL, 10);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(text + digits, units[i].suffix) == 0) {
            *ret_seconds = number * units[i].factor;
            return true;
        }
    }
    return false;
}

const char *cli_text(const struct cli *cli, const char *flag)
{
    for (size_t i = cli->value_count; i > 0; i--) {
        if (strcmp(cli->values[i - 1].flag->name, flag) == 0) {
            return cli->values[i - 1].text;
        }
    }
    return NULL;
}

bool cli_given(const struct cli *cli, const char *flag)
{
    return cli_text(cli, flag) != NULL;
}

/* --- one flag ---------------------------------------------------------------------------------------------------- */

static bool is_word_of(const char *words, const char *text)
{
    size_t len = strlen(text);
    for (const char *p = words; p != NULL; p = strchr(p, '|') == NULL ? NULL : strchr(p, '|') + 1) {
        if (len > 0 && strncmp(p, text, len) == 0 && (p[len] == '|' || p[len] == '\0') && strchr(text, '|') == NULL) {
            return true;
        }
    }
    return false;
}

static int take(struct cli *cli, const struct cli_flag *flag, const char *text)
{
    bool file = flag->letter == 'o' && (cli->command->traits & CLI_FILES) != 0;
    if (flag->words != NULL && !is_word_of(flag->words, text) && !file) {
        return cli_usage_error(cli, "--%s is one of %s", flag->name, flag->words);
    }
    if (cli->value_count == CLI_VALUES_MAX) {
        return cli_usage_error(cli, "more than %d flags", CLI_VALUES_MAX);
    }
    cli->values[cli->value_count++] = (struct cli_value){.flag = flag, .text = text};
    return CLI_OK;
}

static int unknown_flag(const struct cli *cli, const char *name, size_t len)
{
    char text[64];
    const char *best = NULL;
    unsigned distance = 4;
    snprintf(text, sizeof text, "%.*s", (int)(len < 60 ? len : 60), name);
    for (size_t i = 0; cli_flag_at(cli->command, i) != NULL; i++) {
        unsigned d = cli_distance(text, cli_flag_at(cli->command, i)->name);
        if (d < distance) {
            distance = d;
            best = cli_flag_at(cli->command, i)->name;
        }
    }
    if (strcmp(text, "token") == 0) {
        return cli_usage_error(cli, "a key is never an argument, others can read it there: use --token-file, "
                                    "KVRUN_TOKEN or KVRUN_TOKEN_FILE");
    }
    return cli_usage_error(cli, "--%s is no flag of %s%s%s%s", text, cli->command->name,
                           best == NULL ? "" : "; did you mean --", best == NULL ? "" : best, best == NULL ? "" : "?");
}

/* One flag at argv[*index], which is moved to its last word. */
static int take_flag(struct cli *cli, int argc, char **argv, int *index)
{
    const char *word = argv[*index], *equals = NULL;
    const struct cli_flag *flag = NULL;
    if (word[1] == '-') {
        equals = strchr(word, '=');
        size_t len = equals == NULL ? strlen(word) - 2 : (size_t)(equals - word) - 2;
        flag = cli_find_flag(cli->command, word + 2, len);
        if (flag == NULL) {
            return unknown_flag(cli, word + 2, len);
        }
    } else {
        flag = cli_find_letter(cli->command, word[1]);
        if (flag == NULL || (word[2] != '\0' && flag->value == NULL)) {
            return cli_usage_error(cli, "\"%.20s\" is no flag", word);
        }
        equals = word[2] == '\0' ? NULL : word + 1;
    }
    if (flag->value == NULL) {
        return equals != NULL ? cli_usage_error(cli, "--%s takes no value", flag->name) : take(cli, flag, "");
    }
    if (equals != NULL) {
        return take(cli, flag, equals + 1);
    }
    if (*index + 1 >= argc) {
        return cli_usage_error(cli, "--%s needs a value: %s", flag->name, flag->value);
    }
    return take(cli, flag, argv[++*index]);
}

/* --- what the flags of every command mean ------------------------------------------------------------------------- */

static int read_format(struct cli *cli)
{
    static const char *const names[] = {"table", "wide", "json", "jsonl", "id"};
    const char *text = cli_given(cli, "json") ? "json" : cli_text(cli, "output");
    if (text == NULL) {
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], text) == 0) {
            cli->format = (enum cli_format)i;
            return CLI_OK;
        }
    }
    cli->file = text;
    return CLI_OK;
}

/* -o may stand twice: a format and a file. */
static void read_file_name(struct cli *cli)
{
    static const char formats[] = "table|wide|json|jsonl|id";
    for (size_t i = 0; i < cli->value_count; i++) {
        if (cli->values[i].flag->letter == 'o' && !is_word_of(formats, cli->values[i].text)) {
            cli->file = cli->values[i].text;
        }
    }
}

/* What becomes a header: printable, one line, and whole. */
static bool fits_header(const char *text)
{
    size_t len = text == NULL ? 1 : strlen(text);
    for (size_t i = 0; text != NULL && i < len; i++) {
        if (text[i] < 0x20 || text[i] > 0x7e) {
            return false;
        }
    }
    return len > 0 && len <= (size_t)KV_MAX_IDEMPOTENCY_KEY_BYTES;
}

static int read_globals(struct cli *cli)
{
    uint64_t seconds = 0;
    int code = read_format(cli);
    const char *timeout = cli_text(cli, "timeout"), *limit = cli_text(cli, "limit");
    read_file_name(cli);
    cli->quiet = cli_given(cli, "quiet");
    cli->verbose = cli_given(cli, "verbose");
    cli->yes = cli_given(cli, "yes");
    cli->dry_run = cli_given(cli, "dry-run");
    cli->wait = cli_given(cli, "wait");
    cli->tty = isatty(STDOUT_FILENO) == 1;
    const char *no_color = getenv("NO_COLOR");
    cli->color = cli->tty && !cli_given(cli, "no-color") && (no_color == NULL || no_color[0] == '\0');
    if (timeout != NULL && (!cli_duration(timeout, &seconds) || seconds == 0 || seconds > 86400)) {
        return cli_usage_error(cli, "--timeout is a duration such as 30s or 5m, at most 24h");
    }
    cli->timeout_ms = seconds * 1000;
    if (!fits_header(cli_text(cli, "idempotency-key")) || !fits_header(cli_text(cli, "if-match"))) {
        return cli_usage_error(cli, "--idempotency-key and --if-match are 1 to 255 printable characters");
    }
    if (limit != NULL) {
        size_t digits = strspn(limit, "0123456789");
        cli->limit = strtoull(limit, NULL, 10);
        if (digits == 0 || digits > 9 || limit[digits] != '\0' || cli->limit == 0) {
            return cli_usage_error(cli, "--limit is a whole number from 1");
        }
    }
    return code;
}

/* How many arguments the row's `args` takes. */
static void count_args(const char *args, size_t *ret_least, size_t *ret_most)
{
    *ret_least = *ret_most = 0;
    for (const char *p = args; *p != '\0';) {
        size_t len = strcspn(p, " ");
        bool many = memmem(p, len, "...", 3) != NULL;
        *ret_least += p[0] == '[' ? 0 : 1;
        *ret_most = many ? CLI_ARGS_MAX : *ret_most + 1;
        p += len + strspn(p + len, " ");
    }
}

static int check_args(const struct cli *cli)
{
    size_t least = 0, most = 0;
    count_args(cli->command->args, &least, &most);
    if (cli->arg_count < least) {
        return cli_usage_error(cli, "%s needs %s", cli->command->name, cli->command->args);
    }
    if (cli->arg_count > most) {
        return cli_usage_error(cli, "\"%.40s\" is one argument too many", cli->args[most]);
    }
    for (size_t i = 0; i < cli->arg_count; i++) {
        if (cli->args[i][0] == '\0') {
            return cli_usage_error(cli, "an argument is empty");
        }
    }
    return CLI_OK;
}

int cli_parse(struct cli *cli, int argc, char **argv)
{
    bool only_words = false;
    for (int i = 0; i < argc; i++) {
        int code = CLI_OK;
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = true;
        } else if (!only_words && argv[i][0] == '-' && argv[i][1] != '\0') {
            code = take_flag(cli, argc, argv, &i);
        } else if (cli->arg_count == CLI_ARGS_MAX) {
            code = cli_usage_error(cli, "more than %d arguments", CLI_ARGS_MAX);
        } else {
            cli->args[cli->arg_count++] = argv[i];
        }
        if (code != CLI_OK) {
            return code;
        }
    }
    cli->help = cli_given(cli, "help");
    int code = read_globals(cli);
    return code != CLI_OK || cli->help ? code : check_args(cli);
}

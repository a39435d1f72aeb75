/*
 * See cli.h. Must never start anything before all words were understood.
 */
#include "server/cli/cli_int.h"

#include "dataplane/base/mem.h"
#include "dataplane/io/httpc.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- commands that have the configuration of a server ---------------------------------------------------------------
 */

const char *kv_cli_config_file(int *argc, char **argv)
{
    static const char *const places[] = {"./kvrun.conf", "/etc/kvrun/kvrun.conf"};
    for (int i = 1; i < *argc; i++) {
        bool joined = strncmp(argv[i], "--config=", 9) == 0;
        int words = joined ? 1 : 2;
        if (joined || (strcmp(argv[i], "--config") == 0 && i + 1 < *argc)) {
            const char *file = joined ? argv[i] + 9 : argv[i + 1];
            memmove(&argv[i], &argv[i + words], (size_t)(*argc - i - words + 1) * sizeof *argv);
            *argc -= words;
            return file;
        }
    }
    const char *named = getenv("KVRUN_CONFIG");
    for (size_t i = 0; named == NULL && i < sizeof places / sizeof places[0]; i++) {
        named = access(places[i], F_OK) == 0 ? places[i] : NULL;
    }
    return named;
}

static int configured(const struct cli_command *command, struct kv_conf *conf, const enum kv_conf_origin *origins,
                      int argc, char **argv, const struct kv_cli_hook *hooks)
{
    struct cli cli = {.command = command};
    if ((command->traits & CLI_WORDS_ON) == 0) {
        int code = cli_parse(&cli, argc, argv);
        if (code != CLI_OK) {
            return code;
        }
    }
    for (const struct kv_cli_hook *hook = hooks; hook != NULL && hook->name != NULL; hook++) {
        if (strcmp(hook->name, command->name) == 0) {
            return hook->run(conf, origins, argc, argv);
        }
    }
    if (strncmp(command->name, "config ", 7) == 0) {
        char word[16];
        snprintf(word, sizeof word, "%s", command->name + 7);
        char *words[] = {word, NULL};
        return kv_cli_config(conf, origins, 1, words);
    }
    if (strcmp(command->name, "healthcheck") == 0) {
        return kv_cli_healthcheck(conf);
    }
    fprintf(stderr, "kvrun: this build has no %s\n", command->name);
    return CLI_USAGE;
}

static bool asks_for_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

/* argv[0] is the program; its flags may stand before and after the command's words. */
static int with_configuration(int argc, char **argv, char *const *environment, const struct kv_cli_hook *hooks)
{
    static struct kv_conf conf;
    struct kv_errinfo info = {0};
    int words = 0, code = CLI_USAGE;
    const char *file = kv_cli_config_file(&argc, argv);
    enum kv_conf_origin *origins = kv_alloc_array(kv_conf_count(), sizeof *origins);
    enum kv_err rc =
        origins == NULL ? KV_E_NO_MEMORY : kv_conf_load(file, environment, &argc, argv, &info, &conf, origins);
    const struct cli_command *command = argc < 2 ? NULL : cli_find(argc - 1, argv + 1, &words);
    if (rc != KV_OK) {
        fprintf(stderr, "kvrun: %s\n", info.text);
    } else if (command == NULL || (command->traits & CLI_CONFIG) == 0) {
        fputs("kvrun: flags of the configuration go with serve, dev, doctor, config and db\n", stderr);
    } else {
        code = configured(command, &conf, origins, argc - 1 - words, argv + 1 + words, hooks);
    }
    kv_free(origins);
    return code;
}

/* --- commands that speak to a server
 * ---------------------------------------------------------------------------------- */

static int run_parsed(struct cli *cli)
{
    if (cli->help) {
        cli_help_command(stdout, cli->command);
        return CLI_OK;
    }
    return cli->command->run != NULL ? cli->command->run(cli) : cli_run(cli);
}

static int caller(const struct cli_command *command, int argc, char **argv)
{
    static struct cli cli;
    cli = (struct cli){.command = command};
    kv_buf_init(&cli.body, CLI_ANSWER_MAX);
    kv_buf_init(&cli.headers, 65536);
    int code = cli_parse(&cli, argc, argv);
    code = code != CLI_OK ? code : run_parsed(&cli);
    explicit_bzero(cli.token, sizeof cli.token);
    json_decref(cli.answer);
    kv_httpc_free(cli.http);
    kv_buf_done(&cli.body);
    kv_buf_done(&cli.headers);
    return fflush(stdout) != 0 && code == CLI_OK ? CLI_NEGATIVE : code;
}

/* --- which
 * ------------------------------------------------------------------------------------------------------------ */

/* Whether the word at `index` is the text of the flag before it: a key of the configuration, or a global flag. */
static bool is_value(int index, char *const *argv)
{
    const char *before = index > 1 ? argv[index - 1] : "";
    if (strncmp(before, "--", 2) != 0 || strchr(before, '=') != NULL) {
        return strcmp(before, "-o") == 0;
    }
    if (strcmp(before, "--config") == 0 || strchr(before, '.') != NULL) {
        return true;
    }
    for (size_t i = 0; cli_global_flags[i].name != NULL; i++) {
        if (strcmp(cli_global_flags[i].name, before + 2) == 0) {
            return cli_global_flags[i].value != NULL;
        }
    }
    return false;
}

/* The index of the first word that is neither a flag nor a flag's text; argc: none. */
static int first_word(int argc, char *const *argv)
{
    int i = 1;
    while (i < argc && (argv[i][0] == '-' || is_value(i, argv))) {
        i++;
    }
    return i;
}

/* The command's words go to the front: argv[1], argv[2]; the flags before them follow. */
static void words_first(char **argv, int from, int words)
{
    char *moved[2] = {argv[from], argv[from + words - 1]};
    memmove(&argv[1 + words], &argv[1], (size_t)(from - 1) * sizeof *argv);
    argv[1] = moved[0];
    argv[words] = moved[words - 1];
}

int kv_cli_main(int argc, char **argv, char *const *environment, const struct kv_cli_hook *hooks)
{
    int words = 0, from = first_word(argc, argv);
    if (from >= argc) {
        bool version = argc == 2 && strcmp(argv[1], "--version") == 0;
        bool help = asks_for_help(argc - 1, argv + 1);
        if (version) {
            return cli_version(&(struct cli){0});
        }
        cli_help_all(help ? stdout : stderr);
        return help ? CLI_OK : CLI_USAGE;
    }
    const struct cli_command *command = cli_find(argc - from, argv + from, &words);
    if (command == NULL) {
        if (asks_for_help(argc, argv) && cli_is_group(argv[from])) {
            cli_help_group(stdout, argv[from]);
            return CLI_OK;
        }
        cli_unknown_command(argc - from, argv + from);
        return CLI_USAGE;
    }
    if (asks_for_help(argc, argv)) {
        cli_help_command(stdout, command);
        return CLI_OK;
    }
    words_first(argv, from, words);
    return (command->traits & CLI_CONFIG) != 0 ? with_configuration(argc, argv, environment, hooks)
                                               : caller(command, argc - 1 - words, argv + 1 + words);
}

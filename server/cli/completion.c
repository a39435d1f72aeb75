/*
 * Scripts of completion for bash, zsh and fish, written from the table of commands. They know words and flags; they ask
 * no server.
 */
#include "server/cli/cli_int.h"

#include <string.h>

static void put_flags(struct kv_buf *out, const struct cli_command *command)
{
    const struct cli_flag *flag = NULL;
    for (size_t i = 0; (flag = cli_flag_at(command, i)) != NULL; i++) {
        kv_buf_printf(out, " --%s", flag->name);
    }
}

static void put_globals(struct kv_buf *out)
{
    for (size_t i = 0; cli_global_flags[i].name != NULL; i++) {
        kv_buf_printf(out, "%s--%s", i == 0 ? "" : " ", cli_global_flags[i].name);
    }
}

/* The words that may follow `before` ("": the first words). */
static void put_words(struct kv_buf *out, const char *before)
{
    size_t len = strlen(before), start = out->len;
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const char *name = cli_commands[i].name;
        if (len > 0 && (strncmp(name, before, len) != 0 || name[len] != ' ')) {
            continue;
        }
        const char *word = len > 0 ? name + len + 1 : name;
        size_t word_len = strcspn(word, " ");
        const char *previous = i == 0 ? "" : cli_commands[i - 1].name;
        if (len == 0 && strncmp(previous, word, word_len) == 0 && previous[word_len] == ' ') {
            continue; /* the group was there */
        }
        kv_buf_printf(out, "%s%.*s", out->len == start ? "" : " ", (int)word_len, word);
    }
}

static bool begins_group(size_t i)
{
    const char *name = cli_commands[i].name, *previous = i == 0 ? "" : cli_commands[i - 1].name;
    size_t len = strcspn(name, " ");
    return name[len] == ' ' && !(strncmp(previous, name, len) == 0 && previous[len] == ' ');
}

/* --- bash -------------------------------------------------------------------------------------------------------- */

static void bash_values(struct kv_buf *out)
{
    kv_buf_text(out, "    case $previous in\n");
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const struct cli_flag *flag = NULL;
        for (size_t f = 0; (flag = cli_flag_at(&cli_commands[i], f)) != NULL; f++) {
            char line[64];
            snprintf(line, sizeof line, "    --%s)", flag->name);
            if (flag->words != NULL && strstr(out->data == NULL ? "" : (char *)out->data, line) == NULL) {
                kv_buf_printf(out, "%s COMPREPLY=($(compgen -W \"", line);
                for (const char *p = flag->words; *p != '\0'; p++) {
                    kv_buf_append(out, *p == '|' ? " " : p, 1);
                }
                kv_buf_text(out, "\" -- \"$current\")); return ;;\n");
            }
        }
    }
    kv_buf_text(out,
                "    -o|--output) COMPREPLY=($(compgen -W \"table wide json jsonl id\" -- \"$current\")); return ;;\n"
                "    --token-file|--ca-file|--cert-file|--key-file|--config|--secret-file|--file) COMPREPLY=($(compgen "
                "-f -- \"$current\")); "
                "return ;;\n    --keys) COMPREPLY=($(compgen -d -- \"$current\")); return ;;\n    esac\n");
}

static void bash(struct kv_buf *out)
{
    kv_buf_text(out, "# bash completion of kvrun: source <(kvrun completion bash)\n_kvrun() {\n"
                     "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
                     "    local words=() word i\n    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                     "        word=${COMP_WORDS[i]}\n        [[ $word == -* ]] || words+=(\"$word\")\n    done\n");
    bash_values(out);
    kv_buf_text(out, "    local command=${words[0]} globals=\"");
    put_globals(out);
    kv_buf_text(out, "\" flags=\"\"\n    case \"$command ${words[1]}\" in\n");
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        kv_buf_printf(out, "    \"%s%s\"*) flags=\"", cli_commands[i].name,
                      strchr(cli_commands[i].name, ' ') == NULL ? " " : "");
        put_flags(out, &cli_commands[i]);
        kv_buf_text(out, "\" ;;\n");
    }
    kv_buf_text(out, "    esac\n    if [[ $current == -* ]]; then\n"
                     "        COMPREPLY=($(compgen -W \"$flags $globals\" -- \"$current\"))\n        return\n    fi\n"
                     "    case ${#words[@]}:$command in\n    0:*) COMPREPLY=($(compgen -W \"");
    put_words(out, "");
    kv_buf_text(out, "\" -- \"$current\")) ;;\n");
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        if (begins_group(i)) {
            char group[32];
            snprintf(group, sizeof group, "%.*s", (int)strcspn(cli_commands[i].name, " "), cli_commands[i].name);
            kv_buf_printf(out, "    1:%s) COMPREPLY=($(compgen -W \"", group);
            put_words(out, group);
            kv_buf_text(out, "\" -- \"$current\")) ;;\n");
        }
    }
    kv_buf_text(out, "    1:completion) COMPREPLY=($(compgen -W \"bash zsh fish\" -- \"$current\")) ;;\n"
                     "    *) COMPREPLY=($(compgen -f -- \"$current\")) ;;\n    esac\n}\n"
                     "complete -o filenames -F _kvrun kvrun\n");
}

/* --- fish and zsh ------------------------------------------------------------------------------------------------ */

/* Between single quotes. */
static void quoted(struct kv_buf *out, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        kv_buf_append(out, *p == '\'' ? "`" : p, 1);
    }
}

static void fish(struct kv_buf *out)
{
    kv_buf_text(out, "# fish completion of kvrun: kvrun completion fish | source\ncomplete -c kvrun -f\n");
    for (size_t i = 0; cli_commands[i].name != NULL; i++) {
        const struct cli_command *command = &cli_commands[i];
        const struct cli_flag *flag = NULL;
        const char *space = strchr(command->name, ' ');
        int len = (int)strcspn(command->name, " ");
        if (space == NULL || begins_group(i)) {
            kv_buf_printf(out, "complete -c kvrun -n __fish_use_subcommand -a '%.*s' -d '", len, command->name);
            quoted(out, space == NULL ? command->help : command->name);
            kv_buf_text(out, "'\n");
        }
        char condition[160];
        snprintf(condition, sizeof condition, "__fish_seen_subcommand_from %.*s%s%s", len, command->name,
                 space == NULL ? "" : "; and __fish_seen_subcommand_from", space == NULL ? "" : space);
        if (space != NULL) {
            kv_buf_printf(out, "complete -c kvrun -n '__fish_seen_subcommand_from %.*s' -a '%s' -d '", len,
                          command->name, space + 1);
            quoted(out, command->help);
            kv_buf_text(out, "'\n");
        }
        for (size_t f = 0; (flag = cli_flag_at(command, f)) != NULL; f++) {
            kv_buf_printf(out, "complete -c kvrun -n '%s' -l %s%s -d '", condition, flag->name,
                          flag->value == NULL ? "" : " -r");
            quoted(out, flag->help);
            kv_buf_text(out, "'\n");
        }
    }
}

int cli_completion(struct cli *cli)
{
    struct kv_buf out KV_CLEANUP(kv_buf_done);
    kv_buf_init(&out, 1u << 20);
    if (strcmp(cli->args[0], "bash") == 0) {
        bash(&out);
    } else if (strcmp(cli->args[0], "zsh") == 0) {
        kv_buf_text(&out, "#compdef kvrun\n# zsh completion of kvrun: source <(kvrun completion zsh)\n"
                          "autoload -U +X bashcompinit && bashcompinit\n");
        bash(&out);
    } else if (strcmp(cli->args[0], "fish") == 0) {
        fish(&out);
    } else {
        return cli_usage_error(cli, "SHELL is bash, zsh or fish");
    }
    return cli_write(&out);
}

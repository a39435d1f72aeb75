/*
 * kvrun-engine: the reference engine as a program. It is an engine of another house: it knows the server by its HTTP
 * interface and nothing else, and shares no code with it.
 */
#include "tests/engine/commands.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(const struct kv_options *options);
} commands[] = {
    {"run", kv_command_run},       {"offload", kv_command_offload},
    {"resume", kv_command_resume}, {"try-restore", kv_command_try_restore},
    {"erase", kv_command_erase},   {"selfcheck", kv_command_selfcheck},
};

int main(int argc, char **argv)
{
    struct kv_options options;
    if (!kv_options_parse(argc, argv, &options)) {
        return KV_EXIT_USAGE;
    }
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (strcmp(commands[i].name, options.command) == 0) {
            if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
                fputs("kvrun-engine: libcurl cannot start\n", stderr);
                return KV_EXIT_FAILED;
            }
            int rc = commands[i].run(&options);
            curl_global_cleanup();
            return rc;
        }
    }
    fprintf(stderr, "kvrun-engine: no command is called \"%s\"\n", options.command);
    kv_options_usage();
    return KV_EXIT_USAGE;
}

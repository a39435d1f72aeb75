/* The command line of kvrun-engine. Strings are borrowed from argv. */
#ifndef KV_TESTS_ENGINE_OPTIONS_H
#define KV_TESTS_ENGINE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct kv_options {
    const char *command;
    const char *socket, *fd_socket, *token_file, *operator_token_file;
    const char *model; /* NULL: the simulated engine */
    const char *text, *session, *state;
    uint32_t tokens, us_per_token;
    bool sim; /* asked for */
    bool json;
};

/* False: a usage error was printed to stderr. */
bool kv_options_parse(int argc, char **argv, struct kv_options *ret_options);
void kv_options_usage(void);

#endif

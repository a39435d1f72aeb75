/*
 * kv-verify: checks an erasure certificate offline. Links no server code.
 */
#include "audit/verify.h"

#include <stdio.h>
#include <string.h>

static int usage(void)
{
    (void)fputs(
        "usage: kv-verify FILE [--keys DIR] [--json] [-q]\n"
        "  FILE        the certificate bundle (tlog-proof)\n"
        "  --keys DIR  holds jwks.json and log.vkey, got from somewhere you trust; default: the folder of FILE\n"
        "  --json      one JSON object instead of lines\n"
        "  -q          no output\n"
        "exit status: 0 valid, 1 not valid, 2 wrong use or unreadable\n",
        stderr);
    return KV_VERIFY_UNREADABLE;
}

static bool parse_options(int argc, char **argv, struct kv_verify *options)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options->json = true;
        } else if (strcmp(argv[i], "-q") == 0) {
            options->quiet = true;
        } else if (strcmp(argv[i], "--keys") == 0 && i + 1 < argc) {
            options->keys_folder = argv[++i];
        } else if (argv[i][0] == '-' || options->file != NULL) {
            return false;
        } else {
            options->file = argv[i];
        }
    }
    return options->file != NULL;
}

int main(int argc, char **argv)
{
    struct kv_verify options = {.file = NULL};
    return parse_options(argc, argv, &options) ? kv_verify_certificate(&options) : usage();
}

/*
 * kv-verify: checks an erasure certificate, or the statement that follows one, offline. Links no server code.
 */
#include "audit/verify.h"

#include <stdio.h>
#include <string.h>

static int usage(void)
{
    (void)fputs(
        "usage: kv-verify FILE [--keys DIR] [--certificate FILE] [--json] [-q]\n"
        "  FILE        the bundle (tlog-proof) of a certificate, or of the statement that follows one\n"
        "  --keys DIR  holds jwks.json and log.vkey, got from somewhere you trust; default: the folder of FILE\n"
        "  --certificate FILE  the certificate that the statement has to follow\n"
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
        } else if (strcmp(argv[i], "--certificate") == 0 && i + 1 < argc) {
            options->certificate = argv[++i];
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

/* Parses the command line. It must never take a key as an argument: arguments are seen by everyone on the machine. */
#include "tests/engine/options.h"

#include "tests/engine/engine.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TOKENS_DEFAULT 1024u
#define TOKENS_MAX 65536u
#define US_PER_TOKEN_DEFAULT 350u

static const char usage[] =
    "usage: kvrun-engine [OPTIONS] COMMAND\n"
    "commands:\n"
    "  run          prefill, offload, forget, restore, compare the logits bit for bit\n"
    "  offload      prefill and offload; prints the session, writes the logits to --state\n"
    "  resume       restore the session in this new process and compare with --state\n"
    "  try-restore  exit 0 when the server gives nothing back (erased or missing), 1 when it does\n"
    "  erase        erase the session and wait for its certificate\n"
    "  selfcheck    the engine alone, without a server\n"
    "options:\n"
    "  --socket PATH --fd-socket PATH   the server's sockets\n"
    "  --token-file FILE                API key with the role engine\n"
    "  --operator-token-file FILE       API key of an operator; run then also restores from nvme\n"
    "  --model FILE | --sim             a GGUF file, or the simulated engine\n"
    "  --tokens N                       a multiple of 256, default 1024\n"
    "  --session ID --state FILE        of an earlier offload\n"
    "  --text FILE                      the prompt\n"
    "  --us-per-token N                 what prefill costs in the simulation, default 350\n"
    "  --json                           one JSON object on stdout\n";

void kv_options_usage(void)
{
    fputs(usage, stderr);
}

static bool parse_number(const char *name, const char *text, uint32_t max, uint32_t *ret_value)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value > max) {
        fprintf(stderr, "kvrun-engine: --%s takes a number up to %u\n", name, max);
        return false;
    }
    *ret_value = (uint32_t)value;
    return true;
}

enum option_key { SOCKET = 1, FD_SOCKET, TOKEN, OPERATOR, MODEL, SIM, TOKENS, SESSION, STATE, TEXT, COST, JSON, HELP };

static const struct option long_options[] = {
    {"socket", required_argument, NULL, SOCKET},
    {"fd-socket", required_argument, NULL, FD_SOCKET},
    {"token-file", required_argument, NULL, TOKEN},
    {"operator-token-file", required_argument, NULL, OPERATOR},
    {"model", required_argument, NULL, MODEL},
    {"sim", no_argument, NULL, SIM},
    {"tokens", required_argument, NULL, TOKENS},
    {"session", required_argument, NULL, SESSION},
    {"state", required_argument, NULL, STATE},
    {"text", required_argument, NULL, TEXT},
    {"us-per-token", required_argument, NULL, COST},
    {"json", no_argument, NULL, JSON},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

static bool take_option(int key, struct kv_options *options)
{
    switch ((enum option_key)key) {
    case SOCKET:
        options->socket = optarg;
        return true;
    case FD_SOCKET:
        options->fd_socket = optarg;
        return true;
    case TOKEN:
        options->token_file = optarg;
        return true;
    case OPERATOR:
        options->operator_token_file = optarg;
        return true;
    case MODEL:
        options->model = optarg;
        return true;
    case SIM:
        options->sim = true;
        return true;
    case TOKENS:
        return parse_number("tokens", optarg, TOKENS_MAX, &options->tokens);
    case SESSION:
        options->session = optarg;
        return true;
    case STATE:
        options->state = optarg;
        return true;
    case TEXT:
        options->text = optarg;
        return true;
    case COST:
        return parse_number("us-per-token", optarg, 1000000, &options->us_per_token);
    case JSON:
        options->json = true;
        return true;
    case HELP:
        break;
    }
    return false;
}

/* llama.cpp when it was built in and a model is there; the simulation otherwise. */
static bool choose_engine(struct kv_options *options)
{
    if (options->sim && options->model != NULL) {
        fputs("kvrun-engine: --model and --sim exclude each other\n", stderr);
        return false;
    }
#ifdef KV_HAVE_LLAMA
    if (!options->sim && options->model == NULL && access(KV_MODEL_DEFAULT, R_OK) == 0) {
        options->model = KV_MODEL_DEFAULT;
    }
#else
    if (options->model != NULL) {
        fputs("kvrun-engine: built without llama.cpp; run tests/engine/fetch.sh, build again, or use --sim\n", stderr);
        return false;
    }
#endif
    return true;
}

bool kv_options_parse(int argc, char **argv, struct kv_options *ret_options)
{
    struct kv_options options = {
        .tokens = TOKENS_DEFAULT, .us_per_token = US_PER_TOKEN_DEFAULT, .text = KV_TEXT_DEFAULT};
    int key;
    while ((key = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (key == '?' || !take_option(key, &options)) {
            kv_options_usage();
            return false;
        }
    }
    if (optind + 1 != argc) {
        kv_options_usage();
        return false;
    }
    options.command = argv[optind];
    if (options.tokens == 0 || options.tokens % KV_REF_BLOCK_TOKENS != 0) {
        fputs("kvrun-engine: --tokens takes a multiple of 256\n", stderr);
        return false;
    }
    if (!choose_engine(&options)) {
        return false;
    }
    *ret_options = options;
    return true;
}

/* What the files of the commands share. Functions that return int return an exit code. */
#ifndef KV_TESTS_ENGINE_COMMANDS_INT_H
#define KV_TESTS_ENGINE_COMMANDS_INT_H

#include "tests/engine/commands.h"
#include "tests/engine/link.h"

#include <jansson.h>

int kv_command_fail(const char *what, const char *why); /* prints; KV_EXIT_FAILED */
int kv_command_open_bench(const struct kv_options *options, struct kv_bench *ret_bench);
/* Opens the bench, runs `body`, closes it. */
int kv_command_with_bench(const struct kv_options *options,
                          int (*body)(const struct kv_options *options, struct kv_bench *bench));

struct kv_stored {
    double cold_ms, offload_ms;
};
/* Prefill, next token, export, offload. */
int kv_command_store(struct kv_link *link, struct kv_bench *bench, struct kv_stored *ret_stored);

/* One resume out of whatever tier the server takes. */
struct kv_resumed {
    double ms;
    bool logits_identical, blocks_identical;
    uint32_t usable;
    struct kvrun_moved moved;
};
int kv_command_resume_once(struct kv_link *link, struct kv_bench *bench, struct kv_resumed *ret_resumed);
bool kv_command_identical(const struct kv_resumed *resumed);
const char *kv_command_word(bool same); /* "identical" or "differ" */

void kv_command_print_resumed(const char *tier, const struct kv_resumed *resumed, const struct kv_link *link);
json_t *kv_command_describe(const struct kv_options *options, const struct kv_bench *bench,
                            const struct kv_link *link); /* owned by the caller */
void kv_command_print_json(json_t *object);              /* taken */

#endif

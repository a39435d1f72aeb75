/* The commands of kvrun-engine. Each returns the process's exit code. */
#ifndef KV_TESTS_ENGINE_COMMANDS_H
#define KV_TESTS_ENGINE_COMMANDS_H

#include "tests/engine/options.h"

enum kv_exit {
    KV_EXIT_OK = 0,
    KV_EXIT_WRONG = 1, /* something is not as it must be: logits differ, an erased session came back */
    KV_EXIT_USAGE = 2,
    KV_EXIT_FAILED = 3, /* the server refused or was not there, or the engine failed */
};

int kv_command_run(const struct kv_options *options);
int kv_command_offload(const struct kv_options *options);
int kv_command_resume(const struct kv_options *options);
int kv_command_try_restore(const struct kv_options *options);
int kv_command_erase(const struct kv_options *options);
int kv_command_selfcheck(const struct kv_options *options);

#endif

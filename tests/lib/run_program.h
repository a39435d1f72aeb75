/* Runs another program and keeps what it says. */
#ifndef KV_TESTS_RUN_PROGRAM_H
#define KV_TESTS_RUN_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>

/* argv[0] is looked up in PATH; both outputs go to `output` (cut at `size` - 1, NUL-terminated). The exit status, or
 * -1. */
int kvt_program_run(const char *const *argv, char *output, size_t size);
bool kvt_program_exists(const char *name); /* in PATH, or a path */
/* A program of this build: "kv-verify" beside the folder of test binaries. */
void kvt_program_of_build(const char *name, char *path, size_t size);

#endif

/*
 * What the demo and the benches do to the machine: folders, child programs, files. Bounded in time and output; ends
 * what it started, by pid. Thread: main.
 */
#ifndef KV_CHILD_H
#define KV_CHILD_H

#include "dataplane/base/buf.h"

#include <sys/types.h>

/* From here on a signal that asks for the end, or says that nobody listens, ends no process and removes nothing: waits
 * end early, and kv_child_caught_signal() says which it was (0: none). */
void kv_child_catch_signals(void);
int kv_child_caught_signal(void);

/* Runs a program to its end, at most `timeout_s`; its output (both streams) goes to `ret_output` and, when `echo`, to
 * the terminal, indented. KV_E_IO when it could not run, did not end in time, or did not exit with 0 (the text names
 * the program). */
KV_RC kv_child_run(char *const argv[], unsigned timeout_s, bool echo, struct kv_errinfo *info,
                   struct kv_buf *ret_output);
/* Starts a program, in a process group of its own, whose output goes to `log`. */
KV_RC kv_child_spawn(char *const argv[], const char *log, struct kv_errinfo *info, pid_t *ret_pid);
/* SIGTERM, then SIGKILL after `timeout_s`. KV_E_IO unless it ended by itself with 0. */
KV_RC kv_child_end(pid_t pid, unsigned timeout_s, struct kv_errinfo *info);
bool kv_child_alive(pid_t pid);

KV_RC kv_child_read_file(const char *path, struct kv_buf *ret_bytes);
KV_RC kv_child_write_file(const char *path, struct kv_bytes bytes, struct kv_errinfo *info);
KV_RC kv_child_copy_file(const char *from, const char *to, struct kv_errinfo *info);
/* Everything below `path` goes to the owner of `like`. */
KV_RC kv_child_give(const char *path, const char *like, struct kv_errinfo *info);
bool kv_child_remove_tree(const char *path);

#endif

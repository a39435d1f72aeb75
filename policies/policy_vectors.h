/*
 * Table cases for policies: files of questions with the answers they must get, and of texts that must be refused. Run
 * by the unit tests over policies/vectors and by `kvrun policies test` over files of one's own. Reads files, writes
 * nothing. Thread: any.
 */
#ifndef KV_POLICY_VECTORS_H
#define KV_POLICY_VECTORS_H

#include "dataplane/base/err.h"

struct kv_policy_vectors_result {
    unsigned files, cases, failed;
};

/* Told of each case that failed; texts are borrowed for the call. */
typedef void kv_policy_vectors_fn(void *ctx, const char *file, const char *name, const char *what);

/* `path` is one file or a folder, whose *.json are run in the order of their names. KV_OK also when cases failed.
 * KV_E_NOT_FOUND: no such path, or no case in it; KV_E_INVALID_REQUEST: a file that is not a table of cases. */
KV_RC kv_policy_vectors_run(const char *path, kv_policy_vectors_fn *tell, void *ctx, struct kv_errinfo *info,
                            struct kv_policy_vectors_result *ret_result);

#endif

/*
 * Checking an erasure certificate, or the statement that follows one, offline and saying what was found: what
 * `kv-verify` and `kvrun certs verify` do. Knows no server. Prints to standard output, errors to standard error.
 * Thread: any, one at a time.
 */
#ifndef KV_AUDIT_VERIFY_H
#define KV_AUDIT_VERIFY_H

#include <stdbool.h>

struct kv_verify {
    const char *file;        /* the bundle (tlog-proof) */
    const char *keys_folder; /* holds jwks.json and log.vkey; NULL: the folder of `file` */
    const char *certificate; /* the bundle that the statement in `file` has to follow; NULL: not looked at */
    bool json, quiet;
};

enum { KV_VERIFY_VALID = 0, KV_VERIFY_NOT_VALID = 1, KV_VERIFY_UNREADABLE = 2 };

int kv_verify_certificate(const struct kv_verify *options);

#endif

/*
 * Problem documents (RFC 9457): what went wrong, from the registry of errors, and what to do. Never SQL, paths, stacks
 * or values.
 */
#ifndef KV_HTTP_PROBLEM_H
#define KV_HTTP_PROBLEM_H

#include "server/http/request.h"

/* Makes the answer of `req` from the error; replaces whatever body was there. `erasure` (may be NULL): whose
 * certificate says it. */
void kv_problem(struct kv_req *req, enum kv_err rc, const struct kv_errinfo *info, const struct kv_id *erasure);

#endif

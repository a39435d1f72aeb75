/*
 * The headers of an answer. Thread: the listener's.
 */
#ifndef KV_HTTP_HEADERS_H
#define KV_HTTP_HEADERS_H

#include "server/http/router.h"

typedef void kv_header_fn(void *ctx, const char *name, const char *value);

/* Calls `add` for each. */
void kv_headers(const struct kv_req *req, kv_header_fn *add, void *ctx);

/* A route that will go: what is said with each of its answers (RFC 9745, RFC 8594). */
struct kv_deprecation {
    const char *method, *pattern; /* of the route table; NULL ends the list */
    uint64_t since_s, sunset_s;   /* seconds since 1970; sunset 0: not known yet */
    const char *link;             /* where it is written what to use instead */
};
extern const struct kv_deprecation kv_deprecations[];
/* NULL: it stays. */
const struct kv_deprecation *kv_deprecation_of(const struct kv_deprecation *list, const struct kv_route *route);
void kv_deprecation_headers(const struct kv_deprecation *deprecation, kv_header_fn *add, void *ctx);

/* Is `origin` one of the comma-separated `list`, to the letter? */
bool kv_origin_allowed(const char *list, const char *origin);

#endif

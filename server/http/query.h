/*
 * The query of a target: decoded once, in the guard; held to the route's table before a handler runs. Thread: the
 * request's.
 */
#ifndef KV_HTTP_QUERY_H
#define KV_HTTP_QUERY_H

#include "server/http/router.h"

/* `text` is what stands behind the `?`. Fills req->params. KV_E_INVALID_REQUEST: an escape that is none, text that is
 * not UTF-8 or has control characters, a name twice, an API key where nobody may put one. */
KV_RC kv_query_parse(struct kv_req *req, const char *text, struct kv_errinfo *info);
/* Each parameter is one that the route takes, by its flags or its table, and its value fits. */
KV_RC kv_query_check(const struct kv_req *req, const struct kv_route *route, struct kv_errinfo *info);
const char *kv_query_get(const struct kv_req *req, const char *name); /* NULL: absent */
bool kv_query_bool(const struct kv_req *req, const char *name);       /* "true", or there without a value */
/* Appends `text` with everything escaped that is not unreserved (RFC 3986 section 2.3). */
void kv_query_escape(struct kv_buf *buf, const char *text);

#endif

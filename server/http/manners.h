/*
 * What headers ask beside the request itself: a revision, an answer given once, a place in a trace. Each is parsed
 * strictly and once. No I/O. Thread: any.
 */
#ifndef KV_HTTP_MANNERS_H
#define KV_HTTP_MANNERS_H

#include "server/http/request.h"

/* --- conditional requests: an ETag is `"<rev>.<first 8 bytes of the body's SHA-256 in hex>"`, strong: the revision is
 * what If-Match means, the whole what If-None-Match means. */
#define KV_ETAG_SIZE 48
KV_RC kv_etag_make(uint64_t rev, struct kv_bytes body, char ret_etag[KV_ETAG_SIZE]);
/* `value` may be NULL: no condition. A tag that is none of ours, or a weak one, never matches (rev 0).
 * KV_E_INVALID_REQUEST for what is no entity tag, and for more than one: a change is made from one state. */
KV_RC kv_match_parse(const char *value, struct kv_match *ret_match, struct kv_errinfo *info);
/* If-None-Match: does it name this ETag, or any? By weak comparison (RFC 9110 section 13.1.2). */
bool kv_etag_listed(const char *value, const char *etag);

/* --- Idempotency-Key: bare or a quoted sf-string, 1 to 255 of [!-~]; without its quotes. */
#define KV_ONCE_KEY_SIZE 256
KV_RC kv_once_key_parse(const char *value, char ret_key[KV_ONCE_KEY_SIZE], struct kv_errinfo *info);

/* --- traceparent: 00-<32 hex>-<16 hex>-<2 hex>. What does not parse is as if it were not there (W3C Trace Context,
 * section 3.2). With one, `ret_trace` gets a fresh span for this request. */
KV_RC kv_trace_take(const struct kv_env *env, const char *value, struct kv_trace *ret_trace);

#endif

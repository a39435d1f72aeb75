/*
 * What of each request is counted and logged: one line with the route's template and never the path, the query, a body
 * or a header. Routes are rows of the table, so the series are bounded by it; what matches no route is `other`.
 */
#ifndef KV_HTTP_COUNT_H
#define KV_HTTP_COUNT_H

#include "server/http/httpd_int.h"

void kv_http_metrics_init(void);
/* An answer is on its way; `sent` bytes of body. Thread: the listener's. */
void kv_http_count(struct kv_req *req, uint64_t sent, uint64_t now_ns);
/* A request was refused before a handler, or a connection was cut. Thread: any. */
void kv_http_count_reject(enum kv_err rc);
/* The same, of one whose address had sent too many without a valid key. Thread: any. */
void kv_http_count_stranger(void);
/* A reader of events was told that it missed so many. */
void kv_http_count_dropped(uint64_t events);
/* A service thread took the request, that long after it was queued. */
void kv_http_count_wait(uint64_t queue_ns);

#endif

/*
 * Service threads: take a queued request, authenticate, check the route's roles, run its handler, make the answer.
 */
#ifndef KV_HTTP_WORKER_H
#define KV_HTTP_WORKER_H

#include "server/http/httpd_int.h"

/* Runs a handler and turns its error into a problem document. `call` NULL for inline routes. */
void kv_worker_run(struct kv_call *call, struct kv_req *req);
/* Counts a finished request. */
void kv_http_metrics_init(void);
void kv_http_count(const struct kv_req *req, uint64_t now_ns);
void kv_http_count_reject(enum kv_err rc);

#endif

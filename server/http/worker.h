/*
 * Service threads: take a queued request, authenticate, check the route's roles, run its handler, make the answer.
 */
#ifndef KV_HTTP_WORKER_H
#define KV_HTTP_WORKER_H

#include "server/http/httpd_int.h"

/* Runs a handler and turns its error into a problem document. `call` NULL for inline routes. */
void kv_worker_run(struct kv_call *call, struct kv_req *req);
/* The same without waiting, on the listener's thread: false when memory does not hold what it takes; the request is as
 * it was then, but for its place in its bucket, which is not taken twice. */
bool kv_worker_run_from_memory(struct kv_svc *svc, struct kv_req *req);

#endif

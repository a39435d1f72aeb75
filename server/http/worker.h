/*
 * Service threads: take a queued request, authenticate, check the route's roles, run its handler, make the answer.
 */
#ifndef KV_HTTP_WORKER_H
#define KV_HTTP_WORKER_H

#include "server/http/httpd_int.h"

/* Runs a handler and turns its error into a problem document. `call` NULL for inline routes. */
void kv_worker_run(struct kv_call *call, struct kv_req *req);

#endif

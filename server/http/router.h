/*
 * The route table: every route of the API with its method, who may call it, and its handler. Matching is by whole
 * segments;
 * `{}` captures one segment (or what stands before a `:verb`), of [a-z0-9_] only.
 */
#ifndef KV_HTTP_ROUTER_H
#define KV_HTTP_ROUTER_H

#include "server/http/codec.h"
#include "server/http/request.h"

enum kv_route_flags {
    KV_ROUTE_API = 1 << 0,            /* on the API listeners */
    KV_ROUTE_ADMIN = 1 << 1,          /* on the admin listener */
    KV_ROUTE_PUBLIC = 1 << 2,         /* no key is asked for */
    KV_ROUTE_INLINE = 1 << 3,         /* answered by the listener's thread: never waits; `call` is NULL */
    KV_ROUTE_TENANT = 1 << 4,         /* only with a key of a tenant */
    KV_ROUTE_ANY_ACCEPT = 1 << 5,     /* the handler looks at Accept itself */
    KV_ROUTE_LIST = 1 << 6,           /* takes limit, cursor, order: kv_h_page */
    KV_ROUTE_DRY_RUN = 1 << 7,        /* takes dry_run: the answer is {"dry_run":true,"would":…} */
    KV_ROUTE_ONCE = 1 << 8,           /* takes Idempotency-Key */
    KV_ROUTE_ONCE_FOR_EVER = 1 << 9,  /* and its answer is kept for ever */
    KV_ROUTE_MATCH = 1 << 10,         /* takes If-Match */
    KV_ROUTE_WAIT = 1 << 11,          /* takes Prefer: wait */
    KV_ROUTE_RESERVED = 1 << 12,      /* erasing, cancelling: a part of the queue and a rate of its own */
    KV_ROUTE_BULK = 1 << 13,          /* the data plane's calls: bounded by their queue, not by a rate */
    KV_ROUTE_STREAM = 1 << 14,        /* may answer with a stream of events */
    KV_ROUTE_OPTIONAL_BODY = 1 << 15, /* an empty body stands for {} */
    KV_ROUTE_ANY_BODY = 1 << 16,      /* the handler looks at req->body_type itself */
    KV_ROUTE_MEMORY = 1 << 18,        /* tried on the listener's thread first, with a call from memory */
    KV_ROUTE_METRICS = 1 << 17,       /* public unless metrics.auth is on */
};

/* Fills req->response and returns KV_OK, or returns an error with call->info filled: the problem document is made from
 * it. */
typedef KV_RC kv_handler(struct kv_call *call, struct kv_req *req);

struct kv_route {
    const char *method, *pattern;
    unsigned roles; /* any of them; 0 with KV_ROUTE_PUBLIC */
    unsigned flags;
    kv_handler *handler;
    const struct kv_field *query; /* its parameters besides those of the flags, ended by a row without name; or NULL */
};

extern const struct kv_route kv_routes[];
extern const unsigned kv_route_count;

/* `listener` is KV_ROUTE_API or KV_ROUTE_ADMIN. KV_E_NOT_FOUND; KV_E_METHOD_NOT_ALLOWED fills allow ("GET, HEAD,
 * OPTIONS"). HEAD matches GET. OPTIONS of a known path is KV_OK with *ret_route NULL and allow filled. */
KV_RC kv_route_find(unsigned listener, const char *method, const char *path,
                    char captures[KV_CAPTURES][KV_CAPTURE_SIZE], char allow[64], const struct kv_route **ret_route);

#endif

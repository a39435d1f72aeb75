/*
 * Ids of requests. Their random bytes are drawn from the system for many at once: one system call a request is what a
 * short request would feel. Ids are no secrets. Thread: any.
 */
#ifndef KV_HTTP_REQUEST_IDS_H
#define KV_HTTP_REQUEST_IDS_H

#include "dataplane/base/id.h"

#include <pthread.h>

struct kv_request_ids {
    pthread_mutex_t mutex;
    struct kv_env env; /* the system's clock, and `bytes` as its random source */
    size_t left;       /* of `bytes`, at the end; each is used once */
    uint8_t bytes[1024];
};

void kv_request_ids_init(struct kv_request_ids *ids);
void kv_request_ids_done(struct kv_request_ids *ids);
/* KV_E_INTERNAL: the system has no random bytes. */
KV_RC kv_request_ids_next(struct kv_request_ids *ids, struct kv_id *ret_id);

#endif

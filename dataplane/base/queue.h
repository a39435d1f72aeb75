/*
 * A bounded inbox: many producers, one consumer, with an eventfd that is readable while something waits. Holds
 * pointers; ownership passes with the pointer. Thread: push any; pop the consumer.
 */
#ifndef KV_BASE_QUEUE_H
#define KV_BASE_QUEUE_H

#include "dataplane/base/env.h"

struct kv_queue;

KV_RC kv_queue_new(size_t max, struct kv_queue **ret_queue);
void kv_queue_free(struct kv_queue *queue);
KV_RC kv_queue_push(struct kv_queue *queue, void *item); /* KV_E_BUSY when full, KV_E_SHUTTING_DOWN when closed */
void *kv_queue_try_pop(struct kv_queue *queue);          /* NULL when empty */
/* Waits until there is an item or the queue is closed and empty (NULL). For queues with several consumers, too. */
void *kv_queue_pop(struct kv_queue *queue);
void kv_queue_close(struct kv_queue *queue);
int kv_queue_fd(const struct kv_queue *queue);
size_t kv_queue_len(struct kv_queue *queue);

/* A result that is set once by one thread and awaited by another. */
struct kv_future;
KV_RC kv_future_new(struct kv_future **ret_future);
void kv_future_free(struct kv_future *future);
void kv_future_set(struct kv_future *future, enum kv_err rc);
/* KV_E_TIMEOUT when `deadline_ns` (monotonic; UINT64_MAX for none) passes; the future is then still pending. */
KV_RC kv_future_wait(struct kv_future *future, uint64_t deadline_ns);

#endif

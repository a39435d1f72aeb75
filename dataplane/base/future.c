/*
 * A result that is set once and awaited (queue.h). Never set twice, never waits past its deadline.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

struct kv_future {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    bool set;
    enum kv_err rc;
};

enum kv_err kv_future_new(struct kv_future **ret_future)
{
    struct kv_future *future = kv_alloc(sizeof(*future));
    if (future == NULL) {
        return KV_E_NO_MEMORY;
    }
    pthread_condattr_t attributes;
    KV_ASSERT(pthread_condattr_init(&attributes) == 0);
    /* A deadline must not move when somebody sets the wall clock. */
    KV_ASSERT(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    KV_ASSERT(pthread_cond_init(&future->ready, &attributes) == 0);
    KV_ASSERT(pthread_condattr_destroy(&attributes) == 0);
    KV_ASSERT(pthread_mutex_init(&future->lock, NULL) == 0);
    *ret_future = future;
    return KV_OK;
}

void kv_future_free(struct kv_future *future)
{
    if (future == NULL) {
        return;
    }
    /* The setter may still be on its way out of the lock when the waiter already frees. */
    pthread_mutex_lock(&future->lock);
    pthread_mutex_unlock(&future->lock);
    KV_ASSERT(pthread_cond_destroy(&future->ready) == 0);
    KV_ASSERT(pthread_mutex_destroy(&future->lock) == 0);
    kv_free(future);
}

void kv_future_set(struct kv_future *future, enum kv_err rc)
{
    pthread_mutex_lock(&future->lock);
    KV_ASSERT(!future->set);
    future->set = true;
    future->rc = rc;
    /* Under the lock: after it the waiter may be gone, and the condition with it. */
    pthread_cond_broadcast(&future->ready);
    pthread_mutex_unlock(&future->lock);
}

/* 0, or ETIMEDOUT when the deadline passed. */
static int wait_locked(struct kv_future *future, uint64_t deadline_ns)
{
    if (deadline_ns == UINT64_MAX) {
        return pthread_cond_wait(&future->ready, &future->lock);
    }
    struct timespec deadline = kv_timespec_of(deadline_ns);
    return pthread_cond_timedwait(&future->ready, &future->lock, &deadline);
}

enum kv_err kv_future_wait(struct kv_future *future, uint64_t deadline_ns)
{
    pthread_mutex_lock(&future->lock);
    int waited = 0;
    while (!future->set && waited != ETIMEDOUT) {
        waited = wait_locked(future, deadline_ns);
        KV_ASSERT(waited == 0 || waited == ETIMEDOUT);
    }
    enum kv_err rc = future->set ? future->rc : KV_E_TIMEOUT;
    pthread_mutex_unlock(&future->lock);
    return rc;
}

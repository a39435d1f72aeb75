/*
 * The bounded inbox. Never blocks a producer, never loses a wake-up, never owns what is in it.
 */
#include "dataplane/base/queue.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct kv_queue {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    int fd;
    bool closed;
    size_t max, len, head;
    void *items[];
};

/* The eventfd is written and read under the lock, although system calls do not belong there: only so does "readable"
 * always mean "something waits". Both calls are non-blocking and touch a counter. */
static void raise_fd(struct kv_queue *queue)
{
    KV_ASSERT(eventfd_write(queue->fd, 1) == 0);
}

static void lower_fd(struct kv_queue *queue)
{
    eventfd_t count;
    KV_ASSERT(eventfd_read(queue->fd, &count) == 0 || errno == EAGAIN);
}

enum kv_err kv_queue_new(size_t max, struct kv_queue **ret_queue)
{
    KV_ASSERT(max >= 1);
    size_t slots, size;
    if (!kv_mul_size(max, sizeof(void *), &slots) || !kv_add_size(sizeof(struct kv_queue), slots, &size)) {
        return KV_E_NO_MEMORY;
    }
    struct kv_queue *queue = kv_alloc(size);
    if (queue == NULL) {
        return KV_E_NO_MEMORY;
    }
    queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue->fd < 0) {
        kv_free(queue);
        return KV_E_IO;
    }
    KV_ASSERT(pthread_mutex_init(&queue->lock, NULL) == 0);
    KV_ASSERT(pthread_cond_init(&queue->filled, NULL) == 0);
    queue->max = max;
    *ret_queue = queue;
    return KV_OK;
}

void kv_queue_free(struct kv_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    /* What is left in it belongs to nobody any more: the owner forgot to drain. */
    (void)KV_BUG(queue->len != 0);
    KV_ASSERT(pthread_cond_destroy(&queue->filled) == 0);
    KV_ASSERT(pthread_mutex_destroy(&queue->lock) == 0);
    (void)close(queue->fd);
    kv_free(queue);
}

static enum kv_err push_locked(struct kv_queue *queue, void *item)
{
    if (queue->closed) {
        return KV_E_SHUTTING_DOWN;
    }
    if (queue->len == queue->max) {
        return KV_E_BUSY;
    }
    queue->items[(queue->head + queue->len) % queue->max] = item;
    queue->len++;
    if (queue->len == 1) {
        raise_fd(queue);
    }
    pthread_cond_signal(&queue->filled);
    return KV_OK;
}

enum kv_err kv_queue_push(struct kv_queue *queue, void *item)
{
    KV_ASSERT(item != NULL);
    pthread_mutex_lock(&queue->lock);
    enum kv_err rc = push_locked(queue, item);
    pthread_mutex_unlock(&queue->lock);
    return rc;
}

static void *pop_locked(struct kv_queue *queue)
{
    void *item = NULL;
    if (queue->len > 0) {
        item = queue->items[queue->head];
        queue->items[queue->head] = NULL;
        queue->head = (queue->head + 1) % queue->max;
        queue->len--;
    }
    /* Closing, too, makes the descriptor readable, once: a consumer that polls wakes, finds nothing, and looks why. */
    if (queue->len == 0) {
        lower_fd(queue);
    }
    return item;
}

void *kv_queue_try_pop(struct kv_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    void *item = pop_locked(queue);
    pthread_mutex_unlock(&queue->lock);
    return item;
}

void *kv_queue_pop(struct kv_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->len == 0 && !queue->closed) {
        pthread_cond_wait(&queue->filled, &queue->lock);
    }
    void *item = pop_locked(queue);
    pthread_mutex_unlock(&queue->lock);
    return item;
}

void kv_queue_close(struct kv_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    if (!queue->closed) {
        queue->closed = true;
        raise_fd(queue);
        pthread_cond_broadcast(&queue->filled);
    }
    pthread_mutex_unlock(&queue->lock);
}

int kv_queue_fd(const struct kv_queue *queue)
{
    return queue->fd;
}

size_t kv_queue_len(struct kv_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    size_t len = queue->len;
    pthread_mutex_unlock(&queue->lock);
    return len;
}

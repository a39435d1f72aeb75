/* See line.h. Must never let ordinary requests take the places that are kept. */
#include "server/http/line.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

#include <pthread.h>

enum { URGENT, ORDINARY, KINDS };

struct kv_line {
    pthread_mutex_t mutex;
    pthread_cond_t filled, urgent_filled; /* for those that serve all, for those that serve the urgent alone */
    STAILQ_HEAD(, kv_req) waiting[KINDS];
    size_t places, reserved, len;
    bool closed;
};

enum kv_err kv_line_new(size_t places, size_t reserved, struct kv_line **ret_line)
{
    KV_ASSERT(reserved < places);
    struct kv_line *line = kv_alloc(sizeof *line);
    if (line == NULL) {
        return KV_E_NO_MEMORY;
    }
    line->places = places;
    line->reserved = reserved;
    STAILQ_INIT(&line->waiting[URGENT]);
    STAILQ_INIT(&line->waiting[ORDINARY]);
    pthread_mutex_init(&line->mutex, NULL);
    pthread_cond_init(&line->filled, NULL);
    pthread_cond_init(&line->urgent_filled, NULL);
    *ret_line = line;
    return KV_OK;
}

void kv_line_free(struct kv_line *line)
{
    if (line == NULL) {
        return;
    }
    (void)KV_BUG(line->len != 0);
    pthread_cond_destroy(&line->filled);
    pthread_cond_destroy(&line->urgent_filled);
    pthread_mutex_destroy(&line->mutex);
    kv_free(line);
}

static void append(struct kv_line *line, struct kv_req *req, bool urgent)
{
    STAILQ_INSERT_TAIL(&line->waiting[urgent ? URGENT : ORDINARY], req, line_link);
    line->len++;
    pthread_cond_signal(&line->filled);
    if (urgent) {
        pthread_cond_signal(&line->urgent_filled);
    }
}

enum kv_err kv_line_push(struct kv_line *line, struct kv_req *req, bool urgent)
{
    enum kv_err rc = KV_OK;
    pthread_mutex_lock(&line->mutex);
    if (line->closed) {
        rc = KV_E_SHUTTING_DOWN;
    } else if (line->len >= line->places - (urgent ? 0 : line->reserved)) {
        rc = KV_E_BUSY;
    } else {
        append(line, req, urgent);
    }
    pthread_mutex_unlock(&line->mutex);
    return rc;
}

void kv_line_return(struct kv_line *line, struct kv_req *req, bool urgent)
{
    pthread_mutex_lock(&line->mutex);
    KV_ASSERT(!line->closed);
    append(line, req, urgent);
    pthread_mutex_unlock(&line->mutex);
}

static struct kv_req *take(struct kv_line *line, bool urgent_only)
{
    for (int kind = URGENT; kind < (urgent_only ? ORDINARY : KINDS); kind++) {
        struct kv_req *req = STAILQ_FIRST(&line->waiting[kind]);
        if (req != NULL) {
            STAILQ_REMOVE_HEAD(&line->waiting[kind], line_link);
            line->len--;
            return req;
        }
    }
    return NULL;
}

struct kv_req *kv_line_pop(struct kv_line *line, bool urgent_only)
{
    pthread_mutex_lock(&line->mutex);
    struct kv_req *req = take(line, urgent_only);
    while (req == NULL && !line->closed) {
        pthread_cond_wait(urgent_only ? &line->urgent_filled : &line->filled, &line->mutex);
        req = take(line, urgent_only);
    }
    pthread_mutex_unlock(&line->mutex);
    return req;
}

void kv_line_close(struct kv_line *line)
{
    pthread_mutex_lock(&line->mutex);
    line->closed = true;
    pthread_cond_broadcast(&line->filled);
    pthread_cond_broadcast(&line->urgent_filled);
    pthread_mutex_unlock(&line->mutex);
}

size_t kv_line_len(struct kv_line *line)
{
    pthread_mutex_lock(&line->mutex);
    size_t len = line->len;
    pthread_mutex_unlock(&line->mutex);
    return len;
}

/*
 * The I/O backend for places where io_uring is not allowed: a few threads that call pread, pwrite and fdatasync.
 * No lock is held across a system call. `done` never runs on a worker: finished requests wait for reap.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/io/io_int.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define THREADS_DEFAULT 4

struct threads {
    struct kv_io base;
    const struct kv_env *env;
    pthread_t owner;
    unsigned accept_max;
    unsigned accepted; /* owner only */
    int event_fd;      /* readable: something is finished, or a wake */
    unsigned started;
    pthread_t *workers;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t work;
    struct kv_io_list queued, finished;
    bool stopping;
};

static struct threads *threads_of(struct kv_io *io)
{
    KV_ASSERT(io->ops == &kv_io_threads);
    struct threads *t = (struct threads *)io;
    KV_ASSERT(pthread_equal(t->owner, pthread_self()));
    return t;
}

static void ring_bell(int fd)
{
    uint64_t one = 1;
    ssize_t n;
    unsigned tries = 0;
    do {
        n = write(fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR && ++tries < KV_IO_AGAIN_MAX);
    /* EAGAIN means that the counter is at its end: the descriptor is readable, which is all that is asked for. */
    KV_ASSERT(n == (ssize_t)sizeof(one) || errno == EAGAIN);
}

static int64_t one_step(const struct kv_io_request *request)
{
    if (request->verb == KV_IO_SYNC) {
        return fdatasync(request->fd) == 0 ? 0 : -(int64_t)errno;
    }
    uint64_t left = request->bytes - request->done_bytes;
    size_t len = (size_t)(left < KV_IO_STEP_BYTES ? left : KV_IO_STEP_BYTES);
    off_t at = (off_t)(request->offset + request->done_bytes);
    uint8_t *data = request->data + request->done_bytes;
    ssize_t n = request->verb == KV_IO_READ ? pread(request->fd, data, len, at) : pwrite(request->fd, data, len, at);
    return n < 0 ? -(int64_t)errno : (int64_t)n;
}

/* Bounded: each round moves bytes, ends the request, or counts towards the limit. */
static void perform(struct kv_io_request *request)
{
    unsigned again = 0;
    for (;;) {
        enum kv_io_step step = kv_io_take_result(request, one_step(request));
        if (step == KV_IO_FINISHED) {
            return;
        }
        again = step == KV_IO_AGAIN ? again + 1 : 0;
        if (again >= KV_IO_AGAIN_MAX) {
            request->sys_errno = EIO;
            return;
        }
    }
}

static struct kv_io_request *next_request(struct threads *t)
{
    pthread_mutex_lock(&t->mutex);
    while (t->queued.head == NULL && !t->stopping) {
        pthread_cond_wait(&t->work, &t->mutex);
    }
    struct kv_io_request *request = kv_io_list_pop(&t->queued);
    pthread_mutex_unlock(&t->mutex);
    return request;
}

static void hand_back(struct threads *t, struct kv_io_request *request)
{
    pthread_mutex_lock(&t->mutex);
    bool first = t->finished.head == NULL;
    kv_io_list_push(&t->finished, request);
    pthread_mutex_unlock(&t->mutex);
    if (first) {
        ring_bell(t->event_fd);
    }
}

static void *worker(void *arg)
{
    struct threads *t = arg;
    for (;;) {
        struct kv_io_request *request = next_request(t);
        if (request == NULL) {
            return NULL;
        }
        perform(request);
        hand_back(t, request);
    }
}

static void stop_workers(struct threads *t)
{
    pthread_mutex_lock(&t->mutex);
    t->stopping = true;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->mutex);
    for (unsigned i = 0; i < t->started; i++) {
        pthread_join(t->workers[i], NULL);
    }
}

static void threads_free(struct threads *t)
{
    stop_workers(t);
    if (t->event_fd >= 0) {
        close(t->event_fd);
    }
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->mutex);
    kv_free(t->workers);
    kv_free(t);
}

/* Signals belong to the main thread; a worker starts with all of them blocked. */
static int start_workers(struct threads *t, unsigned count)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    while (t->started < count && rc == 0) {
        rc = pthread_create(&t->workers[t->started], NULL, worker, t);
        t->started += rc == 0 ? 1 : 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return t->started > 0 ? 0 : rc;
}

static KV_RC threads_open(const struct kv_io_conf *conf, struct kv_errinfo *info, struct kv_io **ret_io)
{
    unsigned count = conf->threads == 0 ? THREADS_DEFAULT : conf->threads;
    struct threads *t = kv_alloc(sizeof(*t));
    if (t == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the I/O threads");
    }
    t->base.ops = &kv_io_threads;
    t->env = conf->env;
    t->owner = pthread_self();
    t->accept_max = kv_io_accept_max(conf);
    t->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->workers = kv_alloc_array(count, sizeof(*t->workers));
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    int sys_errno = t->event_fd < 0 || t->workers == NULL ? ENOMEM : start_workers(t, count);
    if (sys_errno != 0) {
        threads_free(t);
        KV_IGNORE(kv_fail(info, KV_E_NO_MEMORY, "I/O threads cannot be started; raise the limit of processes"),
                  "the errno is added first");
        if (info != NULL) {
            info->sys_errno = sys_errno;
        }
        return KV_E_NO_MEMORY;
    }
    *ret_io = &t->base;
    return KV_OK;
}

static KV_RC threads_submit(struct kv_io *io, struct kv_io_request *request)
{
    struct threads *t = threads_of(io);
    if (t->accepted >= t->accept_max) {
        return KV_E_BUSY;
    }
    t->accepted++;
    if (kv_io_begin(request)) {
        hand_back(t, request);
        return KV_OK;
    }
    pthread_mutex_lock(&t->mutex);
    kv_io_list_push(&t->queued, request);
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->mutex);
    return KV_OK;
}

static struct kv_io_request *pop_finished(struct threads *t)
{
    pthread_mutex_lock(&t->mutex);
    struct kv_io_request *request = kv_io_list_pop(&t->finished);
    pthread_mutex_unlock(&t->mutex);
    return request;
}

static unsigned threads_reap(struct kv_io *io, unsigned max)
{
    struct threads *t = threads_of(io);
    unsigned count = 0;
    while (count < max) {
        struct kv_io_request *request = pop_finished(t);
        if (request == NULL) {
            break;
        }
        t->accepted--;
        count++;
        request->done(request, kv_io_result(request));
    }
    return count;
}

static bool something_finished(struct threads *t)
{
    pthread_mutex_lock(&t->mutex);
    bool yes = t->finished.head != NULL;
    pthread_mutex_unlock(&t->mutex);
    return yes;
}

/* The bell may still ring for what an earlier reap took; returning early is allowed, sleeping too long is not. */
static KV_RC threads_wait(struct kv_io *io, uint64_t deadline_ns)
{
    struct threads *t = threads_of(io);
    if (something_finished(t)) {
        return KV_OK;
    }
    uint64_t now = kv_now_ns(t->env);
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec timeout = kv_timespec_of(left);
    struct pollfd bell = {.fd = t->event_fd, .events = POLLIN};
    int n = ppoll(&bell, 1, deadline_ns == UINT64_MAX ? NULL : &timeout, NULL);
    if (n == 0) {
        return KV_E_TIMEOUT;
    }
    uint64_t count;
    KV_ASSERT(n > 0 || errno == EINTR);
    if (n > 0 && read(t->event_fd, &count, sizeof(count)) < 0) {
        KV_ASSERT(errno == EAGAIN || errno == EINTR);
    }
    return KV_OK;
}

static void threads_wake(struct kv_io *io)
{
    KV_ASSERT(io->ops == &kv_io_threads);
    ring_bell(((struct threads *)io)->event_fd);
}

static unsigned threads_in_flight(const struct kv_io *io)
{
    KV_ASSERT(io->ops == &kv_io_threads);
    return ((const struct threads *)io)->accepted;
}

static void threads_close(struct kv_io *io)
{
    if (io == NULL) {
        return;
    }
    struct threads *t = threads_of(io);
    KV_ASSERT(t->accepted == 0);
    threads_free(t);
}

const struct kv_io_ops kv_io_threads = {
    .name = "threads",
    .open = threads_open,
    .submit = threads_submit,
    .reap = threads_reap,
    .wait = threads_wait,
    .wake = threads_wake,
    .in_flight = threads_in_flight,
    .close = threads_close,
};

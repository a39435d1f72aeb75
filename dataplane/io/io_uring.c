/*
 * The I/O backend over io_uring: one ring, made and used by one thread, with the pieces of the dram arena registered
 * that are in use (io_uring_int.h). A wake is a read of an eventfd that always waits in the ring. It never hands out
 * kernel errors other than through a request, and never calls `done` outside of reap.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/io/io_uring_int.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SUBMIT_BATCH 8 /* entries that may wait for the next reap before they go to the kernel */

struct uring {
    struct kv_io base;
    struct io_uring ring;
    const struct kv_env *env;
    pthread_t owner;
    unsigned depth, accept_max;
    unsigned accepted;  /* not yet handed back */
    unsigned in_kernel; /* entries without a completion, the wake's not counted */
    unsigned again;     /* in a row */
    struct kv_io_list queued, ready;
    struct kv_io_pieces pieces;
    int wake_fd;
    uint64_t wake_count; /* the kernel writes here */
    bool ring_open, wake_armed, woken, closing;
};

static struct uring *uring_of(struct kv_io *io)
{
    KV_ASSERT(io->ops == &kv_io_uring);
    struct uring *u = (struct uring *)io;
    KV_ASSERT(pthread_equal(u->owner, pthread_self()));
    return u;
}

static void arm_wake(struct uring *u)
{
    struct io_uring_sqe *sqe = u->wake_armed || u->closing ? NULL : io_uring_get_sqe(&u->ring);
    if (sqe == NULL) {
        return; /* armed already, or no entry is free: the next pump tries again */
    }
    io_uring_prep_read(sqe, u->wake_fd, &u->wake_count, sizeof(u->wake_count), 0);
    io_uring_sqe_set_data(sqe, NULL);
    u->wake_armed = true;
}

static void prepare_transfer(struct uring *u, struct io_uring_sqe *sqe, const struct kv_io_request *request)
{
    uint64_t left = request->bytes - request->done_bytes;
    unsigned len = (unsigned)(left < KV_IO_STEP_BYTES ? left : KV_IO_STEP_BYTES);
    uint8_t *data = request->data + request->done_bytes;
    uint64_t at = request->offset + request->done_bytes;
    int fixed = kv_io_pieces_index(&u->pieces, &u->ring, data, len);
    if (request->verb == KV_IO_READ && fixed >= 0) {
        io_uring_prep_read_fixed(sqe, request->fd, data, len, at, fixed);
    } else if (request->verb == KV_IO_READ) {
        io_uring_prep_read(sqe, request->fd, data, len, at);
    } else if (fixed >= 0) {
        io_uring_prep_write_fixed(sqe, request->fd, data, len, at, fixed);
    } else {
        io_uring_prep_write(sqe, request->fd, data, len, at);
    }
}

/* Moves queued requests into the ring. */
static void pump(struct uring *u)
{
    arm_wake(u);
    while (u->queued.head != NULL && u->in_kernel < u->depth) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        if (sqe == NULL) {
            return;
        }
        struct kv_io_request *request = kv_io_list_pop(&u->queued);
        if (request->verb == KV_IO_SYNC) {
            io_uring_prep_fsync(sqe, request->fd, IORING_FSYNC_DATASYNC);
        } else {
            prepare_transfer(u, sqe, request);
        }
        io_uring_sqe_set_data(sqe, request);
        u->in_kernel++;
    }
}

/* Short of something: entries stay in the ring and go with the next call. */
static bool passes_by_itself(int rc)
{
    return rc == -EINTR || rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM || rc == -ETIME;
}

static void submit_entries(struct uring *u)
{
    if (io_uring_sq_ready(&u->ring) > 0) {
        int rc = io_uring_submit(&u->ring);
        KV_ASSERT(rc >= 0 || passes_by_itself(rc));
    }
}

static void take_wake(struct uring *u)
{
    u->wake_armed = false;
    u->woken = true;
}

static void finish(struct uring *u, struct kv_io_request *request)
{
    u->accepted--;
    request->done(request, kv_io_result(request));
}

/* True when a request was handed back. */
static bool take_completion(struct uring *u, struct io_uring_cqe *cqe)
{
    struct kv_io_request *request = io_uring_cqe_get_data(cqe);
    int result = cqe->res;
    io_uring_cqe_seen(&u->ring, cqe);
    if (request == NULL) {
        take_wake(u);
        return false;
    }
    u->in_kernel--;
    enum kv_io_step step = kv_io_take_result(request, result);
    u->again = step == KV_IO_AGAIN ? u->again + 1 : 0;
    if (u->again >= KV_IO_AGAIN_MAX) {
        request->sys_errno = EIO;
        step = KV_IO_FINISHED;
    }
    if (step != KV_IO_FINISHED) {
        kv_io_list_push(&u->queued, request);
        return false;
    }
    finish(u, request);
    return true;
}

static KV_RC uring_submit(struct kv_io *io, struct kv_io_request *request)
{
    struct uring *u = uring_of(io);
    if (u->accepted >= u->accept_max) {
        return KV_E_BUSY;
    }
    u->accepted++;
    if (kv_io_begin(request)) {
        kv_io_list_push(&u->ready, request);
        return KV_OK;
    }
    kv_io_list_push(&u->queued, request);
    pump(u);
    if (io_uring_sq_ready(&u->ring) >= SUBMIT_BATCH) {
        submit_entries(u);
    }
    return KV_OK;
}

static unsigned uring_reap(struct kv_io *io, unsigned max)
{
    struct uring *u = uring_of(io);
    unsigned count = 0;
    pump(u);
    submit_entries(u);
    while (count < max && u->ready.head != NULL) {
        finish(u, kv_io_list_pop(&u->ready));
        count++;
    }
    struct io_uring_cqe *cqe;
    while (count < max && io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        count += take_completion(u, cqe) ? 1 : 0;
    }
    /* What was continued or submitted by `done` starts now and not with the next call. */
    pump(u);
    submit_entries(u);
    return count;
}

/* A completion may be the wake's own; then it is taken here, so that the next wait sleeps. */
static KV_RC settle_wait(struct uring *u, struct io_uring_cqe *cqe)
{
    if (cqe != NULL && io_uring_cqe_get_data(cqe) == NULL) {
        io_uring_cqe_seen(&u->ring, cqe);
        take_wake(u);
    }
    u->woken = false;
    return KV_OK;
}

static KV_RC uring_wait(struct kv_io *io, uint64_t deadline_ns)
{
    struct uring *u = uring_of(io);
    pump(u);
    struct io_uring_cqe *cqe = NULL;
    if (u->woken || u->ready.head != NULL) {
        submit_entries(u);
        return settle_wait(u, NULL);
    }
    uint64_t now = kv_now_ns(u->env);
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct __kernel_timespec timeout = {.tv_sec = (int64_t)(left / KV_S_NS), .tv_nsec = (long long)(left % KV_S_NS)};
    int n = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, deadline_ns == UINT64_MAX ? NULL : &timeout, NULL);
    KV_ASSERT(n >= 0 || passes_by_itself(n));
    if (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        return settle_wait(u, cqe);
    }
    /* A call that also submitted does not say that its time ran out. */
    return n == -ETIME || kv_now_ns(u->env) >= deadline_ns ? KV_E_TIMEOUT : KV_OK;
}

static void uring_wake(struct kv_io *io)
{
    KV_ASSERT(io->ops == &kv_io_uring);
    uint64_t one = 1;
    ssize_t n;
    unsigned tries = 0;
    do {
        n = write(((struct uring *)io)->wake_fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR && ++tries < KV_IO_AGAIN_MAX);
    KV_ASSERT(n == (ssize_t)sizeof(one));
}

static unsigned uring_in_flight(const struct kv_io *io)
{
    KV_ASSERT(io->ops == &kv_io_uring);
    return ((const struct uring *)io)->accepted;
}

/* The kernel may write to wake_count as long as the read waits; so it is made to end before the memory goes. */
static void disarm_wake(struct uring *u)
{
    u->closing = true;
    if (!u->wake_armed) {
        return;
    }
    uring_wake(&u->base);
    for (unsigned tries = 0; u->wake_armed && tries < 100; tries++) {
        struct __kernel_timespec timeout = {.tv_nsec = 100000000};
        struct io_uring_cqe *cqe = NULL;
        int n = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &timeout, NULL);
        if (n >= 0 && cqe != NULL) {
            KV_ASSERT(io_uring_cqe_get_data(cqe) == NULL);
            io_uring_cqe_seen(&u->ring, cqe);
            take_wake(u);
        }
    }
    KV_ASSERT(!u->wake_armed);
}

static void uring_free(struct uring *u)
{
    if (u->ring_open) {
        disarm_wake(u);
        io_uring_queue_exit(&u->ring);
    }
    kv_io_pieces_close(&u->pieces);
    if (u->wake_fd >= 0) {
        close(u->wake_fd);
    }
    kv_free(u);
}

static void uring_close(struct kv_io *io)
{
    if (io == NULL) {
        return;
    }
    struct uring *u = uring_of(io);
    KV_ASSERT(u->accepted == 0);
    uring_free(u);
}

static KV_RC fail_open(struct uring *u, struct kv_errinfo *info, int sys_errno, const char *text)
{
    uring_free(u);
    KV_IGNORE(kv_fail(info, KV_E_UNSUPPORTED, "%s", text), "the errno is added first");
    if (info != NULL) {
        info->sys_errno = sys_errno;
    }
    return KV_E_UNSUPPORTED;
}

/* Newer kernels run completions on the owner's own entry to the kernel; older ones refuse the flag. */
static int open_ring(struct uring *u)
{
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        0,
    };
    int rc = -EINVAL;
    for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]) && rc == -EINVAL; i++) {
        struct io_uring_params params = {.flags = flags[i]};
        rc = io_uring_queue_init_params(u->depth + 1, &u->ring, &params);
        if (rc == 0 && (params.features & IORING_FEAT_EXT_ARG) == 0) {
            io_uring_queue_exit(&u->ring);
            return -ENOSYS;
        }
    }
    u->ring_open = rc == 0;
    return rc;
}

static bool operations_are_there(struct uring *u)
{
    static const int needed[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED,
                                 IORING_OP_FSYNC};
    struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
    bool all = probe != NULL;
    for (unsigned i = 0; i < sizeof(needed) / sizeof(needed[0]) && all; i++) {
        all = io_uring_opcode_supported(probe, needed[i]) != 0;
    }
    if (probe != NULL) {
        io_uring_free_probe(probe);
    }
    return all;
}

static KV_RC uring_open(const struct kv_io_conf *conf, struct kv_errinfo *info, struct kv_io **ret_io)
{
    struct uring *u = kv_alloc(sizeof(*u));
    if (u == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the ring");
    }
    u->base.ops = &kv_io_uring;
    u->env = conf->env;
    u->owner = pthread_self();
    u->depth = conf->depth;
    u->accept_max = kv_io_accept_max(conf);
    u->wake_fd = eventfd(0, EFD_CLOEXEC); /* blocking: the ring waits for it, and a wake never fills the counter */
    if (u->wake_fd < 0) {
        return fail_open(u, info, errno, "no eventfd; raise the limit of open files");
    }
    int rc = open_ring(u);
    if (rc != 0) {
        return fail_open(u, info, -rc, "the kernel or a seccomp profile refuses io_uring_setup");
    }
    if (!operations_are_there(u)) {
        return fail_open(u, info, ENOSYS, "this kernel's io_uring lacks an operation");
    }
    kv_io_pieces_open(&u->pieces, &u->ring, conf);
    pump(u);
    submit_entries(u);
    *ret_io = &u->base;
    return KV_OK;
}

const struct kv_io_ops kv_io_uring = {
    .name = "io_uring",
    .open = uring_open,
    .submit = uring_submit,
    .reap = uring_reap,
    .wait = uring_wait,
    .wake = uring_wake,
    .in_flight = uring_in_flight,
    .close = uring_close,
};

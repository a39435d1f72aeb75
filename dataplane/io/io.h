/*
 * Asynchronous file I/O: io_uring with registered buffers and files where the kernel allows it, pread/pwrite threads
 * where not. Rules: submit returns KV_OK or KV_E_BUSY; `done` runs only inside reap, on the thread that reaps; a
 * request is owned by io until then. Short reads and writes are continued inside. A request reaches the kernel at the
 * latest in the next reap or wait. Thread: the one that opened it; wake: any.
 */
#ifndef KV_IO_H
#define KV_IO_H

#include "dataplane/base/env.h"

enum kv_io_kind { KV_IO_AUTO, KV_IO_URING, KV_IO_THREADS };
enum kv_io_verb { KV_IO_READ, KV_IO_WRITE, KV_IO_SYNC /* fdatasync */ };

struct kv_io_request {
    enum kv_io_verb verb;
    int fd;
    uint8_t *data;
    uint64_t bytes, offset;
    void (*done)(struct kv_io_request *request,
                 enum kv_err rc); /* KV_E_IO, KV_E_NO_SPACE, KV_E_TRUNCATED (end of file) */
    void *owner;
    int sys_errno;              /* out, for the log */
    uint64_t done_bytes;        /* private */
    struct kv_io_request *next; /* private */
};

struct kv_io_conf {
    enum kv_io_kind kind;
    unsigned depth;   /* requests in flight; more are queued inside up to 4 times that, then KV_E_BUSY */
    unsigned threads; /* of the threads backend */
    uint8_t *fixed;   /* arena to register, or NULL; registration that fails (memlock) is logged and done without */
    uint64_t fixed_bytes;
    uint64_t fixed_piece_bytes; /* what is registered at once when it is used; a transfer across a border of such pieces
                                 * goes as from other memory. 0 or more than that: 1 GiB */
    const struct kv_env *env;
};

struct kv_io;
struct kv_io_ops {
    const char *name;
    KV_RC (*open)(const struct kv_io_conf *conf, struct kv_errinfo *info, struct kv_io **ret_io);
    KV_RC (*submit)(struct kv_io *io, struct kv_io_request *request);
    unsigned (*reap)(struct kv_io *io, unsigned max);
    /* Until a completion or a wake, or the deadline (monotonic); may return early. KV_E_TIMEOUT is no error. */
    KV_RC (*wait)(struct kv_io *io, uint64_t deadline_ns);
    void (*wake)(struct kv_io *io);
    unsigned (*in_flight)(const struct kv_io *io);
    void (*close)(struct kv_io *io); /* nothing in flight */
};
struct kv_io {
    const struct kv_io_ops *ops;
};

extern const struct kv_io_ops kv_io_uring, kv_io_threads;

/* AUTO: io_uring, else threads with one log line that says why. */
KV_RC kv_io_open(const struct kv_io_conf *conf, struct kv_errinfo *info, struct kv_io **ret_io);

#endif

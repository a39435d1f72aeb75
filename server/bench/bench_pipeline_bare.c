/*
 * The pipeline without the product around it: the data plane's own ring, arena and sealer, a file in memory in the
 * place of a drive. The file is opened with O_DIRECT, so that pages go from the arena as they do to a drive.
 */
#include "server/bench/bench_pipeline_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/tier_dram.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PATIENCE_NS (20 * KV_S_NS)

struct target {
    uint8_t *slot;
    bool busy;
};

/* A request, and what it is about. */
struct buffer {
    struct kv_io_request request;
    struct pipe *pipe;
    struct target *target;
    unsigned place; /* in the file, in blocks */
    struct buffer *next;
};

enum { COPIED, SEALED, FILES };

struct pipe {
    const struct pipe_shape *shape;
    struct kv_pool *pool;
    struct seal_lane lane;
    struct kv_io *io;
    int files[FILES];
    uint64_t sealed_bytes;
    struct kv_dram *dram;
    struct target *targets;
    unsigned next_target, next_place[FILES];
    struct buffer buffers[PIPE_DEPTH_MAX];
    struct buffer *idle, *arrived;
    unsigned in_flight, begun; /* begun: blocks of this run */
    enum kv_err rc;            /* of the first request that failed */
};

/* ---- opening ---- */

/* A file without a name. Through /proc it is opened once more, for what memfd_create does not offer. */
static KV_RC open_file(uint64_t bytes, struct kv_errinfo *info, int *ret_fd)
{
    char path[40];
    int fd = memfd_create("kvrun-bench-drive", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 || fallocate(fd, 0, 0, (off_t)bytes) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for a file of %llu bytes", (unsigned long long)bytes);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *ret_fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    close(fd);
    return *ret_fd >= 0 ? KV_OK : kv_fail(info, KV_E_UNSUPPORTED, "this kernel has no O_DIRECT on files in memory");
}

static KV_RC open_ring(struct pipe *pipe, struct kv_errinfo *info)
{
    struct kv_errinfo why = {0};
    struct kv_io_conf conf = {.kind = KV_IO_URING, .depth = pipe->shape->depth, .env = &kv_env_system};
    kv_dram_arena(pipe->dram, &conf.fixed, &conf.fixed_bytes);
    enum kv_err rc = kv_io_open(&conf, &why, &pipe->io);
    return rc == KV_OK ? KV_OK : kv_fail(info, rc, "no io_uring: %s", why.text);
}

static KV_RC open_targets(struct pipe *pipe)
{
    uint64_t bytes = pipe->sealed_bytes * pipe->shape->targets;
    pipe->targets = kv_alloc_array(pipe->shape->targets, sizeof *pipe->targets);
    if (pipe->targets == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_dram_new(bytes, bytes, &pipe->dram));
    for (unsigned i = 0; i < pipe->shape->targets; i++) {
        KV_TRY(kv_dram_take(pipe->dram, pipe->sealed_bytes, &pipe->targets[i].slot));
        memset(pipe->targets[i].slot, 0x5a, pipe->sealed_bytes);
    }
    return KV_OK;
}

static KV_RC fill(struct pipe *pipe, struct kv_errinfo *info)
{
    const struct pipe_shape *shape = pipe->shape;
    pipe->sealed_bytes = kv_sealed_bytes(shape->seal.regions * shape->seal.run_bytes);
    KV_TRY(seal_pool_new(&shape->seal, 1, info, &pipe->pool));
    KV_TRY(seal_lane_open(&pipe->lane, pipe->pool, &shape->seal, 0));
    KV_TRY(open_targets(pipe));
    KV_TRY(open_ring(pipe, info));
    for (unsigned i = shape->only_sealed ? SEALED : COPIED; i < FILES; i++) {
        KV_TRY(open_file(pipe->sealed_bytes * shape->file_blocks, info, &pipe->files[i]));
    }
    return KV_OK;
}

KV_RC pipe_open(const struct pipe_shape *shape, struct kv_errinfo *info, struct pipe **ret_pipe)
{
    KV_ASSERT(shape->depth <= PIPE_DEPTH_MAX && shape->depth < shape->targets);
    struct pipe *pipe = kv_alloc(sizeof *pipe);
    if (pipe == NULL) {
        return KV_E_NO_MEMORY;
    }
    pipe->shape = shape;
    for (unsigned i = 0; i < FILES; i++) {
        pipe->files[i] = -1;
    }
    enum kv_err rc = fill(pipe, info);
    if (rc != KV_OK) {
        pipe_close(pipe);
        return rc;
    }
    *ret_pipe = pipe;
    return KV_OK;
}

void pipe_close(struct pipe *pipe)
{
    if (pipe == NULL) {
        return;
    }
    for (unsigned i = 0; i < FILES; i++) {
        if (pipe->files[i] >= 0) {
            close(pipe->files[i]);
        }
    }
    if (pipe->io != NULL) {
        pipe->io->ops->close(pipe->io);
    }
    kv_dram_free(pipe->dram);
    kv_free(pipe->targets);
    seal_lane_close(&pipe->lane);
    kv_pool_unref(pipe->pool);
    kv_free(pipe);
}

/* ---- running ---- */

static struct buffer *pop(struct buffer **list)
{
    struct buffer *buffer = *list;
    *list = buffer->next;
    return buffer;
}

static void push(struct buffer **list, struct buffer *buffer)
{
    buffer->next = *list;
    *list = buffer;
}

static void done(struct kv_io_request *request, enum kv_err rc)
{
    struct buffer *buffer = request->owner;
    struct pipe *pipe = buffer->pipe;
    pipe->in_flight--;
    buffer->target->busy = false; /* what arrived is taken before the next is begun */
    pipe->rc = pipe->rc == KV_OK ? rc : pipe->rc;
    push(request->verb == KV_IO_READ ? &pipe->arrived : &pipe->idle, buffer);
}

/* The one after the last that is not at the file: fewer are than there are. */
static struct target *take_target(struct pipe *pipe)
{
    struct target *target;
    do {
        target = &pipe->targets[pipe->next_target];
        pipe->next_target = (pipe->next_target + 1) % pipe->shape->targets;
    } while (target->busy);
    target->busy = true;
    return target;
}

static struct buffer *begin(struct pipe *pipe, unsigned file)
{
    struct buffer *buffer = pop(&pipe->idle);
    buffer->target = take_target(pipe);
    buffer->place = pipe->next_place[file];
    pipe->next_place[file] = (buffer->place + 1) % pipe->shape->file_blocks;
    pipe->begun++;
    return buffer;
}

static KV_RC submit(struct pipe *pipe, struct buffer *buffer, enum kv_io_verb verb, unsigned file)
{
    buffer->request = (struct kv_io_request){.verb = verb,
                                             .fd = pipe->files[file],
                                             .data = buffer->target->slot,
                                             .bytes = pipe->sealed_bytes,
                                             .offset = buffer->place * pipe->sealed_bytes,
                                             .done = done,
                                             .owner = buffer};
    KV_TRY(pipe->io->ops->submit(pipe->io, &buffer->request)); /* never busy: there are `depth` buffers */
    pipe->in_flight++;
    return KV_OK;
}

static KV_RC work(struct pipe *pipe, enum seal_arm arm, const struct buffer *buffer)
{
    return seal_lane_block(&pipe->lane, arm, seal_lane_page(&pipe->lane, buffer->place), buffer->target->slot);
}

/* Blocks that have arrived are opened before further ones are asked for: their buffers are what those need. */
static KV_RC turn(struct pipe *pipe, enum seal_arm arm)
{
    bool writing = arm == SEAL_COPY || arm == SEAL_SEAL;
    unsigned file = arm == SEAL_SEAL || arm == SEAL_OPEN ? SEALED : COPIED;
    while (pipe->arrived != NULL) {
        struct buffer *buffer = pop(&pipe->arrived);
        push(&pipe->idle, buffer);
        KV_TRY(work(pipe, arm, buffer));
    }
    while (pipe->idle != NULL && pipe->begun < pipe->shape->seal.blocks) {
        struct buffer *buffer = begin(pipe, file);
        KV_TRY(writing ? work(pipe, arm, buffer) : KV_OK);
        KV_TRY(submit(pipe, buffer, writing ? KV_IO_WRITE : KV_IO_READ, file));
    }
    return pipe->rc;
}

static KV_RC wait_for_some(struct pipe *pipe)
{
    uint64_t until = kv_now_ns(&kv_env_system) + PATIENCE_NS;
    while (pipe->io->ops->reap(pipe->io, PIPE_DEPTH_MAX) == 0) {
        if (kv_now_ns(&kv_env_system) > until) {
            return KV_E_TIMEOUT;
        }
        KV_IGNORE(pipe->io->ops->wait(pipe->io, until), "reap tells whether there is something");
    }
    return KV_OK;
}

static KV_RC run(struct pipe *pipe, enum seal_arm arm)
{
    enum kv_err rc = turn(pipe, arm);
    while (pipe->in_flight > 0 || pipe->arrived != NULL) {
        enum kv_err waited = pipe->in_flight > 0 ? wait_for_some(pipe) : KV_OK;
        KV_ASSERT(waited == KV_OK); /* the kernel still writes to the buffers: there is no going on */
        rc = rc == KV_OK ? turn(pipe, arm) : rc;
        if (rc != KV_OK) {
            pipe->arrived = NULL;
        }
    }
    return rc;
}

static double cpu_seconds(void)
{
    struct rusage usage = {0};
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

KV_RC pipe_run(struct pipe *pipe, enum seal_arm arm, struct pipe_time *ret_time)
{
    const struct seal_shape *shape = &pipe->shape->seal;
    double gb = (double)shape->blocks * (double)(shape->regions * shape->run_bytes) / 1e9;
    pipe->idle = NULL;
    pipe->arrived = NULL;
    pipe->begun = 0;
    pipe->rc = KV_OK;
    for (unsigned i = 0; i < pipe->shape->depth; i++) {
        pipe->buffers[i].pipe = pipe;
        push(&pipe->idle, &pipe->buffers[i]);
    }
    double cpu = cpu_seconds();
    uint64_t begun = kv_now_ns(&kv_env_system);
    KV_TRY(run(pipe, arm));
    ret_time->gb_per_s = gb / ((double)(kv_now_ns(&kv_env_system) - begun) / 1e9);
    ret_time->core_s_per_gb = (cpu_seconds() - cpu) / gb;
    kv_sealer_forget(pipe->lane.sealer);
    return KV_OK;
}

/*
 * The nvme tier; tier.h has the contract, nvme_int.h the picture. Sealed blocks in one preallocated file, an index that
 * is a checkpoint and a log. It sees sealed bytes and nothing else, allocates nothing after open, and waits for nothing
 * between open and close.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_int.h"

#include <string.h>
#include <unistd.h>

#define CLOSE_TIMEOUT_NS (60 * KV_S_NS)

static struct kv_nvme *nvme_of(struct kv_tier *tier)
{
    KV_ASSERT(tier->ops == &kv_tier_nvme);
    return (struct kv_nvme *)tier;
}

static void close_fd(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

/* A request that io has not handed back keeps its memory: to leak it is better than to let the kernel write into it. */
static void nvme_free(struct kv_nvme *n)
{
    if (n->step.running || n->probe.running) {
        kv_log(KV_LOG_ERROR, "tier", "nvme tier ends with a request that never returned");
        return;
    }
    kv_nvme_table_free(n);
    close_fd(n->ckpt_fd);
    close_fd(n->newlog_fd);
    close_fd(n->log_fd);
    close_fd(n->arena_fd);
    close_fd(n->folder_fd);
    close_fd(n->lock_fd);
    kv_free(n);
}

static KV_RC nvme_open(const struct kv_tier_conf *conf, struct kv_errinfo *info, struct kv_tier **ret_tier)
{
    KV_ASSERT(conf->io != NULL && conf->env != NULL && conf->path != NULL);
    if (conf->entries_max >= KV_NVME_NONE / 4 || conf->slab_bytes % KV_NVME_PAGE_BYTES != 0 ||
        conf->bytes > (uint64_t)INT64_MAX / 2) {
        return kv_fail(info, KV_E_CONFIG,
                       "nvme slab size must be a multiple of 4 KiB and the number of blocks under 2^30");
    }
    struct kv_nvme *n = kv_alloc(sizeof(*n));
    if (n == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the nvme tier");
    }
    n->base.ops = &kv_tier_nvme;
    n->env = conf->env;
    n->io = conf->io;
    n->folder_fd = n->lock_fd = n->arena_fd = n->log_fd = n->ckpt_fd = n->newlog_fd = -1;
    n->up = true;
    kv_sm_init(&n->flush, &kv_nvme_flush_table, KV_NVME_IDLE);
    enum kv_err rc = kv_nvme_folder_open(n, conf, info);
    if (rc != KV_OK) {
        nvme_free(n);
        return rc;
    }
    *ret_tier = &n->base;
    return KV_OK;
}

static void nvme_scan(struct kv_tier *tier, kv_tier_scan_fn *fn, void *ctx)
{
    struct kv_nvme *n = nvme_of(tier);
    for (uint32_t i = 0; i < n->blocks_size; i++) {
        const struct kv_nvme_block *block = &n->blocks[i];
        if (block->state == KV_NVME_LIVE) {
            fn(ctx, &block->key, kv_nvme_block_where(n, i), (uint64_t)block->pages * KV_NVME_PAGE_BYTES,
               block->promised);
        }
    }
}

/* ---- put ---- */

static void put_written(struct kv_io_request *request, enum kv_err rc)
{
    struct kv_nvme_job *job = request->owner;
    struct kv_nvme *n = job->tier;
    n->writes_running--;
    if (rc == KV_OK && job->epoch != n->epoch) {
        rc = KV_E_IO; /* a flush failed meanwhile */
    } else if (rc != KV_OK) {
        kv_nvme_note_failure(n, rc, "data cannot be written");
    }
    if (rc != KV_OK) {
        kv_nvme_block_release(n, job->block);
        kv_nvme_job_end(n, job, rc);
        return;
    }
    if (n->waiting.count == 0) {
        n->first_wait_ns = kv_now_ns(n->env);
    }
    n->written_bytes += job->op->bytes;
    n->waiting_bytes += job->op->bytes;
    kv_nvme_jobs_push(&n->waiting, job);
}

/* While records of drops wait there may soon be room: not never, but not now. */
static KV_RC refuse_for_room(struct kv_nvme *n, enum kv_err rc)
{
    bool room_is_coming = n->drops.count + n->leaving.count + n->limbo.count > 0;
    if (rc != KV_E_NO_SPACE || !room_is_coming) {
        return rc;
    }
    n->room_is_wanted = true;
    return KV_E_BUSY;
}

static void put_request(const struct kv_nvme *n, struct kv_nvme_job *job)
{
    job->request = (struct kv_io_request){
        .verb = KV_IO_WRITE,
        .fd = n->arena_fd,
        .data = job->op->data,
        .bytes = job->op->bytes,
        .offset = n->blocks[job->block].offset,
        .done = put_written,
        .owner = job,
    };
}

static KV_RC submit_put(struct kv_nvme *n, struct kv_nvme_job *job)
{
    enum kv_err rc = kv_nvme_block_take(n, job->op, &job->block);
    if (rc != KV_OK) {
        return refuse_for_room(n, rc);
    }
    job->epoch = n->epoch;
    put_request(n, job);
    if (KV_FAULT("tier/nvme/data-write")) {
        n->writes_running++;
        put_written(&job->request, KV_E_IO);
        return KV_OK;
    }
    if (n->io->ops->submit(n->io, &job->request) != KV_OK) {
        kv_nvme_block_release(n, job->block);
        return KV_E_BUSY;
    }
    n->writes_running++;
    return KV_OK;
}

/* ---- get ---- */

static void get_read(struct kv_io_request *request, enum kv_err rc)
{
    struct kv_nvme_job *job = request->owner;
    struct kv_nvme *n = job->tier;
    n->reads_running--;
    n->blocks[job->block].reads--;
    if (rc == KV_OK) {
        n->read_bytes += request->bytes;
    } else {
        n->errors++;
    }
    kv_nvme_job_end(n, job, rc);
}

static KV_RC submit_get(struct kv_nvme *n, struct kv_nvme_job *job)
{
    job->block = kv_nvme_block_find(n, &job->op->key, job->op->where);
    if (job->block == KV_NVME_NONE) {
        kv_nvme_job_end(n, job, KV_E_MISSING);
        return KV_OK;
    }
    struct kv_nvme_block *block = &n->blocks[job->block];
    if (job->op->bytes > (uint64_t)block->pages * KV_NVME_PAGE_BYTES) {
        kv_nvme_job_end(n, job, KV_E_TRUNCATED);
        return KV_OK;
    }
    job->request = (struct kv_io_request){
        .verb = KV_IO_READ,
        .fd = n->arena_fd,
        .data = job->op->data,
        .bytes = job->op->bytes,
        .offset = block->offset,
        .done = get_read,
        .owner = job,
    };
    if (block->reads == UINT16_MAX || n->io->ops->submit(n->io, &job->request) != KV_OK) {
        return KV_E_BUSY;
    }
    block->reads++;
    n->reads_running++;
    return KV_OK;
}

/* ---- contract ---- */

static KV_RC nvme_submit(struct kv_tier *tier, struct kv_tier_op *op)
{
    struct kv_nvme *n = nvme_of(tier);
    KV_ASSERT(op->done != NULL && op->bytes > 0 && op->bytes % KV_NVME_PAGE_BYTES == 0);
    KV_ASSERT((uintptr_t)op->data % KV_NVME_PAGE_BYTES == 0);
    struct kv_nvme_job *job = kv_nvme_jobs_pop(&n->idle_jobs);
    if (job == NULL) {
        return KV_E_BUSY;
    }
    job->op = op;
    job->block = KV_NVME_NONE;
    enum kv_err rc = KV_OK;
    if (op->kind == KV_TIER_GET) {
        rc = submit_get(n, job);
    } else if (!n->up) {
        kv_nvme_job_end(n, job, KV_E_IO);
    } else {
        rc = submit_put(n, job);
    }
    if (rc != KV_OK) {
        kv_nvme_jobs_push(&n->idle_jobs, job);
    }
    return rc;
}

static unsigned nvme_poll(struct kv_tier *tier, unsigned max)
{
    struct kv_nvme *n = nvme_of(tier);
    unsigned count = kv_nvme_advance(n);
    for (unsigned i = 0; i < max; i++) {
        struct kv_nvme_job *job = kv_nvme_jobs_pop(&n->ended);
        if (job == NULL) {
            break;
        }
        struct kv_tier_op *op = job->op;
        enum kv_err rc = job->rc;
        kv_nvme_jobs_push(&n->idle_jobs, job);
        op->done(op, rc);
        count++;
    }
    return count;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t nvme_next_due_ns(struct kv_tier *tier)
{
    struct kv_nvme *n = nvme_of(tier);
    if (n->ended.count > 0 || n->step.finished || n->probe.finished) {
        return 0;
    }
    uint64_t due = UINT64_MAX;
    if (!n->up && !n->log_bad && !n->probe.running) {
        due = n->probe_after_ns;
    }
    if (n->flush.state != KV_NVME_IDLE) {
        return due;
    }
    if (kv_nvme_needs_generation(n)) {
        return n->waiting.count > 0 ? 0 : earlier(due, n->rotate_after_ns);
    }
    if (kv_nvme_flush_is_due(n, kv_now_ns(n->env))) {
        return 0;
    }
    if (n->waiting.count > 0) {
        due = earlier(due, n->first_wait_ns + KV_NVME_GROUP_NS);
    }
    return n->drops.count > 0 ? earlier(due, n->first_drop_ns + KV_NVME_GROUP_NS) : due;
}

static KV_RC nvme_drop(struct kv_tier *tier, const struct kv_tier_key *key, uint64_t where)
{
    struct kv_nvme *n = nvme_of(tier);
    uint32_t index = kv_nvme_block_find(n, key, where);
    if (index == KV_NVME_NONE) {
        return KV_E_MISSING;
    }
    if (n->blocks[index].reads > 0) {
        return KV_E_BUSY;
    }
    n->blocks[index].state = KV_NVME_DROP_ASKED;
    n->live--;
    if (n->drops.count == 0) {
        n->first_drop_ns = kv_now_ns(n->env);
    }
    kv_nvme_blocks_push(n, &n->drops, index);
    n->drops_asked++;
    return KV_OK;
}

/* After a setback the order of the drops is another one, and the mark is taken anew. Slots in limbo may have a record
 * of a put that failed. */
static bool nvme_dropped(const struct kv_tier *tier, struct kv_tier_mark *mark)
{
    KV_ASSERT(tier->ops == &kv_tier_nvme);
    const struct kv_nvme *n = (const struct kv_nvme *)tier;
    if (!mark->taken || mark->setbacks != n->setbacks) {
        *mark = (struct kv_tier_mark){.taken = true, .drops = n->drops_asked, .setbacks = n->setbacks};
    }
    return n->drops_durable >= mark->drops && n->limbo.count == 0;
}

static void nvme_stats(const struct kv_tier *tier, struct kv_tier_stats *ret_stats)
{
    KV_ASSERT(tier->ops == &kv_tier_nvme);
    const struct kv_nvme *n = (const struct kv_nvme *)tier;
    *ret_stats = (struct kv_tier_stats){
        .capacity_bytes = kv_nvme_slab_count(&n->superblock) * n->superblock.slab_bytes,
        .used_bytes = kv_slabs_used_bytes(n->slabs),
        .objects = n->live,
        .read_bytes = n->read_bytes,
        .written_bytes = n->written_bytes,
        .errors = n->errors,
        .up = n->up,
        .reason = n->up ? NULL : n->reason,
    };
    memcpy(ret_stats->place.b, n->superblock.uuid, sizeof ret_stats->place.b);
}

/* A folder whose last checkpoint could not be written is whole all the same: the log stays. */
static KV_RC nvme_close(struct kv_tier *tier)
{
    if (tier == NULL) {
        return KV_OK;
    }
    struct kv_nvme *n = nvme_of(tier);
    KV_ASSERT(n->idle_jobs.count == KV_NVME_JOBS);
    enum kv_err rc = kv_nvme_settle(n, false, CLOSE_TIMEOUT_NS);
    if (rc != KV_E_TIMEOUT && (n->log_entries > 0 || n->drops.count > 0 || n->log_bad)) {
        rc = kv_nvme_settle(n, true, CLOSE_TIMEOUT_NS);
    }
    nvme_free(n);
    return rc;
}

const struct kv_tier_ops kv_tier_nvme = {
    .name = "nvme",
    .id = KV_TIER_NVME,
    .open = nvme_open,
    .scan = nvme_scan,
    .submit = nvme_submit,
    .poll = nvme_poll,
    .next_due_ns = nvme_next_due_ns,
    .drop = nvme_drop,
    .dropped = nvme_dropped,
    .stats = nvme_stats,
    .close = nvme_close,
};

/*
 * Groups of the nvme tier: data flush, one append to the log, log flush, and only then completion. Also the tier's
 * health. It must never complete a put, or free the slot of a drop, before the record of it is on stable storage; and
 * after a step that failed it must never trust what that step may have left behind.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/tier/nvme_int.h"

#define BIT(state) (UINT32_C(1) << (state))

static const char *const state_names[] = {
    "idle",      "data_sync",    "log_write",   "log_sync",    "ckpt_write",
    "ckpt_sync", "newlog_write", "newlog_sync", "folder_sync", "renamed_sync",
};

static const uint32_t allowed[] = {
    [KV_NVME_IDLE] = BIT(KV_NVME_DATA_SYNC) | BIT(KV_NVME_LOG_WRITE) | BIT(KV_NVME_CKPT_WRITE),
    [KV_NVME_DATA_SYNC] = BIT(KV_NVME_LOG_WRITE) | BIT(KV_NVME_IDLE),
    [KV_NVME_LOG_WRITE] = BIT(KV_NVME_LOG_SYNC) | BIT(KV_NVME_IDLE),
    [KV_NVME_LOG_SYNC] = BIT(KV_NVME_IDLE),
    [KV_NVME_CKPT_WRITE] = BIT(KV_NVME_CKPT_WRITE) | BIT(KV_NVME_CKPT_SYNC) | BIT(KV_NVME_IDLE),
    [KV_NVME_CKPT_SYNC] = BIT(KV_NVME_NEWLOG_WRITE) | BIT(KV_NVME_IDLE),
    [KV_NVME_NEWLOG_WRITE] = BIT(KV_NVME_NEWLOG_SYNC) | BIT(KV_NVME_IDLE),
    [KV_NVME_NEWLOG_SYNC] = BIT(KV_NVME_FOLDER_SYNC) | BIT(KV_NVME_IDLE),
    [KV_NVME_FOLDER_SYNC] = BIT(KV_NVME_RENAMED_SYNC) | BIT(KV_NVME_IDLE),
    [KV_NVME_RENAMED_SYNC] = BIT(KV_NVME_IDLE),
};

const struct kv_sm_table kv_nvme_flush_table = {
    .name = "nvme_flush",
    .state_names = state_names,
    .allowed = allowed,
    .state_count = sizeof(allowed) / sizeof(allowed[0]),
};

static void step_done(struct kv_io_request *request, enum kv_err rc)
{
    struct kv_nvme_step *step = request->owner;
    step->running = false;
    step->finished = true;
    step->rc = rc;
}

void kv_nvme_step_begin(struct kv_nvme *n, struct kv_nvme_step *step, const char *fault,
                        const struct kv_io_request *what)
{
    (void)n;
    (void)fault;
    KV_ASSERT(!step->wanted && !step->running && !step->finished);
    step->request = *what;
    step->request.done = step_done;
    step->request.owner = step;
    if (KV_FAULT(fault)) {
        step->finished = true;
        step->rc = KV_E_IO;
        return;
    }
    step->wanted = true;
}

/* A ring that is full takes it at the next poll. */
static void send_step(struct kv_nvme *n, struct kv_nvme_step *step)
{
    if (step->wanted && n->io->ops->submit(n->io, &step->request) == KV_OK) {
        step->wanted = false;
        step->running = true;
    }
}

void kv_nvme_note_failure(struct kv_nvme *n, enum kv_err rc, const char *reason)
{
    n->errors++;
    n->failures++;
    if (n->up && n->failures >= KV_NVME_FAILURES_MAX) {
        n->up = false;
        n->reason = rc == KV_E_NO_SPACE ? "the drive is full" : reason;
        n->probe_after_ns = kv_now_ns(n->env) + KV_NVME_RETRY_NS;
        kv_log(KV_LOG_WARN, "tier", "nvme tier is down", KV_FT("reason", n->reason), KV_FRC(rc));
    }
}

void kv_nvme_note_success(struct kv_nvme *n)
{
    n->failures = 0;
    if (!n->up && !n->log_bad) {
        n->up = true;
        n->reason = NULL;
        kv_log(KV_LOG_INFO, "tier", "nvme tier is up again");
    }
}

void kv_nvme_leaving_done(struct kv_nvme *n)
{
    uint32_t index;
    while ((index = kv_nvme_blocks_pop(n, &n->leaving)) != KV_NVME_NONE) {
        kv_nvme_block_release(n, index);
        n->drops_durable++;
    }
    n->room_is_wanted = false;
}

void kv_nvme_leaving_back(struct kv_nvme *n)
{
    uint32_t index;
    while ((index = kv_nvme_blocks_pop(n, &n->leaving)) != KV_NVME_NONE) {
        n->blocks[index].state = KV_NVME_DROP_ASKED;
        kv_nvme_blocks_push(n, &n->drops, index);
    }
    n->first_drop_ns = kv_now_ns(n->env);
    n->setbacks++;
}

/* ---- a group ---- */

static void write_log(struct kv_nvme *n)
{
    kv_sm_move(&n->flush, KV_NVME_LOG_WRITE);
    uint32_t count = 0;
    for (uint32_t i = n->leaving.head, left = n->leaving.count; left > 0; left--, i = n->blocks[i].next) {
        kv_nvme_block_entry(n, i, KV_NVME_DROP, n->log_buf + (size_t)count++ * KV_NVME_ENTRY_BYTES, n->log_seed);
    }
    for (const struct kv_nvme_job *job = n->group.head; job != NULL; job = job->next) {
        kv_nvme_block_entry(n, job->block, KV_NVME_PUT, n->log_buf + (size_t)count++ * KV_NVME_ENTRY_BYTES,
                            n->log_seed);
    }
    KV_ASSERT(count > 0 && count <= KV_NVME_GROUP_ENTRIES && n->log_entries + count <= n->log_entries_max);
    n->log_buf_entries = count;
    kv_nvme_step_begin(n, &n->step, "tier/nvme/log-write",
                       &(struct kv_io_request){.verb = KV_IO_WRITE,
                                               .fd = n->log_fd,
                                               .data = n->log_buf,
                                               .bytes = (uint64_t)count * KV_NVME_ENTRY_BYTES,
                                               .offset = (n->log_entries + 1) * KV_NVME_ENTRY_BYTES});
}

static void begin_group(struct kv_nvme *n)
{
    while (n->drops.count > 0 && n->leaving.count < KV_NVME_GROUP_ENTRIES / 2) {
        uint32_t index = kv_nvme_blocks_pop(n, &n->drops);
        n->blocks[index].state = KV_NVME_LEAVING;
        kv_nvme_blocks_push(n, &n->leaving, index);
    }
    while (n->waiting.count > 0 && n->group.count < KV_NVME_GROUP_ENTRIES / 2) {
        struct kv_nvme_job *job = kv_nvme_jobs_pop(&n->waiting);
        n->waiting_bytes -= job->op->bytes;
        kv_nvme_jobs_push(&n->group, job);
    }
    if (n->group.count == 0) {
        write_log(n);
        return;
    }
    kv_sm_move(&n->flush, KV_NVME_DATA_SYNC);
    kv_nvme_step_begin(n, &n->step, "tier/nvme/data-sync",
                       &(struct kv_io_request){.verb = KV_IO_SYNC, .fd = n->arena_fd});
}

/* The kernel reports a failed flush once and then takes the pages for clean, so no write that began before it is
 * trusted. Nothing on disk names those slots. */
static void data_sync_failed(struct kv_nvme *n, enum kv_err rc)
{
    kv_sm_move(&n->flush, KV_NVME_IDLE);
    n->epoch++;
    kv_nvme_puts_fail(n, &n->group, rc, false);
    kv_nvme_puts_fail(n, &n->waiting, rc, false);
    n->waiting_bytes = 0;
    kv_nvme_leaving_back(n);
    kv_nvme_note_failure(n, rc, "data cannot be flushed");
}

static void log_failed(struct kv_nvme *n, enum kv_err rc)
{
    kv_sm_move(&n->flush, KV_NVME_IDLE);
    n->log_bad = true;
    kv_nvme_puts_fail(n, &n->group, rc, true);
    kv_nvme_leaving_back(n);
    kv_nvme_note_failure(n, rc, "the index cannot be written");
}

static void group_durable(struct kv_nvme *n)
{
    kv_sm_move(&n->flush, KV_NVME_IDLE);
    n->log_entries += n->log_buf_entries;
    struct kv_nvme_job *job;
    while ((job = kv_nvme_jobs_pop(&n->group)) != NULL) {
        n->blocks[job->block].state = KV_NVME_LIVE;
        n->live++;
        job->op->where = kv_nvme_block_where(n, job->block);
        kv_nvme_job_end(n, job, KV_OK);
    }
    kv_nvme_leaving_done(n);
    kv_nvme_note_success(n);
}

static void group_go_on(struct kv_nvme *n, enum kv_err rc)
{
    switch (n->flush.state) {
    case KV_NVME_DATA_SYNC:
        if (rc != KV_OK) {
            data_sync_failed(n, rc);
        } else {
            write_log(n);
        }
        break;
    case KV_NVME_LOG_WRITE:
        if (rc != KV_OK) {
            log_failed(n, rc);
        } else {
            kv_sm_move(&n->flush, KV_NVME_LOG_SYNC);
            kv_nvme_step_begin(n, &n->step, "tier/nvme/log-sync",
                               &(struct kv_io_request){.verb = KV_IO_SYNC, .fd = n->log_fd});
        }
        break;
    case KV_NVME_LOG_SYNC:
        if (rc != KV_OK) {
            log_failed(n, rc);
        } else {
            group_durable(n);
        }
        break;
    default:
        kv_nvme_rotate_go_on(n, rc);
    }
}

/* ---- when ---- */

bool kv_nvme_flush_is_due(const struct kv_nvme *n, uint64_t now)
{
    if (n->waiting.count > 0 &&
        (n->waiting_bytes >= KV_NVME_GROUP_BYTES || n->waiting.count >= KV_NVME_GROUP_ENTRIES / 2 ||
         n->writes_running == 0 || now - n->first_wait_ns >= KV_NVME_GROUP_NS)) {
        return true;
    }
    return n->drops.count > 0 && (n->room_is_wanted || n->drops.count >= KV_NVME_GROUP_ENTRIES / 2 ||
                                  now - n->first_drop_ns >= KV_NVME_GROUP_NS);
}

bool kv_nvme_needs_generation(const struct kv_nvme *n)
{
    return n->rotate_asked || n->log_bad || n->log_entries + KV_NVME_GROUP_ENTRIES > n->log_entries_max;
}

static void begin_what_is_due(struct kv_nvme *n)
{
    uint64_t now = kv_now_ns(n->env);
    if (!kv_nvme_needs_generation(n)) {
        if (kv_nvme_flush_is_due(n, now)) {
            begin_group(n);
        }
        return;
    }
    if (now >= n->rotate_after_ns) {
        kv_nvme_rotate_begin(n);
        return;
    }
    kv_nvme_puts_fail(n, &n->waiting, KV_E_IO, false); /* their callers shall not wait for a retry */
    n->waiting_bytes = 0;
}

/* A write to the scratch page and a flush tell when a drive works again. */
static void probe_step(struct kv_nvme *n, enum kv_io_verb verb, const char *fault)
{
    kv_nvme_step_begin(n, &n->probe, fault,
                       &(struct kv_io_request){.verb = verb,
                                               .fd = n->arena_fd,
                                               .data = n->probe_page,
                                               .bytes = KV_NVME_PAGE_BYTES,
                                               .offset = KV_NVME_PROBE_OFFSET});
}

static void probe(struct kv_nvme *n)
{
    if (n->probe.finished) {
        n->probe.finished = false;
        if (n->probe.rc == KV_OK && n->probe.request.verb == KV_IO_WRITE) {
            probe_step(n, KV_IO_SYNC, "tier/nvme/data-sync");
        } else if (n->probe.rc == KV_OK) {
            kv_nvme_note_success(n);
        }
    }
    bool busy = n->probe.wanted || n->probe.running || n->probe.finished;
    if (n->up || n->log_bad || busy || kv_now_ns(n->env) < n->probe_after_ns) {
        return;
    }
    n->probe_after_ns = kv_now_ns(n->env) + KV_NVME_RETRY_NS;
    probe_step(n, KV_IO_WRITE, "tier/nvme/data-write");
}

unsigned kv_nvme_advance(struct kv_nvme *n)
{
    unsigned count = 0;
    if (n->step.finished) {
        n->step.finished = false;
        group_go_on(n, n->step.rc);
        count++;
    }
    if (n->flush.state == KV_NVME_IDLE) {
        begin_what_is_due(n);
        count += n->flush.state != KV_NVME_IDLE ? 1 : 0;
    }
    probe(n);
    send_step(n, &n->step);
    send_step(n, &n->probe);
    return count;
}

/*
 * New generations of the nvme index: checkpoint to a temporary name, an empty log beside it, both flushed, then the
 * rename that makes them count. No group runs meanwhile, so the table stands still where the checkpoint looks: what is
 * LIVE or waits to be dropped. A generation that did not come about changes nothing; the same number is used by the
 * next try.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/fault.h"
#include "dataplane/base/log.h"
#include "dataplane/tier/nvme_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

static void rotate_failed(struct kv_nvme *n, enum kv_err rc)
{
    kv_sm_move(&n->flush, KV_NVME_IDLE);
    close_fd(&n->ckpt_fd);
    close_fd(&n->newlog_fd);
    kv_nvme_leaving_back(n);
    n->rotate_after_ns = kv_now_ns(n->env) + KV_NVME_RETRY_NS;
    kv_nvme_note_failure(n, rc, "the index cannot be written");
}

static struct kv_nvme_header header_of(const struct kv_nvme *n, enum kv_nvme_file file, uint64_t count)
{
    struct kv_nvme_header header = {.file = file, .generation = n->generation + 1, .count = count};
    for (unsigned i = 0; i < sizeof(header.uuid); i++) {
        header.uuid[i] = n->superblock.uuid[i];
    }
    return header;
}

/* Fills the rest of the buffer from the table, beginning at `used`, and writes it. */
static void write_chunk(struct kv_nvme *n, uint64_t used)
{
    while (n->ckpt_left > 0 && used + KV_NVME_ENTRY_BYTES <= KV_NVME_CHUNK_BYTES) {
        KV_ASSERT(n->ckpt_next < n->blocks_size);
        uint32_t index = n->ckpt_next++;
        if (n->blocks[index].state == KV_NVME_LIVE || n->blocks[index].state == KV_NVME_DROP_ASKED) {
            kv_nvme_block_entry(n, index, KV_NVME_PUT, n->ckpt_buf + used, n->ckpt_seed);
            used += KV_NVME_ENTRY_BYTES;
            n->ckpt_left--;
        }
    }
    kv_nvme_step_begin(
        n, &n->step, "tier/nvme/ckpt-write",
        &(struct kv_io_request){
            .verb = KV_IO_WRITE, .fd = n->ckpt_fd, .data = n->ckpt_buf, .bytes = used, .offset = n->ckpt_at});
    n->ckpt_at += used;
}

void kv_nvme_rotate_begin(struct kv_nvme *n)
{
    kv_sm_move(&n->flush, KV_NVME_CKPT_WRITE);
    uint32_t index;
    while ((index = kv_nvme_blocks_pop(n, &n->drops)) != KV_NVME_NONE) {
        n->blocks[index].state = KV_NVME_LEAVING;
        kv_nvme_blocks_push(n, &n->leaving, index);
    }
    enum kv_err rc = kv_nvme_file_create(n->folder_fd, "index.ckpt.tmp", &n->ckpt_fd);
    if (rc != KV_OK) {
        rotate_failed(n, rc);
        return;
    }
    struct kv_nvme_header header = header_of(n, KV_NVME_CHECKPOINT, n->live);
    n->ckpt_seed = kv_nvme_header_encode(&header, n->ckpt_buf);
    n->ckpt_left = n->live;
    n->ckpt_next = 0;
    n->ckpt_at = 0;
    write_chunk(n, KV_NVME_ENTRY_BYTES);
}

static void write_new_log(struct kv_nvme *n)
{
    kv_sm_move(&n->flush, KV_NVME_NEWLOG_WRITE);
    char name[KV_NVME_NAME_BYTES];
    kv_nvme_log_name(n->generation + 1, name);
    enum kv_err rc = kv_nvme_file_create(n->folder_fd, name, &n->newlog_fd);
    if (rc != KV_OK) {
        rotate_failed(n, rc);
        return;
    }
    struct kv_nvme_header header = header_of(n, KV_NVME_LOG, 0);
    n->newlog_seed = kv_nvme_header_encode(&header, n->log_buf);
    kv_nvme_step_begin(n, &n->step, "tier/nvme/newlog-write",
                       &(struct kv_io_request){
                           .verb = KV_IO_WRITE, .fd = n->newlog_fd, .data = n->log_buf, .bytes = KV_NVME_ENTRY_BYTES});
}

static void sync_in_state(struct kv_nvme *n, enum kv_nvme_flush state, const char *fault, int fd)
{
    kv_sm_move(&n->flush, state);
    kv_nvme_step_begin(n, &n->step, fault, &(struct kv_io_request){.verb = KV_IO_SYNC, .fd = fd});
}

/* From the rename on either generation may be the one that a crash leaves, until the folder is flushed. So the log in
 * use takes no record any more: were the new checkpoint found, the record would be lost. */
static void rename_checkpoint(struct kv_nvme *n)
{
    n->log_bad = true;
    if (KV_FAULT("tier/nvme/ckpt-rename") ||
        renameat(n->folder_fd, "index.ckpt.tmp", n->folder_fd, "index.ckpt") != 0) {
        rotate_failed(n, KV_E_IO);
        return;
    }
    sync_in_state(n, KV_NVME_RENAMED_SYNC, "tier/nvme/renamed-sync", n->folder_fd);
}

static void new_generation(struct kv_nvme *n)
{
    kv_sm_move(&n->flush, KV_NVME_IDLE);
    char old_name[KV_NVME_NAME_BYTES];
    kv_nvme_log_name(n->generation, old_name);
    close_fd(&n->log_fd);
    close_fd(&n->ckpt_fd);
    unlinkat(n->folder_fd, old_name, 0); /* one that stays is removed at the next start */
    n->log_fd = n->newlog_fd;
    n->newlog_fd = -1;
    n->log_seed = n->newlog_seed;
    n->log_entries = 0;
    n->generation++;
    n->log_bad = false;
    n->rotate_asked = false;
    uint32_t index;
    while ((index = kv_nvme_blocks_pop(n, &n->limbo)) != KV_NVME_NONE) {
        kv_nvme_block_release(n, index);
    }
    kv_nvme_leaving_done(n);
    kv_nvme_note_success(n);
}

void kv_nvme_rotate_go_on(struct kv_nvme *n, enum kv_err rc)
{
    if (rc != KV_OK) {
        rotate_failed(n, rc);
        return;
    }
    switch (n->flush.state) {
    case KV_NVME_CKPT_WRITE:
        if (n->ckpt_left > 0) {
            write_chunk(n, 0);
        } else {
            sync_in_state(n, KV_NVME_CKPT_SYNC, "tier/nvme/ckpt-sync", n->ckpt_fd);
        }
        break;
    case KV_NVME_CKPT_SYNC:
        write_new_log(n);
        break;
    case KV_NVME_NEWLOG_WRITE:
        sync_in_state(n, KV_NVME_NEWLOG_SYNC, "tier/nvme/newlog-sync", n->newlog_fd);
        break;
    case KV_NVME_NEWLOG_SYNC:
        sync_in_state(n, KV_NVME_FOLDER_SYNC, "tier/nvme/folder-sync", n->folder_fd);
        break;
    case KV_NVME_FOLDER_SYNC:
        rename_checkpoint(n);
        break;
    case KV_NVME_RENAMED_SYNC:
        new_generation(n);
        break;
    default:
        KV_ASSERT(n->flush.state == KV_NVME_RENAMED_SYNC); /* no other state has a step */
    }
}

KV_RC kv_nvme_settle(struct kv_nvme *n, bool rotate, uint64_t timeout_ns)
{
    uint64_t deadline = kv_now_ns(n->env) + timeout_ns;
    uint64_t errors = n->errors;
    n->rotate_asked = rotate;
    n->rotate_after_ns = rotate ? 0 : n->rotate_after_ns;
    for (;;) {
        kv_nvme_advance(n);
        bool idle = n->flush.state == KV_NVME_IDLE && !n->probe.running && !n->step.finished;
        if (idle && (!n->rotate_asked || n->errors > errors)) {
            break;
        }
        if (kv_now_ns(n->env) >= deadline) {
            return KV_E_TIMEOUT;
        }
        if (n->step.running || n->probe.running) {
            KV_IGNORE(n->io->ops->wait(n->io, deadline), "the loop looks for itself what there is");
        }
        n->io->ops->reap(n->io, 64);
    }
    n->rotate_asked = false;
    return n->errors > errors ? KV_E_IO : KV_OK;
}

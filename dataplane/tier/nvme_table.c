/*
 * The blocks and operations of the nvme tier in memory. Everything is allocated at start; a list never crosses states.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_int.h"

#include <string.h>

void kv_nvme_jobs_push(struct kv_nvme_jobs *jobs, struct kv_nvme_job *job)
{
    job->next = NULL;
    if (jobs->tail == NULL) {
        jobs->head = job;
    } else {
        jobs->tail->next = job;
    }
    jobs->tail = job;
    jobs->count++;
}

struct kv_nvme_job *kv_nvme_jobs_pop(struct kv_nvme_jobs *jobs)
{
    struct kv_nvme_job *job = jobs->head;
    if (job == NULL) {
        return NULL;
    }
    jobs->head = job->next;
    if (jobs->head == NULL) {
        jobs->tail = NULL;
    }
    jobs->count--;
    job->next = NULL;
    return job;
}

void kv_nvme_blocks_push(struct kv_nvme *n, struct kv_nvme_blocks *list, uint32_t index)
{
    n->blocks[index].next = KV_NVME_NONE;
    if (list->count == 0) {
        list->head = index;
    } else {
        n->blocks[list->tail].next = index;
    }
    list->tail = index;
    list->count++;
}

uint32_t kv_nvme_blocks_pop(struct kv_nvme *n, struct kv_nvme_blocks *list)
{
    if (list->count == 0) {
        return KV_NVME_NONE;
    }
    uint32_t index = list->head;
    list->head = n->blocks[index].next;
    list->count--;
    return index;
}

static KV_RC take_record(struct kv_nvme *n, const struct kv_nvme_record *record)
{
    KV_TRY(kv_slabs_claim(n->slabs, record->offset - KV_NVME_DATA_OFFSET, record->bytes));
    uint32_t index = kv_nvme_blocks_pop(n, &n->free);
    KV_ASSERT(index != KV_NVME_NONE);
    struct kv_nvme_block *block = &n->blocks[index];
    block->key = record->key;
    block->offset = record->offset;
    block->pages = (uint32_t)(record->bytes / KV_NVME_PAGE_BYTES);
    block->promised = record->promised;
    block->state = KV_NVME_LIVE;
    n->blocks_in_use++;
    n->live++;
    return KV_OK;
}

KV_RC kv_nvme_table_new(struct kv_nvme *n, const struct kv_nvme_image *image)
{
    KV_ASSERT(image->count <= n->blocks_size && n->blocks_size < KV_NVME_NONE);
    KV_TRY(kv_slabs_new(kv_nvme_slab_count(&n->superblock), n->superblock.slab_bytes, &n->slabs));
    n->blocks = kv_alloc_array(n->blocks_size, sizeof(*n->blocks));
    n->jobs = kv_alloc_array(KV_NVME_JOBS, sizeof(*n->jobs));
    n->log_buf = kv_alloc_array(KV_NVME_GROUP_ENTRIES, KV_NVME_ENTRY_BYTES);
    n->ckpt_buf = kv_alloc(KV_NVME_CHUNK_BYTES);
    n->probe_page = kv_alloc_aligned(KV_NVME_PAGE_BYTES, KV_NVME_PAGE_BYTES);
    if (n->blocks == NULL || n->jobs == NULL || n->log_buf == NULL || n->ckpt_buf == NULL || n->probe_page == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n->blocks_size; i++) {
        n->blocks[i].tag = 1;
        kv_nvme_blocks_push(n, &n->free, i);
    }
    for (unsigned i = 0; i < KV_NVME_JOBS; i++) {
        n->jobs[i].tier = n;
        kv_nvme_jobs_push(&n->idle_jobs, &n->jobs[i]);
    }
    for (size_t i = 0; i < image->count; i++) {
        KV_TRY(take_record(n, &image->records[i]));
    }
    return KV_OK;
}

void kv_nvme_table_free(struct kv_nvme *n)
{
    kv_slabs_free(n->slabs);
    kv_free(n->blocks);
    kv_free(n->jobs);
    kv_free(n->log_buf);
    kv_free(n->ckpt_buf);
    kv_free(n->probe_page);
}

KV_RC kv_nvme_block_take(struct kv_nvme *n, const struct kv_tier_op *op, uint32_t *ret_index)
{
    uint64_t offset;
    if (op->bytes > n->superblock.slab_bytes) {
        return KV_E_LIMIT;
    }
    if (n->blocks_in_use >= n->blocks_max) {
        return KV_E_NO_SPACE;
    }
    KV_TRY(kv_slabs_take(n->slabs, op->bytes, &offset));
    uint32_t index = kv_nvme_blocks_pop(n, &n->free);
    KV_ASSERT(index != KV_NVME_NONE);
    struct kv_nvme_block *block = &n->blocks[index];
    KV_ASSERT(block->state == KV_NVME_FREE && block->reads == 0);
    block->key = op->key;
    block->offset = KV_NVME_DATA_OFFSET + offset;
    block->pages = (uint32_t)(op->bytes / KV_NVME_PAGE_BYTES);
    block->promised = op->promised;
    block->state = KV_NVME_PUTTING;
    n->blocks_in_use++;
    *ret_index = index;
    return KV_OK;
}

void kv_nvme_block_release(struct kv_nvme *n, uint32_t index)
{
    struct kv_nvme_block *block = &n->blocks[index];
    KV_ASSERT(block->state == KV_NVME_PUTTING || block->state == KV_NVME_LEAVING || block->state == KV_NVME_LIMBO);
    KV_ASSERT(block->reads == 0);
    uint64_t bytes = kv_slabs_give(n->slabs, block->offset - KV_NVME_DATA_OFFSET);
    KV_ASSERT(bytes == (uint64_t)block->pages * KV_NVME_PAGE_BYTES);
    block->state = KV_NVME_FREE;
    block->tag++;
    n->blocks_in_use--;
    kv_nvme_blocks_push(n, &n->free, index);
}

uint64_t kv_nvme_block_where(const struct kv_nvme *n, uint32_t index)
{
    return (uint64_t)index << 32 | n->blocks[index].tag;
}

uint32_t kv_nvme_block_find(const struct kv_nvme *n, const struct kv_tier_key *key, uint64_t where)
{
    uint64_t index = where >> 32;
    if (index >= n->blocks_size) {
        return KV_NVME_NONE;
    }
    const struct kv_nvme_block *block = &n->blocks[index];
    bool same = block->state == KV_NVME_LIVE && block->tag == (uint32_t)where &&
                kv_id_equal(&block->key.scope, &key->scope) &&
                memcmp(block->key.block_id.b, key->block_id.b, sizeof(key->block_id.b)) == 0;
    return same ? (uint32_t)index : KV_NVME_NONE;
}

void kv_nvme_block_entry(const struct kv_nvme *n, uint32_t index, enum kv_nvme_kind kind, uint8_t *target,
                         uint32_t seed)
{
    const struct kv_nvme_block *block = &n->blocks[index];
    struct kv_nvme_entry entry = {.kind = kind, .promised = block->promised, .key = block->key};
    kv_nvme_entry_place(&entry, &n->superblock, block->offset, (uint64_t)block->pages * KV_NVME_PAGE_BYTES);
    kv_nvme_entry_encode(&entry, seed, target);
}

void kv_nvme_job_end(struct kv_nvme *n, struct kv_nvme_job *job, enum kv_err rc)
{
    job->rc = rc;
    kv_nvme_jobs_push(&n->ended, job);
}

void kv_nvme_puts_fail(struct kv_nvme *n, struct kv_nvme_jobs *jobs, enum kv_err rc, bool limbo)
{
    struct kv_nvme_job *job;
    while ((job = kv_nvme_jobs_pop(jobs)) != NULL) {
        if (limbo) {
            n->blocks[job->block].state = KV_NVME_LIMBO;
            kv_nvme_blocks_push(n, &n->limbo, job->block);
        } else {
            kv_nvme_block_release(n, job->block);
        }
        kv_nvme_job_end(n, job, rc);
    }
}

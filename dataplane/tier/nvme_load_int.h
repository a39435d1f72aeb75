/*
 * Reads an nvme folder's index as it lies on disk: checkpoint, then the log's tail. Read-only; used at start and by
 * nvme_read.h. What it yields stands over complete data of that very block, because a record is written only after its
 * data is on stable storage and a slot is reused only after its DROP is.
 */
#ifndef KV_NVME_LOAD_INT_H
#define KV_NVME_LOAD_INT_H

#include "dataplane/tier/nvme_format.h"

#define KV_NVME_NAME_BYTES 40

/* One block that is there. */
struct kv_nvme_record {
    struct kv_tier_key key;
    uint64_t offset; /* in the arena file */
    uint64_t bytes;
    bool promised;
    bool live; /* private to the loader */
};

struct kv_nvme_image {
    struct kv_nvme_record *records; /* owned */
    size_t count;
    uint64_t generation;
    uint64_t log_entries; /* valid ones at the beginning of the log */
    bool torn;            /* something that is no valid entry follows them */
    uint64_t doubtful;    /* records left out because others contradict them */
};

void kv_nvme_log_name(uint64_t generation, char name[KV_NVME_NAME_BYTES]);
/* The first page of the arena. KV_E_MISSING: no such file. */
KV_RC kv_nvme_superblock_read(int folder_fd, struct kv_errinfo *info, struct kv_nvme_superblock *ret_superblock);
KV_RC kv_nvme_image_load(int folder_fd, const struct kv_nvme_superblock *superblock, struct kv_errinfo *info,
                         struct kv_nvme_image *ret_image);
void kv_nvme_image_done(struct kv_nvme_image *image);
/* Reads up to `size` bytes at `offset`; short only at the end of the file. */
KV_RC kv_nvme_read_at(int fd, void *target, size_t size, uint64_t offset, size_t *ret_len);

#endif

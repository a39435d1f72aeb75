/*
 * How an nvme tier's folder lies on disk. Encoding and decoding only, no I/O, so that fuzzers and the attack program
 * reuse it.
 *
 *   arena              page 0: superblock; page 1: scratch for a health probe; then slabs, each cut into equal slots
 *   index.ckpt         header, then exactly `count` PUT entries
 *   index.<gen>.log    header, then PUT and DROP entries as they happened since the checkpoint of the same generation
 *
 * Headers and entries are 64 bytes, big-endian. An entry says by itself where its slot is and how large (slab, slot
 * number, pages), so no other record is needed to read it. Its CRC-32C starts from the CRC of its file's header: an
 * entry of another file, generation or arena never verifies. A CRC finds accidents; malice is found by the seal of the
 * block, not here.
 */
#ifndef KV_NVME_FORMAT_H
#define KV_NVME_FORMAT_H

#include "dataplane/base/bytes.h"
#include "dataplane/tier/tier.h"

#define KV_NVME_VERSION 1
#define KV_NVME_PAGE_BYTES 4096
#define KV_NVME_ENTRY_BYTES 64
#define KV_NVME_PROBE_OFFSET 4096 /* of the scratch page */
#define KV_NVME_DATA_OFFSET 8192  /* of the first slab */

struct kv_nvme_superblock {
    uint8_t uuid[16];
    uint64_t arena_bytes; /* of the whole file */
    uint64_t slab_bytes;
};

enum kv_nvme_file { KV_NVME_CHECKPOINT = 1, KV_NVME_LOG = 2 };

struct kv_nvme_header {
    enum kv_nvme_file file;
    uint8_t uuid[16]; /* of the arena */
    uint64_t generation;
    uint64_t count; /* entries of a checkpoint; 0 in a log */
};

enum kv_nvme_kind { KV_NVME_PUT = 1, KV_NVME_DROP = 2 };

struct kv_nvme_entry {
    enum kv_nvme_kind kind;
    bool promised;
    uint16_t slab;
    uint32_t slot;
    uint32_t pages; /* slot size */
    struct kv_tier_key key;
};

void kv_nvme_superblock_encode(const struct kv_nvme_superblock *superblock, uint8_t page[KV_NVME_PAGE_BYTES]);
/* `bytes` may be shorter than a page. KV_E_FOREIGN_FILE: no magic; KV_E_UNSUPPORTED: another format version;
 * KV_E_CORRUPT. */
KV_RC kv_nvme_superblock_decode(struct kv_bytes bytes, struct kv_nvme_superblock *ret_superblock);
uint32_t kv_nvme_slab_count(const struct kv_nvme_superblock *superblock);

/* Returns the seed of the file's entries. */
uint32_t kv_nvme_header_encode(const struct kv_nvme_header *header, uint8_t bytes[KV_NVME_ENTRY_BYTES]);
/* Errors as for the superblock. */
KV_RC kv_nvme_header_decode(struct kv_bytes bytes, struct kv_nvme_header *ret_header, uint32_t *ret_seed);

void kv_nvme_entry_encode(const struct kv_nvme_entry *entry, uint32_t seed, uint8_t bytes[KV_NVME_ENTRY_BYTES]);
/* KV_E_CORRUPT: does not verify, or cannot be in an arena of this shape. */
KV_RC kv_nvme_entry_decode(struct kv_bytes bytes, uint32_t seed, const struct kv_nvme_superblock *superblock,
                           struct kv_nvme_entry *ret_entry);

/* Where the slot begins in the arena file, its size, and the way back. */
uint64_t kv_nvme_entry_offset(const struct kv_nvme_entry *entry, const struct kv_nvme_superblock *superblock);
uint64_t kv_nvme_entry_size(const struct kv_nvme_entry *entry);
void kv_nvme_entry_place(struct kv_nvme_entry *entry, const struct kv_nvme_superblock *superblock, uint64_t offset,
                         uint64_t bytes);

/* Whether the beginning of a file is one we wrote, or one whose first write never arrived (empty or zeroes). */
bool kv_nvme_may_be_ours(struct kv_bytes beginning);

#endif

/*
 * Checkpoint plus log tail, see nvme_load_int.h. It never writes and never keeps an entry that another one contradicts.
 *
 * The log ends at the first entry that does not verify. Entries beyond it belong to a group that was never
 * acknowledged, or to a log that rotted in the middle. So what lies there is used only to forget: a DROP counts, a PUT
 * makes whatever is believed to be in its slot doubtful. To forget costs a prefill; to believe could be another block's
 * bytes.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/tier/nvme_load_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_BYTES 65536 /* a multiple of the entry size */
#define NO_RECORD UINT32_MAX

struct slab_facts {
    uint32_t pages; /* class of what is in it */
    uint32_t live;
    bool doubtful;
};

struct builder {
    const struct kv_nvme_superblock *superblock;
    struct kv_nvme_record *records;
    uint32_t count, size;
    uint32_t *map; /* offset → record, open addressing; nothing is ever taken out */
    uint32_t map_size;
    struct slab_facts *slabs;
    bool salvage; /* past the log's valid part */
    uint64_t doubtful;
};

void kv_nvme_log_name(uint64_t generation, char name[KV_NVME_NAME_BYTES])
{
    snprintf(name, KV_NVME_NAME_BYTES, "index.%" PRIu64 ".log", generation);
}

KV_RC kv_nvme_read_at(int fd, void *target, size_t size, uint64_t offset, size_t *ret_len)
{
    size_t len = 0;
    unsigned interrupted = 0;
    while (len < size && interrupted < 1000) {
        ssize_t n = pread(fd, (uint8_t *)target + len, size - len, (off_t)(offset + len));
        if (n < 0 && errno == EINTR) {
            interrupted++;
            continue;
        }
        if (n < 0) {
            return KV_E_IO;
        }
        if (n == 0) {
            break;
        }
        len += (size_t)n;
    }
    *ret_len = len;
    return KV_OK;
}

KV_RC kv_nvme_superblock_read(int folder_fd, struct kv_errinfo *info, struct kv_nvme_superblock *ret_superblock)
{
    int fd = openat(folder_fd, "arena", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? KV_E_MISSING
                               : kv_fail(info, KV_E_IO, "the nvme arena cannot be opened (errno %d)", errno);
    }
    uint8_t page[512];
    size_t len;
    enum kv_err rc = kv_nvme_read_at(fd, page, sizeof(page), 0, &len);
    close(fd);
    if (rc == KV_OK) {
        rc = kv_nvme_superblock_decode(KV_BYTES(page, len), ret_superblock);
    }
    switch (rc) {
    case KV_OK:
        return KV_OK;
    case KV_E_FOREIGN_FILE:
        return kv_fail(info, rc,
                       "the nvme folder holds an arena that is not ours; it was left untouched, choose another folder");
    case KV_E_UNSUPPORTED:
        return kv_fail(
            info, rc,
            "the nvme arena has another format version; it was left untouched, use the version that wrote it");
    default:
        return kv_fail(info, rc,
                       "the nvme arena's superblock cannot be read or does not verify; it was left untouched");
    }
}

static uint32_t *map_place(const struct builder *b, uint64_t offset)
{
    uint64_t hash = (offset / KV_NVME_PAGE_BYTES) * UINT64_C(0x9e3779b97f4a7c15);
    uint32_t at = (uint32_t)(hash >> 32) & (b->map_size - 1);
    while (b->map[at] != NO_RECORD && b->records[b->map[at]].offset != offset) {
        at = (at + 1) & (b->map_size - 1); /* ends: the map is never more than half full */
    }
    return &b->map[at];
}

static KV_RC grow(struct builder *b)
{
    uint32_t size = b->size == 0 ? 1024 : b->size * 2;
    if (size > UINT32_MAX / 4) {
        return KV_E_LIMIT;
    }
    struct kv_nvme_record *records = kv_realloc_array(b->records, size, sizeof(*records));
    if (records == NULL) {
        return KV_E_NO_MEMORY;
    }
    b->records = records;
    uint32_t *map = kv_alloc_array((size_t)size * 2, sizeof(*map));
    if (map == NULL) {
        return KV_E_NO_MEMORY;
    }
    kv_free(b->map);
    b->map = map;
    b->map_size = size * 2;
    b->size = size;
    memset(map, 0xff, (size_t)b->map_size * sizeof(*map));
    for (uint32_t i = 0; i < b->count; i++) {
        *map_place(b, b->records[i].offset) = i;
    }
    return KV_OK;
}

static void forget(struct builder *b, struct slab_facts *slab, uint64_t offset)
{
    uint32_t index = *map_place(b, offset);
    if (index != NO_RECORD && b->records[index].live) {
        b->records[index].live = false;
        slab->live--;
    }
}

static KV_RC believe(struct builder *b, struct slab_facts *slab, const struct kv_nvme_entry *entry)
{
    if (b->count == b->size) {
        KV_TRY(grow(b));
    }
    uint64_t offset = kv_nvme_entry_offset(entry, b->superblock);
    uint32_t *place = map_place(b, offset);
    if (*place == NO_RECORD) {
        *place = b->count++;
    }
    b->records[*place] = (struct kv_nvme_record){.key = entry->key,
                                                 .offset = offset,
                                                 .bytes = kv_nvme_entry_size(entry),
                                                 .promised = entry->promised,
                                                 .live = true};
    slab->pages = entry->pages;
    slab->live++;
    return KV_OK;
}

static KV_RC apply(struct builder *b, const struct kv_nvme_entry *entry)
{
    struct slab_facts *slab = &b->slabs[entry->slab];
    if (slab->live > 0 && slab->pages != entry->pages) {
        slab->doubtful = true; /* slots of two sizes in one slab overlap */
        return KV_OK;
    }
    if (b->size > 0) {
        forget(b, slab, kv_nvme_entry_offset(entry, b->superblock));
    }
    return entry->kind == KV_NVME_PUT && !b->salvage ? believe(b, slab, entry) : KV_OK;
}

/* Reads a header and checks that it belongs to this arena. */
static KV_RC read_header(int fd, const struct builder *b, enum kv_nvme_file file, struct kv_nvme_header *ret_header,
                         uint32_t *ret_seed)
{
    uint8_t bytes[KV_NVME_ENTRY_BYTES];
    size_t len;
    KV_TRY(kv_nvme_read_at(fd, bytes, sizeof(bytes), 0, &len));
    KV_TRY(kv_nvme_header_decode(KV_BYTES(bytes, len), ret_header, ret_seed));
    bool same = memcmp(ret_header->uuid, b->superblock->uuid, sizeof(ret_header->uuid)) == 0;
    return same && ret_header->file == file ? KV_OK : KV_E_CORRUPT;
}

static KV_RC read_checkpoint(int fd, struct builder *b, struct kv_nvme_image *image, uint8_t *chunk)
{
    struct kv_nvme_header header;
    uint32_t seed;
    KV_TRY(read_header(fd, b, KV_NVME_CHECKPOINT, &header, &seed));
    image->generation = header.generation;
    uint64_t left = header.count, at = KV_NVME_ENTRY_BYTES;
    while (left > 0) {
        size_t len, want = left < CHUNK_BYTES / KV_NVME_ENTRY_BYTES ? (size_t)left * KV_NVME_ENTRY_BYTES : CHUNK_BYTES;
        KV_TRY(kv_nvme_read_at(fd, chunk, want, at, &len));
        if (len < want) {
            return KV_E_CORRUPT;
        }
        for (size_t i = 0; i < len; i += KV_NVME_ENTRY_BYTES) {
            struct kv_nvme_entry entry;
            KV_TRY(kv_nvme_entry_decode(KV_BYTES(chunk + i, KV_NVME_ENTRY_BYTES), seed, b->superblock, &entry));
            if (entry.kind != KV_NVME_PUT) {
                return KV_E_CORRUPT;
            }
            KV_TRY(apply(b, &entry));
        }
        left -= len / KV_NVME_ENTRY_BYTES;
        at += len;
    }
    return KV_OK;
}

static KV_RC take_log_chunk(struct builder *b, uint32_t seed, struct kv_bytes chunk, struct kv_nvme_image *image)
{
    for (size_t i = 0; i < chunk.len; i += KV_NVME_ENTRY_BYTES) {
        size_t len = chunk.len - i < KV_NVME_ENTRY_BYTES ? chunk.len - i : KV_NVME_ENTRY_BYTES;
        struct kv_nvme_entry entry;
        if (kv_nvme_entry_decode(KV_BYTES(chunk.data + i, len), seed, b->superblock, &entry) != KV_OK) {
            image->torn = true;
            b->salvage = true;
            continue;
        }
        image->log_entries += b->salvage ? 0 : 1;
        KV_TRY(apply(b, &entry));
    }
    return KV_OK;
}

static KV_RC read_log(int fd, struct builder *b, struct kv_nvme_image *image, uint8_t *chunk)
{
    struct kv_nvme_header header;
    uint32_t seed;
    KV_TRY(read_header(fd, b, KV_NVME_LOG, &header, &seed));
    if (header.generation != image->generation) {
        return KV_E_CORRUPT;
    }
    size_t len = CHUNK_BYTES;
    for (uint64_t at = KV_NVME_ENTRY_BYTES; len == CHUNK_BYTES; at += len) {
        KV_TRY(kv_nvme_read_at(fd, chunk, CHUNK_BYTES, at, &len));
        KV_TRY(take_log_chunk(b, seed, KV_BYTES(chunk, len), image));
    }
    return KV_OK;
}

static bool record_stands(const struct builder *b, const struct kv_nvme_record *record)
{
    uint64_t slab = (record->offset - KV_NVME_DATA_OFFSET) / b->superblock->slab_bytes;
    return !b->slabs[slab].doubtful;
}

/* Leaves the records that are there and hands them to the image. */
static void settle(struct builder *b, struct kv_nvme_image *image)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->records[i].live && record_stands(b, &b->records[i])) {
            b->records[kept++] = b->records[i];
        } else if (b->records[i].live) {
            image->doubtful++;
        }
    }
    image->records = b->records;
    image->count = kept;
    b->records = NULL;
}

static int open_index(int folder_fd, const char *name)
{
    return openat(folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
}

static KV_RC load_files(int folder_fd, struct builder *b, struct kv_nvme_image *image, uint8_t *chunk)
{
    int fd = open_index(folder_fd, "index.ckpt");
    if (fd < 0) {
        return errno == ENOENT ? KV_E_MISSING : KV_E_IO;
    }
    enum kv_err rc = read_checkpoint(fd, b, image, chunk);
    close(fd);
    KV_TRY(rc);
    char name[KV_NVME_NAME_BYTES];
    kv_nvme_log_name(image->generation, name);
    fd = open_index(folder_fd, name);
    if (fd < 0) {
        return errno == ENOENT ? KV_E_MISSING : KV_E_IO;
    }
    rc = read_log(fd, b, image, chunk);
    close(fd);
    return rc;
}

static KV_RC explain(struct kv_errinfo *info, enum kv_err rc)
{
    switch (rc) {
    case KV_E_MISSING:
        return kv_fail(
            info, KV_E_CORRUPT,
            "the nvme index has lost its checkpoint or log; put it back, or move the folder away to start empty");
    case KV_E_FOREIGN_FILE:
        return kv_fail(info, rc, "an index file of the nvme folder is not ours; it was left untouched");
    case KV_E_UNSUPPORTED:
        return kv_fail(info, rc, "the nvme index has another format version; it was left untouched");
    case KV_E_CORRUPT:
        return kv_fail(info, rc, "the nvme index does not verify; move the folder away to start empty");
    default:
        return kv_fail(info, rc, "the nvme index cannot be read");
    }
}

KV_RC kv_nvme_image_load(int folder_fd, const struct kv_nvme_superblock *superblock, struct kv_errinfo *info,
                         struct kv_nvme_image *ret_image)
{
    struct builder b = {.superblock = superblock};
    struct kv_nvme_image image = {0};
    uint8_t *chunk = kv_alloc(CHUNK_BYTES);
    b.slabs = kv_alloc_array(kv_nvme_slab_count(superblock), sizeof(*b.slabs));
    enum kv_err rc = chunk == NULL || b.slabs == NULL ? KV_E_NO_MEMORY : load_files(folder_fd, &b, &image, chunk);
    if (rc == KV_OK) {
        settle(&b, &image);
        *ret_image = image;
    }
    kv_free(chunk);
    kv_free(b.slabs);
    kv_free(b.map);
    kv_free(b.records);
    return rc == KV_OK ? KV_OK : explain(info, rc);
}

void kv_nvme_image_done(struct kv_nvme_image *image)
{
    kv_free(image->records);
    *image = (struct kv_nvme_image){0};
}

/*
 * Encoding and decoding of an nvme tier's files; see nvme_format.h. It never trusts a field it has not checked.
 */
#include "dataplane/tier/nvme_format.h"
#include "dataplane/base/check.h"

#include <string.h>

static const uint8_t arena_magic[8] = {'K', 'V', 'R', 'a', 'r', 'e', 'n', 'a'};
static const uint8_t index_magic[8] = {'K', 'V', 'R', 'i', 'n', 'd', 'e', 'x'};

#define SUPERBLOCK_BYTES 60 /* all of it in the first sector, so that rewriting it is one sector's write */
#define FLAG_PROMISED 1

static bool starts_with(struct kv_bytes bytes, const uint8_t magic[8])
{
    return bytes.len >= 8 && memcmp(bytes.data, magic, 8) == 0;
}

void kv_nvme_superblock_encode(const struct kv_nvme_superblock *superblock, uint8_t page[KV_NVME_PAGE_BYTES])
{
    memset(page, 0, KV_NVME_PAGE_BYTES);
    struct kv_writer w = kv_writer_of(page, SUPERBLOCK_BYTES);
    kv_write_raw(&w, arena_magic, sizeof(arena_magic));
    kv_write_u32(&w, KV_NVME_VERSION);
    kv_write_u32(&w, KV_NVME_PAGE_BYTES);
    kv_write_raw(&w, superblock->uuid, sizeof(superblock->uuid));
    kv_write_u64(&w, superblock->arena_bytes);
    kv_write_u64(&w, superblock->slab_bytes);
    kv_write_u64(&w, KV_NVME_DATA_OFFSET);
    kv_write_u32(&w, kv_crc32c(0, page, kv_writer_len(&w)));
    KV_ASSERT(!w.failed && kv_writer_len(&w) == SUPERBLOCK_BYTES);
}

static bool shape_is_sound(const struct kv_nvme_superblock *s)
{
    return s->slab_bytes >= KV_NVME_PAGE_BYTES && s->slab_bytes % KV_NVME_PAGE_BYTES == 0 &&
           s->arena_bytes <= (uint64_t)INT64_MAX && s->arena_bytes > KV_NVME_DATA_OFFSET &&
           s->slab_bytes / KV_NVME_PAGE_BYTES <= UINT32_MAX / 2 &&
           (s->arena_bytes - KV_NVME_DATA_OFFSET) / s->slab_bytes >= 1 &&
           (s->arena_bytes - KV_NVME_DATA_OFFSET) / s->slab_bytes <= UINT16_MAX;
}

KV_RC kv_nvme_superblock_decode(struct kv_bytes bytes, struct kv_nvme_superblock *ret_superblock)
{
    if (!starts_with(bytes, arena_magic)) {
        return KV_E_FOREIGN_FILE;
    }
    struct kv_reader r = kv_reader_of(bytes);
    struct kv_nvme_superblock s = {0};
    kv_read_borrow(&r, sizeof(arena_magic));
    uint32_t version = kv_read_u32(&r);
    if (!r.failed && version != KV_NVME_VERSION) {
        return KV_E_UNSUPPORTED;
    }
    uint32_t page_bytes = kv_read_u32(&r);
    kv_read_raw(&r, s.uuid, sizeof(s.uuid));
    s.arena_bytes = kv_read_u64(&r);
    s.slab_bytes = kv_read_u64(&r);
    uint64_t data_offset = kv_read_u64(&r);
    uint32_t crc = kv_read_u32(&r);
    if (r.failed || crc != kv_crc32c(0, bytes.data, SUPERBLOCK_BYTES - 4) || page_bytes != KV_NVME_PAGE_BYTES ||
        data_offset != KV_NVME_DATA_OFFSET || !shape_is_sound(&s)) {
        return KV_E_CORRUPT;
    }
    *ret_superblock = s;
    return KV_OK;
}

uint32_t kv_nvme_slab_count(const struct kv_nvme_superblock *superblock)
{
    return (uint32_t)((superblock->arena_bytes - KV_NVME_DATA_OFFSET) / superblock->slab_bytes);
}

uint32_t kv_nvme_header_encode(const struct kv_nvme_header *header, uint8_t bytes[KV_NVME_ENTRY_BYTES])
{
    memset(bytes, 0, KV_NVME_ENTRY_BYTES);
    struct kv_writer w = kv_writer_of(bytes, KV_NVME_ENTRY_BYTES);
    kv_write_raw(&w, index_magic, sizeof(index_magic));
    kv_write_u32(&w, KV_NVME_VERSION);
    kv_write_u32(&w, (uint32_t)header->file);
    kv_write_raw(&w, header->uuid, sizeof(header->uuid));
    kv_write_u64(&w, header->generation);
    kv_write_u64(&w, header->count);
    kv_write_u64(&w, 0);
    kv_write_u32(&w, 0);
    kv_write_u32(&w, kv_crc32c(0, bytes, KV_NVME_ENTRY_BYTES - 4));
    KV_ASSERT(!w.failed && kv_writer_len(&w) == KV_NVME_ENTRY_BYTES);
    return kv_crc32c(0, bytes, KV_NVME_ENTRY_BYTES);
}

KV_RC kv_nvme_header_decode(struct kv_bytes bytes, struct kv_nvme_header *ret_header, uint32_t *ret_seed)
{
    if (!starts_with(bytes, index_magic)) {
        return KV_E_FOREIGN_FILE;
    }
    struct kv_reader r = kv_reader_of(bytes);
    struct kv_nvme_header h = {0};
    kv_read_borrow(&r, sizeof(index_magic));
    uint32_t version = kv_read_u32(&r);
    if (!r.failed && version != KV_NVME_VERSION) {
        return KV_E_UNSUPPORTED;
    }
    uint32_t file = kv_read_u32(&r);
    kv_read_raw(&r, h.uuid, sizeof(h.uuid));
    h.generation = kv_read_u64(&r);
    h.count = kv_read_u64(&r);
    kv_read_borrow(&r, 12);
    uint32_t crc = kv_read_u32(&r);
    if (r.failed || crc != kv_crc32c(0, bytes.data, KV_NVME_ENTRY_BYTES - 4) ||
        (file != KV_NVME_CHECKPOINT && file != KV_NVME_LOG)) {
        return KV_E_CORRUPT;
    }
    h.file = (enum kv_nvme_file)file;
    *ret_header = h;
    *ret_seed = kv_crc32c(0, bytes.data, KV_NVME_ENTRY_BYTES);
    return KV_OK;
}

void kv_nvme_entry_encode(const struct kv_nvme_entry *entry, uint32_t seed, uint8_t bytes[KV_NVME_ENTRY_BYTES])
{
    struct kv_writer w = kv_writer_of(bytes, KV_NVME_ENTRY_BYTES);
    kv_write_u8(&w, (uint8_t)entry->kind);
    kv_write_u8(&w, entry->promised ? FLAG_PROMISED : 0);
    kv_write_u16(&w, entry->slab);
    kv_write_u32(&w, entry->slot);
    kv_write_u32(&w, entry->pages);
    kv_write_raw(&w, entry->key.scope.b, sizeof(entry->key.scope.b));
    kv_write_raw(&w, entry->key.block_id.b, sizeof(entry->key.block_id.b));
    kv_write_u32(&w, kv_crc32c(seed, bytes, KV_NVME_ENTRY_BYTES - 4));
    KV_ASSERT(!w.failed && kv_writer_len(&w) == KV_NVME_ENTRY_BYTES);
}

static bool fits_arena(const struct kv_nvme_entry *entry, const struct kv_nvme_superblock *superblock)
{
    uint64_t slab_pages = superblock->slab_bytes / KV_NVME_PAGE_BYTES;
    return entry->slab < kv_nvme_slab_count(superblock) && entry->pages > 0 && entry->pages <= slab_pages &&
           entry->slot < slab_pages / entry->pages;
}

KV_RC kv_nvme_entry_decode(struct kv_bytes bytes, uint32_t seed, const struct kv_nvme_superblock *superblock,
                           struct kv_nvme_entry *ret_entry)
{
    struct kv_reader r = kv_reader_of(bytes);
    struct kv_nvme_entry e = {0};
    uint8_t kind = kv_read_u8(&r);
    uint8_t flags = kv_read_u8(&r);
    e.slab = kv_read_u16(&r);
    e.slot = kv_read_u32(&r);
    e.pages = kv_read_u32(&r);
    kv_read_raw(&r, e.key.scope.b, sizeof(e.key.scope.b));
    kv_read_raw(&r, e.key.block_id.b, sizeof(e.key.block_id.b));
    uint32_t crc = kv_read_u32(&r);
    if (r.failed || crc != kv_crc32c(seed, bytes.data, KV_NVME_ENTRY_BYTES - 4)) {
        return KV_E_CORRUPT;
    }
    if ((kind != KV_NVME_PUT && kind != KV_NVME_DROP) || (flags & ~FLAG_PROMISED) != 0 || !fits_arena(&e, superblock)) {
        return KV_E_CORRUPT;
    }
    e.kind = (enum kv_nvme_kind)kind;
    e.promised = (flags & FLAG_PROMISED) != 0;
    *ret_entry = e;
    return KV_OK;
}

uint64_t kv_nvme_entry_size(const struct kv_nvme_entry *entry)
{
    return (uint64_t)entry->pages * KV_NVME_PAGE_BYTES;
}

uint64_t kv_nvme_entry_offset(const struct kv_nvme_entry *entry, const struct kv_nvme_superblock *superblock)
{
    return KV_NVME_DATA_OFFSET + entry->slab * superblock->slab_bytes + entry->slot * kv_nvme_entry_size(entry);
}

void kv_nvme_entry_place(struct kv_nvme_entry *entry, const struct kv_nvme_superblock *superblock, uint64_t offset,
                         uint64_t bytes)
{
    uint64_t inside = offset - KV_NVME_DATA_OFFSET;
    entry->slab = (uint16_t)(inside / superblock->slab_bytes);
    entry->slot = (uint32_t)(inside % superblock->slab_bytes / bytes);
    entry->pages = (uint32_t)(bytes / KV_NVME_PAGE_BYTES);
    KV_ASSERT(kv_nvme_entry_offset(entry, superblock) == offset && kv_nvme_entry_size(entry) == bytes);
}

bool kv_nvme_may_be_ours(struct kv_bytes beginning)
{
    if (starts_with(beginning, arena_magic) || starts_with(beginning, index_magic)) {
        return true;
    }
    for (size_t i = 0; i < beginning.len; i++) {
        if (beginning.data[i] != 0) {
            return false;
        }
    }
    return true;
}

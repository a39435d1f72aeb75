/*
 * Pages of the file provider as bytes. See roe_file_format.h for the layout.
 */
#include "dataplane/keys/roe_file_format.h"

#include <linux/magic.h>
#include <string.h>

#define FORMAT_VERSION 1u
#define SLOT_CRC_OFFSET 60u
#define HEADER_FIELDS_BYTES 20u

static const char header_magic[8] = {'K', 'V', 'R', 'U', 'N', 'R', 'O', 'E'};
static const char slot_magic[4] = {'K', 'V', 'R', 'S'};

uint64_t kv_roe_slot_offset(unsigned slot)
{
    return KV_ROE_HEADER_BYTES + (uint64_t)slot * KV_ROE_SLOT_BYTES;
}

void kv_roe_header_build(uint8_t page[KV_ROE_HEADER_BYTES])
{
    memset(page, 0, KV_ROE_HEADER_BYTES);
    struct kv_writer w = kv_writer_of(page, KV_ROE_HEADER_BYTES);
    kv_write_raw(&w, header_magic, sizeof(header_magic));
    kv_write_u32(&w, FORMAT_VERSION);
    kv_write_u32(&w, KV_ROE_SLOTS);
    kv_write_u32(&w, KV_ROE_SLOT_BYTES);
    kv_write_u32(&w, kv_crc32c(0, page, HEADER_FIELDS_BYTES));
}

bool kv_roe_header_is_ours(const uint8_t page[KV_ROE_HEADER_BYTES])
{
    uint8_t magic[8];
    struct kv_reader r = kv_reader_of(KV_BYTES(page, KV_ROE_HEADER_BYTES));
    kv_read_raw(&r, magic, sizeof(magic));
    uint32_t version = kv_read_u32(&r);
    uint32_t slots = kv_read_u32(&r);
    uint32_t slot_bytes = kv_read_u32(&r);
    uint32_t crc = kv_read_u32(&r);
    return memcmp(magic, header_magic, sizeof(magic)) == 0 && version == FORMAT_VERSION && slots == KV_ROE_SLOTS &&
           slot_bytes == KV_ROE_SLOT_BYTES && crc == kv_crc32c(0, page, HEADER_FIELDS_BYTES);
}

void kv_roe_slot_build(uint8_t page[KV_ROE_SLOT_BYTES], const struct kv_roe_slot *slot, const struct kv_secret *key)
{
    if (key != NULL) {
        memset(page, 0, KV_ROE_SLOT_BYTES);
        memcpy(page + KV_ROE_SLOT_KEY_OFFSET, kv_secret_data(key), 32);
    }
    struct kv_writer w = kv_writer_of(page, KV_ROE_SLOT_KEY_OFFSET);
    kv_write_raw(&w, slot_magic, sizeof(slot_magic));
    kv_write_u32(&w, FORMAT_VERSION);
    kv_write_u32(&w, (uint32_t)slot->state);
    kv_write_raw(&w, slot->id.b, sizeof(slot->id.b));
    struct kv_writer crc = kv_writer_of(page + SLOT_CRC_OFFSET, 4);
    kv_write_u32(&crc, kv_crc32c(0, page, SLOT_CRC_OFFSET));
}

static bool page_is_zero(const uint8_t *page)
{
    return page[0] == 0 && memcmp(page, page + 1, KV_ROE_SLOT_BYTES - 1) == 0;
}

void kv_roe_slot_parse(const uint8_t page[KV_ROE_SLOT_BYTES], struct kv_roe_slot *ret_slot)
{
    if (page_is_zero(page)) {
        *ret_slot = (struct kv_roe_slot){.state = KV_ROE_SLOT_EMPTY};
        return;
    }
    uint8_t magic[4];
    struct kv_roe_slot slot = {.state = KV_ROE_SLOT_TORN};
    struct kv_reader r = kv_reader_of(KV_BYTES(page, KV_ROE_SLOT_BYTES));
    kv_read_raw(&r, magic, sizeof(magic));
    uint32_t version = kv_read_u32(&r);
    uint32_t state = kv_read_u32(&r);
    kv_read_raw(&r, slot.id.b, sizeof(slot.id.b));
    struct kv_reader crc = kv_reader_of(KV_BYTES(page + SLOT_CRC_OFFSET, 4));
    bool whole = memcmp(magic, slot_magic, sizeof(magic)) == 0 && version == FORMAT_VERSION &&
                 (state == KV_ROE_SLOT_STAGED || state == KV_ROE_SLOT_ACTIVE) && !kv_id_is_zero(&slot.id) &&
                 kv_read_u32(&crc) == kv_crc32c(0, page, SLOT_CRC_OFFSET);
    if (whole) {
        slot.state = (enum kv_roe_slot_state)state;
    }
    *ret_slot = slot;
}

KV_RC kv_roe_slot_key(const uint8_t page[KV_ROE_SLOT_BYTES], struct kv_secret **ret_key)
{
    return kv_secret_copy(page + KV_ROE_SLOT_KEY_OFFSET, 32, ret_key);
}

const char *kv_roe_refused_file_system(uint64_t magic)
{
    static const struct {
        uint64_t magic;
        const char *name;
    } refused[] = {
        {BTRFS_SUPER_MAGIC, "btrfs"}, {0x2fc12fc1, "zfs"},  {0xca451a4e, "bcachefs"},
        {NILFS_SUPER_MAGIC, "nilfs"}, {0xf2f52010, "f2fs"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if ((magic & 0xffffffffu) == refused[i].magic) {
            return refused[i].name;
        }
    }
    return NULL;
}

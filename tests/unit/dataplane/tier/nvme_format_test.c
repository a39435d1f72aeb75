/*
 * What lies on an nvme tier's disk: round trips, and nothing that was damaged or made up is taken for true.
 */
#include "dataplane/tier/nvme_format.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static const struct kv_nvme_superblock shape = {
    .uuid = {1, 2, 3}, .arena_bytes = KV_NVME_DATA_OFFSET + 10 * MIB, .slab_bytes = MIB};

static struct kv_nvme_entry entry_of(uint16_t slab, uint32_t slot, uint32_t pages)
{
    struct kv_nvme_entry entry = {.kind = KV_NVME_PUT, .promised = true, .slab = slab, .slot = slot, .pages = pages};
    memset(&entry.key, 0xab, sizeof(entry.key));
    return entry;
}

static enum kv_err decode(const uint8_t *bytes, uint32_t seed, struct kv_nvme_entry *ret_entry)
{
    return kv_nvme_entry_decode(KV_BYTES(bytes, KV_NVME_ENTRY_BYTES), seed, &shape, ret_entry);
}

Test(nvme_format, superblock_round_trip_and_its_first_sector_is_enough)
{
    static uint8_t page[KV_NVME_PAGE_BYTES];
    struct kv_nvme_superblock back;
    kv_nvme_superblock_encode(&shape, page);
    cr_assert(eq(int, kv_nvme_superblock_decode(KV_BYTES(page, 512), &back), KV_OK));
    cr_assert(eq(int, memcmp(back.uuid, shape.uuid, 16), 0));
    cr_assert(eq(u64, back.arena_bytes, shape.arena_bytes));
    cr_assert(eq(u64, back.slab_bytes, shape.slab_bytes));
    cr_assert(eq(uint, kv_nvme_slab_count(&back), 10));
    for (size_t i = 60; i < sizeof(page); i++) {
        cr_assert(eq(u8, page[i], 0));
    }
}

Test(nvme_format, superblock_with_any_flipped_bit_or_cut_is_refused)
{
    static uint8_t page[KV_NVME_PAGE_BYTES];
    struct kv_nvme_superblock back;
    kv_nvme_superblock_encode(&shape, page);
    for (size_t bit = 0; bit < 60 * 8; bit++) {
        page[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        enum kv_err rc = kv_nvme_superblock_decode(KV_BYTES(page, sizeof(page)), &back);
        enum kv_err expected = bit < 64 ? KV_E_FOREIGN_FILE : bit < 96 ? KV_E_UNSUPPORTED : KV_E_CORRUPT;
        cr_assert(eq(int, rc, expected));
        page[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    for (size_t len = 0; len < 60; len++) {
        enum kv_err rc = kv_nvme_superblock_decode(KV_BYTES(page, len), &back);
        cr_assert(ne(int, rc, KV_OK));
    }
}

Test(nvme_format, shapes_that_make_no_arena_are_refused)
{
    static uint8_t page[KV_NVME_PAGE_BYTES];
    struct kv_nvme_superblock back;
    const struct kv_nvme_superblock bad[] = {
        {.arena_bytes = KV_NVME_DATA_OFFSET, .slab_bytes = 4096},
        {.arena_bytes = KV_NVME_DATA_OFFSET + 4095, .slab_bytes = 4096},
        {.arena_bytes = KV_NVME_DATA_OFFSET + MIB, .slab_bytes = 0},
        {.arena_bytes = KV_NVME_DATA_OFFSET + MIB, .slab_bytes = 4097},
        {.arena_bytes = KV_NVME_DATA_OFFSET + UINT64_C(65536) * 4096, .slab_bytes = 4096},
        {.arena_bytes = UINT64_MAX, .slab_bytes = MIB},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        kv_nvme_superblock_encode(&bad[i], page);
        cr_assert(eq(int, kv_nvme_superblock_decode(KV_BYTES(page, sizeof(page)), &back), KV_E_CORRUPT));
    }
    struct kv_nvme_superblock most = {.arena_bytes = KV_NVME_DATA_OFFSET + UINT64_C(65535) * 4096, .slab_bytes = 4096};
    kv_nvme_superblock_encode(&most, page);
    cr_assert(eq(int, kv_nvme_superblock_decode(KV_BYTES(page, sizeof(page)), &back), KV_OK));
}

Test(nvme_format, header_round_trip_and_seeds_differ_by_generation)
{
    uint8_t bytes[KV_NVME_ENTRY_BYTES];
    struct kv_nvme_header header = {.file = KV_NVME_LOG, .uuid = {9}, .generation = 7}, back;
    uint32_t seed, other;
    uint32_t written = kv_nvme_header_encode(&header, bytes);
    cr_assert(eq(int, kv_nvme_header_decode(KV_BYTES(bytes, sizeof(bytes)), &back, &seed), KV_OK));
    cr_assert(eq(uint, seed, written));
    cr_assert(eq(u64, back.generation, 7));
    cr_assert(eq(int, back.file, KV_NVME_LOG));
    cr_assert(eq(int, kv_nvme_header_decode(KV_BYTES(bytes, sizeof(bytes) - 1), &back, &other), KV_E_CORRUPT));
    header.generation = 8;
    cr_assert(ne(uint, kv_nvme_header_encode(&header, bytes), seed));
    bytes[30] ^= 1;
    cr_assert(eq(int, kv_nvme_header_decode(KV_BYTES(bytes, sizeof(bytes)), &back, &other), KV_E_CORRUPT));
}

Test(nvme_format, entry_round_trip_under_its_own_seed_only)
{
    uint8_t bytes[KV_NVME_ENTRY_BYTES];
    struct kv_nvme_entry entry = entry_of(3, 7, 17), back;
    kv_nvme_entry_encode(&entry, 5, bytes);
    cr_assert(eq(int, decode(bytes, 5, &back), KV_OK));
    cr_assert(eq(int, memcmp(&back.key, &entry.key, sizeof(entry.key)), 0));
    cr_assert(eq(int, back.promised, true));
    cr_assert(eq(u64, kv_nvme_entry_offset(&back, &shape), KV_NVME_DATA_OFFSET + 3 * MIB + 7 * 17 * 4096));
    cr_assert(eq(u64, kv_nvme_entry_size(&back), 17 * 4096));
    cr_assert(eq(int, decode(bytes, 6, &back), KV_E_CORRUPT));
    for (size_t bit = 0; bit < KV_NVME_ENTRY_BYTES * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        cr_assert(eq(int, decode(bytes, 5, &back), KV_E_CORRUPT));
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
}

/* A checksum can be made by anybody; the place is checked all the same. */
Test(nvme_format, entry_outside_the_arena_is_refused_although_it_verifies)
{
    uint8_t bytes[KV_NVME_ENTRY_BYTES];
    struct kv_nvme_entry back;
    const struct kv_nvme_entry good[] = {entry_of(9, 255, 1), entry_of(0, 0, 256), entry_of(0, 1, 128)};
    const struct kv_nvme_entry bad[] = {entry_of(10, 0, 1),  entry_of(9, 256, 1), entry_of(0, 1, 256),
                                        entry_of(0, 0, 257), entry_of(0, 0, 0),   entry_of(0, UINT32_MAX, 1)};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        kv_nvme_entry_encode(&good[i], 1, bytes);
        cr_assert(eq(int, decode(bytes, 1, &back), KV_OK));
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        kv_nvme_entry_encode(&bad[i], 1, bytes);
        cr_assert(eq(int, decode(bytes, 1, &back), KV_E_CORRUPT));
    }
    struct kv_nvme_entry strange = entry_of(0, 0, 1);
    strange.kind = (enum kv_nvme_kind)3;
    kv_nvme_entry_encode(&strange, 1, bytes);
    cr_assert(eq(int, decode(bytes, 1, &back), KV_E_CORRUPT));
}

Test(nvme_format, place_is_the_inverse_of_offset)
{
    struct kv_nvme_entry entry = entry_of(0, 0, 0);
    kv_nvme_entry_place(&entry, &shape, KV_NVME_DATA_OFFSET + 4 * MIB + 5 * 3 * 4096, 3 * 4096);
    cr_assert(eq(u16, entry.slab, 4));
    cr_assert(eq(uint, entry.slot, 5));
    cr_assert(eq(uint, entry.pages, 3));
}

Test(nvme_format, ours_is_told_from_foreign_by_the_beginning)
{
    static uint8_t page[KV_NVME_PAGE_BYTES];
    cr_assert(kv_nvme_may_be_ours(KV_BYTES(page, 0)));
    cr_assert(kv_nvme_may_be_ours(KV_BYTES(page, 64)));
    page[63] = 1;
    cr_assert(not(kv_nvme_may_be_ours(KV_BYTES(page, 64))));
    kv_nvme_superblock_encode(&shape, page);
    cr_assert(kv_nvme_may_be_ours(KV_BYTES(page, 64)));
    page[0] ^= 1;
    cr_assert(not(kv_nvme_may_be_ours(KV_BYTES(page, 64))));
}

/* The bounded reader and writer. */
#include "dataplane/base/bytes.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

static const uint8_t counting[27] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,
                                     15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27};

Test(bytes, integers_are_read_in_their_order)
{
    struct kv_reader r = kv_reader_of(KV_BYTES(counting, sizeof(counting)));
    cr_assert(eq(u8, kv_read_u8(&r), 0x01));
    cr_assert(eq(u16, kv_read_u16(&r), 0x0203));
    cr_assert(eq(u32, kv_read_u32(&r), 0x04050607));
    cr_assert(eq(u64, kv_read_u64(&r), UINT64_C(0x08090a0b0c0d0e0f)));
    cr_assert(eq(u32, kv_read_u32_le(&r), 0x13121110));
    cr_assert(eq(u64, kv_read_u64_le(&r), UINT64_C(0x1b1a191817161514)));
    cr_assert(kv_reader_done(&r));
}

Test(bytes, written_integers_read_back)
{
    uint8_t room[27];
    struct kv_writer w = kv_writer_of(room, sizeof(room));
    kv_write_u8(&w, 0x01);
    kv_write_u16(&w, 0x0203);
    kv_write_u32(&w, 0x04050607);
    kv_write_u64(&w, UINT64_C(0x08090a0b0c0d0e0f));
    kv_write_u32_le(&w, 0x13121110);
    kv_write_u64_le(&w, UINT64_C(0x1b1a191817161514));
    cr_assert(not(w.failed));
    cr_assert(eq(sz, kv_writer_len(&w), 27));
    cr_assert(eq(int, memcmp(room, counting, 27), 0));
}

Test(bytes, reading_past_the_end_yields_zero_and_stays_failed)
{
    struct kv_reader r = kv_reader_of(KV_BYTES(counting, 3));
    cr_assert(eq(u32, kv_read_u32(&r), 0));
    cr_assert(r.failed);
    cr_assert(eq(u8, kv_read_u8(&r), 0)); /* although a byte is there */
    cr_assert(not(kv_reader_done(&r)));
}

Test(bytes, reading_to_the_very_end_is_fine_and_one_more_is_not)
{
    struct kv_reader r = kv_reader_of(KV_BYTES(counting, 4));
    cr_assert(not(kv_reader_done(&r)));
    cr_assert(eq(u32, kv_read_u32(&r), 0x01020304));
    cr_assert(kv_reader_done(&r));
    cr_assert(eq(u8, kv_read_u8(&r), 0));
    cr_assert(not(kv_reader_done(&r)));
}

Test(bytes, raw_read_past_the_end_zeroes_its_target)
{
    uint8_t target[4] = {9, 9, 9, 9};
    struct kv_reader r = kv_reader_of(KV_BYTES(counting, 3));
    kv_read_raw(&r, target, sizeof(target));
    static const uint8_t zero[4];
    cr_assert(eq(int, memcmp(target, zero, 4), 0));
    cr_assert(r.failed);
    r = kv_reader_of(KV_BYTES(counting, 4));
    kv_read_raw(&r, target, sizeof(target));
    cr_assert(eq(int, memcmp(target, counting, 4), 0));
}

Test(bytes, borrow_is_bounded)
{
    struct kv_reader r = kv_reader_of(KV_BYTES(counting, 10));
    cr_assert(eq(ptr, (void *)(uintptr_t)kv_read_borrow(&r, 10), (void *)(uintptr_t)counting));
    r = kv_reader_of(KV_BYTES(counting, 10));
    cr_assert(kv_read_borrow(&r, 11) == NULL);
    r = kv_reader_of(KV_BYTES(counting, 10));
    cr_assert(kv_read_borrow(&r, SIZE_MAX) == NULL);
}

Test(bytes, empty_input_is_done_at_once)
{
    struct kv_reader r = kv_reader_of(KV_BYTES(NULL, 0));
    cr_assert(kv_reader_done(&r));
    cr_assert(eq(u64, kv_read_u64(&r), 0));
    cr_assert(r.failed);
}

Test(bytes, writer_fills_its_room_and_stops_one_past)
{
    uint8_t room[5] = {0, 0, 0, 0, 0xee};
    struct kv_writer w = kv_writer_of(room, 4);
    kv_write_raw(&w, counting, 4);
    cr_assert(not(w.failed));
    kv_write_u8(&w, 1);
    cr_assert(w.failed);
    cr_assert(eq(sz, kv_writer_len(&w), 4));
    cr_assert(eq(u8, room[4], 0xee));
}

Test(bytes, writer_that_failed_takes_nothing_more)
{
    uint8_t room[4] = {0};
    struct kv_writer w = kv_writer_of(room, 4);
    kv_write_u64(&w, UINT64_MAX);
    kv_write_u8(&w, 1);
    cr_assert(w.failed);
    cr_assert(eq(sz, kv_writer_len(&w), 0));
    cr_assert(eq(u8, room[0], 0));
}

Test(bytes, no_bytes_are_no_failure)
{
    uint8_t room[1];
    struct kv_writer w = kv_writer_of(room, 0);
    kv_write_raw(&w, NULL, 0);
    cr_assert(not(w.failed));
    struct kv_reader r = kv_reader_of(KV_BYTES(NULL, 0));
    kv_read_raw(&r, NULL, 0);
    cr_assert(not(r.failed));
}

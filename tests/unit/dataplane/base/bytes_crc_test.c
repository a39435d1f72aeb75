/* CRC-32C against RFC 3720 appendix B.4 and both against the usual check value. */
#include "dataplane/base/bytes.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

Test(bytes_crc, check_values)
{
    cr_assert(eq(u32, kv_crc32c(0, "123456789", 9), 0xe3069283));
    cr_assert(eq(u32, kv_crc32("123456789", 9), 0xcbf43926));
    cr_assert(eq(u32, kv_crc32c(0, "", 0), 0));
    cr_assert(eq(u32, kv_crc32("", 0), 0));
}

Test(bytes_crc, vectors_of_rfc_3720)
{
    uint8_t data[32];
    memset(data, 0, sizeof(data));
    cr_assert(eq(u32, kv_crc32c(0, data, 32), 0x8a9136aa));
    memset(data, 0xff, sizeof(data));
    cr_assert(eq(u32, kv_crc32c(0, data, 32), 0x62a8ab43));
    for (uint8_t i = 0; i < 32; i++) {
        data[i] = i;
    }
    cr_assert(eq(u32, kv_crc32c(0, data, 32), 0x46dd794e));
    for (uint8_t i = 0; i < 32; i++) {
        data[i] = (uint8_t)(31 - i);
    }
    cr_assert(eq(u32, kv_crc32c(0, data, 32), 0x113fdb5c));
}

Test(bytes_crc, parts_give_the_sum_of_the_whole)
{
    for (size_t cut = 0; cut <= 9; cut++) {
        uint32_t first = kv_crc32c(0, "123456789", cut);
        cr_assert(eq(u32, kv_crc32c(first, &"123456789"[cut], 9 - cut), 0xe3069283));
    }
}

Test(bytes_crc, one_flipped_bit_is_seen)
{
    uint8_t data[64];
    for (unsigned i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 7);
    }
    uint32_t sum = kv_crc32c(0, data, sizeof(data));
    for (unsigned bit = 0; bit < 8 * sizeof(data); bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert(ne(u32, kv_crc32c(0, data, sizeof(data)), sum));
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    cr_assert(eq(u32, kv_crc32c(0, data, sizeof(data)), sum)); /* control */
}

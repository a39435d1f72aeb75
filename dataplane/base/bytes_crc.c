/*
 * Two cyclic redundancy checks of bytes.h. They find accidents, never attacks: what must not be forged has a MAC.
 */
#include "dataplane/base/bytes.h"

/* A CRC table is linear: the entry of an index is the sum, modulo 2, of the entries of its bits. Eight constants (the
 * entries of 1, 2, 4 … 128 for the reflected polynomial) therefore spell out all 256 at compile time. */
#define BIT(i, n, entry) (((i) >> (n)&1u) * (entry))
#define E1(i, a, b, c, d, e, f, g, h)                                                                         \
    (BIT(i, 0, a) ^ BIT(i, 1, b) ^ BIT(i, 2, c) ^ BIT(i, 3, d) ^ BIT(i, 4, e) ^ BIT(i, 5, f) ^ BIT(i, 6, g) ^ \
     BIT(i, 7, h))
#define E4(i, ...) E1(i, __VA_ARGS__), E1(i + 1u, __VA_ARGS__), E1(i + 2u, __VA_ARGS__), E1(i + 3u, __VA_ARGS__)
#define E16(i, ...) E4(i, __VA_ARGS__), E4(i + 4u, __VA_ARGS__), E4(i + 8u, __VA_ARGS__), E4(i + 12u, __VA_ARGS__)
#define E64(i, ...) E16(i, __VA_ARGS__), E16(i + 16u, __VA_ARGS__), E16(i + 32u, __VA_ARGS__), E16(i + 48u, __VA_ARGS__)
#define E256(...) E64(0u, __VA_ARGS__), E64(64u, __VA_ARGS__), E64(128u, __VA_ARGS__), E64(192u, __VA_ARGS__)

/* Castagnoli, 0x1EDC6F41. */
static const uint32_t table_c[256] = {
    E256(0xf26b8303u, 0xe13b70f7u, 0xc79a971fu, 0x8ad958cfu, 0x105ec76fu, 0x20bd8edeu, 0x417b1dbcu, 0x82f63b78u)};
/* IEEE 802.3, 0x04C11DB7. */
static const uint32_t table_ieee[256] = {
    E256(0x77073096u, 0xee0e612cu, 0x076dc419u, 0x0edb8832u, 0x1db71064u, 0x3b6e20c8u, 0x76dc4190u, 0xedb88320u)};

static uint32_t crc(const uint32_t table[256], uint32_t seed, const uint8_t *p, size_t len)
{
    uint32_t sum = ~seed;
    for (size_t i = 0; i < len; i++) {
        sum = table[(sum ^ p[i]) & 255] ^ sum >> 8;
    }
    return ~sum;
}

uint32_t kv_crc32c(uint32_t seed, const void *data, size_t len)
{
    return crc(table_c, seed, data, len);
}

uint32_t kv_crc32(const void *data, size_t len)
{
    return crc(table_ieee, 0, data, len);
}

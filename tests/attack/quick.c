/*
 * The attack's own SHA-512, HMAC and HKDF (FIPS 180-4, RFC 2104, RFC 5869), with the states that depend on the key
 * alone kept: a try is three compressions. That it agrees with the product's derivations is tested; that it is not the
 * product's is the point. Must never be used for anything but trying.
 */
#include "tests/attack/quick.h"
#include "dataplane/base/check.h"

#include <string.h>

enum { BLOCK = 128, DIGEST = 64, STREAM_LABEL_BYTES = 48, CONTEXT_BYTES = 117 };

/* clang-format off */
static const uint64_t round_constants[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc,
    0x3956c25bf348b538, 0x59f111f1b605d019, 0x923f82a4af194f9b, 0xab1c5ed5da6d8118,
    0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694,
    0xe49b69c19ef14ad2, 0xefbe4786384f25e3, 0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65,
    0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2, 0xd5a79147930aa725, 0x06ca6351e003826f, 0x142929670a0e6e70,
    0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b,
    0xa2bfe8a14cf10364, 0xa81a664bbc423001, 0xc24b8b70d0f89791, 0xc76c51a30654be30,
    0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb, 0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b,
    0xca273eceea26619c, 0xd186b8c721c0c207, 0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178,
    0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6, 0x597f299cfc657e2a, 0x5fcb6fab3ad6faec, 0x6c44198c4a475817,
};

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};
/* clang-format on */

static uint64_t rotate(uint64_t x, unsigned bits)
{
    return x >> bits | x << (64 - bits);
}

static void schedule(const uint8_t block[BLOCK], uint64_t w[80])
{
    for (unsigned i = 0; i < 16; i++) {
        uint64_t word;
        memcpy(&word, block + 8 * i, 8);
        w[i] = __builtin_bswap64(word);
    }
    for (unsigned i = 16; i < 80; i++) {
        uint64_t s0 = rotate(w[i - 15], 1) ^ rotate(w[i - 15], 8) ^ w[i - 15] >> 7;
        uint64_t s1 = rotate(w[i - 2], 19) ^ rotate(w[i - 2], 61) ^ w[i - 2] >> 6;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void compress(const uint64_t from[8], const uint8_t block[BLOCK], uint64_t ret_state[8])
{
    uint64_t w[80];
    uint64_t a = from[0], b = from[1], c = from[2], d = from[3], e = from[4], f = from[5], g = from[6], h = from[7];
    schedule(block, w);
    for (unsigned i = 0; i < 80; i++) {
        uint64_t sum1 = rotate(e, 14) ^ rotate(e, 18) ^ rotate(e, 41), choose = (e & f) ^ (~e & g);
        uint64_t sum0 = rotate(a, 28) ^ rotate(a, 34) ^ rotate(a, 39), majority = (a & b) ^ (a & c) ^ (b & c);
        uint64_t t1 = h + sum1 + choose + round_constants[i] + w[i];
        h = g;
        g = f;
        f = e;
        e = d + t1;
        d = c;
        c = b;
        b = a;
        a = t1 + sum0 + majority;
    }
    const uint64_t last[8] = {a, b, c, d, e, f, g, h};
    for (unsigned i = 0; i < 8; i++) {
        ret_state[i] = from[i] + last[i];
    }
}

static void store(const uint64_t state[8], uint8_t ret_bytes[DIGEST])
{
    for (unsigned i = 0; i < 8; i++) {
        uint64_t word = __builtin_bswap64(state[i]);
        memcpy(ret_bytes + 8 * i, &word, 8);
    }
}

/* The end of a message of `total` bytes: the one bit, zeroes, the length. `used` bytes of the last block are taken. */
static void pad(uint8_t *block, size_t used, size_t size, size_t total)
{
    KV_ASSERT(used + 17 <= size);
    memset(block + used, 0, size - used);
    block[used] = 0x80;
    uint64_t bits = __builtin_bswap64((uint64_t)total * 8);
    memcpy(block + size - 8, &bits, 8);
}

void quick_key_of(const uint8_t *key, size_t len, struct quick_key *ret_key)
{
    uint8_t block[BLOCK];
    KV_ASSERT(len <= BLOCK);
    memset(block, 0x36, sizeof(block));
    for (size_t i = 0; i < len; i++) {
        block[i] ^= key[i];
    }
    compress(initial, block, ret_key->inner);
    for (size_t i = 0; i < BLOCK; i++) {
        block[i] ^= 0x36 ^ 0x5c;
    }
    compress(initial, block, ret_key->outer);
}

/* The outer half of an HMAC over what the inner one gave. */
static void finish(const struct quick_key *key, const uint64_t inner[8], uint8_t ret_mac[DIGEST])
{
    uint8_t block[BLOCK];
    uint64_t state[8];
    store(inner, block);
    pad(block, DIGEST, BLOCK, BLOCK + DIGEST);
    compress(key->outer, block, state);
    store(state, ret_mac);
}

/* HMAC of a message that fits one block. */
static void hmac(const struct quick_key *key, const uint8_t *message, size_t len, uint8_t ret_mac[DIGEST])
{
    uint8_t block[BLOCK];
    uint64_t state[8];
    KV_ASSERT(len + 17 <= BLOCK);
    memcpy(block, message, len);
    pad(block, len, BLOCK, BLOCK + len);
    compress(key->inner, block, state);
    finish(key, state, ret_mac);
}

void quick_target_of(const uint8_t header[KV_SEALED_FIXED_BYTES], const uint8_t context[QUICK_CONTEXT_BYTES],
                     struct quick_target *ret_target)
{
    _Static_assert((int)QUICK_CONTEXT_BYTES == (int)CONTEXT_BYTES, "the context of sealed.h");
    static const char label[STREAM_LABEL_BYTES] = "c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM"; /* with its zero */
    size_t len = 0;
    memcpy(ret_target->blocks, label, sizeof(label));
    len += sizeof(label);
    memcpy(ret_target->blocks + len, header + 128, KV_SALT_BYTES);
    len += KV_SALT_BYTES;
    memcpy(ret_target->blocks + len, context, CONTEXT_BYTES);
    len += CONTEXT_BYTES;
    ret_target->blocks[len++] = 1; /* HKDF's counter */
    pad(ret_target->blocks, len, sizeof(ret_target->blocks), BLOCK + len);
    memcpy(ret_target->commitment, header + 152, sizeof(ret_target->commitment));
}

void quick_context_of(const uint8_t header[KV_SEALED_FIXED_BYTES], uint8_t ret_context[QUICK_CONTEXT_BYTES])
{
    memcpy(ret_context, "KVR1", 4);
    memcpy(ret_context + 4, header + 7, CONTEXT_BYTES - 4);
}

bool quick_opens(const struct quick_key *key, const struct quick_target *target)
{
    uint64_t state[8];
    uint8_t mac[DIGEST];
    compress(key->inner, target->blocks, state);
    compress(state, target->blocks + BLOCK, state);
    finish(key, state, mac);
    /* Key 32, nonce 12, then the commitment's first 20 bytes; what follows costs another round, and decides nothing. */
    return memcmp(mac + 44, target->commitment, sizeof(target->commitment)) == 0;
}

/* HKDF-Extract without a salt. */
static void extract(const uint8_t secret[32], struct quick_key *ret_prk)
{
    struct quick_key no_salt;
    uint8_t mac[DIGEST];
    quick_key_of(NULL, 0, &no_salt);
    hmac(&no_salt, secret, 32, mac);
    quick_key_of(mac, sizeof(mac), ret_prk);
}

static size_t put(uint8_t *info, size_t at, const void *field, size_t len)
{
    info[at] = 0;
    info[at + 1] = (uint8_t)len;
    memcpy(info + at + 2, field, len);
    return at + 2 + len;
}

static void expand(const struct quick_key *prk, uint8_t *info, size_t len, uint8_t ret_key[32])
{
    uint8_t mac[DIGEST];
    info[len] = 1;
    hmac(prk, info, len + 1, mac);
    memcpy(ret_key, mac, 32);
}

void quick_slot_of(const uint8_t secret[32], struct quick_key *ret_prk)
{
    extract(secret, ret_prk);
}

void quick_scope_secret(const struct quick_key *slot_prk, const struct kv_id *tenant, const struct kv_id *scope,
                        uint8_t ret_secret[32])
{
    static const uint8_t no_share[33];
    uint8_t info[BLOCK];
    size_t len = put(info, 0, "kvrun/v1/scope", 14);
    len = put(info, len, no_share, 32);
    len = put(info, len, no_share + 32, 1);
    len = put(info, len, tenant->b, sizeof(tenant->b));
    len = put(info, len, scope->b, sizeof(scope->b));
    expand(slot_prk, info, len, ret_secret);
}

void quick_block_key(const uint8_t scope_secret[32], uint8_t ret_key[32])
{
    struct quick_key prk;
    uint8_t info[BLOCK];
    extract(scope_secret, &prk);
    expand(&prk, info, put(info, 0, "kvrun/v1/block", 14), ret_key);
}

/* SHA-256 and HMAC against outside vectors, and their handling of parts. */
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/hash_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "tests/lib/vectors.h"

static const char long_text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";

static void assert_hash(const uint8_t hash[32], const char *hex)
{
    char text[65];
    kv_hex_encode(hash, 32, text);
    cr_assert(eq(str, text, (char *)hex));
}

Test(hash, sha256_gives_the_standards_answers)
{
    uint8_t hash[32];
    cr_assert(eq(int, kv_sha256(KV_BYTES(NULL, 0), hash), KV_OK));
    assert_hash(hash, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    cr_assert(eq(int, kv_sha256(KV_BYTES(long_text, sizeof long_text - 1), hash), KV_OK));
    assert_hash(hash, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

Test(hash, parts_hash_as_their_concatenation)
{
    uint8_t hash[32];
    const struct kv_bytes parts[] = {KV_BYTES(long_text, 7), KV_BYTES(NULL, 0), KV_BYTES(long_text + 7, 49)};
    cr_assert(eq(int, kv_sha256_parts(parts, 3, hash), KV_OK));
    assert_hash(hash, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    cr_assert(eq(int, kv_sha256_parts(NULL, 0, hash), KV_OK));
    assert_hash(hash, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

/* `ctx` is the digest's name. A tag may be a truncation of the full one. */
static void hmac_case(json_t *group, json_t *test, void *ctx)
{
    const char *digest = ctx;
    size_t full = strcmp(digest, "SHA256") == 0 ? 32 : 64;
    struct kv_bytes key = vectors_hex(test, "key"), msg = vectors_hex(test, "msg"), tag = vectors_hex(test, "tag");
    uint8_t mac[64];
    cr_assert(eq(int, kv_hmac_raw(digest, key, &msg, 1, mac, full), KV_OK));
    cr_assert(le(sz, tag.len, full));
    bool equal = kv_equal_constant_time(mac, tag.data, tag.len);
    cr_assert(equal == vectors_valid(test), "%s case %d", digest, vectors_id(test));
    if (full == 32 && key.len <= (size_t)KV_MAX_SECRET_BYTES) {
        struct kv_secret *secret = NULL;
        uint8_t again[32];
        const struct kv_bytes parts[] = {KV_BYTES(msg.data, msg.len / 2),
                                         KV_BYTES(msg.data + msg.len / 2, msg.len - msg.len / 2)};
        cr_assert(eq(int, kv_secret_copy(key.data, key.len, &secret), KV_OK));
        cr_assert(eq(int, kv_hmac_sha256(secret, parts, 2, again), KV_OK));
        cr_assert(memcmp(again, mac, 32) == 0);
        kv_secret_free(secret);
    }
    vectors_free(key);
    vectors_free(msg);
    vectors_free(tag);
}

Test(hash, hmac_agrees_with_outside_vectors)
{
    cr_assert(eq(sz, vectors_each("wycheproof/hmac_sha256_test.json", hmac_case, "SHA256"), 174));
    cr_assert(eq(sz, vectors_each("wycheproof/hmac_sha512_test.json", hmac_case, "SHA512"), 174));
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

Test(hash, hmac_of_an_unknown_digest_is_an_error)
{
    uint8_t mac[32];
    cr_assert(eq(int, kv_hmac_raw("SHA-none", KV_BYTES("k", 1), NULL, 0, mac, 32), KV_E_CRYPTO));
    cr_assert(eq(int, kv_hmac_raw("a-name-that-is-too-long", KV_BYTES("k", 1), NULL, 0, mac, 32), KV_E_CRYPTO));
    cr_assert(eq(int, kv_hmac_raw("SHA512", KV_BYTES("k", 1), NULL, 0, mac, 32), KV_E_CRYPTO));
    cr_assert(eq(int, kv_hmac_raw("SHA256", KV_BYTES("k", 1), NULL, 0, mac, 32), KV_OK));
}

Test(hash, of_what_is_public_is_the_same)
{
    static const uint8_t data[300] = {7, [299] = 9};
    uint8_t expected[32], hash[32];
    for (size_t len = 0; len <= sizeof data; len++) { /* around one and two blocks, with their padding */
        const struct kv_bytes parts[] = {KV_BYTES(data, len / 3), KV_BYTES(NULL, 0),
                                         KV_BYTES(data + len / 3, len - len / 3)};
        cr_assert(eq(int, kv_sha256(KV_BYTES(data, len), expected), KV_OK));
        cr_assert(eq(int, kv_sha256_public(parts, 3, hash), KV_OK));
        cr_assert(eq(int, memcmp(hash, expected, sizeof hash), 0), "%zu", len);
    }
    assert_hash(expected, "e9eb2ce195d82c39d2d20586709c7fafc84a48ff2d7c72ae50b12a1b2eed229b");
}

/* The bare stream against the specification's vectors, and the stored form re-interleaved into a stream. */
#include "dataplane/crypto/sealed.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/sealed_cases.h"
#include "tests/lib/vectors.h"

struct suite {
    struct kv_sealer *sealer;
    size_t valid;
};

static void assert_sha512(json_t *test, struct kv_bytes plaintext)
{
    uint8_t hash[64];
    struct kv_bytes expected = vectors_hex(test, "msgSha512");
    cr_assert(eq(int, EVP_Digest(plaintext.data, plaintext.len, hash, NULL, EVP_sha512(), NULL), 1));
    cr_assert(memcmp(hash, expected.data, 64) == 0, "case %d", vectors_id(test));
    vectors_free(expected);
}

static void stream_case(json_t *group, json_t *test, void *ctx)
{
    struct suite *suite = ctx;
    struct kv_bytes key = vectors_hex(test, "key"), context = vectors_hex(test, "ctx");
    struct kv_bytes stream = vectors_inflated(test, "ct");
    struct kv_buf plaintext;
    kv_buf_init(&plaintext, 8 << 20);
    enum kv_err rc = kv_chunked_open(suite->sealer, key, context, stream, &plaintext);
    if (vectors_valid(test)) {
        cr_assert(eq(int, rc, KV_OK), "case %d", vectors_id(test));
        cr_assert(eq(sz, plaintext.len, (size_t)json_integer_value(json_object_get(test, "msgLength"))));
        static const uint8_t none[1];
        assert_sha512(test, plaintext.len > 0 ? kv_buf_bytes(&plaintext) : KV_BYTES(none, 0));
        suite->valid++;
    } else {
        bool typed = rc == KV_E_WRONG_KEY || rc == KV_E_TAMPERED || rc == KV_E_TRUNCATED ||
                     (rc == KV_E_INVALID_REQUEST && key.len != 32);
        cr_assert(typed, "case %d: %s", vectors_id(test), kv_err_name(rc));
        cr_assert(eq(sz, plaintext.len, 0));
    }
    kv_buf_done(&plaintext);
    vectors_free(key);
    vectors_free(context);
    vectors_free(stream);
}

static void stream_suite(struct kv_sealer *sealer, void *ctx)
{
    struct suite suite = {.sealer = sealer};
    cr_assert(
        eq(sz, vectors_each("wycheproof/c2sp_chunked_encryption_aes_256_gcm_test.json", stream_case, &suite), 35));
    cr_assert(eq(sz, suite.valid, 10));
}

Test(chunked, streams_agree_with_outside_vectors)
{
    cr_assert(ge(uint, sealed_each_backend(stream_suite, NULL), 1));
}

/* salt | commitment | chunk 0 | tag 0 | …  from the stored form, by the offsets in sealed.h. */
static uint8_t *interleave(const uint8_t *sealed, size_t plaintext_len, size_t header_bytes, size_t *ret_len)
{
    size_t tags = plaintext_len / 16384 + 1;
    uint8_t *stream = malloc(56 + plaintext_len + 16 * tags), *at = stream + 56;
    memcpy(stream, sealed + 128, 56);
    for (size_t i = 0; i < tags; i++) {
        size_t take = i + 1 < tags ? 16384 : plaintext_len % 16384;
        memcpy(at, sealed + header_bytes + i * 16384, take);
        memcpy(at + take, sealed + 184 + 16 * i, 16);
        at += take + 16;
    }
    *ret_len = (size_t)(at - stream);
    return stream;
}

static void opens_as_stream(struct kv_sealer *sealer, size_t len)
{
    struct sealed_random random = {.state = len};
    struct kv_sealed_context context = sealed_context(len);
    struct kv_secret *key = sealed_key(9);
    uint8_t *plaintext = malloc(len + 1), *sealed = malloc(kv_sealed_bytes(len)), salt[24], context_bytes[117];
    struct kv_segment whole = {.data = plaintext, .len = len};
    struct kv_buf opened;
    size_t stream_len = 0;
    sealed_random_fill(&random, plaintext, len);
    sealed_random_fill(&random, salt, sizeof salt);
    cr_assert(eq(int, kv_sealed_seal(sealer, key, &context, salt, &whole, 1, sealed), KV_OK));
    uint8_t *stream = interleave(sealed, len, kv_sealed_header_bytes(len), &stream_len);
    sealed_context_bytes(&context, context_bytes);
    kv_buf_init(&opened, len);
    struct kv_bytes key_bytes = KV_BYTES(kv_secret_data(key), 32);
    cr_assert(
        eq(int, kv_chunked_open(sealer, key_bytes, KV_BYTES(context_bytes, 117), KV_BYTES(stream, stream_len), &opened),
           KV_OK));
    cr_assert(eq(sz, opened.len, len));
    cr_assert(len == 0 || memcmp(opened.data, plaintext, len) == 0);
    context_bytes[50] ^= 1;
    cr_assert(
        eq(int, kv_chunked_open(sealer, key_bytes, KV_BYTES(context_bytes, 117), KV_BYTES(stream, stream_len), &opened),
           KV_E_WRONG_KEY));
    kv_buf_done(&opened);
    kv_secret_free(key);
    free(stream);
    free(sealed);
    free(plaintext);
}

static void interleaved_suite(struct kv_sealer *sealer, void *ctx)
{
    static const size_t lengths[] = {0, 1, 16383, 16384, 16385, 32768, 100000, 2 << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        opens_as_stream(sealer, lengths[i]);
    }
}

Test(chunked, sealed_block_is_the_specifications_stream_when_interleaved)
{
    cr_assert(ge(uint, sealed_each_backend(interleaved_suite, NULL), 1));
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

static void context_bound(struct kv_sealer *sealer, void *ctx)
{
    static uint8_t bytes[2000];
    struct kv_buf out;
    kv_buf_init(&out, 16);
    cr_assert(eq(int, kv_chunked_open(sealer, KV_BYTES(bytes, 32), KV_BYTES(bytes, 2000), KV_BYTES(bytes, 72), &out),
                 KV_E_LIMIT));
    cr_assert(eq(int, kv_chunked_open(sealer, KV_BYTES(bytes, 32), KV_BYTES(bytes, 900), KV_BYTES(bytes, 72), &out),
                 KV_E_WRONG_KEY));
    kv_buf_done(&out);
}

Test(chunked, context_beyond_the_bound_is_refused)
{
    sealed_each_backend(context_bound, NULL);
}

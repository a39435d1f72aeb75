/* HKDF against outside vectors, and the framing of labels and fields. */
#include "dataplane/crypto/kdf.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/vectors.h"

typedef KV_RC hkdf_fn(struct kv_bytes salt, struct kv_bytes ikm, struct kv_bytes info, void *ret_okm, size_t len);

struct hkdf_suite {
    hkdf_fn *hkdf;
    size_t invalid;
};

static void hkdf_case(json_t *group, json_t *test, void *ctx)
{
    struct hkdf_suite *suite = ctx;
    struct kv_bytes ikm = vectors_hex(test, "ikm"), salt = vectors_hex(test, "salt");
    struct kv_bytes info = vectors_hex(test, "info"), okm = vectors_hex(test, "okm");
    size_t size = (size_t)json_integer_value(json_object_get(test, "size"));
    uint8_t *out = calloc(1, size + 1);
    enum kv_err rc = suite->hkdf(salt, ikm, info, out, size);
    if (vectors_valid(test)) {
        cr_assert(eq(int, rc, KV_OK), "case %d", vectors_id(test));
        cr_assert(size == okm.len && memcmp(out, okm.data, size) == 0, "case %d", vectors_id(test));
    } else {
        cr_assert(eq(int, rc, KV_E_LIMIT), "case %d", vectors_id(test));
        suite->invalid++;
    }
    free(out);
    vectors_free(ikm);
    vectors_free(salt);
    vectors_free(info);
    vectors_free(okm);
}

Test(kdf, hkdf_agrees_with_outside_vectors)
{
    struct hkdf_suite sha256 = {.hkdf = kv_hkdf_sha256}, sha512 = {.hkdf = kv_hkdf_sha512};
    cr_assert(gt(sz, vectors_each("wycheproof/hkdf_sha256_test.json", hkdf_case, &sha256), 80));
    cr_assert(eq(sz, vectors_each("wycheproof/hkdf_sha512_test.json", hkdf_case, &sha512), 83));
    cr_assert(gt(sz, sha256.invalid, 0));
    cr_assert(gt(sz, sha512.invalid, 0));
}

Test(kdf, bounds_of_output_and_info)
{
    static uint8_t out[255 * 64 + 1], info[1025];
    struct kv_bytes none = KV_BYTES(NULL, 0), key = KV_BYTES("key", 3);
    cr_assert(eq(int, kv_hkdf_sha512(none, key, none, out, 255 * 64), KV_OK));
    cr_assert(eq(int, kv_hkdf_sha512(none, key, none, out, 255 * 64 + 1), KV_E_LIMIT));
    cr_assert(eq(int, kv_hkdf_sha512(none, key, none, out, 0), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_hkdf_expand_sha512(key, KV_BYTES(info, 1024), out, 64), KV_OK));
    cr_assert(eq(int, kv_hkdf_expand_sha512(key, KV_BYTES(info, 1025), out, 64), KV_E_LIMIT));
}

static struct kv_secret *a_key(void)
{
    struct kv_secret *key = NULL;
    cr_assert(eq(int, kv_secret_copy("0123456789abcdef0123456789abcdef", 32, &key), KV_OK));
    return key;
}

/* True when both lists of fields, under both purposes, give the same secret. */
static bool same(const char *purpose_a, struct kv_bytes *a, size_t count_a, const char *purpose_b, struct kv_bytes *b,
                 size_t count_b)
{
    struct kv_secret *key = a_key(), *out_a = NULL, *out_b = NULL;
    cr_assert(eq(int, kv_kdf_derive(key, purpose_a, a, count_a, 32, &out_a), KV_OK));
    cr_assert(eq(int, kv_kdf_derive(key, purpose_b, b, count_b, 32, &out_b), KV_OK));
    bool equal = memcmp(kv_secret_data(out_a), kv_secret_data(out_b), 32) == 0;
    kv_secret_free(key);
    kv_secret_free(out_a);
    kv_secret_free(out_b);
    return equal;
}

Test(kdf, different_fields_or_purposes_give_different_secrets)
{
    struct kv_bytes ab_c[] = {KV_BYTES("ab", 2), KV_BYTES("c", 1)}, a_bc[] = {KV_BYTES("a", 1), KV_BYTES("bc", 2)};
    struct kv_bytes abc[] = {KV_BYTES("abc", 3)}, abc_empty[] = {KV_BYTES("abc", 3), KV_BYTES(NULL, 0)};
    cr_assert(same("block", ab_c, 2, "block", ab_c, 2));
    cr_assert(not(same("block", ab_c, 2, "block", a_bc, 2)));
    cr_assert(not(same("block", ab_c, 2, "block", abc, 1)));
    cr_assert(not(same("block", abc, 1, "block", abc_empty, 2)));
    cr_assert(not(same("block", abc, 1, "ids", abc, 1)));
    cr_assert(not(same("block", NULL, 0, "blocks", NULL, 0)));
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

Test(kdf, derivation_is_hkdf_over_the_documented_info)
{
    static const char info[] = "\0\x0ekvrun/v1/block\0\x03one\0\0";
    struct kv_bytes fields[] = {KV_BYTES("one", 3), KV_BYTES(NULL, 0)};
    uint8_t expected[64];
    struct kv_secret *key = a_key(), *out = NULL;
    cr_assert(eq(int,
                 kv_hkdf_sha512(KV_BYTES(NULL, 0), KV_BYTES(kv_secret_data(key), 32), KV_BYTES(info, sizeof info - 1),
                                expected, 64),
                 KV_OK));
    cr_assert(eq(int, kv_kdf_derive(key, "block", fields, 2, 64, &out), KV_OK));
    cr_assert(memcmp(kv_secret_data(out), expected, 64) == 0);
    kv_secret_free(out);
    kv_secret_free(key);
}

Test(kdf, refused_derivations_leave_nothing_behind)
{
    static uint8_t big[65536];
    struct kv_bytes too_long = KV_BYTES(big, sizeof big), over_all = KV_BYTES(big, 1024);
    struct kv_secret *key = a_key(), *out = NULL;
    cr_assert(eq(int, kv_kdf_derive(key, "block", NULL, 0, 65, &out), KV_E_LIMIT));
    cr_assert(eq(int, kv_kdf_derive(key, "block", NULL, 0, 0, &out), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_kdf_derive(key, "block", &too_long, 1, 32, &out), KV_E_LIMIT));
    cr_assert(eq(int, kv_kdf_derive(key, "block", &over_all, 1, 32, &out), KV_E_LIMIT));
    cr_assert(eq(ptr, out, NULL));
    cr_assert(eq(sz, kv_secret_arena_used(), 1));
    kv_secret_free(key);
}

/* Ed25519 against outside vectors. */
#include "dataplane/crypto/sign.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "dataplane/base/fault.h"
#include "kv_version.h"
#include "tests/lib/vectors.h"

/* Fails when the public keys of a group do not have 32 bytes: kv_verify has no way to be given others. */
static void verify_case(json_t *group, json_t *test, void *ctx)
{
    struct kv_bytes public_key = vectors_hex(json_object_get(group, "publicKey"), "pk");
    struct kv_bytes msg = vectors_hex(test, "msg"), sig = vectors_hex(test, "sig");
    size_t *valid = ctx;
    cr_assert(eq(sz, public_key.len, 32));
    enum kv_err expected = vectors_valid(test) ? KV_OK : KV_E_TAMPERED;
    cr_assert(eq(int, kv_verify(public_key.data, msg, sig), expected), "case %d", vectors_id(test));
    *valid += vectors_valid(test) ? 1 : 0;
    vectors_free(public_key);
    vectors_free(msg);
    vectors_free(sig);
}

Test(sign, verification_agrees_with_outside_vectors)
{
    size_t valid = 0;
    cr_assert(eq(sz, vectors_each("wycheproof/ed25519_test.json", verify_case, &valid), 151));
    cr_assert(eq(sz, valid, 88));
}

static bool has_flag(json_t *vector, const char *name)
{
    size_t i;
    json_t *flag;
    json_array_foreach(json_object_get(vector, "flags"), i, flag)
    {
        if (strcmp(json_string_value(flag), name) == 0) {
            return true;
        }
    }
    return false;
}

/* Edge cases without a right answer: which are accepted may never change, or old certificates would. */
Test(sign, accepted_edge_cases_are_the_documented_ones)
{
    json_t *root = json_load_file(KV_SOURCE_DIR "/tests/vectors/cctv/ed25519vectors.json", 0, NULL), *vector;
    size_t i, accepted = 0;
    cr_assert(eq(sz, json_array_size(root), 914));
    json_array_foreach(root, i, vector)
    {
        struct kv_bytes public_key = vectors_hex(vector, "key"), sig = vectors_hex(vector, "sig");
        const char *msg = json_string_value(json_object_get(vector, "msg"));
        bool expected = !has_flag(vector, "low_order_residue") && !has_flag(vector, "non_canonical_R");
        enum kv_err rc = kv_verify(public_key.data, KV_BYTES(msg, strlen(msg)), sig);
        cr_assert(eq(int, rc, expected ? KV_OK : KV_E_TAMPERED), "vector %zu", i);
        accepted += expected ? 1 : 0;
        vectors_free(public_key);
        vectors_free(sig);
    }
    cr_assert(eq(sz, accepted, 208));
    json_decref(root);
}

/* RFC 8032, section 7.1, test 3. */
static const char seed_hex[] = "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7";
static const char public_hex[] = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025";
static const char signature_hex[] = "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
                                    "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a";

static struct kv_sign_key *a_key(void)
{
    uint8_t seed[32];
    struct kv_sign_key *key = NULL;
    cr_assert(eq(int, kv_hex_decode(seed_hex, seed, 32), KV_OK));
    cr_assert(eq(int, kv_sign_key_from_seed(seed, &key), KV_OK));
    return key;
}

Test(sign, signature_is_the_standards)
{
    uint8_t public_key[32], signature[64];
    char text[129];
    struct kv_sign_key *key = a_key();
    kv_sign_public(key, public_key);
    kv_hex_encode(public_key, 32, text);
    cr_assert(eq(str, text, (char *)public_hex));
    cr_assert(eq(int, kv_sign(key, KV_BYTES("\xaf\x82", 2), signature), KV_OK));
    kv_hex_encode(signature, 64, text);
    cr_assert(eq(str, text, (char *)signature_hex));
    cr_assert(eq(int, kv_verify(public_key, KV_BYTES("\xaf\x82", 2), KV_BYTES(signature, 64)), KV_OK));
    kv_sign_key_free(key);
    kv_sign_key_free(NULL);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

Test(sign, any_flipped_bit_is_refused)
{
    uint8_t public_key[32], signature[64], message[5] = "hello";
    struct kv_sign_key *key = a_key();
    kv_sign_public(key, public_key);
    cr_assert(eq(int, kv_sign(key, KV_BYTES(message, 5), signature), KV_OK));
    for (size_t bit = 0; bit < 8 * 64; bit++) {
        signature[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert(eq(int, kv_verify(public_key, KV_BYTES(message, 5), KV_BYTES(signature, 64)), KV_E_TAMPERED));
        signature[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * 32; bit++) {
        public_key[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert(ne(int, kv_verify(public_key, KV_BYTES(message, 5), KV_BYTES(signature, 64)), KV_OK));
        public_key[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    cr_assert(eq(int, kv_verify(public_key, KV_BYTES(message, 4), KV_BYTES(signature, 64)), KV_E_TAMPERED));
    cr_assert(eq(int, kv_verify(public_key, KV_BYTES(message, 5), KV_BYTES(signature, 63)), KV_E_TAMPERED));
    cr_assert(eq(int, kv_verify(public_key, KV_BYTES(message, 5), KV_BYTES(NULL, 0)), KV_E_TAMPERED));
    cr_assert(eq(int, kv_verify(public_key, KV_BYTES(message, 5), KV_BYTES(signature, 64)), KV_OK));
    kv_sign_key_free(key);
}

Test(sign, key_without_memory_leaves_no_secret)
{
    static const uint8_t seed[32] = {1};
    struct kv_sign_key *key = NULL;
    cr_assert(eq(int, kv_secret_arena_init(4096), KV_OK));
    kv_fault_set("base/mem=fail@1once");
    cr_assert(eq(int, kv_sign_key_from_seed(seed, &key), KV_E_NO_MEMORY));
    kv_fault_set(NULL);
    cr_assert(eq(ptr, key, NULL));
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
    cr_assert(eq(int, kv_sign_key_from_seed(seed, &key), KV_OK));
    kv_sign_key_free(key);
    kv_secret_arena_done();
}

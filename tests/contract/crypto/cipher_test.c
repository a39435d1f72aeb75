/* Every cipher backend against the same outside vectors: AES-256-GCM with 96-bit nonces and no additional data. */
#include "dataplane/crypto/sealed_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/fault.h"
#include "tests/lib/sealed_cases.h"
#include "tests/lib/vectors.h"

struct suite {
    struct kv_sealer *sealer;
    size_t valid, invalid;
};

/* Feeds the cipher in pieces of `piece` bytes. */
static void update(struct kv_sealer *sealer, uint8_t *target, struct kv_bytes source, size_t piece)
{
    for (size_t at = 0; at < source.len; at += piece) {
        size_t take = source.len - at < piece ? source.len - at : piece;
        cr_assert(eq(int, sealer->ops->update(sealer->state, target + at, source.data + at, take), KV_OK));
    }
}

static void seal_and_open(struct kv_sealer *sealer, json_t *test, size_t piece)
{
    struct kv_bytes key = vectors_hex(test, "key"), iv = vectors_hex(test, "iv"), msg = vectors_hex(test, "msg");
    struct kv_bytes ct = vectors_hex(test, "ct"), tag = vectors_hex(test, "tag");
    bool valid = vectors_valid(test);
    uint8_t *out = malloc(ct.len + 1), computed[16];
    cr_assert(eq(int, sealer->ops->set_key(sealer->state, key.data), KV_OK));

    cr_assert(eq(int, sealer->ops->start(sealer->state, iv.data, true), KV_OK));
    update(sealer, out, msg, piece);
    cr_assert(eq(int, sealer->ops->finish_seal(sealer->state, computed), KV_OK));
    bool same = memcmp(out, ct.data, ct.len) == 0 && memcmp(computed, tag.data, 16) == 0;
    cr_assert(eq(int, same, valid), "%s seals case %d", sealer->ops->name, vectors_id(test));

    cr_assert(eq(int, sealer->ops->start(sealer->state, iv.data, false), KV_OK));
    update(sealer, out, ct, piece);
    enum kv_err rc = sealer->ops->finish_open(sealer->state, tag.data);
    cr_assert(eq(int, rc, valid ? KV_OK : KV_E_TAMPERED), "%s opens case %d", sealer->ops->name, vectors_id(test));
    if (valid) {
        cr_assert(memcmp(out, msg.data, msg.len) == 0);
    }
    sealer->ops->clear(sealer->state);
    free(out);
    vectors_free(key);
    vectors_free(iv);
    vectors_free(msg);
    vectors_free(ct);
    vectors_free(tag);
}

static void gcm_case(json_t *group, json_t *test, void *ctx)
{
    struct suite *suite = ctx;
    bool ours = json_integer_value(json_object_get(group, "keySize")) == 256 &&
                json_integer_value(json_object_get(group, "ivSize")) == 96 &&
                json_integer_value(json_object_get(group, "tagSize")) == 128 &&
                json_string_length(json_object_get(test, "aad")) == 0;
    if (!ours) {
        return;
    }
    static const size_t pieces[] = {1, 7, 16, 17, 4096};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        seal_and_open(suite->sealer, test, pieces[i]);
    }
    suite->valid += vectors_valid(test) ? 1 : 0;
    suite->invalid += vectors_valid(test) ? 0 : 1;
}

static void gcm_suite(struct kv_sealer *sealer, void *ctx)
{
    struct suite suite = {.sealer = sealer};
    cr_assert(eq(sz, vectors_each("wycheproof/aes_gcm_test.json", gcm_case, &suite), 316));
    cr_assert(eq(sz, suite.valid, 21));
    cr_assert(eq(sz, suite.invalid, 27));
}

Test(cipher, gcm_agrees_with_outside_vectors_however_it_is_fed)
{
    cr_assert(ge(uint, sealed_each_backend(gcm_suite, NULL), 1));
}

static bool zero_now(const uint8_t *memory, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (memory[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Only ipsec-mb's state lies in memory of ours, so only there one can look. The manager's pointer stays at the end. */
Test(cipher, key_schedule_is_wiped_when_cleared)
{
    struct kv_sealer *sealer = NULL;
    static const uint8_t key[32] = {1, 2, 3}, nonce[12];
    uint8_t text[20] = {0}, tag[16];
    enum { LOOK_BYTES = 240 /* the round keys come first */ };
    if (kv_sealer_new(KV_CIPHER_IPSEC_MB, &sealer) != KV_OK) {
        cr_skip_test("no libipsec-mb here");
    }
    cr_assert(eq(int, sealer->ops->set_key(sealer->state, key), KV_OK));
    cr_assert(eq(int, sealer->ops->start(sealer->state, nonce, true), KV_OK));
    cr_assert(eq(int, sealer->ops->update(sealer->state, text, text, sizeof text), KV_OK));
    cr_assert(eq(int, sealer->ops->finish_seal(sealer->state, tag), KV_OK));
    cr_assert(not(zero_now(sealer->state, LOOK_BYTES)));
    sealer->ops->clear(sealer->state);
    cr_assert(zero_now(sealer->state, LOOK_BYTES));
    kv_sealer_free(sealer);
}

Test(cipher, automatic_choice_prefers_ipsec_mb_and_always_finds_one)
{
    struct kv_sealer *automatic = NULL, *ipsec = NULL;
    cr_assert(eq(int, kv_sealer_new(KV_CIPHER_AUTO, &automatic), KV_OK));
    bool there = kv_sealer_new(KV_CIPHER_IPSEC_MB, &ipsec) == KV_OK;
    cr_assert(eq(str, (char *)kv_sealer_backend(automatic), there ? "ipsec-mb" : "openssl"));
    kv_sealer_free(automatic);
    kv_sealer_free(ipsec);
    kv_sealer_free(NULL);
}

Test(cipher, sealer_without_memory_is_an_error)
{
    static const enum kv_cipher_backend backends[] = {KV_CIPHER_AUTO, KV_CIPHER_OPENSSL};
    for (size_t i = 0; i < 2; i++) {
        struct kv_sealer *sealer = NULL;
        kv_fault_set("base/mem=fail@1");
        cr_assert(eq(int, kv_sealer_new(backends[i], &sealer), KV_E_NO_MEMORY));
        cr_assert(eq(ptr, sealer, NULL));
        kv_fault_set(NULL);
        cr_assert(eq(int, kv_sealer_new(backends[i], &sealer), KV_OK));
        kv_sealer_free(sealer);
    }
}

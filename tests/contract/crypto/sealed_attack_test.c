/*
 * What a storage operator or a neighbour may try with sealed bytes: flipped bits, swaps, old versions, truncation,
 * other forms. Each attempt ends in a typed error and leaves the target untouched; each group ends with the control
 * that opens.
 */
#include "dataplane/crypto/sealed.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/sealed_cases.h"

enum { LEN = 40000, TAGS = 3, TAGS_END = 184 + TAGS * 16, HEADER = 4096, SEALED = HEADER + 40960 };

static const uint8_t salt[24] = {7, 7, 7};

struct attack {
    struct kv_sealer *sealer;
    struct kv_secret *key;
    struct kv_sealed_context context;
    uint8_t plaintext[LEN], sealed[SEALED], target[LEN], staging[LEN];
};

static struct attack *attack_new(struct kv_sealer *sealer)
{
    struct attack *attack = calloc(1, sizeof *attack);
    struct sealed_random random = {.state = 1};
    struct kv_segment whole = {.data = attack->plaintext, .len = LEN};
    attack->sealer = sealer;
    attack->key = sealed_key(5);
    attack->context = sealed_context(LEN);
    sealed_random_fill(&random, attack->plaintext, LEN);
    cr_assert(eq(int, kv_sealed_seal(sealer, attack->key, &attack->context, salt, &whole, 1, attack->sealed), KV_OK));
    return attack;
}

static void attack_free(struct attack *attack)
{
    kv_secret_free(attack->key);
    free(attack);
}

static bool all_are(const uint8_t *memory, size_t len, uint8_t value)
{
    for (size_t i = 0; i < len; i++) {
        if (memory[i] != value) {
            return false;
        }
    }
    return true;
}

/* Opens `len` bytes of the sealed block; checks that a failure wrote nothing and left no plaintext in the staging. */
static enum kv_err open_len(struct attack *attack, size_t len)
{
    struct kv_segment to[2] = {{.data = attack->target, .len = 12345},
                               {.data = attack->target + 12345, .len = LEN - 12345}};
    uint8_t *exact = malloc(len > 0 ? len : 1); /* so that a sanitizer sees a read past it */
    memcpy(exact, attack->sealed, len < SEALED ? len : SEALED);
    memset(attack->target, 0xa5, LEN);
    memset(attack->staging, 0, LEN);
    enum kv_err rc =
        kv_sealed_open(attack->sealer, attack->key, &attack->context, exact, len, attack->staging, LEN, to, 2);
    free(exact);
    cr_assert(all_are(attack->staging, LEN, 0), "plaintext stayed in the staging");
    if (rc == KV_OK) {
        cr_assert(memcmp(attack->target, attack->plaintext, LEN) == 0);
    } else {
        cr_assert(all_are(attack->target, LEN, 0xa5), "a failure wrote to the target: %s", kv_err_name(rc));
    }
    return rc;
}

static enum kv_err open_all(struct attack *attack)
{
    return open_len(attack, SEALED);
}

static bool expected_at(size_t at, enum kv_err rc)
{
    bool corrupt = rc == KV_E_CORRUPT, wrong_key = rc == KV_E_WRONG_KEY;
    if (at < 7) {
        return corrupt; /* magic, version, algorithm, derivation */
    }
    if (at == 7 || (at >= 112 && at < 120)) {
        return corrupt || wrong_key; /* kind and length: either impossible or of another block */
    }
    if (at < 112 || (at >= 128 && at < 184)) {
        return wrong_key; /* context, salt, commitment */
    }
    if (at < 128 || (at >= TAGS_END && at < HEADER)) {
        return corrupt; /* counts, padding */
    }
    if (at < HEADER + LEN) {
        return rc == KV_E_TAMPERED; /* tags, ciphertext */
    }
    return rc == KV_OK; /* payload padding is nobody's */
}

static void flip(struct attack *attack, size_t at, unsigned bit)
{
    attack->sealed[at] ^= (uint8_t)(1u << bit);
    enum kv_err rc = open_all(attack);
    cr_assert(expected_at(at, rc), "bit %u of byte %zu: %s", bit, at, kv_err_name(rc));
    attack->sealed[at] ^= (uint8_t)(1u << bit);
}

/* Every byte of it, and all at once. */
static void padding_suite(struct kv_sealer *sealer, void *ctx)
{
    struct attack *attack = attack_new(sealer);
    for (size_t at = TAGS_END; at < HEADER; at++) {
        flip(attack, at, 7);
    }
    memset(attack->sealed + TAGS_END, 1, HEADER - TAGS_END);
    cr_assert(eq(int, open_all(attack), KV_E_CORRUPT));
    memset(attack->sealed + TAGS_END, 0, HEADER - TAGS_END);
    cr_assert(eq(int, open_all(attack), KV_OK));
    attack_free(attack);
}

Test(sealed_attack, padding_of_the_header_is_zero)
{
    cr_assert(ge(uint, sealed_each_backend(padding_suite, NULL), 1));
}

static void flip_suite(struct kv_sealer *sealer, void *ctx)
{
    struct attack *attack = attack_new(sealer);
    for (size_t at = 0; at < TAGS_END; at++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            flip(attack, at, bit);
        }
    }
    for (size_t at = TAGS_END; at < SEALED; at += at < HEADER ? 331 : 1663) {
        flip(attack, at, at % 8);
    }
    static const size_t edges[] = {TAGS_END,       HEADER - 1,     HEADER,           HEADER + 16383, HEADER + 16384,
                                   HEADER + 32767, HEADER + 32768, HEADER + LEN - 1, HEADER + LEN,   SEALED - 1};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        flip(attack, edges[i], 0);
    }
    cr_assert(eq(int, open_all(attack), KV_OK));
    attack_free(attack);
}

Test(sealed_attack, every_flipped_bit_is_a_typed_error_and_touches_nothing)
{
    cr_assert(ge(uint, sealed_each_backend(flip_suite, NULL), 1));
}

static void truncate_suite(struct kv_sealer *sealer, void *ctx)
{
    struct attack *attack = attack_new(sealer);
    static const size_t lengths[] = {0,
                                     1,
                                     127,
                                     183,
                                     184,
                                     200,
                                     TAGS_END - 1,
                                     TAGS_END,
                                     HEADER - 1,
                                     HEADER,
                                     HEADER + 1,
                                     HEADER + 16383,
                                     HEADER + 16384,
                                     HEADER + 32768,
                                     HEADER + LEN - 1,
                                     HEADER + LEN,
                                     SEALED - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        cr_assert(eq(int, open_len(attack, lengths[i]), KV_E_TRUNCATED), "%zu", lengths[i]);
    }
    cr_assert(eq(int, open_len(attack, SEALED + 1), KV_E_CORRUPT));
    cr_assert(eq(int, open_all(attack), KV_OK));
    attack_free(attack);
}

Test(sealed_attack, truncation_at_every_boundary_is_told_apart)
{
    cr_assert(ge(uint, sealed_each_backend(truncate_suite, NULL), 1));
}

/* Changes one field of what the caller expects. */
static void other_context(struct attack *attack, void *field)
{
    uint8_t *byte = field;
    *byte ^= 1;
    cr_assert(eq(int, open_all(attack), KV_E_WRONG_KEY));
    *byte ^= 1;
}

static void context_suite(struct kv_sealer *sealer, void *ctx)
{
    struct attack *attack = attack_new(sealer);
    struct kv_secret *other = sealed_key(6), *own = attack->key;
    other_context(attack, &attack->context.tenant.b[15]);
    other_context(attack, &attack->context.scope.b[0]);
    other_context(attack, &attack->context.block_id.b[31]);
    other_context(attack, &attack->context.layout[7]);
    attack->context.seq = 1;
    cr_assert(eq(int, open_all(attack), KV_E_WRONG_KEY));
    attack->context.seq = 0;
    attack->context.kind = KV_SEALED_META;
    cr_assert(eq(int, open_all(attack), KV_E_WRONG_KEY));
    attack->context.kind = KV_SEALED_BLOCK;
    attack->key = other;
    cr_assert(eq(int, open_all(attack), KV_E_WRONG_KEY));
    attack->key = own;
    cr_assert(eq(int, open_all(attack), KV_OK));
    kv_secret_free(other);
    attack_free(attack);
}

Test(sealed_attack, other_key_tenant_scope_block_layout_or_version_is_refused)
{
    cr_assert(ge(uint, sealed_each_backend(context_suite, NULL), 1));
}

/* The second block of the same session: other id, other text, same salt even. */
static void second_block(struct attack *attack, uint8_t other[SEALED])
{
    struct kv_sealed_context context = attack->context;
    static uint8_t text[LEN];
    struct kv_segment whole = {.data = text, .len = LEN};
    context.block_id.b[0] ^= 0xff;
    cr_assert(eq(int, kv_sealed_seal(attack->sealer, attack->key, &context, salt, &whole, 1, other), KV_OK));
}

static void swap_suite(struct kv_sealer *sealer, void *ctx)
{
    struct attack *attack = attack_new(sealer);
    static uint8_t other[SEALED], kept[SEALED];
    memcpy(kept, attack->sealed, SEALED);
    second_block(attack, other);
    memcpy(attack->sealed, other, SEALED);
    cr_assert(eq(int, open_all(attack), KV_E_WRONG_KEY), "the whole block");

    /* With the clear fields of the expected block in front, the commitment still says no. */
    memcpy(attack->sealed, kept, 128);
    cr_assert(eq(int, open_all(attack), KV_E_WRONG_KEY), "renamed");

    memcpy(attack->sealed, kept, SEALED);
    memcpy(attack->sealed + 184, other + 184, SEALED - 184);
    cr_assert(eq(int, open_all(attack), KV_E_TAMPERED), "tags and payload under our header");

    memcpy(attack->sealed, kept, SEALED);
    memcpy(attack->sealed + HEADER, other + HEADER, LEN);
    cr_assert(eq(int, open_all(attack), KV_E_TAMPERED), "payload only");

    /* Two full chunks of one block change places, tags and all. */
    memcpy(attack->sealed, kept, SEALED);
    memcpy(attack->sealed + 184, kept + 200, 16);
    memcpy(attack->sealed + 200, kept + 184, 16);
    memcpy(attack->sealed + HEADER, kept + HEADER + 16384, 16384);
    memcpy(attack->sealed + HEADER + 16384, kept + HEADER, 16384);
    cr_assert(eq(int, open_all(attack), KV_E_TAMPERED), "chunks");

    memcpy(attack->sealed, kept, SEALED);
    cr_assert(eq(int, open_all(attack), KV_OK));
    attack_free(attack);
}

Test(sealed_attack, swapped_renamed_or_mixed_blocks_are_refused)
{
    cr_assert(ge(uint, sealed_each_backend(swap_suite, NULL), 1));
}

/* A block whose length is a multiple of the chunk ends in an empty chunk, whose tag counts, too. */
static void empty_chunk_suite(struct kv_sealer *sealer, void *ctx)
{
    enum { FULL = 32768, FULL_SEALED = HEADER + FULL };
    static uint8_t text[FULL], sealed[FULL_SEALED], target[FULL], staging[FULL];
    struct kv_segment from = {.data = text, .len = FULL}, to = {.data = target, .len = FULL};
    struct kv_sealed_context context = sealed_context(FULL);
    struct kv_secret *key = sealed_key(1);
    cr_assert(eq(int, kv_sealed_seal(sealer, key, &context, salt, &from, 1, sealed), KV_OK));
    memset(target, 0xa5, FULL);
    sealed[184 + 2 * 16] ^= 1;
    cr_assert(
        eq(int, kv_sealed_open(sealer, key, &context, sealed, FULL_SEALED, staging, FULL, &to, 1), KV_E_TAMPERED));
    cr_assert(all_are(target, FULL, 0xa5));
    sealed[184 + 2 * 16] ^= 1;
    cr_assert(eq(int, kv_sealed_open(sealer, key, &context, sealed, FULL_SEALED, staging, FULL, &to, 1), KV_OK));
    kv_secret_free(key);
}

Test(sealed_attack, tag_of_the_empty_last_chunk_counts)
{
    cr_assert(ge(uint, sealed_each_backend(empty_chunk_suite, NULL), 1));
}

static enum kv_err open_flat(struct attack *attack, struct kv_bytes sealed)
{
    memset(attack->target, 0, LEN);
    enum kv_err rc = kv_sealed_open_flat(attack->sealer, attack->key, &attack->context, sealed, attack->target, LEN);
    if (rc != KV_OK) {
        cr_assert(all_are(attack->target, LEN, 0), "plaintext outlived a failure");
    }
    return rc;
}

static void flat_suite(struct kv_sealer *sealer, void *ctx)
{
    struct attack *attack = attack_new(sealer);
    struct kv_buf sealed;
    kv_buf_init(&sealed, 100000);
    cr_assert(eq(int,
                 kv_sealed_seal_flat(sealer, &kv_env_system, attack->key, &attack->context, attack->plaintext, &sealed),
                 KV_OK));
    for (size_t at = 0; at < sealed.len; at += at < TAGS_END ? 1 : 997) {
        sealed.data[at] ^= 0x10;
        enum kv_err rc = open_flat(attack, kv_buf_bytes(&sealed));
        bool typed = rc == KV_E_CORRUPT || rc == KV_E_WRONG_KEY || rc == KV_E_TAMPERED;
        cr_assert(typed, "byte %zu: %s", at, kv_err_name(rc));
        sealed.data[at] ^= 0x10;
    }
    static const size_t shorter[] = {0, 183, 184, TAGS_END, TAGS_END + 16384, TAGS_END + LEN - 1};
    for (size_t i = 0; i < sizeof shorter / sizeof shorter[0]; i++) {
        cr_assert(eq(int, open_flat(attack, KV_BYTES(sealed.data, shorter[i])), KV_E_TRUNCATED));
    }
    kv_buf_append(&sealed, "x", 1);
    cr_assert(eq(int, open_flat(attack, kv_buf_bytes(&sealed)), KV_E_CORRUPT), "trailing byte");
    cr_assert(eq(int, open_flat(attack, KV_BYTES(attack->sealed, SEALED)), KV_E_CORRUPT), "the other form");
    cr_assert(eq(int, open_flat(attack, KV_BYTES(sealed.data, sealed.len - 1)), KV_OK));
    memcpy(attack->sealed, sealed.data, sealed.len - 1);
    cr_assert(eq(int, open_all(attack), KV_E_CORRUPT), "the other form");
    kv_buf_done(&sealed);
    attack_free(attack);
}

Test(sealed_attack, compact_form_is_as_strict)
{
    cr_assert(ge(uint, sealed_each_backend(flat_suite, NULL), 1));
}

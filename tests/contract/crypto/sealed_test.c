/* Sealing and opening over every cipher backend: sizes, gathers, the bytes on the medium, arguments that are refused.
 */
#include "dataplane/crypto/sealed.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/fault.h"
#include "tests/lib/sealed_cases.h"

static const size_t borders[] = {0, 1, 15, 16, 17, 4095, 4096, 4097, 16383, 16384, 16385, 32767, 32768, 32769};

/* A block with everything around it. */
struct block {
    size_t len, sealed_len;
    struct kv_sealed_context context;
    struct kv_secret *key;
    uint8_t salt[24];
    uint8_t *plaintext, *sealed, *opened;
    void *staging;
};

static struct block block_new(size_t len)
{
    struct sealed_random random = {.state = len + 1};
    struct block block = {.len = len, .sealed_len = kv_sealed_bytes(len), .context = sealed_context(len)};
    block.key = sealed_key(5);
    block.plaintext = malloc(len + 1);
    block.opened = malloc(len + 1);
    block.sealed = malloc(block.sealed_len);
    sealed_random_fill(&random, block.salt, sizeof block.salt);
    sealed_random_fill(&random, block.plaintext, len);
    memset(block.opened, 0xa5, len + 1);
    memset(block.sealed, 0xa5, block.sealed_len);
    cr_assert(eq(int, kv_locked_alloc(len + 1, &block.staging), KV_OK));
    return block;
}

static void block_done(struct block *block)
{
    kv_secret_free(block->key);
    kv_locked_free(block->staging, block->len + 1);
    free(block->plaintext);
    free(block->opened);
    free(block->sealed);
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

/* Seals from one random cut and opens into another. `longest` bounds the segments. */
static void seal_and_open(struct kv_sealer *sealer, struct block *block, size_t longest)
{
    struct sealed_random random = {.state = block->len * 31 + longest};
    size_t from_count = 0, to_count = 0;
    struct kv_segment *from = sealed_cut(&random, block->plaintext, block->len, longest, &from_count);
    struct kv_segment *to = sealed_cut(&random, block->opened, block->len, longest, &to_count);
    cr_assert(eq(int, kv_sealed_seal(sealer, block->key, &block->context, block->salt, from, from_count, block->sealed),
                 KV_OK));
    cr_assert(eq(int,
                 kv_sealed_open(sealer, block->key, &block->context, block->sealed, block->sealed_len, block->staging,
                                block->len, to, to_count),
                 KV_OK));
    cr_assert(memcmp(block->opened, block->plaintext, block->len) == 0);
    cr_assert(eq(int, block->opened[block->len], 0xa5));
    cr_assert(all_are(block->staging, block->len, 0), "staging was not wiped");
    free(from);
    free(to);
}

static void border_suite(struct kv_sealer *sealer, void *ctx)
{
    for (size_t i = 0; i < sizeof borders / sizeof borders[0]; i++) {
        struct block block = block_new(borders[i]);
        seal_and_open(sealer, &block, 1);
        seal_and_open(sealer, &block, 5);
        seal_and_open(sealer, &block, 5000);
        seal_and_open(sealer, &block, 40000);
        block_done(&block);
    }
}

Test(sealed, any_gather_of_any_border_size_comes_back)
{
    cr_assert(ge(uint, sealed_each_backend(border_suite, NULL), 1));
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

static void big_suite(struct kv_sealer *sealer, void *ctx)
{
    static const size_t lengths[] = {(1 << 20) - 1, 1 << 20, 2 << 20, (8 << 20) + 123};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct block block = block_new(lengths[i]);
        seal_and_open(sealer, &block, 100000);
        seal_and_open(sealer, &block, 777);
        block_done(&block);
    }
}

Test(sealed, big_blocks_come_back)
{
    cr_assert(ge(uint, sealed_each_backend(big_suite, NULL), 1));
}

/* Runs of every length around a line's, at every place in a line, with bytes between them that belong to others. */
static void gap_suite(struct kv_sealer *sealer, void *ctx)
{
    enum { RUN_MAX = 300, GAP = 7, RUNS = (1 << 20) / 150 };
    struct block block = block_new(1 << 20);
    uint8_t *page = malloc((size_t)RUNS * (RUN_MAX + GAP) + block.len);
    struct kv_segment from = {.data = block.plaintext, .len = block.len}, *to = malloc((RUNS + 1) * sizeof *to);
    size_t at = 0, done = 0, count = 0;
    memset(page, 0xa5, (size_t)RUNS * (RUN_MAX + GAP) + block.len);
    for (; count < RUNS && done < block.len; count++) {
        size_t len = count % RUN_MAX < block.len - done ? count % RUN_MAX : block.len - done;
        to[count] = (struct kv_segment){.data = page + at, .len = len};
        at += len + GAP;
        done += len;
    }
    to[count++] = (struct kv_segment){.data = page + at, .len = block.len - done};
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &block.context, block.salt, &from, 1, block.sealed), KV_OK));
    cr_assert(eq(int,
                 kv_sealed_open(sealer, block.key, &block.context, block.sealed, block.sealed_len, block.staging,
                                block.len, to, count),
                 KV_OK));
    const uint8_t *expected = block.plaintext;
    for (size_t i = 0; i < count; expected += to[i].len, i++) {
        cr_assert(memcmp(to[i].data, expected, to[i].len) == 0, "run %zu", i);
        cr_assert(all_are(to[i].data + to[i].len, GAP, 0xa5), "behind run %zu", i);
    }
    free(to);
    free(page);
    block_done(&block);
}

Test(sealed, nothing_between_the_runs_of_a_page_is_written)
{
    cr_assert(ge(uint, sealed_each_backend(gap_suite, NULL), 1));
}

static void keeping_suite(struct kv_sealer *sealer, void *ctx)
{
    struct block block = block_new(20000);
    struct kv_secret *other = sealed_key(6);
    struct kv_segment whole = {.data = block.plaintext, .len = block.len},
                      to = {.data = block.opened, .len = block.len};
    struct kv_buf sealed;
    size_t before = kv_secret_arena_used();
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &block.context, block.salt, &whole, 1, block.sealed), KV_OK));
    cr_assert(eq(sz, kv_secret_arena_used(), before + 1));
    cr_assert(eq(
        int,
        kv_sealed_open(sealer, other, &block.context, block.sealed, block.sealed_len, block.staging, block.len, &to, 1),
        KV_E_WRONG_KEY));
    cr_assert(eq(sz, kv_secret_arena_used(), before + 1));
    cr_assert(eq(int,
                 kv_sealed_open(sealer, block.key, &block.context, block.sealed, block.sealed_len, block.staging,
                                block.len, &to, 1),
                 KV_OK));
    kv_sealer_forget(sealer);
    cr_assert(eq(sz, kv_secret_arena_used(), before));
    kv_sealer_forget(sealer);
    kv_buf_init(&sealed, 1 << 20);
    cr_assert(
        eq(int, kv_sealed_seal_flat(sealer, &kv_env_system, other, &block.context, block.plaintext, &sealed), KV_OK));
    cr_assert(eq(sz, kv_secret_arena_used(), before));
    cr_assert(eq(int,
                 kv_sealed_open_flat(sealer, other, &block.context, kv_buf_bytes(&sealed), block.opened, block.len),
                 KV_OK));
    cr_assert(eq(sz, kv_secret_arena_used(), before));
    kv_buf_done(&sealed);
    kv_secret_free(other);
    block_done(&block);
}

Test(sealed, what_blocks_keep_of_their_key_goes_when_it_is_forgotten_and_rows_keep_nothing)
{
    cr_assert(ge(uint, sealed_each_backend(keeping_suite, NULL), 1));
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

Test(sealed, backends_write_the_same_bytes_and_open_each_others)
{
    struct kv_sealer *a = NULL, *b = NULL;
    static const size_t more[] = {2 << 20, (8 << 20) + 123};
    if (kv_sealer_new(KV_CIPHER_IPSEC_MB, &a) != KV_OK) {
        cr_skip_test("no libipsec-mb here");
    }
    cr_assert(eq(int, kv_sealer_new(KV_CIPHER_OPENSSL, &b), KV_OK));
    for (size_t i = 0; i < sizeof borders / sizeof borders[0] + 2; i++) {
        size_t at = sizeof borders / sizeof borders[0];
        struct block block = block_new(i < at ? borders[i] : more[i - at]);
        uint8_t *first = malloc(block.sealed_len);
        struct kv_segment to = {.data = block.opened, .len = block.len};
        seal_and_open(a, &block, 3000);
        memcpy(first, block.sealed, block.sealed_len);
        seal_and_open(b, &block, 7000);
        cr_assert(memcmp(first, block.sealed, block.sealed_len) == 0, "length %zu", block.len);
        memset(block.opened, 0, block.len);
        cr_assert(eq(int,
                     kv_sealed_open(a, block.key, &block.context, block.sealed, block.sealed_len, block.staging,
                                    block.len, &to, 1),
                     KV_OK));
        cr_assert(memcmp(block.opened, block.plaintext, block.len) == 0);
        free(first);
        block_done(&block);
    }
    kv_sealer_free(a);
    kv_sealer_free(b);
}

static uint64_t be(const uint8_t *at, size_t len)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        value = value << 8 | at[i];
    }
    return value;
}

static void layout_suite(struct kv_sealer *sealer, void *ctx)
{
    struct block block = block_new(40001);
    block.context.seq = UINT64_C(0x0102030405060708);
    seal_and_open(sealer, &block, 9000);
    const uint8_t *header = block.sealed;
    cr_assert(memcmp(header, "KVR1\x01\x01\x01\x01", 8) == 0);
    cr_assert(all_are(header + 8, 16, 0x11) && all_are(header + 24, 16, 0x22));
    cr_assert(all_are(header + 40, 32, 0x33) && all_are(header + 72, 32, 0x44));
    cr_assert(eq(u64, be(header + 104, 8), UINT64_C(0x0102030405060708)));
    cr_assert(eq(u64, be(header + 112, 8), 40001));
    cr_assert(eq(u64, be(header + 120, 4), 3));
    cr_assert(eq(u64, be(header + 124, 4), 4096));
    cr_assert(memcmp(header + 128, block.salt, 24) == 0);
    cr_assert(all_are(header + 184 + 3 * 16, 4096 - 184 - 3 * 16, 0));
    cr_assert(eq(sz, block.sealed_len, 4096 + 40960));
    cr_assert(all_are(header + 4096 + 40001, 40960 - 40001, 0));
    block_done(&block);
}

Test(sealed, bytes_are_where_the_format_says)
{
    cr_assert(ge(uint, sealed_each_backend(layout_suite, NULL), 1));
}

Test(sealed, sizes_follow_from_the_plaintext_length)
{
    cr_assert(eq(u32, kv_sealed_tag_count(0), 1));
    cr_assert(eq(u32, kv_sealed_tag_count(16383), 1));
    cr_assert(eq(u32, kv_sealed_tag_count(16384), 2));
    cr_assert(eq(u32, kv_sealed_tag_count(2 << 20), 129));
    cr_assert(eq(u32, kv_sealed_header_bytes(2 << 20), 4096));
    /* 244 tags are the most in one page. */
    cr_assert(eq(u32, kv_sealed_header_bytes(244 * 16384 - 1), 4096));
    cr_assert(eq(u32, kv_sealed_header_bytes(244 * 16384), 8192));
    cr_assert(eq(u64, kv_sealed_payload_bytes(0), 0));
    cr_assert(eq(u64, kv_sealed_payload_bytes(1), 4096));
    cr_assert(eq(u64, kv_sealed_payload_bytes(4096), 4096));
    cr_assert(eq(u64, kv_sealed_bytes(0), 4096));
    cr_assert(eq(u64, kv_sealed_bytes(2 << 20), 4096 + (2 << 20)));
    cr_assert(eq(sz, kv_sealed_compact_bytes(0), 200));
    cr_assert(eq(sz, kv_sealed_compact_bytes(2056), 184 + 16 + 2056));
}

static void refused_suite(struct kv_sealer *sealer, void *ctx)
{
    struct block block = block_new(1000);
    struct kv_segment whole = {.data = block.plaintext, .len = 1000}, to = {.data = block.opened, .len = 1000};
    struct kv_segment pair[2] = {{.data = block.plaintext, .len = SIZE_MAX}, {.data = block.plaintext, .len = 1001}};
    struct kv_secret *short_key = NULL;
    struct kv_sealed_context context = block.context;
    cr_assert(eq(int, kv_secret_new(16, &short_key), KV_OK));

    /* One byte too few, one too many, a sum that wraps round to the right one. */
    whole.len = 999;
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &context, block.salt, &whole, 1, block.sealed),
                 KV_E_INVALID_REQUEST));
    whole.len = 1001;
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &context, block.salt, &whole, 1, block.sealed),
                 KV_E_INVALID_REQUEST));
    cr_assert(
        eq(int, kv_sealed_seal(sealer, block.key, &context, block.salt, pair, 2, block.sealed), KV_E_INVALID_REQUEST));
    whole.len = 1000;
    cr_assert(eq(int, kv_sealed_seal(sealer, short_key, &context, block.salt, &whole, 1, block.sealed),
                 KV_E_INVALID_REQUEST));
    context.kind = (enum kv_sealed_kind)0;
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &context, block.salt, &whole, 1, block.sealed),
                 KV_E_INVALID_REQUEST));
    context.kind = (enum kv_sealed_kind)5;
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &context, block.salt, &whole, 1, block.sealed),
                 KV_E_INVALID_REQUEST));
    context = block.context;
    whole.len = context.plaintext_length = (uint64_t)KV_MAX_BLOCK_BYTES + 1;
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &context, block.salt, &whole, 1, block.sealed),
                 KV_E_INVALID_REQUEST));
    cr_assert(all_are(block.sealed, block.sealed_len, 0xa5), "a refused request wrote");

    whole.len = 1000;
    cr_assert(eq(int, kv_sealed_seal(sealer, block.key, &block.context, block.salt, &whole, 1, block.sealed), KV_OK));
    cr_assert(eq(
        int,
        kv_sealed_open(sealer, block.key, &block.context, block.sealed, block.sealed_len, block.staging, 999, &to, 1),
        KV_E_INVALID_REQUEST));
    to.len = 999;
    cr_assert(eq(
        int,
        kv_sealed_open(sealer, block.key, &block.context, block.sealed, block.sealed_len, block.staging, 1000, &to, 1),
        KV_E_INVALID_REQUEST));
    cr_assert(all_are(block.opened, 1001, 0xa5));
    to.len = 1000;
    cr_assert(eq(
        int,
        kv_sealed_open(sealer, block.key, &block.context, block.sealed, block.sealed_len, block.staging, 1000, &to, 1),
        KV_OK));
    kv_secret_free(short_key);
    block_done(&block);
}

Test(sealed, arguments_that_do_not_add_up_are_refused_before_anything_is_written)
{
    cr_assert(ge(uint, sealed_each_backend(refused_suite, NULL), 1));
}

static void largest_suite(struct kv_sealer *sealer, void *ctx)
{
    struct block block = block_new((size_t)KV_MAX_BLOCK_BYTES);
    seal_and_open(sealer, &block, 4 << 20);
    block_done(&block);
}

Test(sealed, block_of_the_largest_size_comes_back)
{
    cr_assert(ge(uint, sealed_each_backend(largest_suite, NULL), 1));
}

static void flat_suite(struct kv_sealer *sealer, void *ctx)
{
    static const size_t lengths[] = {0, 1, 2056, 16383, 16384, 16385, 65535};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct block block = block_new(lengths[i]);
        struct kv_buf sealed, again;
        block.context.kind = KV_SEALED_NODE;
        kv_buf_init(&sealed, 100000);
        kv_buf_init(&again, 100000);
        cr_assert(eq(int,
                     kv_sealed_seal_flat(sealer, &kv_env_system, block.key, &block.context, block.plaintext, &sealed),
                     KV_OK));
        cr_assert(eq(int,
                     kv_sealed_seal_flat(sealer, &kv_env_system, block.key, &block.context, block.plaintext, &again),
                     KV_OK));
        cr_assert(eq(sz, sealed.len, kv_sealed_compact_bytes(lengths[i])));
        cr_assert(memcmp(sealed.data + 128, again.data + 128, 24) != 0, "a salt came twice");
        cr_assert(eq(
            int, kv_sealed_open_flat(sealer, block.key, &block.context, kv_buf_bytes(&sealed), block.opened, block.len),
            KV_OK));
        cr_assert(memcmp(block.opened, block.plaintext, block.len) == 0);
        if (block.len > 0) {
            cr_assert(eq(int,
                         kv_sealed_open_flat(sealer, block.key, &block.context, kv_buf_bytes(&sealed), block.opened,
                                             block.len - 1),
                         KV_E_INVALID_REQUEST));
        }
        kv_buf_done(&sealed);
        kv_buf_done(&again);
        block_done(&block);
    }
}

Test(sealed, compact_form_comes_back_and_never_reuses_a_salt)
{
    cr_assert(ge(uint, sealed_each_backend(flat_suite, NULL), 1));
}

static KV_RC random_fails(void *ctx, void *target, size_t len)
{
    return KV_E_CRYPTO;
}

Test(sealed, compact_seal_reports_what_is_missing)
{
    struct kv_sealer *sealer = NULL;
    struct block block = block_new(100);
    struct kv_buf small, sealed;
    struct kv_env env = kv_env_system;
    env.random = random_fails;
    kv_buf_init(&small, 50);
    kv_buf_init(&sealed, 1000);
    cr_assert(eq(int, kv_sealer_new(KV_CIPHER_AUTO, &sealer), KV_OK));
    cr_assert(
        eq(int, kv_sealed_seal_flat(sealer, &env, block.key, &block.context, block.plaintext, &sealed), KV_E_CRYPTO));
    cr_assert(eq(int, kv_sealed_seal_flat(sealer, &kv_env_system, block.key, &block.context, block.plaintext, &small),
                 KV_E_LIMIT));
    kv_fault_set("base/mem=fail@1once");
    cr_assert(eq(int, kv_sealed_seal_flat(sealer, &kv_env_system, block.key, &block.context, block.plaintext, &sealed),
                 KV_E_NO_MEMORY));
    kv_fault_set(NULL);
    cr_assert(eq(sz, sealed.len, 0));
    cr_assert(eq(int, kv_sealed_seal_flat(sealer, &kv_env_system, block.key, &block.context, block.plaintext, &sealed),
                 KV_OK));
    kv_buf_done(&small);
    kv_buf_done(&sealed);
    kv_sealer_free(sealer);
    block_done(&block);
}

static void peek_suite(struct kv_sealer *sealer, void *ctx)
{
    struct block block = block_new(20000);
    struct kv_sealed_context seen;
    struct kv_secret *other = sealed_key(6);
    seal_and_open(sealer, &block, 5000);
    cr_assert(eq(int, kv_sealed_peek(KV_BYTES(block.sealed, 4096), &seen), KV_OK));
    uint8_t expected[117], found[117];
    sealed_context_bytes(&block.context, expected);
    sealed_context_bytes(&seen, found);
    cr_assert(memcmp(expected, found, 117) == 0);
    cr_assert(eq(int, kv_sealed_peek(KV_BYTES(block.sealed, 183), &seen), KV_E_TRUNCATED));
    cr_assert(eq(int, kv_sealed_check(block.key, &block.context, KV_BYTES(block.sealed, 4096)), KV_OK));
    cr_assert(eq(int, kv_sealed_check(block.key, &block.context, KV_BYTES(block.sealed, 184)), KV_OK));
    cr_assert(eq(int, kv_sealed_check(block.key, &block.context, KV_BYTES(block.sealed, 183)), KV_E_TRUNCATED));
    cr_assert(eq(int, kv_sealed_check(other, &block.context, KV_BYTES(block.sealed, 4096)), KV_E_WRONG_KEY));
    block.context.seq = 1;
    cr_assert(eq(int, kv_sealed_check(block.key, &block.context, KV_BYTES(block.sealed, 4096)), KV_E_WRONG_KEY));
    kv_secret_free(other);
    block_done(&block);
}

Test(sealed, header_alone_tells_what_it_is_and_whether_a_key_opens_it)
{
    cr_assert(ge(uint, sealed_each_backend(peek_suite, NULL), 1));
}

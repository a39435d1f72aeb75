/*
 * What a call of dataplane/crypto leaves behind on the stack below it and in the vector registers: nothing of its keys
 * and nothing of the block, neither as they are nor as a hash lays them out. A program of its own: what Criterion does
 * between call and look would lie on top.
 *
 *   kvrun-residue          exit status 1: something was left, and the lines say what of which call
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/heap.h"
#include "dataplane/crypto/kdf.h"
#include "dataplane/crypto/sealed_format_int.h"
#include "dataplane/crypto/sealed_int.h"
#include "dataplane/crypto/sign.h"

enum { PIECE = 16, NEEDLES_MAX = 400, DEPTH = 96 * 1024, BLOCK = 65536 };

/* Both halves of the key on the stack; one in a register, where those are looked at. */
#ifdef __x86_64__
#define CONTROL_FINDS 3
#else
#define CONTROL_FINDS 2
#endif

static struct needle {
    char name[64];
    uint8_t bytes[PIECE];
} needles[NEEDLES_MAX];
static unsigned needle_count, found_count;

static void add(const char *name, const char *form, const uint8_t bytes[PIECE])
{
    struct needle *needle = &needles[needle_count++];
    snprintf(needle->name, sizeof needle->name, "%s%s", name, form);
    memcpy(needle->bytes, bytes, PIECE);
}

static const uint64_t k512[4] = {0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc};
static const uint32_t k256[8] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5,
                                 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5};

/* The words of a piece of a hash's first block, and with the constants of the first rounds added. */
static void add_words(const char *name, const uint8_t piece[PIECE], unsigned half)
{
    uint64_t words[2], rounds[2];
    uint32_t short_words[4], short_rounds[4];
    for (unsigned i = 0; i < 2; i++) {
        memcpy(&words[i], piece + 8 * i, 8);
        words[i] = __builtin_bswap64(words[i]);
        rounds[i] = words[i] + k512[2 * half + i];
    }
    for (unsigned i = 0; i < 4; i++) {
        memcpy(&short_words[i], piece + 4 * i, 4);
        short_words[i] = __builtin_bswap32(short_words[i]);
        short_rounds[i] = short_words[i] + k256[4 * half + i];
    }
    add(name, ".words512", (const uint8_t *)words);
    add(name, ".rounds512", (const uint8_t *)rounds);
    add(name, ".words256", (const uint8_t *)short_words);
    add(name, ".rounds256", (const uint8_t *)short_rounds);
}

static void add_key(const char *name, const uint8_t key[32])
{
    static const uint8_t masks[] = {0, 0x36, 0x5c};
    static const char *const labels[] = {"", ".ipad", ".opad"};
    for (unsigned half = 0; half < 2; half++) {
        for (unsigned m = 0; m < 3; m++) {
            uint8_t piece[PIECE];
            char label[32];
            for (unsigned i = 0; i < PIECE; i++) {
                piece[i] = key[half * PIECE + i] ^ masks[m];
            }
            snprintf(label, sizeof label, "%s%s", name, labels[m]);
            add(label, "", piece);
            add_words(label, piece, half);
        }
    }
}

/* ---- looking ---- */

static uint8_t registers[16 * 32 + 16 * 64];

#ifdef __x86_64__
#define KEEP_WIDE(n) __asm__ volatile("vmovdqu64 %%zmm" #n ", %0" : "=m"(*(uint8_t(*)[64])(registers + (n - 8) * 64)))
#define CLEAR_WIDE(n) __asm__ volatile("vpxorq %%zmm" #n ", %%zmm" #n ", %%zmm" #n : :)

/* The vector registers, before anything else can use them. */
__attribute__((noinline, target("avx512f"))) static void keep_wide_registers(void)
{
    KEEP_WIDE(16);
    KEEP_WIDE(17);
    KEEP_WIDE(18);
    KEEP_WIDE(19);
    KEEP_WIDE(20);
    KEEP_WIDE(21);
    KEEP_WIDE(22);
    KEEP_WIDE(23);
    KEEP_WIDE(24);
    KEEP_WIDE(25);
    KEEP_WIDE(26);
    KEEP_WIDE(27);
    KEEP_WIDE(28);
    KEEP_WIDE(29);
    KEEP_WIDE(30);
    KEEP_WIDE(31);
}

__attribute__((noinline, target("avx512f"))) static void clear_wide_registers(void)
{
    CLEAR_WIDE(16);
    CLEAR_WIDE(17);
    CLEAR_WIDE(18);
    CLEAR_WIDE(19);
    CLEAR_WIDE(20);
    CLEAR_WIDE(21);
    CLEAR_WIDE(22);
    CLEAR_WIDE(23);
    CLEAR_WIDE(24);
    CLEAR_WIDE(25);
    CLEAR_WIDE(26);
    CLEAR_WIDE(27);
    CLEAR_WIDE(28);
    CLEAR_WIDE(29);
    CLEAR_WIDE(30);
    CLEAR_WIDE(31);
}

__attribute__((noinline)) static void clear_registers(void)
{
    if (__builtin_cpu_supports("avx")) {
        __asm__ volatile("vzeroall");
    }
    if (__builtin_cpu_supports("avx512f")) {
        clear_wide_registers();
    }
}

__attribute__((noinline)) static void keep_registers(void)
{
    if (!__builtin_cpu_supports("avx")) {
        return;
    }
    if (__builtin_cpu_supports("avx512f")) {
        keep_wide_registers();
    }
#define KEEP(n) __asm__ volatile("vmovdqu %%ymm" #n ", %0" : "=m"(*(uint8_t(*)[32])(registers + (n)*32)))
    KEEP(0);
    KEEP(1);
    KEEP(2);
    KEEP(3);
    KEEP(4);
    KEEP(5);
    KEEP(6);
    KEEP(7);
    KEEP(8);
    KEEP(9);
    KEEP(10);
    KEEP(11);
    KEEP(12);
    KEEP(13);
    KEEP(14);
    KEEP(15);
#undef KEEP
}

#else
/* Elsewhere the stack alone is looked at. */
static void clear_registers(void)
{
}
static void keep_registers(void)
{
}
#endif

static void look(const char *call, const char *where, const uint8_t *bytes, size_t len)
{
    for (unsigned n = 0; n < needle_count; n++) {
        unsigned hits = 0;
        size_t first = 0;
        for (size_t i = 0; i + PIECE <= len; i++) {
            if (memcmp(bytes + i, needles[n].bytes, PIECE) == 0) {
                first = hits++ == 0 ? i : first;
            }
        }
        if (hits > 0) {
            printf("%s leaves %s in the %s: %u times, first at %zu of %zu\n", call, needles[n].name, where, hits, first,
                   len);
            found_count++;
        }
    }
}

typedef void call_fn(void);
static uint8_t below[DEPTH];

/* Copies the stack below its own frame, which is where the call's frames were. Reads what nobody owns any more. */
__attribute__((noinline, no_sanitize("address"))) static void keep_stack(void)
{
    const volatile uint8_t *top = __builtin_frame_address(0);
    for (size_t i = 0; i < DEPTH; i++) {
        below[i] = *(top - DEPTH + i);
    }
}

__attribute__((noinline, no_sanitize("address"))) static void wipe_stack(void)
{
    volatile uint8_t room[DEPTH];
    for (size_t i = 0; i < DEPTH; i++) {
        room[i] = 0x55;
    }
    (void)room[0];
}

/* The call's frames begin where those of keep_stack and wipe_stack do. */
__attribute__((noinline)) static unsigned look_after(const char *name, call_fn *call)
{
    unsigned before = found_count;
    wipe_stack();
    clear_registers();
    call();
    keep_registers();
    keep_stack();
    size_t deepest = 0;
    while (deepest < DEPTH && below[deepest] == 0x55) {
        deepest++;
    }
    look(name, "stack", below, DEPTH);
    look(name, "registers", registers, sizeof registers);
    printf("%s: %zu bytes of stack, %s\n", name, (size_t)DEPTH - deepest,
           found_count == before ? "clean" : "NOT CLEAN");
    memset(below, 0, sizeof below);
    memset(registers, 0, sizeof registers);
    return found_count - before;
}

/* ---- calls ---- */

static struct kv_secret *key, *derived;
static struct kv_sealer *sealer;
static struct kv_sealed_context context = {.kind = KV_SEALED_BLOCK, .plaintext_length = BLOCK};
static uint8_t salt[KV_SALT_BYTES] = {9}, *plain, *sealed, *staging, *target;
static size_t sealed_bytes;

static void must(enum kv_err rc, const char *what)
{
    if (rc != KV_OK) {
        fprintf(stderr, "%s: %s\n", what, kv_err_title(rc));
        exit(2);
    }
}

static void call_derive(void)
{
    kv_secret_freep(&derived);
    must(kv_kdf_derive(key, "residue", NULL, 0, 32, &derived), "derive");
}

static void call_hmac(void)
{
    uint8_t mac[32];
    must(kv_hmac_sha256(key, NULL, 0, mac), "hmac");
}

static void call_sign(void)
{
    struct kv_sign_key *sign = NULL;
    uint8_t signature[64];
    must(kv_sign_key_from_seed(kv_secret_data(key), &sign), "sign key");
    must(kv_sign(sign, KV_BYTES("x", 1), signature), "sign");
    kv_sign_key_free(sign);
}

static void call_seal(void)
{
    const struct kv_segment segments[] = {{.data = plain, .len = 1000}, {.data = plain + 1000, .len = BLOCK - 1000}};
    must(kv_sealed_seal(sealer, key, &context, salt, segments, 2, sealed), "seal");
}

static void call_open(void)
{
    const struct kv_segment segments[] = {{.data = target, .len = 1000}, {.data = target + 1000, .len = BLOCK - 1000}};
    must(kv_sealed_open(sealer, key, &context, sealed, sealed_bytes, staging, BLOCK, segments, 2), "open");
}

/* Control: it leaves its key where it was, and in a register. */
__attribute__((noinline)) static void call_careless(void)
{
    volatile uint8_t copy[64];
    const uint8_t *data = kv_secret_data(key);
    for (unsigned i = 0; i < 32; i++) {
        copy[i] = data[i];
    }
#ifdef __x86_64__
    __asm__ volatile("movdqu %0, %%xmm7" : : "m"(*(const uint8_t(*)[16])data));
#endif
    (void)copy[3];
}

static void know_needles(void)
{
    struct kv_stream_keys stream;
    uint8_t bytes[KV_SEALED_CONTEXT_BYTES];
    add_key("the key", kv_secret_data(key));
    call_derive();
    add_key("the derived key", kv_secret_data(derived));
    kv_sealed_context_encode(&context, bytes);
    must(kv_stream_derive(NULL, KV_BYTES(kv_secret_data(key), 32), salt, KV_BYTES(bytes, sizeof bytes), &stream),
         "stream");
    add_key("the block's key", stream.aead_key);
    add("the block", "", plain);
}

static void look_at_backend(enum kv_cipher_backend backend)
{
    char name[64];
    if (kv_sealer_new(backend, &sealer) != KV_OK) {
        printf("a backend that this processor or this build does not have\n");
        return;
    }
    for (unsigned round = 0; round < 2; round++) { /* the first call binds symbols, which needs stack, too */
        snprintf(name, sizeof name, "seal by %s", kv_sealer_backend(sealer));
        look_after(name, call_seal);
        memset(target, 0, BLOCK);
        snprintf(name, sizeof name, "open by %s", kv_sealer_backend(sealer));
        look_after(name, call_open);
        if (memcmp(target, plain, BLOCK) != 0) {
            must(KV_E_CORRUPT, "what was opened is not what was sealed");
        }
    }
    kv_sealer_free(sealer);
}

static void make_memory(void)
{
    static const uint8_t seed[32] = "residue key residue key residue";
    void *memory = NULL;
    must(kv_secret_copy(seed, 32, &key), "key");
    sealed_bytes = (size_t)kv_sealed_bytes(BLOCK);
    must(kv_locked_alloc(3 * (size_t)BLOCK + sealed_bytes, &memory), "memory");
    plain = memory;
    staging = plain + BLOCK;
    target = staging + BLOCK;
    sealed = target + BLOCK;
    for (size_t i = 0; i < BLOCK; i++) {
        plain[i] = (uint8_t)("a mark of 16 byte"[i % 16]);
    }
}

int main(void)
{
    must(kv_crypto_heap_init(), "heap");
    make_memory();
    know_needles();
    if (look_after("control", call_careless) < CONTROL_FINDS) {
        printf("control: what was left was not found\n");
        return 1;
    }
    found_count = 0;
    look_after("derive", call_derive);
    look_after("hmac", call_hmac);
    look_after("sign", call_sign);
    look_at_backend(KV_CIPHER_OPENSSL);
    look_at_backend(KV_CIPHER_IPSEC_MB);
    kv_locked_free(plain, 3 * (size_t)BLOCK + sealed_bytes);
    kv_secret_free(key);
    kv_secret_freep(&derived);
    return found_count == 0 ? 0 : 1;
}

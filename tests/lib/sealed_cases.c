/* See sealed_cases.h. */
#include "tests/lib/sealed_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned sealed_each_backend(void (*fn)(struct kv_sealer *sealer, void *ctx), void *ctx)
{
    static const enum kv_cipher_backend backends[] = {KV_CIPHER_OPENSSL, KV_CIPHER_IPSEC_MB};
    unsigned count = 0;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        struct kv_sealer *sealer = NULL;
        enum kv_err rc = kv_sealer_new(backends[i], &sealer);
        if (rc == KV_E_UNSUPPORTED && backends[i] != KV_CIPHER_OPENSSL) {
            fprintf(stderr, "no libipsec-mb here: its half of the test is left out\n");
            continue;
        }
        if (rc != KV_OK) {
            abort();
        }
        fn(sealer, ctx);
        kv_sealer_free(sealer);
        count++;
    }
    return count;
}

struct kv_sealed_context sealed_context(uint64_t plaintext_length)
{
    struct kv_sealed_context context = {.kind = KV_SEALED_BLOCK, .seq = 0, .plaintext_length = plaintext_length};
    memset(context.tenant.b, 0x11, sizeof context.tenant.b);
    memset(context.scope.b, 0x22, sizeof context.scope.b);
    memset(context.block_id.b, 0x33, sizeof context.block_id.b);
    memset(context.layout, 0x44, sizeof context.layout);
    return context;
}

struct kv_secret *sealed_key(uint8_t fill)
{
    struct kv_secret *key = NULL;
    if (kv_secret_new(32, &key) != KV_OK) {
        abort();
    }
    memset(kv_secret_data_mutable(key), fill, 32);
    return key;
}

static uint8_t *put_u64(uint8_t *at, uint64_t value)
{
    for (int shift = 56; shift >= 0; shift -= 8) {
        *at++ = (uint8_t)(value >> shift);
    }
    return at;
}

void sealed_context_bytes(const struct kv_sealed_context *context, uint8_t ret_bytes[117])
{
    uint8_t *at = ret_bytes;
    memcpy(at, "KVR1", 4);
    at[4] = (uint8_t)context->kind;
    memcpy(at + 5, context->tenant.b, 16);
    memcpy(at + 21, context->scope.b, 16);
    memcpy(at + 37, context->block_id.b, 32);
    memcpy(at + 69, context->layout, 32);
    at = put_u64(at + 101, context->seq);
    put_u64(at, context->plaintext_length);
}

/* SplitMix64. */
uint64_t sealed_random_next(struct sealed_random *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

void sealed_random_fill(struct sealed_random *random, void *target, size_t len)
{
    uint8_t *bytes = target;
    while (len > 0) {
        uint64_t value = sealed_random_next(random);
        size_t take = len < sizeof value ? len : sizeof value;
        memcpy(bytes, &value, take);
        bytes += take;
        len -= take;
    }
}

struct kv_segment *sealed_cut(struct sealed_random *random, uint8_t *memory, size_t len, size_t longest,
                              size_t *ret_count)
{
    size_t count = 0, room = 16, at = 0;
    struct kv_segment *segments = malloc(room * sizeof *segments);
    while (at < len) {
        size_t take = longest == 1 ? 1 : (size_t)(sealed_random_next(random) % (longest + 1));
        take = take < len - at ? take : len - at;
        if (count == room) {
            room *= 2;
            segments = realloc(segments, room * sizeof *segments);
        }
        segments[count++] = (struct kv_segment){.data = memory + at, .len = take};
        at += take;
    }
    *ret_count = count;
    return segments;
}

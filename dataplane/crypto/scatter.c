/*
 * From staging to the engine's pages, wiping staging on the way. The pages of a large block are written past the
 * caches: a plain store reads each line from memory before it writes it, though nothing of the line is kept, and pushes
 * out what the caches hold, the block's own staging first. It takes stores of whole lines to be faster; with narrower
 * ones nothing is gained. A small block stays in the caches, where an engine that reads it next finds it. Must never
 * write a byte outside of the segments.
 */
#include "dataplane/crypto/sealed_int.h"

#include <string.h>

enum {
    LINE_BYTES = 64,
    STEP_BYTES = KV_CHUNK_BYTES, /* copied, and wiped while the core still has it */
    PAST_CACHES_BYTES = 1 << 20, /* a block of this size, with its source and staging, fits in no core's own cache */
};

#if defined(__x86_64__)
#include <immintrin.h>

static bool has_line_stores(void)
{
    return __builtin_cpu_supports("avx512f");
}

/* `target` is at a line's border. */
__attribute__((target("avx512f"))) static void stream_lines(uint8_t *target, const uint8_t *source, size_t lines)
{
    for (size_t i = 0; i < lines; i++) {
        __m512i line = _mm512_loadu_si512(source + i * LINE_BYTES);
        _mm512_stream_si512((__m512i *)(void *)(target + i * LINE_BYTES), line);
    }
}

/* Such stores are not ordered with later ones: who learns that the block is there must find it. Once a block, because
 * waiting for them costs as much as some hundred of them. */
static void settle(void)
{
    _mm_sfence();
}
#else
static bool has_line_stores(void)
{
    return false;
}

static void stream_lines(uint8_t *target, const uint8_t *source, size_t lines)
{
    memcpy(target, source, lines * LINE_BYTES);
}

static void settle(void)
{
}
#endif

static void copy(uint8_t *target, const uint8_t *source, size_t len, bool past_caches)
{
    size_t head = past_caches ? (size_t)(-(uintptr_t)target % LINE_BYTES) : len;
    head = head < len ? head : len;
    memcpy(target, source, head);
    size_t lines = (len - head) / LINE_BYTES, done = head + lines * LINE_BYTES;
    if (lines > 0) {
        stream_lines(target + head, source + head, lines);
    }
    memcpy(target + done, source + done, len - done);
}

void kv_scatter(uint8_t *staging, size_t block_bytes, const struct kv_segment *target, size_t count)
{
    bool past_caches = block_bytes >= PAST_CACHES_BYTES && has_line_stores();
    for (size_t i = 0; i < count; i++) {
        for (size_t at = 0; at < target[i].len; at += STEP_BYTES) {
            size_t left = target[i].len - at, step = left < STEP_BYTES ? left : STEP_BYTES;
            copy(target[i].data + at, staging, step, past_caches);
            kv_wipe(staging, step);
            staging += step;
        }
    }
    if (past_caches) {
        settle();
    }
}

/*
 * Five properties that the server's tests rely on: a whole import and a part of one give the reference logits; an
 * export is stable, also after an import; one flipped bit changes the logits, so that "identical" means something.
 */
#include "tests/engine/selfcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool report(const char *what, const char *why, bool holds)
{
    printf("%-46s %s%s%s\n", what, why == NULL && holds ? "yes" : "NO", why != NULL ? ": " : "",
           why != NULL ? why : "");
    return why == NULL && holds;
}

static bool resumes(struct kv_bench *bench, const char *what, uint32_t usable, bool expected)
{
    bool identical = false;
    const char *why = bench->ref->ops->clear(bench->ref);
    if (why == NULL) {
        why = kv_bench_resume(bench, usable, &identical);
    }
    return report(what, why, identical == expected);
}

static bool exports_same(struct kv_bench *bench, const char *what, const uint8_t *before)
{
    kv_pool_memory_zero(&bench->pool);
    const char *why = kv_bench_export(bench);
    return report(what, why, memcmp(before, bench->pool.base, bench->pool.size_bytes) == 0);
}

static bool check_with_copy(struct kv_bench *bench, uint8_t *copy)
{
    uint32_t blocks = bench->prompt.block_count;
    memcpy(copy, bench->pool.base, bench->pool.size_bytes);
    bool fine = exports_same(bench, "a second export has the same bytes", copy);
    fine = resumes(bench, "all blocks imported: logits identical", blocks, true) && fine;
    fine = exports_same(bench, "an export after the import has the same bytes", copy) && fine;
    fine = resumes(bench, "half imported, half computed: identical", blocks / 2, true) && fine;
    bench->pool.base[bench->pool.slot_bytes / 3] ^= 0x40;
    fine = resumes(bench, "one bit flipped: logits differ", blocks, false) && fine;
    memcpy(bench->pool.base, copy, bench->pool.size_bytes);
    return resumes(bench, "bit flipped back: logits identical", blocks, true) && fine;
}

bool kv_selfcheck(struct kv_bench *bench)
{
    double cold_ms = 0;
    const char *why = kv_bench_cold(bench, &cold_ms);
    if (why == NULL) {
        why = kv_bench_export(bench);
    }
    uint8_t *copy = malloc(bench->pool.size_bytes);
    if (why == NULL && copy == NULL) {
        why = "out of memory";
    }
    bool fine = report("prefill, next token, export", why, true);
    if (fine) {
        printf("%-46s %.1f ms\n", "cold", cold_ms);
        fine = check_with_copy(bench, copy);
    }
    free(copy);
    return fine;
}

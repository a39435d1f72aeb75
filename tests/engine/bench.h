/*
 * An engine with a prompt and a pool: what every command and the library test do with one. Block i of the prompt lives
 * in slot i. Functions that can fail return NULL on success, else a static text. Thread: one at a time.
 */
#ifndef KV_TESTS_ENGINE_BENCH_H
#define KV_TESTS_ENGINE_BENCH_H

#include "tests/engine/engine.h"
#include "tests/engine/pool_memory.h"
#include "tests/engine/prompt.h"

#include <stdbool.h>

struct kv_bench_conf {
    const char *model_path; /* NULL: the simulated engine */
    const char *text_path;
    uint32_t tokens;
    uint32_t us_per_token; /* simulated engine */
    unsigned threads;      /* 0: 2. One is the right number where tests run side by side */
};

struct kv_bench {
    struct kv_ref *ref;
    struct kv_prompt prompt;
    struct kv_pool_memory pool;
    uint8_t *reference; /* the logits to reach again */
    size_t reference_bytes;
    uint8_t (*exported)[KV_PROMPT_HASH_BYTES]; /* owned; SHA-256 of each block as it was handed over */
    char fingerprint[KV_PROMPT_HASH_TEXT];     /* of the model */
    char format[128];                          /* of a block, with the model in it */
};

/* Loads, warms up and touches all memory, so that nothing of that is in a measured time. */
KV_REF_FAILURE kv_bench_open(const struct kv_bench_conf *conf, struct kv_bench *ret_bench);
void kv_bench_done(struct kv_bench *bench);

double kv_bench_now_ms(void);
/* Prefill and the next token from nothing: sets the reference. */
KV_REF_FAILURE kv_bench_cold(struct kv_bench *bench, double *ret_ms);
KV_REF_FAILURE kv_bench_export(struct kv_bench *bench);
/* The context is empty and the pool is zero afterwards. */
KV_REF_FAILURE kv_bench_forget(struct kv_bench *bench);
/* Imports the first `usable` blocks from the pool, computes the others again, decodes the next token. */
KV_REF_FAILURE kv_bench_resume(struct kv_bench *bench, uint32_t usable, bool *ret_identical);
/* Are the first `usable` blocks of the pool, byte for byte, those that were exported? The logits alone do not say so: a
 * change in the last bit of one number may well be lost in the rounding of a real engine. */
KV_REF_FAILURE kv_bench_compare_blocks(const struct kv_bench *bench, uint32_t usable, bool *ret_identical);
KV_REF_FAILURE kv_bench_set_reference(struct kv_bench *bench, const void *logits, size_t bytes);

#endif

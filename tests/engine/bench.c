/* Prefill, export, forget, import, compare. The comparison is on bits: a restored cache is the same cache or it is
 * wrong. */
#include "tests/engine/bench.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(expr)                  \
    do {                           \
        const char *why_ = (expr); \
        if (why_ != NULL) {        \
            return why_;           \
        }                          \
    } while (0)

double kv_bench_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static const char *load_engine(const struct kv_bench_conf *conf, struct kv_bench *bench)
{
    const struct kv_ref_ops *ops = &kv_ref_sim;
    struct kv_ref_conf ref_conf = {.model_path = conf->model_path,
                                   .context_tokens = conf->tokens,
                                   .us_per_token = conf->us_per_token,
                                   .threads = conf->threads};
    /* The simulated model is its seed, and that is always 0. */
    memset(bench->fingerprint, '0', sizeof(bench->fingerprint) - 1);
    if (conf->model_path != NULL) {
#ifdef KV_HAVE_LLAMA
        ops = &kv_ref_llama;
        TRY(kv_prompt_file_hash(conf->model_path, bench->fingerprint));
#else
        return "built without llama.cpp";
#endif
    }
    snprintf(bench->format, sizeof(bench->format), "%s/%.16s", ops->format, bench->fingerprint);
    return ops->load(&ref_conf, &bench->ref);
}

/* Two blocks are enough to have every buffer of the engine touched. */
static const char *warm_up(struct kv_bench *bench)
{
    struct kv_ref *ref = bench->ref;
    const struct kv_prompt *prompt = &bench->prompt;
    uint32_t blocks = prompt->block_count < 2 ? prompt->block_count : 2;
    const void *logits;
    size_t bytes;
    TRY(ref->ops->prefill(ref, 0, prompt->tokens, blocks * KV_REF_BLOCK_TOKENS));
    TRY(ref->ops->decode(ref, blocks * KV_REF_BLOCK_TOKENS, prompt->tokens[0], &logits, &bytes));
    for (uint32_t i = 0; i < blocks; i++) {
        TRY(ref->ops->export_block(ref, i, kv_pool_memory_slot(&bench->pool, i)));
    }
    TRY(ref->ops->clear(ref));
    for (uint32_t i = 0; i < blocks; i++) {
        TRY(ref->ops->import_block(ref, i, kv_pool_memory_slot(&bench->pool, i)));
    }
    return kv_bench_forget(bench);
}

static const char *open_parts(const struct kv_bench_conf *conf, struct kv_bench *bench)
{
    TRY(kv_prompt_read(conf->text_path, conf->tokens, &bench->prompt));
    TRY(load_engine(conf, bench));
    bench->exported = calloc(bench->prompt.block_count, sizeof(*bench->exported));
    if (bench->exported == NULL) {
        return "out of memory";
    }
    size_t block_bytes = bench->ref->ops->block_bytes(bench->ref);
    TRY(kv_pool_memory_new(block_bytes, bench->prompt.block_count, &bench->pool));
    return warm_up(bench);
}

const char *kv_bench_open(const struct kv_bench_conf *conf, struct kv_bench *ret_bench)
{
    struct kv_bench bench = {.pool = {.fd = -1}};
    const char *why = open_parts(conf, &bench);
    if (why != NULL) {
        kv_bench_done(&bench);
        return why;
    }
    *ret_bench = bench;
    return NULL;
}

void kv_bench_done(struct kv_bench *bench)
{
    if (bench->ref != NULL) {
        bench->ref->ops->free(bench->ref);
    }
    kv_prompt_done(&bench->prompt);
    kv_pool_memory_done(&bench->pool);
    free(bench->reference);
    free(bench->exported);
    *bench = (struct kv_bench){.pool = {.fd = -1}};
}

const char *kv_bench_set_reference(struct kv_bench *bench, const void *logits, size_t bytes)
{
    uint8_t *copy = malloc(bytes);
    if (copy == NULL) {
        return "out of memory";
    }
    memcpy(copy, logits, bytes);
    free(bench->reference);
    bench->reference = copy;
    bench->reference_bytes = bytes;
    return NULL;
}

static const char *decode_next(struct kv_bench *bench, const void **ret_logits, size_t *ret_bytes)
{
    const struct kv_prompt *prompt = &bench->prompt;
    return bench->ref->ops->decode(bench->ref, prompt->token_count, prompt->tokens[prompt->token_count], ret_logits,
                                   ret_bytes);
}

const char *kv_bench_cold(struct kv_bench *bench, double *ret_ms)
{
    struct kv_ref *ref = bench->ref;
    const void *logits;
    size_t bytes;
    double start = kv_bench_now_ms();
    TRY(ref->ops->prefill(ref, 0, bench->prompt.tokens, bench->prompt.token_count));
    TRY(decode_next(bench, &logits, &bytes));
    double ms = kv_bench_now_ms() - start;
    TRY(kv_bench_set_reference(bench, logits, bytes));
    *ret_ms = ms;
    return NULL;
}

static const char *hash_slot(const struct kv_bench *bench, uint32_t slot, uint8_t ret_hash[KV_PROMPT_HASH_BYTES])
{
    const uint8_t *data = kv_pool_memory_slot(&bench->pool, slot);
    bool fine = EVP_Digest(data, bench->pool.slot_bytes, ret_hash, NULL, EVP_sha256(), NULL) == 1;
    return fine ? NULL : "SHA-256 failed";
}

const char *kv_bench_export(struct kv_bench *bench)
{
    for (uint32_t i = 0; i < bench->prompt.block_count; i++) {
        TRY(bench->ref->ops->export_block(bench->ref, i, kv_pool_memory_slot(&bench->pool, i)));
        TRY(hash_slot(bench, i, bench->exported[i]));
    }
    return NULL;
}

const char *kv_bench_compare_blocks(const struct kv_bench *bench, uint32_t usable, bool *ret_identical)
{
    bool identical = true;
    for (uint32_t i = 0; i < usable; i++) {
        uint8_t hash[KV_PROMPT_HASH_BYTES];
        TRY(hash_slot(bench, i, hash));
        identical = identical && memcmp(hash, bench->exported[i], sizeof(hash)) == 0;
    }
    *ret_identical = identical;
    return NULL;
}

const char *kv_bench_forget(struct kv_bench *bench)
{
    kv_pool_memory_zero(&bench->pool);
    return bench->ref->ops->clear(bench->ref);
}

const char *kv_bench_resume(struct kv_bench *bench, uint32_t usable, bool *ret_identical)
{
    struct kv_ref *ref = bench->ref;
    const struct kv_prompt *prompt = &bench->prompt;
    if (usable > prompt->block_count) {
        return "more blocks are usable than the prompt has";
    }
    for (uint32_t i = 0; i < usable; i++) {
        TRY(ref->ops->import_block(ref, i, kv_pool_memory_slot(&bench->pool, i)));
    }
    uint32_t held = usable * KV_REF_BLOCK_TOKENS;
    if (held < prompt->token_count) {
        TRY(ref->ops->prefill(ref, held, prompt->tokens + held, prompt->token_count - held));
    }
    const void *logits;
    size_t bytes;
    TRY(decode_next(bench, &logits, &bytes));
    *ret_identical = bytes == bench->reference_bytes && memcmp(logits, bench->reference, bytes) == 0;
    return NULL;
}

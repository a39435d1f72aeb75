/*
 * llama.cpp as the reference engine, through its public C interface only.
 *
 * A block is the serialised state of a scratch sequence that shares 256 cells with the prompt's. Import goes the other
 * way and in order, so that every cell lies where the cold prefill put it and attention adds up in the same order: that
 * is why the logits are the same bit for bit. It must never parse the serialised state: its layout belongs to one
 * version of llama.cpp.
 */
#include "tests/engine/engine.h"

#include <ggml-backend.h>
#include <llama.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT_SEQUENCE = 0, SCRATCH_SEQUENCE = 1, SEQUENCES_MAX = 2 };

struct llama_engine {
    struct kv_ref base;
    struct llama_model *model;
    struct llama_context *context;
    struct llama_batch batch;
    bool batch_ready;
    size_t logits_bytes;
    size_t block_bytes; /* 0 until measured */
};

static struct llama_engine *engine_of(struct kv_ref *ref)
{
    return (struct llama_engine *)ref;
}

static void log_warnings(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void start_library(void)
{
    static bool started; /* The library is process state itself. */
    if (!started) {
        llama_log_set(log_warnings, NULL);
        ggml_backend_load_all_from_path(KV_LLAMA_LIB_DIR);
        llama_backend_init();
        started = true;
    }
}

static struct llama_context_params context_params(const struct kv_ref_conf *conf)
{
    struct llama_context_params params = llama_context_default_params();
    /* The context is full blocks and one more for the next token. */
    uint32_t blocks = (conf->context_tokens + KV_REF_BLOCK_TOKENS - 1) / KV_REF_BLOCK_TOKENS + 1;
    params.n_ctx = blocks * KV_REF_BLOCK_TOKENS;
    params.n_batch = KV_REF_BLOCK_TOKENS;
    params.n_ubatch = KV_REF_BLOCK_TOKENS;
    params.n_seq_max = SEQUENCES_MAX;
    params.n_threads_batch = conf->threads != 0 ? (int32_t)conf->threads : 2;
    /* Threads of llama.cpp spin while they wait for each other. One token of so small a model is sooner done by one
     * thread, above all where something else wants the other core. */
    params.n_threads = 1;
    params.kv_unified = true;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    return params;
}

static const char *feed(struct llama_engine *engine, uint32_t first, const int32_t *tokens, uint32_t count,
                        bool want_logits)
{
    struct llama_batch *batch = &engine->batch;
    batch->n_tokens = (int32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        batch->token[i] = tokens[i];
        batch->pos[i] = (llama_pos)(first + i);
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = PROMPT_SEQUENCE;
        batch->logits[i] = want_logits && i + 1 == count;
    }
    return llama_decode(engine->context, *batch) == 0 ? NULL : "llama_decode failed; is the context large enough?";
}

static const char *llama_clear(struct kv_ref *ref)
{
    llama_memory_clear(llama_get_memory(engine_of(ref)->context), true);
    return NULL;
}

static const char *llama_prefill(struct kv_ref *ref, uint32_t first, const int32_t *tokens, uint32_t count)
{
    for (uint32_t at = 0; at < count; at += KV_REF_BLOCK_TOKENS) {
        uint32_t step = count - at < KV_REF_BLOCK_TOKENS ? count - at : KV_REF_BLOCK_TOKENS;
        const char *why = feed(engine_of(ref), first + at, tokens + at, step, false);
        if (why != NULL) {
            return why;
        }
    }
    return NULL;
}

static void share_with_scratch(struct llama_engine *engine, uint32_t index)
{
    llama_pos start = (llama_pos)(index * KV_REF_BLOCK_TOKENS);
    llama_memory_t memory = llama_get_memory(engine->context);
    llama_memory_seq_cp(memory, PROMPT_SEQUENCE, SCRATCH_SEQUENCE, start, start + (llama_pos)KV_REF_BLOCK_TOKENS);
}

static void drop_scratch(struct llama_engine *engine)
{
    llama_memory_seq_rm(llama_get_memory(engine->context), SCRATCH_SEQUENCE, -1, -1);
}

static const char *llama_export_block(struct kv_ref *ref, uint32_t index, void *target)
{
    struct llama_engine *engine = engine_of(ref);
    share_with_scratch(engine, index);
    size_t size = llama_state_seq_get_size(engine->context, SCRATCH_SEQUENCE);
    size_t written = 0;
    if (size == engine->block_bytes) {
        written = llama_state_seq_get_data(engine->context, target, size, SCRATCH_SEQUENCE);
    }
    drop_scratch(engine);
    return written == engine->block_bytes ? NULL : "the state of a block has another size than that of the first";
}

static const char *llama_import_block(struct kv_ref *ref, uint32_t index, const void *source)
{
    struct llama_engine *engine = engine_of(ref);
    llama_memory_t memory = llama_get_memory(engine->context);
    llama_pos expected = (llama_pos)(index * KV_REF_BLOCK_TOKENS) - 1;
    if (llama_memory_seq_pos_max(memory, PROMPT_SEQUENCE) != expected) {
        return "blocks are imported in order, from an empty context on";
    }
    size_t read = llama_state_seq_set_data(engine->context, source, engine->block_bytes, SCRATCH_SEQUENCE);
    if (read != engine->block_bytes) {
        return "llama.cpp refused the block";
    }
    llama_memory_seq_cp(memory, SCRATCH_SEQUENCE, PROMPT_SEQUENCE, -1, -1);
    drop_scratch(engine);
    return NULL;
}

static const char *llama_decode_next(struct kv_ref *ref, uint32_t position, int32_t token, const void **ret_logits,
                                     size_t *ret_logits_bytes)
{
    struct llama_engine *engine = engine_of(ref);
    const char *why = feed(engine, position, &token, 1, true);
    if (why != NULL) {
        return why;
    }
    const float *logits = llama_get_logits_ith(engine->context, -1);
    if (logits == NULL) {
        return "llama.cpp gave no logits";
    }
    *ret_logits = logits;
    *ret_logits_bytes = engine->logits_bytes;
    return NULL;
}

static size_t llama_block_bytes(const struct kv_ref *ref)
{
    return ((const struct llama_engine *)ref)->block_bytes;
}

static void llama_engine_free(struct kv_ref *ref)
{
    if (ref == NULL) {
        return;
    }
    struct llama_engine *engine = engine_of(ref);
    if (engine->batch_ready) {
        llama_batch_free(engine->batch);
    }
    if (engine->context != NULL) {
        llama_free(engine->context);
    }
    if (engine->model != NULL) {
        llama_model_free(engine->model);
    }
    free(engine);
}

/* One block of zeroes through the model: warms it up and says how large a block is. */
static const char *measure_block(struct llama_engine *engine)
{
    static const int32_t tokens[KV_REF_BLOCK_TOKENS];
    const char *why = feed(engine, 0, tokens, KV_REF_BLOCK_TOKENS, false);
    if (why != NULL) {
        return why;
    }
    share_with_scratch(engine, 0);
    engine->block_bytes = llama_state_seq_get_size(engine->context, SCRATCH_SEQUENCE);
    return llama_clear(&engine->base);
}

static const char *open_model(struct llama_engine *engine, const struct kv_ref_conf *conf)
{
    engine->model = llama_model_load_from_file(conf->model_path, llama_model_default_params());
    if (engine->model == NULL) {
        return "the model cannot be loaded; make one with make_model.py";
    }
    engine->context = llama_init_from_model(engine->model, context_params(conf));
    if (engine->context == NULL) {
        return "llama.cpp cannot make a context of that size";
    }
    engine->batch = llama_batch_init((int32_t)KV_REF_BLOCK_TOKENS, 0, 1);
    engine->batch_ready = true;
    int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(engine->model));
    engine->logits_bytes = sizeof(float) * (size_t)vocabulary;
    return measure_block(engine);
}

static const char *llama_load(const struct kv_ref_conf *conf, struct kv_ref **ret_ref)
{
    if (conf->model_path == NULL) {
        return "llama.cpp needs a model file";
    }
    start_library();
    struct llama_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) {
        return "out of memory";
    }
    engine->base.ops = &kv_ref_llama;
    const char *why = open_model(engine, conf);
    if (why != NULL) {
        llama_engine_free(&engine->base);
        return why;
    }
    *ret_ref = &engine->base;
    return NULL;
}

const struct kv_ref_ops kv_ref_llama = {
    .kind = "llamacpp",
    .title = "llama.cpp v0.5.0 (npm), random weights",
    .engine_version = "llama.cpp v0.5.0",
    .format = "llama-state-seq/f16",
    .load = llama_load,
    .free = llama_engine_free,
    .block_bytes = llama_block_bytes,
    .prefill = llama_prefill,
    .export_block = llama_export_block,
    .import_block = llama_import_block,
    .clear = llama_clear,
    .decode = llama_decode_next,
};

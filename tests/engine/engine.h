/*
 * The reference engine: something that computes a KV cache from tokens, gives it away in blocks and takes it back, and
 * answers with logits whose bits depend on every byte of it. Two fillings: llama.cpp with a random-weight model, and a
 * simulation for machines where llama.cpp is not to be had. What runs on top cannot tell them apart.
 *
 * Functions that can fail return NULL on success, otherwise a static text that says what went wrong.
 * Thread: one thread at a time uses an engine.
 */
#ifndef KV_TESTS_ENGINE_H
#define KV_TESTS_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#define KV_REF_BLOCK_TOKENS 256u
#define KV_REF_FAILURE __attribute__((warn_unused_result)) const char *

struct kv_ref_conf {
    const char *model_path;   /* llama.cpp only; borrowed for the call */
    uint32_t context_tokens;  /* tokens the engine must be able to hold; room for the next token is added */
    unsigned threads;         /* 0: 2 */
    uint64_t seed;            /* simulation: another seed is another model */
    uint32_t bytes_per_token; /* simulation; 0: 4096 */
    uint32_t us_per_token;    /* simulation: what prefill costs */
};

struct kv_ref;

struct kv_ref_ops {
    const char *kind;           /* as registered with the server: "llamacpp", "sim" */
    const char *title;          /* for people */
    const char *engine_version; /* part of the layout: blocks of another version do not fit */
    const char *format;
    KV_REF_FAILURE (*load)(const struct kv_ref_conf *conf, struct kv_ref **ret_ref);
    void (*free)(struct kv_ref *ref);
    size_t (*block_bytes)(const struct kv_ref *ref); /* the same for every full block */
    /* Computes the KV of `count` tokens that follow the `first` ones already held. Always in steps of one block, so
     * that a block recomputed later goes through the same arithmetic, in the same shape, as at the first time. */
    KV_REF_FAILURE (*prefill)(struct kv_ref *ref, uint32_t first, const int32_t *tokens, uint32_t count);
    /* Serialises block `index` (tokens index * 256 …) to block_bytes bytes at `target`. */
    KV_REF_FAILURE (*export_block)(struct kv_ref *ref, uint32_t index, void *target);
    /* Appends the block: imports come in order, from an empty context on. */
    KV_REF_FAILURE (*import_block)(struct kv_ref *ref, uint32_t index, const void *source);
    KV_REF_FAILURE (*clear)(struct kv_ref *ref);
    /* Decodes one token at `position` (everything before it is held). The logits are borrowed until the next call. */
    KV_REF_FAILURE(*decode)
    (struct kv_ref *ref, uint32_t position, int32_t token, const void **ret_logits, size_t *ret_logits_bytes);
};

/* An engine starts with this. */
struct kv_ref {
    const struct kv_ref_ops *ops;
};

extern const struct kv_ref_ops kv_ref_sim;
#ifdef KV_HAVE_LLAMA
extern const struct kv_ref_ops kv_ref_llama;
#endif

#endif

/*
 * The simulated engine. The KV of a token is noise keyed by the seed and by all tokens up to it, and the logits are a
 * hash over every byte held and the next token: a block that comes back wrong in one bit, in another place or under
 * another prompt changes them, as it would in a real engine. Prefill costs what it is told to cost. It must never be
 * used for a figure about inference: it moves the right bytes and computes nothing.
 */
#include "tests/engine/engine.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_BYTES_PER_TOKEN 4096u
#define LOGITS_BYTES 32u
/* A little header makes a block no multiple of a page, as in real engines. */
#define BLOCK_MAGIC UINT64_C(0x6b76726566313030)

struct block_header {
    uint64_t magic, index, tokens, bytes_per_token;
};

struct sim_engine {
    struct kv_ref base;
    struct kv_ref_conf conf;
    uint8_t *kv;
    uint64_t *prefix; /* keyed state after each token held */
    uint32_t held, tokens_max;
    uint8_t logits[LOGITS_BYTES];
};

static struct sim_engine *engine_of(struct kv_ref *ref)
{
    return (struct sim_engine *)ref;
}

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void spend(uint64_t us)
{
    struct timespec left = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    while (us > 0 && nanosleep(&left, &left) != 0) {
    }
}

static uint8_t *kv_of(struct sim_engine *engine, uint32_t token)
{
    return engine->kv + (size_t)token * engine->conf.bytes_per_token;
}

static void compute_token(struct sim_engine *engine, uint32_t at, int32_t token)
{
    uint64_t before = at == 0 ? mix(engine->conf.seed + 1) : engine->prefix[at - 1];
    engine->prefix[at] = mix(before * 31 + (uint64_t)(uint32_t)token + 1);
    uint8_t *target = kv_of(engine, at);
    for (uint32_t i = 0; i < engine->conf.bytes_per_token; i += 8) {
        uint64_t word = mix(engine->prefix[at] + i);
        memcpy(target + i, &word, sizeof(word));
    }
}

static const char *sim_prefill(struct kv_ref *ref, uint32_t first, const int32_t *tokens, uint32_t count)
{
    struct sim_engine *engine = engine_of(ref);
    if (first != engine->held || count > engine->tokens_max - engine->held) {
        return "tokens follow those already held and fit the context";
    }
    for (uint32_t i = 0; i < count; i++) {
        compute_token(engine, first + i, tokens[i]);
    }
    engine->held += count;
    spend((uint64_t)count * engine->conf.us_per_token);
    return NULL;
}

static size_t sim_block_bytes(const struct kv_ref *ref)
{
    const struct sim_engine *engine = (const struct sim_engine *)ref;
    /* Header, the keyed state at the block's end (a later prefill goes on from it), the KV. */
    return sizeof(struct block_header) + sizeof(uint64_t) + (size_t)KV_REF_BLOCK_TOKENS * engine->conf.bytes_per_token;
}

static struct block_header header_of(const struct sim_engine *engine, uint32_t index)
{
    return (struct block_header){.magic = BLOCK_MAGIC,
                                 .index = index,
                                 .tokens = KV_REF_BLOCK_TOKENS,
                                 .bytes_per_token = engine->conf.bytes_per_token};
}

static const char *sim_export_block(struct kv_ref *ref, uint32_t index, void *target)
{
    struct sim_engine *engine = engine_of(ref);
    uint32_t first = index * KV_REF_BLOCK_TOKENS;
    if (index >= engine->held / KV_REF_BLOCK_TOKENS) {
        return "that block is not held";
    }
    struct block_header header = header_of(engine, index);
    uint8_t *at = target;
    memcpy(at, &header, sizeof(header));
    at += sizeof(header);
    memcpy(at, &engine->prefix[first + KV_REF_BLOCK_TOKENS - 1], sizeof(uint64_t));
    at += sizeof(uint64_t);
    memcpy(at, kv_of(engine, first), (size_t)KV_REF_BLOCK_TOKENS * engine->conf.bytes_per_token);
    return NULL;
}

static const char *sim_import_block(struct kv_ref *ref, uint32_t index, const void *source)
{
    struct sim_engine *engine = engine_of(ref);
    uint32_t first = index * KV_REF_BLOCK_TOKENS;
    if (first != engine->held || engine->tokens_max - engine->held < KV_REF_BLOCK_TOKENS) {
        return "blocks are imported in order, from an empty context on";
    }
    struct block_header expected = header_of(engine, index);
    const uint8_t *at = source;
    if (memcmp(at, &expected, sizeof(expected)) != 0) {
        return "the simulated engine refused the block";
    }
    at += sizeof(expected);
    memcpy(&engine->prefix[first + KV_REF_BLOCK_TOKENS - 1], at, sizeof(uint64_t));
    at += sizeof(uint64_t);
    memcpy(kv_of(engine, first), at, (size_t)KV_REF_BLOCK_TOKENS * engine->conf.bytes_per_token);
    engine->held += KV_REF_BLOCK_TOKENS;
    return NULL;
}

static const char *sim_clear(struct kv_ref *ref)
{
    struct sim_engine *engine = engine_of(ref);
    memset(engine->kv, 0, (size_t)engine->held * engine->conf.bytes_per_token);
    memset(engine->prefix, 0, (size_t)engine->held * sizeof(uint64_t));
    engine->held = 0;
    return NULL;
}

static const char *sim_decode(struct kv_ref *ref, uint32_t position, int32_t token, const void **ret_logits,
                              size_t *ret_logits_bytes)
{
    struct sim_engine *engine = engine_of(ref);
    const char *why = sim_prefill(ref, position, &token, 1);
    if (why != NULL) {
        return why;
    }
    size_t bytes = (size_t)engine->held * engine->conf.bytes_per_token;
    if (EVP_Digest(engine->kv, bytes, engine->logits, NULL, EVP_sha256(), NULL) != 1) {
        return "SHA-256 failed";
    }
    *ret_logits = engine->logits;
    *ret_logits_bytes = sizeof(engine->logits);
    return NULL;
}

static void sim_free(struct kv_ref *ref)
{
    if (ref == NULL) {
        return;
    }
    struct sim_engine *engine = engine_of(ref);
    free(engine->kv);
    free(engine->prefix);
    free(engine);
}

static const char *sim_load(const struct kv_ref_conf *conf, struct kv_ref **ret_ref)
{
    uint32_t bytes_per_token = conf->bytes_per_token != 0 ? conf->bytes_per_token : DEFAULT_BYTES_PER_TOKEN;
    if (bytes_per_token % 8 != 0 || bytes_per_token > (1u << 17) || conf->context_tokens > (1u << 20)) {
        return "the simulated engine takes 8 to 131072 bytes a token, a multiple of 8, and at most 1048576 tokens";
    }
    struct sim_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) {
        return "out of memory";
    }
    engine->base.ops = &kv_ref_sim;
    engine->conf = *conf;
    engine->conf.model_path = NULL;
    engine->conf.bytes_per_token = bytes_per_token;
    engine->tokens_max = conf->context_tokens + KV_REF_BLOCK_TOKENS;
    engine->kv = calloc(engine->tokens_max, bytes_per_token);
    engine->prefix = calloc(engine->tokens_max, sizeof(uint64_t));
    if (engine->kv == NULL || engine->prefix == NULL) {
        sim_free(&engine->base);
        return "out of memory";
    }
    *ret_ref = &engine->base;
    return NULL;
}

const struct kv_ref_ops kv_ref_sim = {
    .kind = "sim",
    .title = "simulated (llama.cpp package not available)",
    .engine_version = "kvrun-sim 1",
    .format = "sim-block/1",
    .load = sim_load,
    .free = sim_free,
    .block_bytes = sim_block_bytes,
    .prefill = sim_prefill,
    .export_block = sim_export_block,
    .import_block = sim_import_block,
    .clear = sim_clear,
    .decode = sim_decode,
};

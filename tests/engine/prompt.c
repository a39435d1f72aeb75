/*
 * Text to tokens and hashes. SHA-256(previous hash | 256 tokens, 32 bits little-endian each); before the first block
 * the previous hash is 32 zero bytes.
 */
#include "tests/engine/prompt.h"

#include "tests/engine/engine.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX (1u << 20)
#define FIRST_BYTE_TOKEN 3 /* after unknown, begin and end; see make_model.py */

void kv_prompt_hash_text(const uint8_t hash[KV_PROMPT_HASH_BYTES], char ret_text[KV_PROMPT_HASH_TEXT])
{
    for (size_t i = 0; i < KV_PROMPT_HASH_BYTES; i++) {
        snprintf(ret_text + 2 * i, 3, "%02x", hash[i]);
    }
}

static bool hash_block(uint8_t chain[KV_PROMPT_HASH_BYTES], const int32_t *tokens)
{
    uint8_t input[KV_PROMPT_HASH_BYTES + 4 * KV_REF_BLOCK_TOKENS];
    memcpy(input, chain, KV_PROMPT_HASH_BYTES);
    for (size_t i = 0; i < KV_REF_BLOCK_TOKENS; i++) {
        uint32_t token = (uint32_t)tokens[i];
        uint8_t *at = input + KV_PROMPT_HASH_BYTES + 4 * i;
        at[0] = (uint8_t)token;
        at[1] = (uint8_t)(token >> 8);
        at[2] = (uint8_t)(token >> 16);
        at[3] = (uint8_t)(token >> 24);
    }
    return EVP_Digest(input, sizeof(input), chain, NULL, EVP_sha256(), NULL) == 1;
}

static const char *hash_blocks(struct kv_prompt *prompt)
{
    uint8_t chain[KV_PROMPT_HASH_BYTES] = {0};
    for (uint32_t i = 0; i < prompt->block_count; i++) {
        if (!hash_block(chain, prompt->tokens + (size_t)i * KV_REF_BLOCK_TOKENS)) {
            return "SHA-256 failed";
        }
        kv_prompt_hash_text(chain, prompt->hashes[i]);
    }
    return NULL;
}

static const char *read_text(const char *path, uint8_t **ret_text, size_t *ret_len)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return "the text file cannot be opened";
    }
    uint8_t *text = malloc(TEXT_BYTES_MAX);
    size_t len = text != NULL ? fread(text, 1, TEXT_BYTES_MAX, file) : 0;
    fclose(file);
    if (len == 0) {
        free(text);
        return "the text file is empty or cannot be read";
    }
    *ret_text = text;
    *ret_len = len;
    return NULL;
}

const char *kv_prompt_read(const char *path, uint32_t tokens, struct kv_prompt *ret_prompt)
{
    if (tokens == 0 || tokens % KV_REF_BLOCK_TOKENS != 0) {
        return "the number of tokens must be a multiple of 256";
    }
    uint8_t *text;
    size_t len;
    const char *why = read_text(path, &text, &len);
    if (why != NULL) {
        return why;
    }
    struct kv_prompt prompt = {.token_count = tokens, .block_count = tokens / KV_REF_BLOCK_TOKENS};
    prompt.tokens = calloc((size_t)tokens + 1, sizeof(*prompt.tokens));
    prompt.hashes = calloc(prompt.block_count, sizeof(*prompt.hashes));
    if (prompt.tokens == NULL || prompt.hashes == NULL) {
        why = "out of memory";
    } else {
        for (size_t i = 0; i <= tokens; i++) {
            prompt.tokens[i] = FIRST_BYTE_TOKEN + text[i % len];
        }
        why = hash_blocks(&prompt);
    }
    free(text);
    if (why != NULL) {
        kv_prompt_done(&prompt);
        return why;
    }
    *ret_prompt = prompt;
    return NULL;
}

void kv_prompt_done(struct kv_prompt *prompt)
{
    free(prompt->tokens);
    free(prompt->hashes);
    *prompt = (struct kv_prompt){0};
}

const char *kv_prompt_file_hash(const char *path, char ret_hash[KV_PROMPT_HASH_TEXT])
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return "the model file cannot be opened; make one with make_model.py";
    }
    static uint8_t piece[1u << 16];
    uint8_t hash[KV_PROMPT_HASH_BYTES];
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool fine = ctx != NULL && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
    size_t len;
    while (fine && (len = fread(piece, 1, sizeof(piece), file)) > 0) {
        fine = EVP_DigestUpdate(ctx, piece, len) == 1;
    }
    fine = fine && ferror(file) == 0 && EVP_DigestFinal_ex(ctx, hash, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    fclose(file);
    if (!fine) {
        return "the model file cannot be read";
    }
    kv_prompt_hash_text(hash, ret_hash);
    return NULL;
}

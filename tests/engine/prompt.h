/*
 * The prompt: a text as tokens, a byte a token, and the chained hash of each full block of it. The chain makes a
 * block's name depend on everything before it, as the KV inside does. Thread: any.
 */
#ifndef KV_TESTS_ENGINE_PROMPT_H
#define KV_TESTS_ENGINE_PROMPT_H

#include <stddef.h>
#include <stdint.h>

#define KV_PROMPT_HASH_BYTES 32
#define KV_PROMPT_HASH_TEXT 65 /* 64 hex digits, NUL */

struct kv_prompt {
    int32_t *tokens; /* owned; token_count full blocks and, after them, the next token */
    uint32_t token_count, block_count;
    char (*hashes)[KV_PROMPT_HASH_TEXT]; /* owned; block_count */
};

/* The file repeats from its start as often as needed. `tokens` must be whole blocks. NULL on success, else a static
 * text. */
const char *kv_prompt_read(const char *path, uint32_t tokens, struct kv_prompt *ret_prompt)
    __attribute__((warn_unused_result));
void kv_prompt_done(struct kv_prompt *prompt);

void kv_prompt_hash_text(const uint8_t hash[KV_PROMPT_HASH_BYTES], char ret_text[KV_PROMPT_HASH_TEXT]);

/* SHA-256 of a whole file, as hex: the fingerprint of a model. */
const char *kv_prompt_file_hash(const char *path, char ret_hash[KV_PROMPT_HASH_TEXT])
    __attribute__((warn_unused_result));

#endif

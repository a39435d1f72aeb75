/*
 * What an engine process leaves for the next one: which session, how many tokens, the logits it has to reach again, and
 * the hashes of the blocks.
 */
#ifndef KV_TESTS_ENGINE_STATE_FILE_H
#define KV_TESTS_ENGINE_STATE_FILE_H

#include <stddef.h>
#include <stdint.h>

struct kv_state {
    char session[32];
    uint32_t tokens;
    uint8_t *logits; /* owned */
    size_t logits_bytes;
    uint8_t *block_hashes; /* owned; 32 bytes a block */
    size_t block_hashes_bytes;
};

/* NULL on success, else a static text. */
const char *kv_state_write(const char *path, const struct kv_state *state) __attribute__((warn_unused_result));
const char *kv_state_read(const char *path, struct kv_state *ret_state) __attribute__((warn_unused_result));
void kv_state_done(struct kv_state *state);

#endif

/* A small JSON file, written beside and renamed, so that a process killed in between leaves the old one. */
#include "tests/engine/state_file.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA_BYTES_MAX (1u << 22)

static char *hex_of(const uint8_t *data, size_t len)
{
    char *text = malloc(2 * len + 1);
    if (text != NULL) {
        for (size_t i = 0; i < len; i++) {
            snprintf(text + 2 * i, 3, "%02x", data[i]);
        }
        text[2 * len] = '\0';
    }
    return text;
}

/* The caller owns `*ret_data`. */
static bool bytes_of(const char *text, uint8_t **ret_data, size_t *ret_len)
{
    size_t len = strlen(text) / 2;
    if (len == 0 || len > DATA_BYTES_MAX || text[2 * len] != '\0') {
        return false;
    }
    uint8_t *data = malloc(len);
    for (size_t i = 0; data != NULL && i < len; i++) {
        unsigned value = 0;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) {
            free(data);
            return false;
        }
        data[i] = (uint8_t)value;
    }
    *ret_data = data;
    *ret_len = len;
    return data != NULL;
}

static bool replace_file(const char *path, const json_t *root)
{
    char unfinished[4096];
    int len = snprintf(unfinished, sizeof(unfinished), "%s.part", path);
    return len > 0 && (size_t)len < sizeof(unfinished) && json_dump_file(root, unfinished, JSON_INDENT(1)) == 0 &&
           rename(unfinished, path) == 0;
}

const char *kv_state_write(const char *path, const struct kv_state *state)
{
    char *logits = hex_of(state->logits, state->logits_bytes);
    char *blocks = hex_of(state->block_hashes, state->block_hashes_bytes);
    json_t *root = json_pack("{s:s, s:I, s:s, s:s}", "session", state->session, "tokens", (json_int_t)state->tokens,
                             "logits", logits, "block_hashes", blocks);
    free(logits);
    free(blocks);
    bool fine = root != NULL && replace_file(path, root);
    json_decref(root);
    return fine ? NULL : "the state file cannot be written";
}

static const char *take_state(json_t *root, struct kv_state *ret_state)
{
    const char *session, *logits, *blocks;
    json_int_t tokens;
    if (json_unpack(root, "{s:s, s:I, s:s, s:s}", "session", &session, "tokens", &tokens, "logits", &logits,
                    "block_hashes", &blocks) != 0 ||
        strlen(session) >= sizeof(ret_state->session) || tokens <= 0 || tokens > UINT32_MAX) {
        return "the state file is not one that offload wrote";
    }
    struct kv_state state = {.tokens = (uint32_t)tokens};
    memcpy(state.session, session, strlen(session) + 1);
    if (!bytes_of(logits, &state.logits, &state.logits_bytes) ||
        !bytes_of(blocks, &state.block_hashes, &state.block_hashes_bytes)) {
        kv_state_done(&state);
        return "the hexadecimal digits in the state file cannot be read";
    }
    *ret_state = state;
    return NULL;
}

const char *kv_state_read(const char *path, struct kv_state *ret_state)
{
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (root == NULL) {
        return "the state file cannot be read";
    }
    const char *why = take_state(root, ret_state);
    json_decref(root);
    return why;
}

void kv_state_done(struct kv_state *state)
{
    free(state->logits);
    free(state->block_hashes);
    *state = (struct kv_state){.logits = NULL};
}

/* Lookup, offload and restore: columns of hashes and slots out, columns of results back, as long as each other. */
#include "tests/engine/kv_client_int.h"

#include <string.h>

#define BLOCKS_PER_CALL_MAX 4096u

bool kv_client_block_is(const struct kv_client_block *block, const char *result)
{
    return strcmp(block->result, result) == 0;
}

static json_t *hashes_json(const struct kv_client_blocks *in)
{
    json_t *hashes = json_array();
    for (uint32_t i = 0; i < in->count; i++) {
        json_array_append_new(hashes, json_string(in->hashes[i]));
    }
    return hashes;
}

static json_t *slots_json(const struct kv_client_blocks *in)
{
    json_t *slots = json_array();
    for (uint32_t i = 0; i < in->count; i++) {
        json_array_append_new(slots, json_integer((json_int_t)in->slots[i]));
    }
    return slots;
}

static json_t *lookup_json(const struct kv_client_blocks *in)
{
    return json_pack("{s:s, s:s, s:o}", "session_id", in->session_id, "pool_id", in->pool_id, "hashes",
                     hashes_json(in));
}

static json_t *transfer_json(const struct kv_client_blocks *in)
{
    json_t *body = lookup_json(in);
    json_object_set_new(body, "slots", slots_json(in));
    if (in->deadline_ms != 0) {
        json_object_set_new(body, "deadline_ms", json_integer((json_int_t)in->deadline_ms));
    }
    return body;
}

static bool check_count(const struct kv_client_blocks *in, struct kv_client_error *error)
{
    if (in->count == 0 || in->count > BLOCKS_PER_CALL_MAX) {
        return kv_client_fail(error, "invalid_argument", "1 to %u blocks a call", BLOCKS_PER_CALL_MAX);
    }
    return true;
}

/* A column of texts; every entry must fit `size`. */
static bool read_text(const json_t *value, char *target, size_t size, struct kv_client_error *error)
{
    if (!json_is_string(value) || json_string_length(value) >= size) {
        return kv_client_fail(error, "protocol", "a block's result in the answer is not a short text");
    }
    memcpy(target, json_string_value(value), json_string_length(value) + 1);
    return true;
}

static bool column_of(const json_t *answer, const char *name, uint32_t count, const json_t **ret_column,
                      struct kv_client_error *error)
{
    const json_t *column = json_object_get(answer, name);
    if (!json_is_array(column) || json_array_size(column) != count) {
        return kv_client_fail(error, "protocol", "the answer's \"%s\" is not a list of %u", name, count);
    }
    *ret_column = column;
    return true;
}

static bool read_results(const json_t *answer, uint32_t count, struct kv_client_block *ret_blocks,
                         struct kv_client_error *error)
{
    const json_t *results = NULL;
    if (!column_of(answer, "results", count, &results, error)) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        ret_blocks[i] = (struct kv_client_block){.tier = ""};
        if (!read_text(json_array_get(results, i), ret_blocks[i].result, sizeof(ret_blocks[i].result), error)) {
            return false;
        }
    }
    return true;
}

static bool read_tiers(const json_t *answer, uint32_t count, struct kv_client_block *ret_blocks,
                       struct kv_client_error *error)
{
    const json_t *tiers = NULL;
    if (!column_of(answer, "tiers", count, &tiers, error)) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!read_text(json_array_get(tiers, i), ret_blocks[i].tier, sizeof(ret_blocks[i].tier), error)) {
            return false;
        }
    }
    return true;
}

static uint64_t number_of(const json_t *answer, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(answer, name));
    return value > 0 ? (uint64_t)value : 0;
}

static bool read_moved(const json_t *answer, struct kv_client_moved *ret_moved, struct kv_client_error *error)
{
    struct kv_client_moved moved = {
        .stored = (uint32_t)number_of(answer, "stored"),
        .present = (uint32_t)number_of(answer, "present"),
        .contiguous_blocks = (uint32_t)number_of(answer, "contiguous_blocks"),
        .bytes = number_of(answer, "bytes"),
        .duration_us = number_of(answer, "duration_us"),
    };
    if (!kv_client_member_text(answer, "operation_id", moved.operation_id, sizeof(moved.operation_id), error)) {
        return false;
    }
    *ret_moved = moved;
    return true;
}

bool kv_client_lookup(struct kv_client *client, const struct kv_client_blocks *in, struct kv_client_block *ret_blocks,
                      uint32_t *ret_prefix_blocks, struct kv_client_error *error)
{
    json_t *answer = NULL;
    if (!check_count(in, error) || !kv_client_post(client, "/v1/lookups", lookup_json(in), &answer, error)) {
        return false;
    }
    memset(ret_blocks, 0, in->count * sizeof(*ret_blocks));
    bool fine = read_tiers(answer, in->count, ret_blocks, error);
    if (fine) {
        *ret_prefix_blocks = (uint32_t)number_of(answer, "prefix_blocks");
    }
    json_decref(answer);
    return fine;
}

bool kv_client_offload(struct kv_client *client, const struct kv_client_blocks *in, struct kv_client_block *ret_blocks,
                       struct kv_client_moved *ret_moved, struct kv_client_error *error)
{
    if (!check_count(in, error)) {
        return false;
    }
    json_t *body = transfer_json(in);
    json_object_set_new(body, "wait", json_string(in->durable ? "durable" : "dram"));
    json_t *answer = NULL;
    if (!kv_client_post(client, "/v1/offloads", body, &answer, error)) {
        return false;
    }
    bool fine = read_results(answer, in->count, ret_blocks, error) && read_moved(answer, ret_moved, error);
    json_decref(answer);
    return fine;
}

bool kv_client_restore(struct kv_client *client, const struct kv_client_blocks *in, struct kv_client_block *ret_blocks,
                       struct kv_client_moved *ret_moved, struct kv_client_error *error)
{
    if (!check_count(in, error)) {
        return false;
    }
    json_t *body = transfer_json(in);
    json_t *answer = NULL;
    if (!kv_client_post(client, "/v1/restores", body, &answer, error)) {
        return false;
    }
    struct kv_client_moved moved;
    bool fine = read_results(answer, in->count, ret_blocks, error) &&
                read_tiers(answer, in->count, ret_blocks, error) && read_moved(answer, &moved, error);
    json_decref(answer);
    if (fine && moved.contiguous_blocks > in->count) {
        return kv_client_fail(error, "protocol", "more contiguous blocks than were asked for");
    }
    if (fine) {
        *ret_moved = moved;
    }
    return fine;
}

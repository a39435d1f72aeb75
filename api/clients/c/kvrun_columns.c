/* Blocks as JSON: columns of hashes and slots out, columns of results and tiers back, as long as each other. */
#include "api/clients/c/kvrun_int.h"

#include <string.h>

static const char *const result_names[] = {
    [KVRUN_FAILED] = "failed",           [KVRUN_STORED] = "stored",   [KVRUN_PRESENT] = "present",
    [KVRUN_RESTORED] = "restored",       [KVRUN_MISSING] = "missing", [KVRUN_RECOMPUTE] = "recompute",
    [KVRUN_QUARANTINED] = "quarantined", [KVRUN_ERASED] = "erased",   [KVRUN_DENIED] = "denied",
    [KVRUN_STALE_PAGE] = "stale_page",   [KVRUN_BUSY] = "busy",       [KVRUN_TIMEOUT] = "timeout",
};
#define RESULTS (sizeof(result_names) / sizeof(result_names[0]))

static const char *const tiers_names[] = {"none",   "dram",        "nvme",        "dram+nvme",
                                          "object", "dram+object", "nvme+object", "dram+nvme+object"};
#define TIERS (sizeof(tiers_names) / sizeof(tiers_names[0]))

const char *kvrun_result_name(enum kvrun_result result)
{
    return (size_t)result < RESULTS ? result_names[result] : "failed";
}

const char *kvrun_tiers_name(unsigned tiers)
{
    return tiers < TIERS ? tiers_names[tiers] : "none";
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

static json_t *hashes_json(const struct kvrun_blocks *in)
{
    json_t *hashes = json_array();
    for (uint32_t i = 0; i < in->count; i++) {
        char text[2 * sizeof(in->hashes[i].bytes) + 1];
        for (size_t byte = 0; byte < sizeof(in->hashes[i].bytes); byte++) {
            text[2 * byte] = "0123456789abcdef"[in->hashes[i].bytes[byte] >> 4];
            text[2 * byte + 1] = "0123456789abcdef"[in->hashes[i].bytes[byte] & 15];
        }
        json_array_append_new(hashes, json_stringn_nocheck(text, sizeof(text) - 1));
    }
    return hashes;
}

static json_t *slots_json(const struct kvrun_blocks *in)
{
    json_t *slots = json_array();
    for (uint32_t i = 0; i < in->count; i++) {
        json_array_append_new(slots, json_integer((json_int_t)in->slots[i]));
    }
    return slots;
}

static json_t *generations_json(const struct kvrun_blocks *in)
{
    json_t *generations = json_array();
    for (uint32_t i = 0; i < in->count; i++) {
        json_array_append_new(generations, json_integer((json_int_t)in->generations[i]));
    }
    return generations;
}

json_t *kvrun_blocks_json(enum kvrun_kind kind, const struct kvrun_blocks *in, const char *pool_id,
                          unsigned deadline_ms)
{
    json_t *body =
        json_pack("{s:s, s:s, s:o}", "session_id", in->session_id, "pool_id", pool_id, "hashes", hashes_json(in));
    if (body != NULL && in->shared_blocks > 0) {
        json_object_set_new(body, "shared_blocks", json_integer((json_int_t)in->shared_blocks));
    }
    if (kind == KVRUN_LOOKUP || body == NULL) {
        return body;
    }
    json_object_set_new(body, "slots", slots_json(in));
    if (in->generations != NULL) {
        json_object_set_new(body, "generations", generations_json(in));
    }
    json_object_set_new(body, "deadline_ms", json_integer((json_int_t)deadline_ms));
    if (kind == KVRUN_OFFLOAD) {
        json_object_set_new(body, "wait", json_string(in->durable ? "durable" : "dram"));
    }
    return body;
}

/* --- back --------------------------------------------------------------------------------------------------------- */

static enum kvrun_result result_of(const json_t *value)
{
    for (size_t i = 0; i < RESULTS; i++) {
        if (strcmp(json_string_value(value), result_names[i]) == 0) {
            return (enum kvrun_result)i;
        }
    }
    return KVRUN_FAILED;
}

/* Tiers that this library does not know are left out. */
static unsigned tiers_of(const json_t *value)
{
    unsigned tiers = 0;
    for (unsigned bit = 1; bit < TIERS; bit *= 2) {
        tiers |= strstr(json_string_value(value), tiers_names[bit]) != NULL ? bit : 0;
    }
    return tiers;
}

/* A column of texts. */
static bool column_of(const json_t *answer, const char *name, uint32_t count, const json_t **ret_column,
                      struct kvrun_error *error)
{
    const json_t *column = json_object_get(answer, name);
    bool fine = json_is_array(column) && json_array_size(column) == count;
    for (uint32_t i = 0; fine && i < count; i++) {
        fine = json_is_string(json_array_get(column, i));
    }
    if (!fine) {
        return kvrun_fail(error, "protocol", "the answer's \"%s\" is not a list of %u texts", name, count);
    }
    *ret_column = column;
    return true;
}

bool kvrun_read_blocks(enum kvrun_kind kind, const json_t *answer, uint32_t count, struct kvrun_block *ret_blocks,
                       struct kvrun_error *error)
{
    const json_t *tiers = NULL, *results = NULL;
    if (!column_of(answer, "tiers", count, &tiers, error) ||
        (kind != KVRUN_LOOKUP && !column_of(answer, "results", count, &results, error))) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        ret_blocks[i].tiers = tiers_of(json_array_get(tiers, i));
        ret_blocks[i].result = results != NULL            ? result_of(json_array_get(results, i))
                               : ret_blocks[i].tiers == 0 ? KVRUN_MISSING
                                                          : KVRUN_PRESENT;
    }
    return true;
}

uint64_t kvrun_member_number(const json_t *answer, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(answer, name));
    return value > 0 ? (uint64_t)value : 0;
}

bool kvrun_read_moved(const json_t *answer, uint32_t count, struct kvrun_moved *ret_moved, struct kvrun_error *error)
{
    struct kvrun_moved moved = {
        .stored = (uint32_t)kvrun_member_number(answer, "stored"),
        .present = (uint32_t)kvrun_member_number(answer, "present"),
        .contiguous_blocks = (uint32_t)kvrun_member_number(answer, "contiguous_blocks"),
        .bytes = kvrun_member_number(answer, "bytes"),
        .duration_us = kvrun_member_number(answer, "duration_us"),
    };
    if (!kvrun_member_text(answer, "operation_id", moved.operation_id, sizeof(moved.operation_id), error)) {
        return false;
    }
    if (kvrun_member_number(answer, "contiguous_blocks") > count) {
        return kvrun_fail(error, "protocol", "more contiguous blocks than were asked for");
    }
    *ret_moved = moved;
    return true;
}

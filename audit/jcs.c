/*
 * JCS inside the restricted profile. Parsing is jansson's; this file refuses what lies outside the profile and writes
 * the rest. Must never write a text for an input that the profile does not hold: the verifier compares bytes.
 */
#include "audit/jcs.h"

#include "audit/text_int.h"
#include "dataplane/base/mem.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 16u
#define INTEGER_END (INT64_C(1) << 53)

/* One open object or array. `names` are the object's members in the order they are written. */
struct frame {
    json_t *container; /* borrowed from the root */
    const char **names;
    size_t count, next;
};

struct canonical {
    struct frame frames[DEPTH_MAX];
    size_t depth;
    struct kv_buf *out;
    struct kv_errinfo *info;
};

static void put_string(struct kv_buf *out, const char *text)
{
    static const char short_escapes[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    kv_buf_text(out, "\"");
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            kv_buf_printf(out, "\\%c", *c);
        } else if (*c < sizeof(short_escapes) && short_escapes[*c] != 0) {
            kv_buf_printf(out, "\\%c", short_escapes[*c]);
        } else if (*c < 0x20) {
            kv_buf_printf(out, "\\u%04x", *c);
        } else {
            kv_buf_append(out, c, 1);
        }
    }
    kv_buf_text(out, "\"");
}

static bool is_ascii(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c > 0x7e) {
            return false;
        }
    }
    return true;
}

static int compare_names(const void *a, const void *b)
{
    /* Code units of UTF-16 and bytes sort alike for ASCII, which every name is by then. */
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static KV_RC collect_names(struct canonical *canonical, struct frame *frame)
{
    frame->count = json_object_size(frame->container);
    frame->names = kv_alloc_array(frame->count + 1, sizeof(*frame->names));
    if (frame->names == NULL) {
        return kv_fail(canonical->info, KV_E_NO_MEMORY, "no memory");
    }
    size_t i = 0;
    const char *name;
    json_t *value;
    json_object_foreach(frame->container, name, value)
    {
        if (!is_ascii(name)) {
            return kv_fail(canonical->info, KV_E_INVALID_REQUEST, "member name is not ASCII");
        }
        frame->names[i++] = name;
    }
    qsort(frame->names, frame->count, sizeof(*frame->names), compare_names);
    return KV_OK;
}

static KV_RC open_frame(struct canonical *canonical, json_t *container)
{
    if (canonical->depth == DEPTH_MAX) {
        return kv_fail(canonical->info, KV_E_INVALID_REQUEST, "nesting is deeper than %u", DEPTH_MAX);
    }
    struct frame *frame = &canonical->frames[canonical->depth];
    *frame = (struct frame){.container = container};
    canonical->depth++;
    if (json_is_object(container)) {
        kv_buf_text(canonical->out, "{");
        return collect_names(canonical, frame);
    }
    kv_buf_text(canonical->out, "[");
    frame->count = json_array_size(container);
    return KV_OK;
}

static void close_frame(struct canonical *canonical)
{
    canonical->depth--;
    struct frame *frame = &canonical->frames[canonical->depth];
    kv_buf_text(canonical->out, json_is_object(frame->container) ? "}" : "]");
    kv_free(frame->names);
}

static KV_RC put_integer(struct canonical *canonical, json_int_t value)
{
    if (value >= INTEGER_END || value <= -INTEGER_END) {
        return kv_fail(canonical->info, KV_E_INVALID_REQUEST, "integer of 2^53 or more");
    }
    kv_buf_printf(canonical->out, "%lld", (long long)value);
    return KV_OK;
}

/* "56.0" is the integer 56 in another spelling, and its canonical form is the integer's. */
static KV_RC put_real(struct canonical *canonical, double value)
{
    bool whole = value > (double)-INTEGER_END && value < (double)INTEGER_END && (double)(json_int_t)value == value;
    if (!whole || (value == 0 && signbit(value))) {
        return kv_fail(canonical->info, KV_E_INVALID_REQUEST,
                       "number with a fraction, or minus zero, or of 2^53 or more");
    }
    return put_integer(canonical, (json_int_t)value);
}

static KV_RC put_value(struct canonical *canonical, json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        return open_frame(canonical, value);
    case JSON_STRING:
        if (!kv_text_printable(json_string_value(value), json_string_length(value))) {
            return kv_fail(canonical->info, KV_E_INVALID_REQUEST, "string is not printable ASCII");
        }
        put_string(canonical->out, json_string_value(value));
        return KV_OK;
    case JSON_INTEGER:
        return put_integer(canonical, json_integer_value(value));
    case JSON_TRUE:
    case JSON_FALSE:
        kv_buf_text(canonical->out, json_is_true(value) ? "true" : "false");
        return KV_OK;
    case JSON_REAL:
        return put_real(canonical, json_real_value(value));
    case JSON_NULL:
        break;
    }
    return kv_fail(canonical->info, KV_E_INVALID_REQUEST, "null");
}

/* The next value of the innermost container, with comma and name. */
static KV_RC step(struct canonical *canonical)
{
    struct frame *frame = &canonical->frames[canonical->depth - 1];
    if (frame->next == frame->count) {
        close_frame(canonical);
        return KV_OK;
    }
    size_t i = frame->next++;
    if (i > 0) {
        kv_buf_text(canonical->out, ",");
    }
    if (frame->names == NULL) {
        return put_value(canonical, json_array_get(frame->container, i));
    }
    put_string(canonical->out, frame->names[i]);
    kv_buf_text(canonical->out, ":");
    return put_value(canonical, json_object_get(frame->container, frame->names[i]));
}

/* Bounded by the number of values that were parsed: each step opens, closes or writes one. */
static KV_RC write_all(struct canonical *canonical, json_t *root)
{
    enum kv_err rc = open_frame(canonical, root);
    while (rc == KV_OK && canonical->depth > 0) {
        rc = step(canonical);
    }
    while (canonical->depth > 0) {
        canonical->depth--;
        kv_free(canonical->frames[canonical->depth].names);
    }
    return rc;
}

static KV_RC parse_failure(const json_error_t *error, struct kv_errinfo *info)
{
    switch (json_error_code(error)) {
    case json_error_duplicate_key:
        return kv_fail(info, KV_E_INVALID_REQUEST, "duplicate member");
    case json_error_numeric_overflow:
        return kv_fail(info, KV_E_INVALID_REQUEST, "integer of 2^53 or more");
    case json_error_out_of_memory:
        return kv_fail(info, KV_E_NO_MEMORY, "no memory");
    default:
        return kv_fail(info, KV_E_INVALID_REQUEST, "not JSON at line %d, column %d", error->line, error->column);
    }
}

KV_RC kv_jcs_canonical(struct kv_bytes json, struct kv_errinfo *info, struct kv_buf *ret_canonical)
{
    json_error_t error;
    json_t *root = json_loadb((const char *)json.data, json.len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (root == NULL) {
        return parse_failure(&error, info);
    }
    struct kv_buf text KV_CLEANUP(kv_buf_done);
    /* An escape makes a character at most six times as long. */
    kv_buf_init(&text, json.len * 6 + 16);
    struct canonical canonical = {.out = &text, .info = info};
    enum kv_err rc =
        json_is_object(root) ? write_all(&canonical, root) : kv_fail(info, KV_E_INVALID_REQUEST, "not an object");
    json_decref(root);
    KV_TRY(rc);
    KV_TRY(kv_buf_check(&text));
    kv_buf_append(ret_canonical, text.data, text.len);
    return kv_buf_check(ret_canonical);
}

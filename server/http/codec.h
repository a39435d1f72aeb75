/*
 * Strict JSON, in and out. A body is checked against a table of fields before a handler looks at it: unknown members,
 * wrong types, values out of range, duplicates, depth and size are refused with a pointer to the place. Ids, times and
 * hashes have one spelling each. Thread: any.
 */
#ifndef KV_HTTP_CODEC_H
#define KV_HTTP_CODEC_H

#include "dataplane/base/buf.h"
#include "dataplane/base/id.h"

struct kv_json;                        /* a parsed body; owned by the caller of kv_json_parse */
typedef const struct kv_json kv_value; /* a value inside it, borrowed from it */

enum kv_field_type {
    KV_TEXT,
    KV_INT,
    KV_OBJECT,
    KV_ARRAY,
    KV_BOOL,
    KV_FIELD_TYPE_MASK = 0x0f,
    KV_H_NULLABLE = 0x10,  /* in a merge patch: null takes the value away */
    KV_H_IMMUTABLE = 0x20, /* in a merge patch: known, and never changed: KV_E_IMMUTABLE_FIELD */
};

struct kv_field {
    const char *name;
    unsigned type; /* of enum kv_field_type, with its flags */
    bool required;
    int64_t min, max;  /* of the number, of the text's bytes, of the array's length */
    const char *words; /* KV_TEXT: "|a|b|c|", the closed set; NULL: any */
};

KV_RC kv_json_parse(struct kv_bytes body, struct kv_errinfo *info, struct kv_json **ret_json);
void kv_json_free(struct kv_json *json);

/* `pointer` is where `value` lies ("" for the body). */
KV_RC kv_json_check(kv_value *value, const char *pointer, const struct kv_field *fields, size_t count,
                    struct kv_errinfo *info);

/* After the check: what is absent is NULL, or `fallback`. */
kv_value *kv_json_get(kv_value *object, const char *name);
const char *kv_json_text(kv_value *object, const char *name);
int64_t kv_json_int(kv_value *object, const char *name, int64_t fallback);
bool kv_json_bool(kv_value *object, const char *name, bool fallback);
bool kv_json_is_null(kv_value *object, const char *name); /* there, and null */
size_t kv_json_len(kv_value *array);
kv_value *kv_json_at(kv_value *array, size_t index);
const char *kv_json_as_text(kv_value *value); /* NULL unless it is a text */
bool kv_json_as_int(kv_value *value, int64_t *ret_number);
bool kv_json_is_object(kv_value *value);
bool kv_json_value_is_null(kv_value *value);
/* The members of an object, one after the other: NULL at the end. `*iterator` starts as NULL. */
kv_value *kv_json_next(kv_value *object, void **iterator, const char **ret_name);
/* One text for one value: members sorted, no blanks. */
KV_RC kv_json_canonical(kv_value *value, struct kv_buf *ret_text);

/* A member that is an id, or a hash of 64 hex digits; the error points at it. */
KV_RC kv_json_id(kv_value *object, const char *pointer, const char *name, const char *prefix, struct kv_id *ret_id,
                 struct kv_errinfo *info);
KV_RC kv_json_hash(kv_value *object, const char *pointer, const char *name, uint8_t ret_hash[32],
                   struct kv_errinfo *info);

/* --- out: members are written in order, commas come by themselves ------------------------------------------------- */
void kv_out_open(struct kv_buf *buf);                    /* { */
void kv_out_close(struct kv_buf *buf);                   /* } */
void kv_out_array(struct kv_buf *buf, const char *name); /* "name":[   (NULL: no name) */
void kv_out_array_end(struct kv_buf *buf);
void kv_out_object(struct kv_buf *buf, const char *name); /* "name":{ */
void kv_out_item(struct kv_buf *buf);                     /* starts an item of an array */
void kv_out_name(struct kv_buf *buf, const char *name);   /* "name":   (a value, or an object, follows) */
void kv_out_null(struct kv_buf *buf, const char *name);
void kv_out_text(struct kv_buf *buf, const char *name, const char *text);
void kv_out_int(struct kv_buf *buf, const char *name, uint64_t number); /* over 2^53: as text */
void kv_out_bool(struct kv_buf *buf, const char *name, bool value);
void kv_out_id(struct kv_buf *buf, const char *name, const char *prefix, const struct kv_id *id);
void kv_out_time(struct kv_buf *buf, const char *name, uint64_t realtime_us);
void kv_out_hex(struct kv_buf *buf, const char *name, const uint8_t *data, size_t len);

#endif

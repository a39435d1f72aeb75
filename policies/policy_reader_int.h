/*
 * Reading the JSON of policies and of questions to them: values of the right kind or a fault with its pointer. Absent
 * members leave what is returned as it was. Must never show a value in an error, nor a name that is not like ours.
 * Errors: KV_E_POLICY_INVALID.
 */
#ifndef KV_POLICY_READER_INT_H
#define KV_POLICY_READER_INT_H

#include "policies/policy_int.h"

struct json_t;

#define BYTES_TOP INT64_C(9007199254740991) /* 2^53 - 1: what a number in JSON holds exactly */
#define SECONDS_TOP INT64_C(315360000)      /* ten years */
#define POINTER_SIZE 64

/* Where the reader is: an object and its pointer. */
struct kv_policy_at {
    const struct json_t *json; /* borrowed */
    char pointer[POINTER_SIZE];
    struct kv_errinfo *info;
};

struct kv_policy_words {
    const char *const *list;
    int count;
};

/* At most KV_MAX_POLICY_BYTES and _DEPTH, no member twice. The caller's. */
KV_RC kv_policy_load(struct kv_bytes text, struct kv_errinfo *info, struct json_t **ret_json);

/* A fault at the member `name` of `at`, or at `at` itself. */
KV_RC kv_policy_bad(const struct kv_policy_at *at, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
struct kv_policy_at kv_policy_below(const struct kv_policy_at *at, const char *name, const struct json_t *json);
struct kv_policy_at kv_policy_item(const struct kv_policy_at *at, size_t index);

/* It is an object that has none but these members. Ended by NULL. */
KV_RC kv_policy_check_members(const struct kv_policy_at *at, const char *const *known);
KV_RC kv_policy_get_number(const struct kv_policy_at *at, const char *name, int64_t most, uint64_t *ret);
KV_RC kv_policy_get_bool(const struct kv_policy_at *at, const char *name, bool *ret);
KV_RC kv_policy_get_text(const struct kv_policy_at *at, const char *name, char *text, size_t size);
KV_RC kv_policy_get_word(const struct kv_policy_at *at, const char *name, struct kv_policy_words words, int *ret);
/* A member of which this build knows the first of its words only. */
KV_RC kv_policy_get_only(const struct kv_policy_at *at, const char *name, struct kv_policy_words words,
                         const char *why);
/* ret_array->json is NULL when there is none; else it has items. */
KV_RC kv_policy_get_array(const struct kv_policy_at *at, const char *name, struct kv_policy_at *ret_array);
/* A set of words as a mask of their places. */
KV_RC kv_policy_get_words(const struct kv_policy_at *at, const char *name, struct kv_policy_words words,
                          uint32_t *ret_mask);

/* --- policy_level_json.c */
void kv_policy_no_limits(struct kv_policy_limits *limits);
KV_RC kv_policy_read_level(const struct kv_policy_at *at, struct kv_policy_doc *doc, struct level *level);
/* Names of one kind, added to the document's; a mask of their places there. */
KV_RC kv_policy_get_names(const struct kv_policy_at *at, enum kv_policy_kind kind, struct doc_names *names,
                          uint64_t *ret_mask, bool *ret_given);

#endif

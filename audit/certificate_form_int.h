/*
 * Forms of members: tables that say which members an object has and what each looks like. Only for files named
 * *_json.c, since the values are jansson's.
 */
#ifndef KV_AUDIT_CERTIFICATE_FORM_INT_H
#define KV_AUDIT_CERTIFICATE_FORM_INT_H

#include "dataplane/base/err.h"

struct json_t;
struct kv_cert_claims;

enum kv_form {
    KV_FORM_TEXT,    /* any printable text */
    KV_FORM_FIXED,   /* the text in `arg` */
    KV_FORM_ID,      /* prefix in `arg` */
    KV_FORM_TIME,    /* RFC 3339 in UTC with microseconds */
    KV_FORM_HEX,     /* 64 digits */
    KV_FORM_DECIMAL, /* a number in a string */
    KV_FORM_INTEGER, /* not negative, below 2^53 */
    KV_FORM_TRUE,
    KV_FORM_PART, /* an object or array with a check of its own */
};

struct kv_member {
    const char *name; /* NULL ends a table */
    enum kv_form kind;
    const char *arg;
    bool optional;
};

/* Not empty, printable ASCII, and `expected` when that is not NULL. */
bool kv_form_is_text(const struct json_t *value, const char *expected);
bool kv_form_decimal(const struct json_t *value, uint64_t *ret_value);
/* KV_E_TAMPERED: a member is missing, has another form, or is not in the table. `where` is the object's pointer. */
KV_RC kv_form_object(const struct json_t *object, const char *where, const struct kv_member *members,
                     struct kv_errinfo *info);
/* Each element is such an object. */
KV_RC kv_form_array(const struct json_t *array, const char *where, const struct kv_member *members,
                    struct kv_errinfo *info);
/* The member `limits`: known codes with their texts, none twice. */
KV_RC kv_cert_limits_read(const struct json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims);

#endif

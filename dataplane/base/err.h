/*
 * Errors: one typed result that must be used, from one registry (api/errors.def).
 * Thread: any. Nothing here allocates.
 */
#ifndef KV_BASE_ERR_H
#define KV_BASE_ERR_H

#include "api/kv_api.h"

#include <stdbool.h>
#include <stddef.h>

/* Every function that can fail returns this and nothing else; results go to ret_* parameters, untouched on failure. */
#define KV_RC __attribute__((warn_unused_result)) enum kv_err

#define KV_TRY(expr)                     \
    do {                                 \
        enum kv_err kv_try_rc_ = (expr); \
        if (kv_try_rc_ != KV_OK) {       \
            return kv_try_rc_;           \
        }                                \
    } while (0)

/* For the rare result that does not matter; `why` is for the reader. */
#define KV_IGNORE(expr, why)                                      \
    do {                                                          \
        enum kv_err kv_ignored_ __attribute__((unused)) = (expr); \
        (void)sizeof(why);                                        \
    } while (0)

#define KV_CLEANUP(fn) __attribute__((cleanup(fn)))

enum kv_err_class {
    KV_CLASS_CALLER,
    KV_CLASS_CONFLICT,
    KV_CLASS_POLICY,
    KV_CLASS_INTEGRITY,
    KV_CLASS_UNAVAILABLE,
    KV_CLASS_INTERNAL,
};

/* What is known about a failure where it happened. Lives in a request or an operation, never in a thread-local,
 * because operations change threads. `text` says what to do; it never holds a secret, a path or SQL. */
struct kv_errinfo {
    enum kv_err code;
    int sys_errno;
    char text[192];
    char pointer[64]; /* JSON pointer of the member at fault, or "" */
};

const char *kv_err_name(enum kv_err rc);  /* "session_erased"; "ok"; never NULL */
const char *kv_err_title(enum kv_err rc); /* the registry's text */
int kv_err_http(enum kv_err rc);
enum kv_err_class kv_err_class_of(enum kv_err rc);
bool kv_err_retryable(enum kv_err rc);

/* Fills `info` (may be NULL) and returns `code`, so that a failure is one statement:
 * return kv_fail(info, KV_E_LIMIT, "at most %d regions", n); */
KV_RC kv_fail(struct kv_errinfo *info, enum kv_err code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The same for a member of a request body. */
KV_RC kv_fail_at(struct kv_errinfo *info, enum kv_err code, const char *pointer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif

/*
 * The registry of errors as a table. This file never decides what an error means: api/errors.def does.
 */
#include "dataplane/base/err.h"

#include "dataplane/base/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct err_row {
    const char *name_upper;
    const char *title;
    int http;
    enum kv_err_class class;
    bool retryable;
};

static const struct err_row rows[KV_E_COUNT] = {
    [KV_OK] = {.name_upper = "OK", .title = "Success", .http = 200, .class = KV_CLASS_CALLER, .retryable = false},
#define KV_ERROR(name, status, kind, retry, text) \
    [KV_E_##name] = {                             \
        .name_upper = #name, .title = (text), .http = (status), .class = KV_CLASS_##kind, .retryable = (retry) != 0},
#include "api/errors.def"
#undef KV_ERROR
};

#define ERR_NAME_SIZE 32

/* The preprocessor cannot lower a name, so it is done once, before the first name is given out. */
static char names_lower[KV_E_COUNT][ERR_NAME_SIZE];
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static void lower_names(void)
{
    for (unsigned i = 0; i < KV_E_COUNT; i++) {
        const char *upper = rows[i].name_upper;
        size_t len = strlen(upper);
        KV_ASSERT(len < ERR_NAME_SIZE);
        for (size_t k = 0; k < len; k++) {
            bool letter = upper[k] >= 'A' && upper[k] <= 'Z';
            names_lower[i][k] = letter ? (char)(upper[k] - 'A' + 'a') : upper[k];
        }
    }
}

/* A value that came through a cast can be anything; it must not read past the table, and it is our fault. */
static unsigned index_of(enum kv_err rc)
{
    unsigned index = (unsigned)rc;
    return index < KV_E_COUNT ? index : KV_E_INTERNAL;
}

const char *kv_err_name(enum kv_err rc)
{
    pthread_once(&names_once, lower_names);
    return names_lower[index_of(rc)];
}

const char *kv_err_title(enum kv_err rc)
{
    return rows[index_of(rc)].title;
}

int kv_err_http(enum kv_err rc)
{
    return rows[index_of(rc)].http;
}

enum kv_err_class kv_err_class_of(enum kv_err rc)
{
    return rows[index_of(rc)].class;
}

bool kv_err_retryable(enum kv_err rc)
{
    return rows[index_of(rc)].retryable;
}

static void fill(struct kv_errinfo *info, enum kv_err code, const char *pointer, const char *format, va_list args)
    __attribute__((format(printf, 4, 0)));

static void fill(struct kv_errinfo *info, enum kv_err code, const char *pointer, const char *format, va_list args)
{
    if (info == NULL) {
        return;
    }
    /* errno is kept as it was found: whoever reads it knows from the code whether it says anything. */
    info->sys_errno = errno;
    info->code = code;
    (void)snprintf(info->pointer, sizeof(info->pointer), "%s", pointer);
    (void)vsnprintf(info->text, sizeof(info->text), format, args);
}

enum kv_err kv_fail(struct kv_errinfo *info, enum kv_err code, const char *format, ...)
{
    KV_ASSERT(code != KV_OK);
    va_list args;
    va_start(args, format);
    fill(info, code, "", format, args);
    va_end(args);
    return code;
}

enum kv_err kv_fail_at(struct kv_errinfo *info, enum kv_err code, const char *pointer, const char *format, ...)
{
    KV_ASSERT(code != KV_OK);
    KV_ASSERT(pointer != NULL);
    va_list args;
    va_start(args, format);
    fill(info, code, pointer, format, args);
    va_end(args);
    return code;
}

/* The registry of errors. */
#include "dataplane/base/err.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

Test(err, every_code_has_a_lower_snake_name_a_title_and_a_status)
{
    for (int rc = 1; rc < KV_E_COUNT; rc++) {
        const char *name = kv_err_name((enum kv_err)rc);
        cr_assert(gt(sz, strlen(name), 0));
        cr_assert(eq(sz, strspn(name, "abcdefghijklmnopqrstuvwxyz_"), strlen(name)), "%s", name);
        cr_assert(gt(sz, strlen(kv_err_title((enum kv_err)rc)), 0));
        cr_assert(ge(int, kv_err_http((enum kv_err)rc), 400));
        cr_assert(le(int, kv_err_http((enum kv_err)rc), 599));
    }
}

Test(err, names_are_unique)
{
    for (int a = 0; a < KV_E_COUNT; a++) {
        for (int b = a + 1; b < KV_E_COUNT; b++) {
            cr_assert(ne(int, strcmp(kv_err_name((enum kv_err)a), kv_err_name((enum kv_err)b)), 0));
        }
    }
}

Test(err, a_row_reads_back_as_the_registry_has_it)
{
    cr_assert(eq(str, (char *)kv_err_name(KV_OK), "ok"));
    cr_assert(eq(str, (char *)kv_err_name(KV_E_SESSION_ERASED), "session_erased"));
    cr_assert(eq(str, (char *)kv_err_title(KV_E_SESSION_ERASED), "Session was erased"));
    cr_assert(eq(int, kv_err_http(KV_E_SESSION_ERASED), 410));
    cr_assert(eq(int, kv_err_class_of(KV_E_SESSION_ERASED), KV_CLASS_CALLER));
    cr_assert(eq(int, kv_err_class_of(KV_E_TAMPERED), KV_CLASS_INTEGRITY));
    cr_assert(kv_err_retryable(KV_E_BUSY));
    cr_assert(not(kv_err_retryable(KV_E_SESSION_ERASED)));
}

Test(err, a_code_outside_the_registry_reads_as_internal)
{
    cr_assert(eq(str, (char *)kv_err_name((enum kv_err)KV_E_COUNT), "internal"));
    cr_assert(eq(str, (char *)kv_err_name((enum kv_err) - 1), "internal"));
    cr_assert(eq(int, kv_err_http((enum kv_err)12345), 500));
}

Test(err, fail_fills_info_and_returns_the_code)
{
    struct kv_errinfo info = {.pointer = "/old"};
    errno = ENOENT;
    cr_assert(eq(int, kv_fail(&info, KV_E_LIMIT, "at most %d regions", 7), KV_E_LIMIT));
    cr_assert(eq(int, info.code, KV_E_LIMIT));
    cr_assert(eq(int, info.sys_errno, ENOENT));
    cr_assert(eq(str, info.text, "at most 7 regions"));
    cr_assert(eq(str, info.pointer, ""));
    cr_assert(eq(int, kv_fail_at(&info, KV_E_INVALID_REQUEST, "/blocks/3", "not hex"), KV_E_INVALID_REQUEST));
    cr_assert(eq(str, info.pointer, "/blocks/3"));
}

Test(err, fail_without_info_only_returns_the_code)
{
    cr_assert(eq(int, kv_fail(NULL, KV_E_BUSY, "%s", "x"), KV_E_BUSY));
    cr_assert(eq(int, kv_fail_at(NULL, KV_E_BUSY, "/a", "%s", "x"), KV_E_BUSY));
}

Test(err, long_texts_are_cut_and_terminated)
{
    struct kv_errinfo info;
    char text[400];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    KV_IGNORE(kv_fail_at(&info, KV_E_LIMIT, text, "%s", text), "the code is known");
    cr_assert(eq(sz, strlen(info.text), sizeof(info.text) - 1));
    cr_assert(eq(sz, strlen(info.pointer), sizeof(info.pointer) - 1));
}

Test(err, failing_with_ok_is_a_broken_caller, .signal = SIGABRT)
{
    KV_IGNORE(kv_fail(NULL, KV_OK, "x"), "does not return");
}

static enum kv_err passes_on(enum kv_err rc, bool *ret_reached)
{
    KV_TRY(rc);
    *ret_reached = true;
    return KV_OK;
}

Test(err, try_leaves_on_failure_only)
{
    bool reached = false;
    cr_assert(eq(int, passes_on(KV_E_IO, &reached), KV_E_IO));
    cr_assert(not(reached));
    cr_assert(eq(int, passes_on(KV_OK, &reached), KV_OK));
    cr_assert(reached);
}

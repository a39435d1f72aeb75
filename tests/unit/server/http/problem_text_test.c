/* Every error says what to do, in words that a reader can act on. */
#include "server/http/problem_text.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <string.h>

Test(problem_text, every_code_says_what_to_do)
{
    for (unsigned code = KV_OK + 1; code < KV_E_COUNT; code++) {
        const char *text = kv_problem_what_to_do((enum kv_err)code);
        cr_assert(text != NULL, "%s has no row in problem_text.def", kv_err_name((enum kv_err)code));
        cr_expect(ge(sz, strlen(text), (size_t)20), "%s", text);
        cr_expect(eq(chr, text[strlen(text) - 1], '.'), "%s", text);
        cr_expect(ne(str, (char *)text, (char *)kv_err_title((enum kv_err)code)));
    }
}

Test(problem_text, a_hint_is_a_command)
{
    for (unsigned code = KV_OK + 1; code < KV_E_COUNT; code++) {
        const char *hint = kv_problem_hint((enum kv_err)code);
        cr_expect(hint == NULL || strncmp(hint, "kvrun ", 6) == 0, "%s", hint);
    }
}

Test(problem_text, a_code_is_found_by_its_name)
{
    for (unsigned code = KV_OK + 1; code < KV_E_COUNT; code++) {
        enum kv_err found = KV_OK;
        cr_expect(eq(int, kv_problem_code(kv_err_name((enum kv_err)code), &found), KV_OK));
        cr_expect(eq(int, found, (int)code));
    }
    enum kv_err found = KV_OK;
    cr_expect(eq(int, kv_problem_code("ok", &found), KV_E_NOT_FOUND));
    cr_expect(eq(int, kv_problem_code("", &found), KV_E_NOT_FOUND));
    cr_expect(eq(int, kv_problem_code("STALE", &found), KV_E_NOT_FOUND));
    cr_expect(kv_problem_what_to_do(KV_OK) == NULL && kv_problem_what_to_do(KV_E_COUNT) == NULL);
}

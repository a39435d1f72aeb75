/* See problem_text.h; the words are in problem_text.def. */
#include "server/http/problem_text.h"

#include <string.h>

struct problem_text {
    const char *hint, *what_to_do;
};

static const struct problem_text texts[KV_E_COUNT] = {
#define KV_PROBLEM(name, hint_text, what) [KV_E_##name] = {.hint = hint_text, .what_to_do = what},
#include "server/http/problem_text.def"
#undef KV_PROBLEM
};

const char *kv_problem_what_to_do(enum kv_err code)
{
    return code > KV_OK && code < KV_E_COUNT ? texts[code].what_to_do : NULL;
}

const char *kv_problem_hint(enum kv_err code)
{
    return code > KV_OK && code < KV_E_COUNT ? texts[code].hint : NULL;
}

KV_RC kv_problem_code(const char *name, enum kv_err *ret_code)
{
    for (unsigned code = KV_OK + 1; code < KV_E_COUNT; code++) {
        if (strcmp(kv_err_name((enum kv_err)code), name) == 0) {
            *ret_code = (enum kv_err)code;
            return KV_OK;
        }
    }
    return KV_E_NOT_FOUND;
}

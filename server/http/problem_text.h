/* What to do about each error: the table behind /problems and the `hint` of problem documents. Thread: any. */
#ifndef KV_HTTP_PROBLEM_TEXT_H
#define KV_HTTP_PROBLEM_TEXT_H

#include "dataplane/base/err.h"

/* NULL for a code without a row. */
const char *kv_problem_what_to_do(enum kv_err code);
const char *kv_problem_hint(enum kv_err code); /* NULL: no command helps */
/* KV_E_NOT_FOUND: no code has this name. */
KV_RC kv_problem_code(const char *name, enum kv_err *ret_code);

#endif

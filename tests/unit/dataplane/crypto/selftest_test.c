/* The known answers at start. */
#include "dataplane/crypto/selftest.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include "dataplane/crypto/secret.h"

Test(selftest, known_answers_hold_and_leave_no_secret_behind)
{
    struct kv_errinfo info = {0};
    cr_assert(eq(int, kv_crypto_selftest(&info), KV_OK), "%s", info.text);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

/* A result that is set once. */
#include "dataplane/base/queue.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>

static struct kv_future *fresh(void)
{
    struct kv_future *future = NULL;
    cr_assert(eq(int, kv_future_new(&future), KV_OK));
    return future;
}

Test(future, result_that_is_there_needs_no_time)
{
    struct kv_future *future = fresh();
    kv_future_set(future, KV_E_TAMPERED);
    cr_assert(eq(int, kv_future_wait(future, 0), KV_E_TAMPERED));
    cr_assert(eq(int, kv_future_wait(future, UINT64_MAX), KV_E_TAMPERED));
    kv_future_free(future);
}

Test(future, deadline_that_passed_is_a_timeout_and_the_result_may_still_come)
{
    struct kv_future *future = fresh();
    cr_assert(eq(int, kv_future_wait(future, 0), KV_E_TIMEOUT));
    uint64_t now = kv_now_ns(&kv_env_system);
    cr_assert(eq(int, kv_future_wait(future, now + 2 * KV_MS_NS), KV_E_TIMEOUT));
    cr_assert(ge(u64, kv_now_ns(&kv_env_system), now + 2 * KV_MS_NS));
    kv_future_set(future, KV_OK);
    cr_assert(eq(int, kv_future_wait(future, 0), KV_OK));
    kv_future_free(future);
}

Test(future, second_result_stops, .signal = SIGABRT)
{
    struct kv_future *future = fresh();
    kv_future_set(future, KV_OK);
    kv_future_set(future, KV_OK);
}

/* The three severities of wrong. */
#include "dataplane/base/check.h"
#include "dataplane/base/log.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>

static int bug_here(int wrong)
{
    return KV_BUG(wrong);
}

Test(check, true_assertion_goes_on)
{
    KV_ASSERT(1 + 1 == 2);
}

Test(check, false_assertion_aborts, .signal = SIGABRT)
{
    KV_ASSERT(1 + 1 == 3);
}

Test(check, bug_is_counted_each_time_and_logged_once_a_place)
{
    uint64_t errors = kv_log_count(KV_LOG_ERROR);
    for (int i = 0; i < 5; i++) {
        cr_assert(eq(int, bug_here(1), 1));
    }
    cr_assert(eq(u64, kv_bug_count(), 5));
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), errors + 1));
    cr_assert(eq(int, KV_BUG(1), 1)); /* another place */
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), errors + 2));
}

Test(check, what_did_not_happen_is_not_counted)
{
    cr_assert(eq(int, bug_here(0), 0));
    cr_assert(eq(int, KV_PEER(0), 0));
    cr_assert(eq(u64, kv_bug_count(), 0));
    cr_assert(eq(u64, kv_peer_count(), 0));
}

Test(check, bugs_past_the_table_of_places_are_still_counted_and_logged)
{
    uint64_t errors = kv_log_count(KV_LOG_ERROR);
    for (int line = 1; line <= 65; line++) {
        kv_bug_hit("planted", "many.c", line);
    }
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), errors + 65));
    kv_bug_hit("planted", "many.c", 64);
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), errors + 65));
    kv_bug_hit("planted", "many.c", 65);
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), errors + 66));
    cr_assert(eq(u64, kv_bug_count(), 67));
}

Test(check, peer_is_counted_and_not_logged)
{
    uint64_t errors = kv_log_count(KV_LOG_ERROR);
    cr_assert(eq(int, KV_PEER(1), 1));
    cr_assert(eq(u64, kv_peer_count(), 1));
    cr_assert(eq(u64, kv_log_count(KV_LOG_ERROR), errors));
}

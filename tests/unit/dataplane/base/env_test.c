/* Clocks, randomness and the spelling of a time. */
#include "dataplane/base/env.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>
#include <time.h>

Test(env, clocks_do_not_go_back)
{
    const struct kv_env *env = &kv_env_system;
    uint64_t monotonic = kv_now_ns(env);
    uint64_t boot = env->boottime_ns(env->ctx);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = kv_now_ns(env);
        cr_assert(ge(u64, now, monotonic));
        monotonic = now;
    }
    cr_assert(ge(u64, env->boottime_ns(env->ctx), boot));
}

Test(env, real_time_agrees_with_the_system_in_microseconds)
{
    const struct kv_env *env = &kv_env_system;
    time_t before = time(NULL);
    uint64_t us = env->realtime_us(env->ctx);
    time_t after = time(NULL);
    cr_assert(ge(u64, us, (uint64_t)(before - 1) * 1000000));
    cr_assert(lt(u64, us, (uint64_t)(after + 2) * 1000000)); /* time() reads the clock of the last tick */
}

Test(env, random_fills_all_of_its_target)
{
    const struct kv_env *env = &kv_env_system;
    /* Each byte position is non-zero in at least one of 64 draws, except once in 2^500 runs. */
    uint8_t seen[1024] = {0}, draw[1024];
    for (int i = 0; i < 64; i++) {
        cr_assert(eq(int, env->random(env->ctx, draw, sizeof(draw)), KV_OK));
        for (size_t k = 0; k < sizeof(draw); k++) {
            seen[k] |= draw[k];
        }
    }
    cr_assert(memchr(seen, 0, sizeof(seen)) == NULL);
    cr_assert(eq(int, env->random(env->ctx, draw, 0), KV_OK));
}

static void spells(uint64_t us, const char *expected)
{
    char text[28];
    kv_time_text(us, text);
    cr_assert(eq(str, text, (char *)expected));
}

Test(env, times_are_spelled_as_rfc_3339)
{
    spells(0, "1970-01-01T00:00:00.000000Z");
    spells(UINT64_C(1796059098000000), "2026-11-30T17:18:18.000000Z");
    spells(UINT64_C(1709164800000001), "2024-02-29T00:00:00.000001Z");
    spells(UINT64_C(951782399999999), "2000-02-28T23:59:59.999999Z");
}

Test(env, the_last_spelling_is_the_end_of_the_year_9999)
{
    spells(UINT64_C(253402300799999999), "9999-12-31T23:59:59.999999Z");
    spells(UINT64_C(253402300800000000), "9999-12-31T23:59:59.999999Z");
    spells(UINT64_MAX, "9999-12-31T23:59:59.999999Z");
}

static uint64_t parsed(const char *text)
{
    uint64_t us = UINT64_MAX;
    enum kv_err rc = kv_time_parse(text, &us);
    cr_expect(eq(int, rc == KV_OK, us != UINT64_MAX), "%s", text);
    return us;
}

Test(env, a_time_is_read_as_it_is_written)
{
    const uint64_t times[] = {
        0, 1, 999999, UINT64_C(951782400000000), UINT64_C(1796059098123456), UINT64_C(253402300799999999)};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        char text[28];
        kv_time_text(times[i], text);
        cr_expect(eq(u64, parsed(text), times[i]), "%s", text);
    }
    cr_expect(eq(u64, parsed("2026-11-30T17:18:18Z"), UINT64_C(1796059098000000)));
    cr_expect(eq(u64, parsed("2026-11-30T17:18:18.5Z"), UINT64_C(1796059098500000)));
    cr_expect(eq(u64, parsed("2024-02-29T00:00:00Z"), UINT64_C(1709164800000000)));
}

Test(env, what_is_no_time_in_utc_is_refused)
{
    const char *bad[] = {"",
                         "2026-11-30",
                         "2026-11-30T17:18:18",
                         "2026-11-30 17:18:18Z",
                         "2026-11-30t17:18:18Z",
                         "2026-11-30T17:18:18z",
                         "2026-11-30T17:18:18+00:00",
                         "2026-11-30T17:18:18.Z",
                         "2026-11-30T17:18:18.1234567Z",
                         "2026-11-30T17:18:18.123456",
                         "2026-11-30T17:18:18Zx",
                         "2026-13-30T17:18:18Z",
                         "2026-00-30T17:18:18Z",
                         "2026-11-31T17:18:18Z",
                         "2026-11-00T17:18:18Z",
                         "2025-02-29T00:00:00Z",
                         "2026-11-30T24:00:00Z",
                         "2026-11-30T17:60:18Z",
                         "2026-11-30T17:18:60Z",
                         "1969-12-31T23:59:59Z",
                         "2026-11-30T17:18:-1Z",
                         " 026-11-30T17:18:18Z",
                         "+026-11-30T17:18:18Z",
                         "1796059098"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t us = 7;
        cr_expect(eq(int, kv_time_parse(bad[i], &us), KV_E_INVALID_REQUEST), "%s", bad[i]);
        cr_expect(eq(u64, us, 7u), "untouched on failure");
    }
}

/* Ids in memory and in text. */
#include "dataplane/base/id.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <signal.h>
#include <string.h>

struct fake {
    uint64_t realtime_us;
    uint8_t random[16];
    enum kv_err random_rc;
};

static uint64_t fake_time(void *ctx)
{
    return ((struct fake *)ctx)->realtime_us;
}

static enum kv_err fake_random(void *ctx, void *target, size_t len)
{
    struct fake *fake = ctx;
    cr_assert(eq(sz, len, 16));
    memcpy(target, fake->random, len);
    return fake->random_rc;
}

static struct kv_env env_of(struct fake *fake)
{
    return (struct kv_env){.ctx = fake, .realtime_us = fake_time, .random = fake_random};
}

/* The UUIDv7 of RFC 9562 appendix A.6, as text of ours (the digits were checked with another base32). */
static const uint8_t rfc_uuid[16] = {0x01, 0x7f, 0x22, 0xe2, 0x79, 0xb0, 0x7c, 0xc3,
                                     0x98, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f};

Test(id, new_id_has_time_version_and_variant_where_rfc_9562_wants_them)
{
    struct fake fake = {.realtime_us = UINT64_C(1645557742000) * 1000};
    memcpy(fake.random, rfc_uuid, 16);
    struct kv_env env = env_of(&fake);
    struct kv_id id;
    cr_assert(eq(int, kv_id_new(&env, &id), KV_OK));
    cr_assert(eq(int, memcmp(id.b, rfc_uuid, 6), 0));
    cr_assert(eq(u8, id.b[6], 0x70)); /* no fraction of a millisecond in this time */
    cr_assert(eq(u8, id.b[7], 0x00));
    cr_assert(eq(int, memcmp(id.b + 8, rfc_uuid + 8, 8), 0));
}

Test(id, all_ones_of_randomness_leave_version_and_variant_alone)
{
    struct fake fake = {.realtime_us = UINT64_C(1645557742000) * 1000 + 999};
    memset(fake.random, 0xff, 16);
    struct kv_env env = env_of(&fake);
    struct kv_id id;
    cr_assert(eq(int, kv_id_new(&env, &id), KV_OK));
    cr_assert(eq(int, id.b[6] >> 4, 7));
    cr_assert(eq(int, id.b[8] >> 6, 2));
    cr_assert(eq(u32, (id.b[6] & 15u) << 8 | id.b[7], 4091)); /* floor(999 * 4096 / 1000) */
}

Test(id, later_ids_sort_later_by_the_microsecond)
{
    struct fake fake = {.realtime_us = UINT64_C(1645557742000) * 1000 + 990};
    struct kv_env env = env_of(&fake);
    struct kv_id last, id;
    memset(fake.random, 0xff, 16);
    cr_assert(eq(int, kv_id_new(&env, &last), KV_OK));
    memset(fake.random, 0, 16);
    for (int i = 0; i < 20; i++) {
        fake.realtime_us++;
        cr_assert(eq(int, kv_id_new(&env, &id), KV_OK));
        cr_assert(lt(int, kv_id_compare(&last, &id), 0), "step %d", i);
        last = id;
    }
}

Test(id, without_randomness_there_is_no_id)
{
    struct fake fake = {.random_rc = KV_E_INTERNAL};
    struct kv_env env = env_of(&fake);
    struct kv_id id = {.b = {7}};
    cr_assert(eq(int, kv_id_new(&env, &id), KV_E_INTERNAL));
    cr_assert(eq(u8, id.b[0], 7));
}

Test(id, ids_of_the_system_differ)
{
    struct kv_id a, b;
    cr_assert(eq(int, kv_id_new(&kv_env_system, &a), KV_OK));
    cr_assert(eq(int, kv_id_new(&kv_env_system, &b), KV_OK));
    cr_assert(not(kv_id_equal(&a, &b)));
    cr_assert(not(kv_id_is_zero(&a)));
}

struct spelling {
    uint8_t bytes[16];
    const char *text;
};

/* The first is the example of the ULID specification, which shares this alphabet. */
static const struct spelling spellings[] = {
    {{0x01, 0x56, 0x3e, 0x3a, 0xb5, 0xd3, 0xd6, 0x76, 0x4c, 0x61, 0xef, 0xb9, 0x93, 0x02, 0xbd, 0x5b},
     "ses_01arz3ndektsv4rrffq69g5fav"},
    {{0}, "ses_00000000000000000000000000"},
    {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
     "ses_7zzzzzzzzzzzzzzzzzzzzzzzzz"},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, "ses_00000000000000000000000001"},
    {{0x80}, "ses_40000000000000000000000000"},
};

Test(id, texts_go_there_and_back)
{
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        struct kv_id id, back;
        memcpy(id.b, spellings[i].bytes, 16);
        char text[KV_ID_TEXT_SIZE];
        kv_id_text("ses", &id, text);
        cr_assert(eq(str, text, (char *)spellings[i].text));
        cr_assert(eq(int, kv_id_parse("ses", text, &back), KV_OK));
        cr_assert(kv_id_equal(&id, &back));
    }
}

Test(id, every_single_bit_survives)
{
    for (unsigned bit = 0; bit < 128; bit++) {
        struct kv_id id = {0}, back;
        id.b[bit / 8] = (uint8_t)(1u << bit % 8);
        char text[KV_ID_TEXT_SIZE];
        kv_id_text("op", &id, text);
        cr_assert(eq(int, kv_id_parse("op", text, &back), KV_OK));
        cr_assert(kv_id_equal(&id, &back));
    }
}

Test(id, other_spellings_are_refused_and_leave_the_result_alone)
{
    static const char *const bad[] = {
        "",
        "ses",
        "ses_",
        "ses_01arz3ndektsv4rrffq69g5fa",   /* one short */
        "ses_01arz3ndektsv4rrffq69g5fav0", /* one long */
        "ses_81arz3ndektsv4rrffq69g5fav",  /* 129 bits */
        "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV",  /* upper case */
        "ses_o1arz3ndektsv4rrffq69g5fav",  /* o for 0 */
        "ses_0iarz3ndektsv4rrffq69g5fav",
        "ses_0larz3ndektsv4rrffq69g5fav",
        "ses_0uarz3ndektsv4rrffq69g5fav",
        "ses_01arz3nd-ktsv4rrffq69g5fav",
        "ses-01arz3ndektsv4rrffq69g5fav",
        "ten_01arz3ndektsv4rrffq69g5fav",
        "sess_01arz3ndektsv4rrffq69g5fav",
        " ses_01arz3ndektsv4rrffq69g5fav",
        "01arz3ndektsv4rrffq69g5fav",
    };
    struct kv_id id = {.b = {7}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert(eq(int, kv_id_parse("ses", bad[i], &id), KV_E_INVALID_REQUEST), "%s", bad[i]);
        cr_assert(eq(u8, id.b[0], 7));
    }
    cr_assert(eq(int, kv_id_parse("ses", "ses_01arz3ndektsv4rrffq69g5fav", &id), KV_OK)); /* control */
}

Test(id, comparison_is_by_bytes)
{
    struct kv_id low = {.b = {1, 255}}, high = {.b = {2}}, zero = {0};
    cr_assert(lt(int, kv_id_compare(&low, &high), 0));
    cr_assert(gt(int, kv_id_compare(&high, &low), 0));
    cr_assert(eq(int, kv_id_compare(&low, &low), 0));
    cr_assert(kv_id_is_zero(&zero));
    cr_assert(not(kv_id_is_zero(&low)));
}

Test(id, prefix_that_would_not_fit_stops, .signal = SIGABRT)
{
    char text[KV_ID_TEXT_SIZE];
    kv_id_text("four", &(struct kv_id){0}, text);
}

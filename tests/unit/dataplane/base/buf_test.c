/* The growing buffer. */
#include "dataplane/base/buf.h"
#include "dataplane/base/fault.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>
#include <string.h>

Test(buf, appends_add_up_and_stay_terminated)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 1000);
    kv_buf_text(&buf, "ab");
    kv_buf_append(&buf, "cd", 2);
    kv_buf_number(&buf, 4);
    kv_buf_printf(&buf, "%d-%s", 2, "x");
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    cr_assert(eq(str, (char *)buf.data, "abcd42-x"));
    cr_assert(eq(sz, kv_buf_bytes(&buf).len, 8));
    kv_buf_done(&buf);
    cr_assert(buf.data == NULL);
}

Test(buf, fills_to_its_maximum_and_not_one_past)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 4);
    kv_buf_text(&buf, "abcd");
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    kv_buf_text(&buf, "");
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    kv_buf_text(&buf, "e");
    cr_assert(eq(int, kv_buf_check(&buf), KV_E_LIMIT));
    cr_assert(eq(str, (char *)buf.data, "abcd"));
    kv_buf_done(&buf);
}

Test(buf, after_a_failure_nothing_is_added_until_reset)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 4);
    kv_buf_printf(&buf, "%s", "abcde");
    cr_assert(buf.failed);
    kv_buf_text(&buf, "a");
    cr_assert(eq(sz, buf.len, 0));
    kv_buf_reset(&buf);
    kv_buf_text(&buf, "ab");
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    kv_buf_reset(&buf);
    cr_assert(eq(sz, buf.len, 0));
    cr_assert(eq(str, (char *)buf.data, ""));
    kv_buf_done(&buf);
}

Test(buf, grows_over_many_appends)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 100000);
    for (int i = 0; i < 10000; i++) {
        kv_buf_printf(&buf, "%04d,", i);
    }
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    cr_assert(eq(sz, buf.len, 50000));
    cr_assert(eq(int, memcmp(buf.data + 49995, "9999,", 6), 0));
    kv_buf_done(&buf);
}

Test(buf, maximum_of_zero_takes_nothing_but_nothing)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 0);
    kv_buf_append(&buf, NULL, 0);
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    cr_assert(eq(str, (char *)buf.data, ""));
    kv_buf_append(&buf, "x", 1);
    cr_assert(eq(int, kv_buf_check(&buf), KV_E_LIMIT));
    kv_buf_done(&buf);
}

#ifdef KV_FAULTS
Test(buf, out_of_memory_is_told_apart_from_the_limit)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 100);
    kv_fault_set("base/mem=fail");
    kv_buf_text(&buf, "x");
    cr_assert(eq(int, kv_buf_check(&buf), KV_E_NO_MEMORY));
    kv_fault_set(NULL);
    kv_buf_reset(&buf);
    kv_buf_text(&buf, "x");
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    kv_buf_done(&buf);
}
#endif

static void json_round_trip(const char *text, const char *expected)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 1000);
    kv_buf_json_string(&buf, text);
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    json_t *value = json_loadb((const char *)buf.data, buf.len, JSON_DECODE_ANY, NULL);
    cr_assert(value != NULL, "%s", (const char *)buf.data);
    cr_assert(eq(str, (char *)json_string_value(value), (char *)expected));
    json_decref(value);
    kv_buf_done(&buf);
}

Test(buf, json_strings_read_back_as_they_were)
{
    json_round_trip("", "");
    json_round_trip("plain", "plain");
    json_round_trip("\"\\/\b\f\n\r\t\x01\x1f\x7f", "\"\\/\b\f\n\r\t\x01\x1f\x7f");
    json_round_trip("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x94\x91",
                    "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x94\x91");
}

Test(buf, json_strings_of_bad_utf8_stay_valid_json)
{
    json_round_trip("a\xff\xc3", "a\xef\xbf\xbd\xef\xbf\xbd");
    json_round_trip("\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

Test(buf, what_is_reserved_is_appended_without_moving)
{
    struct kv_buf buf;
    kv_buf_init(&buf, 1000);
    kv_buf_append(&buf, "ab", 2);
    kv_buf_reserve(&buf, 998);
    const uint8_t *data = buf.data;
    for (int i = 0; i < 998; i++) {
        kv_buf_append(&buf, "c", 1);
    }
    cr_assert(eq(int, kv_buf_check(&buf), KV_OK));
    cr_assert(eq(ptr, (void *)buf.data, (void *)(uintptr_t)data));
    cr_assert(eq(sz, buf.len, 1000));
    kv_buf_reset(&buf);
    kv_buf_reserve(&buf, 1001);
    cr_assert(eq(int, kv_buf_check(&buf), KV_E_LIMIT), "one past the maximum");
    kv_buf_done(&buf);
}

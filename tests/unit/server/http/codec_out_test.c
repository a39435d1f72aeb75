/* What is written is JSON: commas, escapes, numbers that JavaScript keeps. */
#include "server/http/codec.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <jansson.h>

static struct kv_buf out;

static void start(void)
{
    kv_buf_init(&out, 4096);
}

static void end(void)
{
    kv_buf_done(&out);
}

TestSuite(codec_out, .init = start, .fini = end);

Test(codec_out, commas_are_where_they_belong)
{
    kv_out_open(&out);
    kv_out_text(&out, "a", "[");
    kv_out_int(&out, "b", 1);
    kv_out_object(&out, "c");
    kv_out_close(&out);
    kv_out_array(&out, "d");
    kv_out_text(&out, NULL, "{");
    kv_out_text(&out, NULL, ":");
    kv_out_open(&out);
    kv_out_bool(&out, "e", true);
    kv_out_bool(&out, "f", false);
    kv_out_close(&out);
    kv_out_open(&out);
    kv_out_close(&out);
    kv_out_array_end(&out);
    kv_out_int(&out, "g", 2);
    kv_out_close(&out);
    cr_assert(eq(str, (char *)out.data,
                 "{\"a\":\"[\",\"b\":1,\"c\":{},\"d\":[\"{\",\":\",{\"e\":true,\"f\":false},{}],\"g\":2}"));
}

Test(codec_out, numbers_from_2_to_the_53_on_are_texts)
{
    kv_out_open(&out);
    kv_out_int(&out, "a", (UINT64_C(1) << 53) - 1);
    kv_out_int(&out, "b", UINT64_C(1) << 53);
    kv_out_int(&out, "c", UINT64_MAX);
    kv_out_close(&out);
    cr_assert(eq(str, (char *)out.data,
                 "{\"a\":9007199254740991,\"b\":\"9007199254740992\",\"c\":\"18446744073709551615\"}"));
}

Test(codec_out, any_text_is_written_as_valid_json)
{
    const char *texts[] = {
        "", "\"\\/\b\f\n\r\t\x01\x1f\x7f", "\xff\xfe", "\xe2\x82", "\xed\xa0\x80", "</script>", "\xf0\x9f\x98\x80"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        kv_buf_reset(&out);
        kv_out_open(&out);
        kv_out_text(&out, "a", texts[i]);
        kv_out_close(&out);
        json_t *json = json_loadb((const char *)out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
        cr_expect(json != NULL, "text %zu: %s", i, (char *)out.data);
        json_decref(json);
    }
}

Test(codec_out, ids_times_and_hashes_have_their_form)
{
    struct kv_id id = {{1}};
    uint8_t hash[64] = {0xab};
    kv_out_open(&out);
    kv_out_id(&out, "a", "op", &id);
    kv_out_time(&out, "b", 0);
    kv_out_hex(&out, "c", hash, 2);
    kv_out_close(&out);
    cr_assert(eq(str, (char *)out.data,
                 "{\"a\":\"op_01000000000000000000000000\",\"b\":\"1970-01-01T00:00:00.000000Z\",\"c\":\"ab00\"}"));
}

Test(codec_out, more_than_64_bytes_of_hex_fail)
{
    uint8_t data[65] = {0};
    kv_out_hex(&out, NULL, data, 64);
    cr_assert(eq(int, kv_buf_check(&out), KV_OK));
    kv_out_hex(&out, NULL, data, 65);
    cr_assert(ne(int, kv_buf_check(&out), KV_OK));
}

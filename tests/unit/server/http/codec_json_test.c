/* Strict decoding: each limit and one past it, and everything that JSON allows and the contract does not. */
#include "dataplane/base/mem.h"
#include "server/http/codec.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

static struct kv_errinfo info;

static enum kv_err parse_bytes(const char *data, size_t len)
{
    struct kv_json *json = NULL;
    info = (struct kv_errinfo){0};
    enum kv_err rc = kv_json_parse(KV_BYTES(data, len), &info, &json);
    if (rc == KV_OK) {
        kv_json_free(json);
    } else {
        cr_assert(json == NULL, "the result is untouched on failure");
        cr_assert(ne(int, info.text[0], '\0'));
    }
    return rc;
}

static enum kv_err parse(const char *text)
{
    return parse_bytes(text, strlen(text));
}

/* {"a": open * depth … } with `depth` levels in all. */
static enum kv_err parse_nested(int depth)
{
    char text[256] = "{\"a\":";
    for (int i = 1; i < depth; i++) {
        strcat(text, "[");
    }
    strcat(text, depth == 1 ? "1" : "");
    for (int i = 1; i < depth; i++) {
        strcat(text, "]");
    }
    return parse(strcat(text, "}"));
}

/* An object and an array in it: 2, and a comma between each of the rest. */
static enum kv_err parse_values(int64_t values)
{
    size_t size = (size_t)values * 2 + 64;
    char *text = kv_alloc(size);
    size_t len = (size_t)snprintf(text, size, "{\"a\":[1");
    for (int64_t i = 2; i < values; i++) {
        len += (size_t)snprintf(text + len, size - len, ",1");
    }
    len += (size_t)snprintf(text + len, size - len, "]}");
    enum kv_err rc = parse_bytes(text, len);
    kv_free(text);
    return rc;
}

Test(codec_json, depth_is_limited)
{
    cr_assert(eq(int, parse_nested((int)KV_MAX_JSON_DEPTH), KV_OK));
    cr_assert(eq(int, parse_nested((int)KV_MAX_JSON_DEPTH + 1), KV_E_INVALID_REQUEST));
}

Test(codec_json, brackets_in_texts_are_no_depth)
{
    cr_assert(eq(int, parse("{\"a\":\"[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[\"}"), KV_OK));
}

Test(codec_json, number_of_values_is_limited)
{
    cr_assert(eq(int, parse_values(KV_MAX_JSON_MEMBERS), KV_OK));
    cr_assert(eq(int, parse_values(KV_MAX_JSON_MEMBERS + 1), KV_E_INVALID_REQUEST));
}

/* The largest transfer: hashes and slots of KV_MAX_BLOCKS_PER_CALL blocks, in the longest spelling. */
Test(codec_json, the_largest_transfer_fits_the_limits)
{
    size_t size = (size_t)KV_MAX_BODY_BYTES * 2, len = 0;
    char *text = kv_alloc(size);
    len +=
        (size_t)snprintf(text, size,
                         "{\"session_id\":\"ses_01kbag4v5meb8rhyq1vttpmvs8\",\"pool_id\":"
                         "\"poo_01kbag4v5meb8rhyq1vttpmvs8\",\"wait\":\"durable\",\"deadline_ms\":30000,\"hashes\":[");
    for (int64_t i = 0; i < KV_MAX_BLOCKS_PER_CALL; i++) {
        len += (size_t)snprintf(text + len, size - len, "%s\"%064llx\"", i == 0 ? "" : ", ", (unsigned long long)i);
    }
    len += (size_t)snprintf(text + len, size - len, "],\"slots\":[");
    for (int64_t i = 0; i < KV_MAX_BLOCKS_PER_CALL; i++) {
        len += (size_t)snprintf(text + len, size - len, "%s4294967295", i == 0 ? "" : ", ");
    }
    len += (size_t)snprintf(text + len, size - len, "]}");
    cr_assert(lt(sz, len, (size_t)KV_MAX_BODY_BYTES));
    cr_assert(eq(int, parse_bytes(text, len), KV_OK));
    kv_free(text);
}

Test(codec_json, the_largest_layout_fits_the_limits)
{
    size_t size = (size_t)KV_MAX_BODY_BYTES * 2, len = 0;
    char *text = kv_alloc(size);
    len += (size_t)snprintf(text, size,
                            "{\"memory\":{\"kind\":\"memfd\",\"fd_token\":\"tok_0\",\"size_bytes\":1},\"layout\":{"
                            "\"kind\":\"regions\",\"format\":\"f\",\"engine_version\":\"1\",\"tokens_per_block\":1,"
                            "\"slots\":1,\"bytes_per_block\":1,\"regions\":[");
    for (int64_t i = 0; i < KV_MAX_POOL_REGIONS; i++) {
        len += (size_t)snprintf(text + len, size - len,
                                "%s{\"offset_bytes\":1099511627776,\"stride_bytes\":1099511627776,\"run_bytes\":"
                                "1099511627776}",
                                i == 0 ? "" : ", ");
    }
    len += (size_t)snprintf(text + len, size - len, "]}}");
    cr_assert(lt(sz, len, (size_t)KV_MAX_BODY_BYTES));
    cr_assert(eq(int, parse_bytes(text, len), KV_OK));
    kv_free(text);
}

Test(codec_json, what_is_no_object_is_refused)
{
    const char *bodies[] = {"",
                            " ",
                            "[]",
                            "1",
                            "\"a\"",
                            "null",
                            "true",
                            "{",
                            "}",
                            "{\"a\"}",
                            "{\"a\":}",
                            "{\"a\":1,}",
                            "{'a':1}",
                            "{a:1}",
                            "{\"a\":1}{}",
                            "{\"a\":1} x",
                            "{\"a\":01}",
                            "{\"a\":NaN}",
                            "{\"a\":1e400}",
                            "{\"a\":/**/1}",
                            "{\"a\":9223372036854775808}",
                            "\xef\xbb\xbf{\"a\":1}"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        cr_expect(eq(int, parse(bodies[i]), KV_E_INVALID_REQUEST), "%s", bodies[i]);
    }
    cr_assert(eq(int, parse(" {\"a\":1}\n"), KV_OK));
}

Test(codec_json, a_member_twice_is_refused_however_it_is_spelt)
{
    cr_assert(eq(int, parse("{\"a\":1,\"a\":1}"), KV_E_INVALID_REQUEST));
    cr_assert(strstr(info.text, "twice") != NULL);
    cr_assert(eq(int, parse("{\"a\":1,\"\\u0061\":1}"), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse("{\"x\":{\"a\":1,\"a\":1}}"), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse("{\"a\":1,\"A\":1}"), KV_OK));
}

Test(codec_json, zero_bytes_are_refused_raw_and_escaped)
{
    static const char raw[] = "{\"a\":\"x\0y\"}", after[] = "{\"a\":1}\0";
    cr_assert(eq(int, parse_bytes(raw, sizeof raw - 1), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse_bytes(after, sizeof after - 1), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse("{\"a\":\"x\\u0000y\"}"), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse("{\"x\\u0000y\":1}"), KV_E_INVALID_REQUEST));
}

Test(codec_json, bytes_that_are_no_utf8_are_refused)
{
    const char *bodies[] = {"{\"a\":\"\xff\"}",
                            "{\"a\":\"\xc0\xaf\"}",
                            "{\"a\":\"\xe2\x82\"}",
                            "{\"a\":\"\xed\xa0\x80\"}",
                            "{\"a\":\"\xf4\x90\x80\x80\"}",
                            "{\"a\":\"\\ud800\"}",
                            "{\"\xff\":1}"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        cr_expect(eq(int, parse(bodies[i]), KV_E_INVALID_REQUEST), "body %zu", i);
    }
    cr_assert(eq(int, parse("{\"a\":\"\xe2\x82\xac \xf0\x9f\x98\x80\"}"), KV_OK));
}

/* --- the table of fields ------------------------------------------------------------------------------------------ */

static const struct kv_field fields[] = {
    {"text", KV_TEXT, true, 2, 4, NULL},     {"word", KV_TEXT, false, 1, 8, "|red|green|"},
    {"number", KV_INT, false, -1, 10, NULL}, {"object", KV_OBJECT, false, 0, 0, NULL},
    {"array", KV_ARRAY, false, 1, 2, NULL},
};

static enum kv_err check(const char *text)
{
    struct kv_json *json = NULL;
    info = (struct kv_errinfo){0};
    cr_assert(eq(int, kv_json_parse(KV_BYTES(text, strlen(text)), &info, &json), KV_OK), "%s", text);
    enum kv_err rc = kv_json_check(json, "/at", fields, sizeof fields / sizeof fields[0], &info);
    kv_json_free(json);
    return rc;
}

#define REFUSED(body, where, what)                                             \
    do {                                                                       \
        cr_expect(eq(int, check(body), KV_E_INVALID_REQUEST), "%s", body);     \
        cr_expect(eq(str, info.pointer, where), "%s", body);                   \
        cr_expect(strstr(info.text, what) != NULL, "%s: %s", body, info.text); \
    } while (0)

Test(codec_json, everything_that_the_table_allows_passes)
{
    cr_assert(eq(int, check("{\"text\":\"ab\"}"), KV_OK));
    cr_assert(
        eq(int, check("{\"text\":\"abcd\",\"word\":\"green\",\"number\":-1,\"object\":{},\"array\":[1,2]}"), KV_OK));
    cr_assert(eq(int, check("{\"text\":\"ab\",\"number\":10,\"array\":[1]}"), KV_OK));
}

Test(codec_json, a_text_has_a_shortest_and_a_longest)
{
    REFUSED("{\"text\":\"a\"}", "/at/text", "2 to 4 bytes");
    REFUSED("{\"text\":\"abcde\"}", "/at/text", "2 to 4 bytes");
    REFUSED("{\"text\":\"\xf0\x9f\x98\x80\x41\"}", "/at/text", "2 to 4 bytes");
}

Test(codec_json, a_number_has_a_range_and_no_fraction)
{
    REFUSED("{\"text\":\"ab\",\"number\":-2}", "/at/number", "-1 to 10");
    REFUSED("{\"text\":\"ab\",\"number\":11}", "/at/number", "-1 to 10");
    REFUSED("{\"text\":\"ab\",\"number\":1.0}", "/at/number", "whole");
    REFUSED("{\"text\":\"ab\",\"number\":1e0}", "/at/number", "whole");
    REFUSED("{\"text\":\"ab\",\"number\":\"1\"}", "/at/number", "whole");
    REFUSED("{\"text\":\"ab\",\"number\":true}", "/at/number", "whole");
    REFUSED("{\"text\":\"ab\",\"number\":null}", "/at/number", "whole");
}

Test(codec_json, an_array_has_a_fewest_and_a_most)
{
    REFUSED("{\"text\":\"ab\",\"array\":[]}", "/at/array", "1 to 2 items");
    REFUSED("{\"text\":\"ab\",\"array\":[1,2,3]}", "/at/array", "1 to 2 items");
    REFUSED("{\"text\":\"ab\",\"array\":{}}", "/at/array", "array");
    REFUSED("{\"text\":\"ab\",\"object\":[]}", "/at/object", "object");
}

Test(codec_json, a_word_is_one_of_the_set)
{
    const char *bad[] = {"blue", "re", "red|green", "|", "RED", "greenish"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[64];
        snprintf(body, sizeof body, "{\"text\":\"ab\",\"word\":\"%s\"}", bad[i]);
        cr_expect(eq(int, check(body), KV_E_INVALID_REQUEST), "%s", body);
    }
    REFUSED("{\"text\":\"ab\",\"word\":\"blue\"}", "/at/word", "red|green");
}

Test(codec_json, control_characters_are_refused)
{
    REFUSED("{\"text\":\"a\\n\"}", "/at/text", "control");
    REFUSED("{\"text\":\"a\\u001f\"}", "/at/text", "control");
    REFUSED("{\"text\":\"a\x7f\"}", "/at/text", "control");
}

Test(codec_json, unknown_and_missing_members_are_named)
{
    REFUSED("{\"text\":\"ab\",\"txet\":1}", "/at/txet", "unknown");
    REFUSED("{\"number\":1}", "/at/text", "required");
    REFUSED("{}", "/at/text", "required");
}

Test(codec_json, a_name_that_is_no_plain_word_is_not_echoed)
{
    REFUSED("{\"text\":\"ab\",\"a/b\":1}", "/at", "unknown");
    REFUSED("{\"text\":\"ab\",\"\":1}", "/at", "unknown");
    REFUSED("{\"text\":\"ab\",\"\xe2\x82\xac\":1}", "/at", "unknown");
    REFUSED("{\"text\":\"ab\",\"kvrun_live_abcdefgh_0123456789012345678901234567890123456789012_abcdef\":1}", "/at",
            "unknown");
}

Test(codec_json, a_value_is_never_echoed)
{
    cr_assert(eq(int, check("{\"text\":\"sEcReT-9\"}"), KV_E_INVALID_REQUEST));
    cr_assert(strstr(info.text, "sEcReT") == NULL);
    cr_assert(eq(int, check("{\"text\":\"ab\",\"word\":\"sEcReT\"}"), KV_E_INVALID_REQUEST));
    cr_assert(strstr(info.text, "sEcReT") == NULL);
}

/* --- ids and hashes ---------------------------------------------------------------------------------------------- */

static enum kv_err read_id(const char *body, struct kv_id *ret_id)
{
    struct kv_json *json = NULL;
    info = (struct kv_errinfo){0};
    cr_assert(eq(int, kv_json_parse(KV_BYTES(body, strlen(body)), &info, &json), KV_OK));
    enum kv_err rc = kv_json_id(json, "/x", "id", "ses", ret_id, &info);
    kv_json_free(json);
    return rc;
}

Test(codec_json, an_id_has_one_spelling)
{
    struct kv_id id = {0};
    cr_assert(eq(int, read_id("{\"id\":\"ses_01kbag4v5meb8rhyq1vttpmvs8\"}", &id), KV_OK));
    cr_assert(not(kv_id_is_zero(&id)));
    const char *bad[] = {"{}",
                         "{\"id\":1}",
                         "{\"id\":\"\"}",
                         "{\"id\":\"ses_\"}",
                         "{\"id\":\"ten_01kbag4v5meb8rhyq1vttpmvs8\"}",
                         "{\"id\":\"ses_01KBAG4V5MEB8RHYQ1VTTPMVS8\"}",
                         "{\"id\":\"ses_01kbag4v5meb8rhyq1vttpmvs\"}",
                         "{\"id\":\"ses_01kbag4v5meb8rhyq1vttpmvs88\"}",
                         "{\"id\":\"ses_01kbag4v5meb8rhyq1vttpmvsu\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, read_id(bad[i], &id), KV_E_INVALID_REQUEST), "%s", bad[i]);
        cr_expect(eq(str, info.pointer, "/x/id"));
    }
}

static enum kv_err read_hash(const char *digits)
{
    char body[160];
    uint8_t hash[32];
    struct kv_json *json = NULL;
    snprintf(body, sizeof body, "{\"hash\":\"%s\"}", digits);
    cr_assert(eq(int, kv_json_parse(KV_BYTES(body, strlen(body)), &info, &json), KV_OK));
    enum kv_err rc = kv_json_hash(json, "", "hash", hash, &info);
    kv_json_free(json);
    return rc;
}

Test(codec_json, a_hash_is_64_lower_case_digits)
{
    char digits[66] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    cr_assert(eq(int, read_hash(digits), KV_OK));
    digits[63] = '\0';
    cr_assert(eq(int, read_hash(digits), KV_E_INVALID_REQUEST));
    digits[63] = 'F';
    cr_assert(eq(int, read_hash(digits), KV_E_INVALID_REQUEST));
    digits[63] = digits[64] = 'f';
    cr_assert(eq(int, read_hash(digits), KV_E_INVALID_REQUEST));
}

/* --- merge patches ----------------------------------------------------------------------------------------------- */

static enum kv_err check_patch(const char *text)
{
    static const struct kv_field patch[] = {
        {"ttl_seconds", KV_INT | KV_H_NULLABLE, false, 1, 100, NULL},
        {"display_name", KV_TEXT, false, 1, 8, NULL},
        {"enabled", KV_BOOL, false, 0, 0, NULL},
        {"name", KV_TEXT | KV_H_IMMUTABLE, false, 1, 8, NULL},
    };
    struct kv_json *json = NULL;
    info = (struct kv_errinfo){0};
    cr_assert(eq(int, kv_json_parse(KV_BYTES(text, strlen(text)), &info, &json), KV_OK));
    enum kv_err rc = kv_json_check(json, "", patch, 4, &info);
    kv_json_free(json);
    return rc;
}

Test(codec_json, null_is_taken_where_it_means_something)
{
    cr_assert(eq(int, check_patch("{\"ttl_seconds\":null}"), KV_OK));
    cr_assert(eq(int, check_patch("{\"ttl_seconds\":100,\"display_name\":\"x\",\"enabled\":false}"), KV_OK));
    cr_assert(eq(int, check_patch("{\"ttl_seconds\":101}"), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, check_patch("{\"display_name\":null}"), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, check_patch("{\"enabled\":null}"), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, check_patch("{\"enabled\":0}"), KV_E_INVALID_REQUEST));
    cr_assert(eq(str, info.pointer, "/enabled"));
}

Test(codec_json, what_never_changes_is_known_and_refused)
{
    cr_assert(eq(int, check_patch("{\"name\":\"x\"}"), KV_E_IMMUTABLE_FIELD));
    cr_assert(eq(str, info.pointer, "/name"));
    cr_assert(eq(int, check_patch("{\"name\":null}"), KV_E_IMMUTABLE_FIELD));
}

Test(codec_json, members_are_walked_and_null_is_not_absence)
{
    const char *text = "{\"a\":null,\"b\":true,\"c\":7}";
    struct kv_json *json = NULL;
    cr_assert(eq(int, kv_json_parse(KV_BYTES(text, strlen(text)), &info, &json), KV_OK));
    cr_expect(kv_json_is_null(json, "a"));
    cr_expect(not(kv_json_is_null(json, "b")));
    cr_expect(not(kv_json_is_null(json, "z")));
    cr_expect(kv_json_bool(json, "b", false));
    cr_expect(kv_json_bool(json, "z", true));
    char names[8] = "";
    void *at = NULL;
    const char *name = NULL;
    while (kv_json_next(json, &at, &name) != NULL && strlen(names) < 6) {
        strcat(names, name);
    }
    cr_expect(eq(str, names, "abc"));
    kv_json_free(json);
}

Test(codec_json, one_value_has_one_text)
{
    const char *words[] = {"{\"b\":[1, 2],\"a\":\"\\u00e4\\/\"}", " {\n\"a\":\"\xc3\xa4/\",\"b\":[1,2]}"};
    for (size_t i = 0; i < 2; i++) {
        struct kv_json *json = NULL;
        struct kv_buf text;
        kv_buf_init(&text, 4096);
        cr_assert(eq(int, kv_json_parse(KV_BYTES(words[i], strlen(words[i])), &info, &json), KV_OK));
        cr_assert(eq(int, kv_json_canonical(json, &text), KV_OK));
        cr_expect(eq(str, (char *)text.data, "{\"a\":\"\xc3\xa4/\",\"b\":[1,2]}"));
        kv_json_free(json);
        kv_buf_done(&text);
    }
}

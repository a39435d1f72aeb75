/* The restricted profile: what is inside comes out canonical, what is outside is refused by name. */
#include "audit/jcs.h"
#include "kv_version.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

#define VECTORS KV_SOURCE_DIR "/tests/vectors/jcs/"

static struct kv_errinfo info;

static enum kv_err canonical(const char *json, size_t len, struct kv_buf *out)
{
    kv_buf_init(out, 1 << 20);
    memset(&info, 0, sizeof(info));
    return kv_jcs_canonical(KV_BYTES(json, len), &info, out);
}

static void check_accepted(const char *json, const char *expected)
{
    struct kv_buf out;
    cr_assert(eq(int, canonical(json, strlen(json), &out), KV_OK), "%s: %s", json, info.text);
    cr_assert(eq(str, (char *)out.data, (char *)expected));
    kv_buf_done(&out);
}

static void check_refused_bytes(const char *json, size_t len, const char *reason)
{
    struct kv_buf out;
    cr_assert(eq(int, canonical(json, len, &out), KV_E_INVALID_REQUEST), "%s", json);
    cr_assert(eq(sz, out.len, 0));
    cr_assert(strstr(info.text, reason) != NULL, "%s: \"%s\" instead of \"%s\"", json, info.text, reason);
    kv_buf_done(&out);
}

static void check_refused(const char *json, const char *reason)
{
    check_refused_bytes(json, strlen(json), reason);
}

static size_t load(const char *name, char *text, size_t size)
{
    char path[512];
    (void)snprintf(path, sizeof(path), VECTORS "%s", name);
    size_t len = kvt_file_read(path, 0, text, size - 1);
    cr_assert(gt(sz, len, 0), "%s", path);
    text[len] = '\0';
    return len;
}

Test(jcs, each_outside_input_is_refused_by_name)
{
    static const struct {
        const char *name, *reason;
    } cases[] = {
        {"input/arrays.json", "not an object"},
        {"input/french.json", "member name is not ASCII"},
        {"input/unicode.json", "string is not printable ASCII"},
        {"input/values.json", "null"},
        {"input/weird.json", "member name is not ASCII"},
    };
    char text[4096];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t len = load(cases[i].name, text, sizeof(text));
        check_refused_bytes(text, len, cases[i].reason);
    }
}

Test(jcs, structures_vector_gives_the_expected_output)
{
    char input[4096], output[4096];
    load("input/structures.json", input, sizeof(input));
    load("output/structures.json", output, sizeof(output));
    check_accepted(input, output);
    check_accepted(output, output);
}

Test(jcs, a_whole_number_has_one_spelling)
{
    check_accepted("{\"a\":56.0,\"b\":1e3,\"c\":-2.50e1}", "{\"a\":56,\"b\":1000,\"c\":-25}");
}

Test(jcs, members_are_sorted_and_space_is_dropped)
{
    check_accepted(" { \"b\" : [ 1 , true , { } ] , \"a\" : \"x\" , \"B\" : false }\n",
                   "{\"B\":false,\"a\":\"x\",\"b\":[1,true,{}]}");
    check_accepted("{}", "{}");
    check_accepted("{\"aa\":1,\"a\":2,\"\":3}", "{\"\":3,\"a\":2,\"aa\":1}");
}

Test(jcs, escapes_have_one_spelling)
{
    check_accepted("{\"a\":\"\\u0041\\/\\\"\\\\\"}", "{\"a\":\"A/\\\"\\\\\"}");
    check_accepted("{\"\\u000a\\u0001\\t\":1}", "{\"\\n\\u0001\\t\":1}");
}

Test(jcs, integers_end_below_two_to_the_53)
{
    check_accepted("{\"a\":9007199254740991,\"b\":-9007199254740991}",
                   "{\"a\":9007199254740991,\"b\":-9007199254740991}");
    check_refused("{\"a\":9007199254740992}", "integer of 2^53 or more");
    check_refused("{\"a\":-9007199254740992}", "integer of 2^53 or more");
    check_refused("{\"a\":99999999999999999999}", "integer of 2^53 or more");
    check_refused("{\"a\":1.5}", "number with a fraction");
    check_refused("{\"a\":1e-2}", "number with a fraction");
    check_refused("{\"a\":-0.0}", "minus zero");
    check_refused("{\"a\":9007199254740992.0}", "2^53 or more");
}

Test(jcs, duplicates_nulls_and_other_tops_are_refused)
{
    check_accepted("{\"a\":1,\"b\":1}", "{\"a\":1,\"b\":1}");
    check_refused("{\"a\":1,\"a\":1}", "duplicate member");
    check_refused("{\"x\":{\"a\":1,\"\\u0061\":2}}", "duplicate member");
    check_refused("{\"a\":null}", "null");
    check_refused("[1]", "not an object");
    check_refused("\"a\"", "not an object");
    check_refused("{\"a\":1", "not JSON");
    check_refused("{\"a\":1}x", "not JSON");
    check_refused("", "not JSON");
    check_refused_bytes("{\"a\":\"\0\"}", 9, "not JSON");
    check_refused("{\"a\":\"\\u0000\"}", "not JSON");
}

Test(jcs, strings_are_printable_ascii)
{
    check_accepted("{\"a\":\" ~\"}", "{\"a\":\" ~\"}");
    check_refused("{\"a\":\"\\u001f\"}", "string is not printable ASCII");
    check_refused("{\"a\":\"\\u007f\"}", "string is not printable ASCII");
    check_refused("{\"a\":\"\\u00e9\"}", "string is not printable ASCII");
    check_refused("{\"\\u007f\":1}", "member name is not ASCII");
}

Test(jcs, nesting_ends_at_sixteen)
{
    char json[64] = "";
    strcpy(json, "{\"a\":");
    memset(json + 5, '[', 15);
    memset(json + 20, ']', 15);
    strcpy(json + 35, "}");
    check_accepted(json, json);
    memset(json + 5, '[', 16);
    memset(json + 21, ']', 16);
    strcpy(json + 37, "}");
    check_refused(json, "deeper than 16");
}

Test(jcs, a_text_is_the_canonical_form_of_its_own_canonical_form)
{
    struct kv_buf once, twice;
    const char *json = "{\"z\":{\"y\":[[],{},\"\\\\\"]},\"a\":-1}";
    cr_assert(eq(int, canonical(json, strlen(json), &once), KV_OK));
    cr_assert(eq(int, canonical((char *)once.data, once.len, &twice), KV_OK));
    cr_assert(eq(str, (char *)once.data, (char *)twice.data));
    kv_buf_done(&once);
    kv_buf_done(&twice);
}

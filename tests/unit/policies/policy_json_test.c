/* The parser at its limits and one past them, cut short at every byte, and when memory ends. */
#include "dataplane/base/fault.h"
#include "kv_version.h"
#include "policies/policy_set.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum kv_err parse(const char *text, size_t len, char *ret_pointer)
{
    struct kv_errinfo info = {0};
    struct kv_policy_doc *doc = NULL;
    enum kv_err rc = kv_policy_parse(KV_BYTES(text, len), KV_POLICY_TENANT, &info, &doc);
    if (ret_pointer != NULL) {
        strcpy(ret_pointer, info.pointer);
    }
    cr_assert_eq(rc == KV_OK, doc != NULL);
    kv_policy_doc_free(doc);
    return rc;
}

static char *read_example(size_t *ret_len)
{
    char *text = calloc(1, 65536);
    FILE *file = fopen(KV_SOURCE_DIR "/policies/example.json", "r");
    cr_assert_not_null(file);
    *ret_len = fread(text, 1, 65535, file);
    fclose(file);
    return text;
}

Test(policy_json, the_example_is_a_policy_and_no_part_of_it_is)
{
    size_t len = 0;
    char *text = read_example(&len);
    cr_assert_eq(parse(text, len, NULL), KV_OK);
    size_t end = strrchr(text, '}') - text;
    for (size_t i = 0; i < end; i++) {
        cr_assert_eq(parse(text, i, NULL), KV_E_POLICY_INVALID, "%zu bytes", i);
    }
    free(text);
}

/* "{"tiers":{}" and `count` of what `one` makes of a number, between `open` and `close`. */
static enum kv_err parse_many(const char *open, const char *one, unsigned count, const char *close)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "{\"tiers\":{}%s", open);
    for (unsigned i = 0; i < count; i++) {
        fputs(i == 0 ? "" : ",", out);
        fprintf(out, one, i);
    }
    fprintf(out, "%s}", close);
    fclose(out);
    enum kv_err rc = parse(text, size, NULL);
    free(text);
    return rc;
}

Test(policy_json, each_limit_holds_and_one_more_is_refused)
{
    cr_expect_eq(parse_many(",\"models\":[", "\"m%u\"", KV_MAX_POLICY_NAMES, "]"), KV_OK);
    cr_expect_eq(parse_many(",\"models\":[", "\"m%u\"", KV_MAX_POLICY_NAMES + 1, "]"), KV_E_POLICY_INVALID);
    cr_expect_eq(parse_many(",\"regions\":[", "\"r%u\"", KV_MAX_POLICY_NAMES, "]"), KV_OK);
    cr_expect_eq(parse_many(",\"regions\":[", "\"r%u\"", KV_MAX_POLICY_NAMES + 1, "]"), KV_E_POLICY_INVALID);
    cr_expect_eq(parse_many(",\"layouts\":[", "\"%064u\"", KV_MAX_POLICY_NAMES + 1, "]"), KV_E_POLICY_INVALID);
    cr_expect_eq(parse_many(",\"forbid\":[", "{\"regions\":[\"r%u\"]}", KV_MAX_POLICY_RULES, "]"), KV_OK);
    cr_expect_eq(parse_many(",\"forbid\":[", "{}", KV_MAX_POLICY_RULES + 1, "]"), KV_E_POLICY_INVALID);
    /* "default" is always there and is one of them. */
    cr_expect_eq(parse_many(",\"classes\":{", "\"c%u\":{}", KV_MAX_POLICY_CLASSES - 1, "}"), KV_OK);
    cr_expect_eq(parse_many(",\"classes\":{", "\"c%u\":{}", KV_MAX_POLICY_CLASSES, "}"), KV_E_POLICY_INVALID);
}

Test(policy_json, a_text_of_the_largest_size_is_read_and_a_byte_more_is_not)
{
    size_t size = KV_MAX_POLICY_BYTES;
    char *text = malloc(size + 2);
    memset(text, ' ', size + 2);
    memcpy(text, "{\"tiers\":{}}", 12);
    cr_expect_eq(parse(text, size, NULL), KV_OK);
    cr_expect_eq(parse(text, size + 1, NULL), KV_E_POLICY_INVALID);
    free(text);
}

Test(policy_json, brackets_are_counted_outside_of_texts_only)
{
    char pointer[64];
    /* Eight levels are read as JSON and refused for what they say; nine are not read. */
    const char *eight = "{\"tiers\":{},\"models\":[[[[[[[]]]]]]]}",
               *nine = "{\"tiers\":{},\"models\":[[[[[[[[]]]]]]]]}";
    cr_expect_eq(parse(eight, strlen(eight), pointer), KV_E_POLICY_INVALID);
    cr_expect_str_eq(pointer, "/models/0");
    cr_expect_eq(parse(nine, strlen(nine), pointer), KV_E_POLICY_INVALID);
    cr_expect_str_eq(pointer, "");
    const char *text = "{\"tiers\":{},\"models\":[\"[[[[[[[[[[[[\"]}";
    cr_expect_eq(parse(text, strlen(text), NULL), KV_OK);
}

Test(policy_json, a_long_pointer_is_cut_and_nothing_else)
{
    const char *text = "{\"tiers\":{},\"classes\":{\"a-class-with-a-name-of-32-letters-xx\":{\"session\":{"
                       "\"max_idle_secondz\":1}}}}";
    char pointer[64];
    cr_expect_eq(parse(text, strlen(text), pointer), KV_E_POLICY_INVALID);
    cr_expect_lt(strlen(pointer), sizeof pointer);
}

Test(policy_json, each_allocation_that_fails_is_reported)
{
    size_t len = 0;
    char *text = read_example(&len);
    struct kv_policy_doc *doc = NULL, *platform = NULL;
    struct kv_policy_set *set = NULL;
    struct kv_errinfo info;
    cr_assert_eq(kv_policy_parse(KV_BYTES(text, len), KV_POLICY_TENANT, &info, &doc), KV_OK);
    cr_assert_eq(
        kv_policy_parse(KV_BYTES(kv_policy_builtin, strlen(kv_policy_builtin)), KV_POLICY_PLATFORM, &info, &platform),
        KV_OK);
    kv_fault_set("base/mem=fail@1");
    struct kv_policy_doc *none = NULL;
    cr_expect_eq(kv_policy_parse(KV_BYTES(text, len), KV_POLICY_TENANT, &info, &none), KV_E_NO_MEMORY);
    kv_fault_set("base/mem=fail@1");
    cr_expect_eq(kv_policy_compile(platform, doc, &set), KV_E_NO_MEMORY);
    kv_fault_set(NULL);
    kv_policy_doc_free(doc);
    kv_policy_doc_free(platform);
    free(text);
}

/* What headers ask: ETags and their conditions, keys of requests, traces. */
#include "server/http/manners.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

static struct kv_errinfo info;

Test(manners, an_etag_has_the_revision_and_a_hash_of_the_body)
{
    char a[KV_ETAG_SIZE], b[KV_ETAG_SIZE], c[KV_ETAG_SIZE];
    cr_assert(eq(int, kv_etag_make(7, KV_BYTES("abc", 3), a), KV_OK));
    cr_assert(eq(int, kv_etag_make(7, KV_BYTES("abd", 3), b), KV_OK));
    cr_assert(eq(int, kv_etag_make(UINT64_MAX, KV_BYTES("abc", 3), c), KV_OK));
    cr_expect(eq(str, a, "\"7.ba7816bf8f01cfea\""), "FIPS 180-2, appendix B.1");
    cr_expect(ne(str, a, b));
    cr_expect(eq(str, c, "\"18446744073709551615.ba7816bf8f01cfea\""));
}

Test(manners, if_match_compares_revisions)
{
    struct kv_match match;
    cr_assert(eq(int, kv_match_parse(NULL, &match, &info), KV_OK));
    cr_expect(not(match.present));
    cr_assert(eq(int, kv_match_parse("\"7.ba7816bf8f01cfea\"", &match, &info), KV_OK));
    cr_expect(match.present && !match.any && match.rev == 7);
    cr_assert(eq(int, kv_match_parse(" \"7\" ", &match, &info), KV_OK));
    cr_expect(match.present && match.rev == 7);
    cr_assert(eq(int, kv_match_parse("*", &match, &info), KV_OK));
    cr_expect(match.present && match.any);
}

Test(manners, a_tag_that_is_none_of_ours_never_matches)
{
    const char *others[] = {"W/\"7.ba7816bf8f01cfea\"", "\"x\"", "\"\"", "\"7x\"", "\".7\"",
                            "\"99999999999999999999\""};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct kv_match match;
        cr_expect(eq(int, kv_match_parse(others[i], &match, &info), KV_OK), "%s", others[i]);
        cr_expect(match.present && !match.any && match.rev == 0, "%s: no revision is 0", others[i]);
    }
}

Test(manners, a_malformed_condition_is_no_missing_one)
{
    const char *bad[] = {"",        " ",       "7",      "\"7", "7\"", "**", "* , \"7\"", "\"7\", \"8\"",
                         "\"7\" x", "\"7 8\"", "w/\"7\""};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kv_match match;
        cr_expect(eq(int, kv_match_parse(bad[i], &match, &info), KV_E_INVALID_REQUEST), "%s", bad[i]);
    }
}

Test(manners, if_none_match_names_whole_tags)
{
    const char *etag = "\"7.ba7816bf8f01cfea\"";
    const char *yes[] = {"\"7.ba7816bf8f01cfea\"",
                         "W/\"7.ba7816bf8f01cfea\"",
                         "\"a\", \"7.ba7816bf8f01cfea\"",
                         "\"a\",W/\"b\" , \"7.ba7816bf8f01cfea\"",
                         "*",
                         " * "};
    const char *no[] = {
        "",    "\"7\"",  "\"7.ba7816bf8f01cfeb\"",   "7.ba7816bf8f01cfea", "\"a\" \"7.ba7816bf8f01cfea\"",
        "\"a", "\"a\",", "*, \"7.ba7816bf8f01cfea\""};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        cr_expect(kv_etag_listed(yes[i], etag), "%s", yes[i]);
    }
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        cr_expect(not(kv_etag_listed(no[i], etag)), "%s", no[i]);
    }
    cr_expect(not(kv_etag_listed(NULL, etag)));
    cr_expect(not(kv_etag_listed("*", "")), "what has no ETag is never known");
}

Test(manners, a_key_is_bare_or_quoted)
{
    char key[KV_ONCE_KEY_SIZE], longest[300];
    cr_assert(eq(int, kv_once_key_parse("8e03978e-40d5-43dd-bc93-6894a57f9324", key, &info), KV_OK));
    cr_expect(eq(str, key, "8e03978e-40d5-43dd-bc93-6894a57f9324"));
    cr_assert(eq(int, kv_once_key_parse("\"8e03978e\" ", key, &info), KV_OK));
    cr_expect(eq(str, key, "8e03978e"));
    cr_assert(eq(int, kv_once_key_parse("\"a\\\"b\\\\c\"", key, &info), KV_OK));
    cr_expect(eq(str, key, "a\"b\\c"));
    memset(longest, 'x', sizeof longest);
    longest[255] = '\0';
    cr_assert(eq(int, kv_once_key_parse(longest, key, &info), KV_OK));
    cr_expect(eq(sz, strlen(key), (size_t)255));
    longest[255] = 'x';
    longest[256] = '\0';
    cr_assert(eq(int, kv_once_key_parse(longest, key, &info), KV_E_INVALID_REQUEST));
    cr_expect(eq(sz, (size_t)KV_MAX_IDEMPOTENCY_KEY_BYTES, sizeof key - 1));
    const char *bad[] = {"",        "\"\"",     "\"",       "\"a",     "a b",      "a\tb",
                         "\"a b\"", "\"a\"b\"", "\"a\\b\"", "\"a\\\"", "\xc3\xa4", "a\x7f"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect(eq(int, kv_once_key_parse(bad[i], key, &info), KV_E_INVALID_REQUEST), "%s", bad[i]);
    }
}

Test(manners, a_trace_goes_on_with_a_span_of_ours)
{
    struct kv_trace trace = {0}, second = {0};
    const char *value = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    cr_assert(eq(int, kv_trace_take(&kv_env_system, value, &trace), KV_OK));
    cr_assert(eq(int, kv_trace_take(&kv_env_system, value, &second), KV_OK));
    cr_expect(trace.present);
    cr_expect(eq(str, trace.id, "4bf92f3577b34da6a3ce929d0e0e4736"));
    cr_expect(eq(str, trace.parent, "00f067aa0ba902b7"));
    cr_expect(eq(sz, strlen(trace.span), (size_t)16));
    cr_expect(ne(str, trace.span, trace.parent));
    cr_expect(ne(str, trace.span, second.span));
    cr_expect(eq(uint, trace.flags, 1u));
}

Test(manners, what_is_no_traceparent_is_as_if_it_were_not_there)
{
    const char *bad[] = {NULL,
                         "",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
                         "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                         "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                         "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                         "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
                         "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 ",
                         "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x",
                         "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kv_trace trace = {0};
        cr_expect(eq(int, kv_trace_take(&kv_env_system, bad[i], &trace), KV_OK));
        cr_expect(not(trace.present), "%s", bad[i]);
    }
    struct kv_trace later = {0};
    cr_expect(eq(int,
                 kv_trace_take(&kv_env_system, "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more", &later),
                 KV_OK));
    cr_expect(later.present, "a later version may go on");
    cr_expect(eq(uint, later.flags, 1u), "of its flags the known one");
}

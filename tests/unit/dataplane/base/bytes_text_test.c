/* Hex, base64, base64url and UTF-8. */
#include "dataplane/base/bytes.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

Test(bytes_text, digits_of_a_number)
{
    static const uint64_t numbers[] = {0, 9, 10, 99, 100, 1234567890, UINT64_MAX};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        char digits[KV_DIGITS_SIZE + 1], expected[32];
        digits[kv_digits(numbers[i], digits)] = '\0';
        snprintf(expected, sizeof expected, "%" PRIu64, numbers[i]);
        cr_assert(eq(str, digits, expected));
    }
}

Test(bytes_text, hex_goes_there_and_back)
{
    char text[11];
    kv_hex_encode("\x00\x01\x7f\x80\xff", 5, text);
    cr_assert(eq(str, text, "00017f80ff"));
    uint8_t data[5];
    cr_assert(eq(int, kv_hex_decode(text, data, 5), KV_OK));
    cr_assert(eq(int, memcmp(data, "\x00\x01\x7f\x80\xff", 5), 0));
    kv_hex_encode(NULL, 0, text);
    cr_assert(eq(str, text, ""));
}

Test(bytes_text, hex_refuses_other_spellings_and_leaves_the_result_alone)
{
    static const char *const bad[] = {"", "0", "000", "00000", "000G", "00FF", "00 0", "0x00", "00\n"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint8_t data[2] = {0xaa, 0xaa};
        cr_assert(eq(int, kv_hex_decode(bad[i], data, 2), KV_E_INVALID_REQUEST), "%s", bad[i]);
        cr_assert(eq(int, memcmp(data, "\xaa\xaa", 2), 0));
    }
}

struct vector {
    const char *plain, *base64, *url;
};

/* RFC 4648 section 10, and two that show the alphabets' difference. */
static const struct vector vectors[] = {
    {"", "", ""},
    {"f", "Zg==", "Zg"},
    {"fo", "Zm8=", "Zm8"},
    {"foo", "Zm9v", "Zm9v"},
    {"foob", "Zm9vYg==", "Zm9vYg"},
    {"fooba", "Zm9vYmE=", "Zm9vYmE"},
    {"foobar", "Zm9vYmFy", "Zm9vYmFy"},
    {"\xfb\xff", "+/8=", "-_8"},
    {"\xff\xff\xff", "////", "____"},
};

Test(bytes_text, base64_matches_the_rfc)
{
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        size_t len = strlen(vectors[i].plain);
        char text[16];
        kv_base64_encode(vectors[i].plain, len, text);
        cr_assert(eq(str, text, (char *)vectors[i].base64));
        cr_assert(eq(sz, kv_base64_len(len), strlen(vectors[i].base64)));
        kv_base64url_encode(vectors[i].plain, len, text);
        cr_assert(eq(str, text, (char *)vectors[i].url));
        cr_assert(eq(sz, kv_base64url_len(len), strlen(vectors[i].url)));
    }
}

Test(bytes_text, base64_decodes_what_it_encodes)
{
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        uint8_t data[16];
        size_t len = 99;
        cr_assert(eq(int, kv_base64_decode(vectors[i].base64, strlen(vectors[i].base64), data, 16, &len), KV_OK));
        cr_assert(eq(sz, len, strlen(vectors[i].plain)));
        cr_assert(eq(int, memcmp(data, vectors[i].plain, len), 0));
        cr_assert(eq(int, kv_base64url_decode(vectors[i].url, strlen(vectors[i].url), data, 16, &len), KV_OK));
        cr_assert(eq(sz, len, strlen(vectors[i].plain)));
        cr_assert(eq(int, memcmp(data, vectors[i].plain, len), 0));
    }
}

Test(bytes_text, every_length_and_byte_survives)
{
    uint8_t data[256], back[256];
    char text[352];
    for (size_t i = 0; i < 256; i++) {
        data[i] = (uint8_t)(255 - i);
    }
    for (size_t n = 0; n <= 256; n++) {
        size_t len;
        kv_base64_encode(data, n, text);
        cr_assert(eq(int, kv_base64_decode(text, strlen(text), back, n, &len), KV_OK));
        cr_assert(eq(sz, len, n));
        cr_assert(eq(int, memcmp(data, back, n), 0));
        kv_base64url_encode(data, n, text);
        cr_assert(eq(int, kv_base64url_decode(text, strlen(text), back, n, &len), KV_OK));
        cr_assert(eq(int, memcmp(data, back, n), 0));
    }
}

static void refuse(const char *text, bool url)
{
    uint8_t data[16] = {0xaa};
    size_t len = 99;
    enum kv_err rc = url ? kv_base64url_decode(text, strlen(text), data, sizeof(data), &len)
                         : kv_base64_decode(text, strlen(text), data, sizeof(data), &len);
    cr_assert(eq(int, rc, KV_E_INVALID_REQUEST), "%s", text);
    cr_assert(eq(sz, len, 99));
    cr_assert(eq(u8, data[0], 0xaa));
}

Test(bytes_text, base64_refuses_what_the_encoder_would_not_write)
{
    static const char *const bad[] = {
        "Z",    "Zg",     "Zg=",   "Zm8",  "Zg===", "====",     "=",        "==",    "Z===",     "Zh==",
        "Zm9=", "Zm9v\n", " Zm9v", "Zm-v", "Zm_v",  "Zg==Zg==", "Zm9vYg=a", "Zm9v=", "Zm9v====", "Zg=a",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        refuse(bad[i], false);
    }
}

Test(bytes_text, base64url_refuses_what_the_encoder_would_not_write)
{
    static const char *const bad[] = {"Z", "Zg==", "Zm8=", "Zh", "Zm9", "Zm+v", "Zm/v", "Zm9vY", "Zm9v=", "Zm 9"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        refuse(bad[i], true);
    }
}

Test(bytes_text, base64_stops_at_the_size_of_its_target)
{
    uint8_t data[6];
    size_t len = 99;
    cr_assert(eq(int, kv_base64_decode("Zm9vYmFy", 8, data, 5, &len), KV_E_LIMIT));
    cr_assert(eq(sz, len, 99));
    cr_assert(eq(int, kv_base64_decode("Zm9vYmFy", 8, data, 6, &len), KV_OK));
    cr_assert(eq(sz, len, 6));
}

Test(bytes_text, base64_sees_an_embedded_nul)
{
    uint8_t data[6];
    size_t len;
    cr_assert(eq(int, kv_base64_decode("Zm9\0", 4, data, 6, &len), KV_E_INVALID_REQUEST));
}

struct utf8_case {
    const char *text;
    size_t len;
    bool valid;
};

Test(bytes_text, utf8_is_rfc_3629)
{
    static const struct utf8_case cases[] = {
        {"", 0, true},
        {"abc\0d", 5, true},
        {"\x7f", 1, true},
        {"\x80", 1, false},
        {"\xc2\x80", 2, true},
        {"\xc1\xbf", 2, false},
        {"\xdf\xbf", 2, true},
        {"\xc3", 1, false},
        {"\xc3\x28", 2, false},
        {"\xe0\xa0\x80", 3, true},
        {"\xe0\x9f\xbf", 3, false},
        {"\xed\x9f\xbf", 3, true},
        {"\xed\xa0\x80", 3, false},
        {"\xee\x80\x80", 3, true},
        {"\xef\xbf\xbf", 3, true},
        {"\xe2\x82", 2, false},
        {"\xf0\x90\x80\x80", 4, true},
        {"\xf0\x8f\xbf\xbf", 4, false},
        {"\xf4\x8f\xbf\xbf", 4, true},
        {"\xf4\x90\x80\x80", 4, false},
        {"\xf8\x88\x80\x80\x80", 5, false},
        {"ok\xff", 3, false},
        {"gr\xc3\xbc\xc3\x9f", 6, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cr_assert(eq(int, kv_utf8_valid(cases[i].text, cases[i].len), cases[i].valid), "case %zu", i);
    }
}

Test(bytes_text, words_are_as_far_apart_as_letters_must_be_changed)
{
    char most[64 + 1], longer[64 + 1];
    memset(most, 'a', sizeof most - 1);
    memset(longer, 'a', sizeof longer - 1);
    most[63] = '\0';
    longer[63] = 'b'; /* the 64th, which does not count */
    longer[64] = '\0';
    cr_expect_eq(kv_edit_distance("", ""), 0);
    cr_expect_eq(kv_edit_distance("tiers", "tiers"), 0);
    cr_expect_eq(kv_edit_distance("", "abc"), 3);
    cr_expect_eq(kv_edit_distance("abc", ""), 3);
    cr_expect_eq(kv_edit_distance("tier", "tiers"), 1);
    cr_expect_eq(kv_edit_distance("sesion", "session"), 1);
    cr_expect_eq(kv_edit_distance("kitten", "sitting"), 3);
    cr_expect_eq(kv_edit_distance(most, longer), 0);
}

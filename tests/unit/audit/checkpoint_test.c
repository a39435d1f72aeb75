/* Signed tree heads: outside example, exact bytes, and every way a text can be wrong. */
#include "audit/checkpoint.h"
#include "tests/lib/cert_cases.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#define ROOT "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
#define DASH "\xe2\x80\x94 "

/* The verifier key of the example in c2sp.org/signed-note, and the one of Go's note package. */
static const char example_vkey[] = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
static const char go_vkey[] = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";

static struct cert_cases cases;

static void setup(void)
{
    cert_cases_init(&cases);
}

static void teardown(void)
{
    cert_cases_done(&cases);
}

TestSuite(checkpoint, .init = setup, .fini = teardown);

static void sign(const char *origin, uint64_t size, struct kv_buf *note)
{
    struct kv_checkpoint checkpoint = {.size = size};
    size_t len = 0;
    strcpy(checkpoint.origin, origin);
    cr_assert(eq(int, kv_base64_decode(ROOT, 44, checkpoint.root.b, 32, &len), KV_OK));
    kv_buf_init(note, 20000);
    cr_assert(eq(int, kv_checkpoint_sign(&checkpoint, cases.log_key, note), KV_OK));
}

static enum kv_err verify_text(const char *text, struct kv_checkpoint *checkpoint)
{
    return kv_checkpoint_verify(KV_BYTES(text, strlen(text)), cases.keys.log_public, checkpoint);
}

Test(checkpoint, outside_verifier_keys_are_read_and_written_back)
{
    const char *keys[] = {example_vkey, go_vkey};
    for (unsigned i = 0; i < 2; i++) {
        char name[256];
        uint8_t public_key[32];
        struct kv_buf text;
        kv_buf_init(&text, 512);
        cr_assert(eq(int, kv_checkpoint_vkey_parse(keys[i], name, public_key), KV_OK));
        cr_assert(eq(int, kv_checkpoint_vkey(name, public_key, &text), KV_OK));
        cr_assert(eq(str, (char *)text.data, (char *)keys[i]));
        kv_buf_done(&text);
    }
}

Test(checkpoint, outside_signature_verifies_with_the_outside_key)
{
    static const char text[] = "This is an example message.\n";
    static const char signature_text[] =
        "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=";
    char name[256];
    uint8_t public_key[32], key_id[4], line[68];
    size_t len = 0;
    cr_assert(eq(int, kv_checkpoint_vkey_parse(example_vkey, name, public_key), KV_OK));
    cr_assert(eq(str, name, "example.com/foo"));
    cr_assert(eq(int, kv_base64_decode(signature_text, strlen(signature_text), line, sizeof(line), &len), KV_OK));
    cr_assert(eq(int, kv_checkpoint_key_id(name, public_key, key_id), KV_OK));
    cr_assert(eq(int, memcmp(line, key_id, 4), 0));
    cr_assert(eq(int, kv_verify(public_key, KV_BYTES(text, strlen(text)), KV_BYTES(line + 4, 64)), KV_OK));
}

Test(checkpoint, wrong_verifier_keys_are_refused)
{
    char name[256] = "untouched";
    uint8_t public_key[32];
    const char *bad[] = {"",
                         "example.com/foo",
                         "example.com/foo+530d903a",
                         "example.com/foo+530d903b+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
                         "example.com/fop+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
                         "example.com/foo+530D903A+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
                         "example.com/foo+530d903a+BOkyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
                         "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2",
                         "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k\n",
                         "+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert(ne(int, kv_checkpoint_vkey_parse(bad[i], name, public_key), KV_OK), "%s", bad[i]);
    }
    cr_assert(eq(str, name, "untouched"));
    cr_assert(eq(int, kv_checkpoint_vkey_parse(example_vkey, name, public_key), KV_OK));
}

Test(checkpoint, signed_bytes_are_exactly_the_format)
{
    struct kv_buf note;
    sign("example.com/behind-the-sofa", 20852163, &note);
    static const char body[] =
        "example.com/behind-the-sofa\n20852163\n" ROOT "\n\n" DASH "example.com/behind-the-sofa ";
    cr_assert(eq(int, memcmp(note.data, body, strlen(body)), 0));
    cr_assert(eq(sz, note.len, strlen(body) + 92 + 1)); /* base64 of 68 bytes, LF */
    struct kv_checkpoint back;
    cr_assert(eq(int, kv_checkpoint_verify(kv_buf_bytes(&note), cases.keys.log_public, &back), KV_OK));
    cr_assert(eq(str, back.origin, "example.com/behind-the-sofa"));
    cr_assert(eq(u64, back.size, 20852163));
    kv_buf_done(&note);
}

Test(checkpoint, sizes_at_the_ends_survive)
{
    const uint64_t sizes[] = {0, 1, UINT64_MAX};
    for (unsigned i = 0; i < 3; i++) {
        struct kv_buf note;
        struct kv_checkpoint back;
        sign("o", sizes[i], &note);
        cr_assert(eq(int, kv_checkpoint_parse(kv_buf_bytes(&note), &back), KV_OK));
        cr_assert(eq(u64, back.size, sizes[i]));
        kv_buf_done(&note);
    }
}

Test(checkpoint, bad_origins_are_not_signed)
{
    const char *bad[] = {"", "a b", "a+b", "a\nb", "a\x01", "a\xff"};
    struct kv_buf note;
    kv_buf_init(&note, 1000);
    for (unsigned i = 0; i < 6; i++) {
        struct kv_checkpoint checkpoint = {.size = 1};
        strcpy(checkpoint.origin, bad[i]);
        cr_assert(eq(int, kv_checkpoint_sign(&checkpoint, cases.log_key, &note), KV_E_INVALID_REQUEST));
    }
    kv_buf_done(&note);
}

Test(checkpoint, a_changed_byte_of_the_body_does_not_verify)
{
    struct kv_buf note;
    struct kv_checkpoint back;
    sign("example.com/log", 7, &note);
    cr_assert(eq(int, kv_checkpoint_verify(kv_buf_bytes(&note), cases.keys.log_public, &back), KV_OK));
    note.data[strlen("example.com/log\n")] = '8';
    cr_assert(eq(int, kv_checkpoint_verify(kv_buf_bytes(&note), cases.keys.log_public, &back), KV_E_TAMPERED));
    kv_buf_done(&note);
}

Test(checkpoint, another_key_is_not_found)
{
    struct kv_buf note;
    struct kv_checkpoint back;
    sign("example.com/log", 7, &note);
    cr_assert(eq(int, kv_checkpoint_verify(kv_buf_bytes(&note), cases.keys.cert_public, &back), KV_E_WRONG_KEY));
    kv_buf_done(&note);
}

Test(checkpoint, lines_of_unknown_keys_are_passed_over)
{
    struct kv_buf note;
    struct kv_checkpoint back;
    sign("example.com/log", 7, &note);
    kv_buf_text(&note, DASH "witness.example/w AAAAAAECAwQ=\n");
    kv_buf_text(&note, DASH "example.com/log AAAAAAECAwQ=\n"); /* same name, other key id */
    cr_assert(eq(int, kv_checkpoint_verify(kv_buf_bytes(&note), cases.keys.log_public, &back), KV_OK));
    kv_buf_done(&note);
}

Test(checkpoint, one_bad_line_of_the_known_key_spoils_the_note)
{
    struct kv_buf note, other;
    struct kv_checkpoint back;
    sign("example.com/log", 7, &note);
    sign("example.com/log", 8, &other);
    const char *line = strstr((char *)other.data, "\n\n") + 2;
    kv_buf_text(&note, line);
    cr_assert(eq(int, kv_checkpoint_verify(kv_buf_bytes(&note), cases.keys.log_public, &back), KV_E_TAMPERED));
    kv_buf_done(&note);
    kv_buf_done(&other);
}

Test(checkpoint, texts_with_a_second_spelling_are_refused)
{
#define SIG DASH "example.com/log AAAAAAECAwQ=\n"
    static const char *const bad[] = {
        "",
        "example.com/log\n7\n" ROOT "\n\n",
        "example.com/log\n7\n" ROOT "\n" SIG,
        "example.com/log\n07\n" ROOT "\n\n" SIG,
        "example.com/log\n+7\n" ROOT "\n\n" SIG,
        "example.com/log\n\n" ROOT "\n\n" SIG,
        "example.com/log\n18446744073709551616\n" ROOT "\n\n" SIG,
        "example.com/log\r\n7\n" ROOT "\n\n" SIG,
        "example.com/log\n7\n" ROOT "\nextension\n\n" SIG,
        "example.com/log\n7\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2J=\n\n" SIG, /* stray bits */
        "example.com/log\n7\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I\n\n" SIG,
        "example.com/log\n7\nAAAA\n\n" SIG,
        "\n7\n" ROOT "\n\n" SIG,
        "example.com/log\n7\n" ROOT "\n\n" SIG "\n",
        "example.com/log\n7\n" ROOT "\n\n" SIG "trailing",
        "example.com/log\n7\n" ROOT "\n\n- example.com/log AAAAAAECAwQ=\n",
        "example.com/log\n7\n" ROOT "\n\n" DASH "example.com/log AAAAAAECAwR=\n",
        "example.com/log\n7\n" ROOT "\n\n" DASH "example.com/log AAAA\n",
        "example.com/log\n7\n" ROOT "\n\n" DASH "example.com/log\n",
    };
    struct kv_checkpoint back;
    cr_assert(eq(int, verify_text("example.com/log\n7\n" ROOT "\n\n" SIG, &back), KV_E_WRONG_KEY));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert(eq(int, verify_text(bad[i], &back), KV_E_CORRUPT), "case %zu", i);
        cr_assert(eq(int, kv_checkpoint_parse(KV_BYTES(bad[i], strlen(bad[i])), &back), KV_E_CORRUPT), "case %zu", i);
    }
}

Test(checkpoint, notes_end_at_sixteen_kibibytes)
{
    struct kv_buf note;
    struct kv_checkpoint back;
    sign("example.com/log", 7, &note);
    size_t start = note.len;
    const char *line = DASH "w AAAAAAECAwQ=\n";
    unsigned lines = 0;
    for (; lines < 63; lines++) {
        kv_buf_text(&note, line);
    }
    cr_assert(eq(int, kv_checkpoint_parse(kv_buf_bytes(&note), &back), KV_OK));
    kv_buf_text(&note, line);
    cr_assert(eq(int, kv_checkpoint_parse(kv_buf_bytes(&note), &back), KV_E_CORRUPT));
    note.len = start;
    kv_buf_text(&note, DASH "w ");
    while (note.len + 5 <= 16384) {
        kv_buf_text(&note, "AAAA");
    }
    kv_buf_text(&note, "\n");
    cr_assert(eq(int, kv_checkpoint_parse(kv_buf_bytes(&note), &back), KV_E_CORRUPT)); /* one signature over 8 KiB */
    kv_buf_done(&note);
}

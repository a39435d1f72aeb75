/*
 * Verification: each check fails alone on a tampering made for it, which an insider who holds the other keys could do;
 * what is not a bundle fails as a form. Every case has the good bundle as its control.
 */
#include "audit/certificate.h"
#include "tests/lib/cert_cases.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cert_cases cases;

static void setup(void)
{
    cert_cases_init(&cases);
}

static void teardown(void)
{
    cert_cases_done(&cases);
}

TestSuite(certificate_verify, .init = setup, .fini = teardown);

static void check_verdict(const struct kv_buf *bundle, int failing)
{
    struct kv_cert_report report;
    enum kv_err rc = kv_cert_verify(kv_buf_bytes(bundle), &cases.keys, &report);
    cr_assert(eq(int, rc, failing < 0 ? KV_OK : KV_E_TAMPERED));
    cr_assert(eq(int, report.ok, failing < 0));
    for (int i = 0; i < KV_CHECK_COUNT; i++) {
        cr_assert(eq(int, report.checks[i].ok, i != failing), "check %s: %s", kv_cert_check_name((enum kv_cert_check)i),
                  report.checks[i].detail);
        cr_assert(report.checks[i].detail[0] != '\0');
    }
    cr_assert(gt(sz, report.payload.len, 0));
    kv_buf_done(&report.payload);
}

static bool anchored; /* the payloads that are changed have an anchor */

static void good_payload(struct kv_buf *payload)
{
    const struct kv_cert_facts facts = anchored ? cert_cases_anchored() : cert_cases_facts();
    kv_buf_init(payload, 65536);
    cr_assert(eq(int, kv_cert_payload(&facts, payload), KV_OK));
}

static void good_header(char header[256], const char *alg)
{
    char kid[44];
    cr_assert(eq(int, kv_cert_kid(cases.keys.cert_public, kid), KV_OK));
    (void)snprintf(header, 256, "{\"alg\":\"%s\",\"kid\":\"%s\",\"typ\":\"kvrun-erasure+jws\"}", alg, kid);
}

/* Signs and logs these exact bytes, as an insider could. */
static void bundle_of(const char *header, const char *payload, const struct kv_sign_key *key, struct kv_buf *bundle)
{
    const struct cert_cases_log log = cert_cases_log(&cases);
    struct kv_buf jws;
    kv_buf_init(&jws, 200000);
    kv_buf_init(bundle, 262144);
    cert_cases_jws(header, KV_BYTES(payload, strlen(payload)), key, &jws);
    cert_cases_bundle(&log, kv_buf_bytes(&jws), bundle);
    kv_buf_done(&jws);
}

/* A new string with the first `from` turned into `to`. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    cr_assert(at != NULL, "%s", from);
    size_t before = (size_t)(at - text);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    memcpy(out, text, before);
    strcpy(out + before, to);
    strcat(out, at + strlen(from));
    return out;
}

static void check_payload_change(const char *from, const char *to, int failing)
{
    char header[256];
    struct kv_buf payload, bundle;
    good_header(header, "EdDSA");
    good_payload(&payload);
    char *changed = replaced((char *)payload.data, from, to);
    bundle_of(header, changed, cases.cert_key, &bundle);
    check_verdict(&bundle, failing);
    free(changed);
    kv_buf_done(&payload);
    kv_buf_done(&bundle);
}

static void check_tenant_change(const char *from, const char *to, int failing)
{
    char header[256];
    struct kv_buf payload, bundle;
    struct kv_cert_facts facts = cert_cases_facts();
    facts.whole_tenant = true;
    facts.sessions = 12;
    good_header(header, "EdDSA");
    kv_buf_init(&payload, 65536);
    cr_assert(eq(int, kv_cert_payload(&facts, &payload), KV_OK));
    char *changed = replaced((char *)payload.data, from, to);
    bundle_of(header, changed, cases.cert_key, &bundle);
    check_verdict(&bundle, failing);
    free(changed);
    kv_buf_done(&payload);
    kv_buf_done(&bundle);
}

static void check_header(const char *header, int failing)
{
    struct kv_buf payload, bundle;
    good_payload(&payload);
    bundle_of(header, (char *)payload.data, cases.cert_key, &bundle);
    check_verdict(&bundle, failing);
    kv_buf_done(&payload);
    kv_buf_done(&bundle);
}

Test(certificate_verify, good_bundle_is_valid)
{
    struct kv_buf bundle;
    kv_buf_init(&bundle, 262144);
    cert_cases_good(&cases, &bundle);
    check_verdict(&bundle, -1);
    kv_buf_done(&bundle);
}

Test(certificate_verify, both_names_of_the_algorithm_are_accepted)
{
    char header[256];
    good_header(header, "EdDSA");
    check_header(header, -1);
    good_header(header, "Ed25519");
    check_header(header, -1);
}

Test(certificate_verify, header_fails_alone)
{
    char header[256];
    const char *bad_algs[] = {"none", "HS256", "ES256", "eddsa", "Ed448"};
    for (unsigned i = 0; i < 5; i++) {
        good_header(header, bad_algs[i]);
        check_header(header, KV_CHECK_HEADER);
    }
    good_header(header, "EdDSA");
    char *other = replaced(header, "\"typ\":\"kvrun-erasure+jws\"", "\"typ\":\"JWT\"");
    check_header(other, KV_CHECK_HEADER);
    free(other);
    other = replaced(header, "{\"alg\"", "{\"crit\":[],\"alg\"");
    check_header(other, KV_CHECK_HEADER);
    free(other);
    other = replaced(header, "\"kid\":\"", "\"kid\":\"x");
    check_header(other, KV_CHECK_HEADER);
    free(other);
    check_header(
        "{\"alg\":\"EdDSA\",\"kid\":\"kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k\",\"typ\":\"kvrun-erasure+jws\"}",
        KV_CHECK_HEADER);
}

Test(certificate_verify, signature_fails_alone)
{
    char header[256];
    struct kv_buf payload, bundle;
    good_header(header, "EdDSA");
    good_payload(&payload);
    bundle_of(header, (char *)payload.data, cases.other_key, &bundle);
    check_verdict(&bundle, KV_CHECK_SIGNATURE);
    kv_buf_done(&payload);
    kv_buf_done(&bundle);
}

Test(certificate_verify, canonical_form_fails_alone)
{
    check_payload_change("{\"assurance\"", "{ \"assurance\"", KV_CHECK_CANONICAL);
    check_payload_change("\"assurance\":\"E2\"", "\"assurance\":\"\\u00452\"", KV_CHECK_CANONICAL);
    check_payload_change("\"key_bits\":256", "\"key_bits\":256 ", KV_CHECK_CANONICAL);
}

/* An anchor and the version that has one come together, and its words are fixed, too. */
Test(certificate_verify, anchor_makes_version_two)
{
    anchored = true;
    check_payload_change("\"v\":2,", "\"v\":2,", -1);
    check_payload_change("\"v\":2,", "\"v\":1,", KV_CHECK_CLAIMS);
    check_payload_change("\"v\":2,", "\"v\":3,", KV_CHECK_CLAIMS);
    check_payload_change("\"kind\":\"file\",", "", KV_CHECK_CLAIMS);
    check_payload_change("\"log_size\":\"1", "\"log_size\":\"01", KV_CHECK_CLAIMS);
    check_payload_change("refuses to open", "refuses to show", KV_CHECK_CLAIMS);
    check_payload_change("{\"anchor\":{\"at\"", "{\"anchor\":{\"al\":\"x\",\"at\"", KV_CHECK_CLAIMS);
    check_payload_change("\"anchor\":{", "\"anchos\":{", KV_CHECK_CLAIMS);
    anchored = false;
    check_payload_change("\"v\":1,", "\"v\":1,", -1);
}

Test(certificate_verify, duplicate_members_do_not_pass)
{
    char header[256];
    struct kv_buf payload, bundle;
    struct kv_cert_report report;
    good_header(header, "EdDSA");
    good_payload(&payload);
    char *changed = replaced((char *)payload.data, "{\"assurance\"", "{\"assurance\":\"E4\",\"assurance\"");
    bundle_of(header, changed, cases.cert_key, &bundle);
    cr_assert(eq(int, kv_cert_verify(kv_buf_bytes(&bundle), &cases.keys, &report), KV_E_TAMPERED));
    cr_assert(not(report.checks[KV_CHECK_CANONICAL].ok));
    cr_assert(not(report.checks[KV_CHECK_CLAIMS].ok));
    kv_buf_done(&report.payload);
    free(changed);
    kv_buf_done(&payload);
    kv_buf_done(&bundle);
}

Test(certificate_verify, claims_fail_alone)
{
    check_payload_change("\"opened_after\":0", "\"opened_after\":1", KV_CHECK_CLAIMS);
    check_payload_change("\"old_root_gone\":true", "\"old_root_gone\":false", KV_CHECK_CLAIMS);
    check_payload_change("\"slots_absent\":true", "\"slots_absent\":1", KV_CHECK_CLAIMS);
    check_payload_change("\"control_opened\":4", "\"control_opened\":3", KV_CHECK_CLAIMS);
    check_payload_change("\"result\":\"passed\"", "\"result\":\"no_samples\"", KV_CHECK_CLAIMS);
    check_payload_change("\"assurance\":\"E2\"", "\"assurance\":\"E3\"", KV_CHECK_CLAIMS); /* says "clear" elsewhere */
    check_payload_change("\"assurance\":\"E2\"", "\"assurance\":\"E9\"", KV_CHECK_CLAIMS);
    check_payload_change("any tier", "some tier", KV_CHECK_CLAIMS); /* the claim's fixed words */
    check_payload_change("\"code\":\"L1\"", "\"code\":\"L2\"", KV_CHECK_CLAIMS);
    check_payload_change("\"code\":\"L1\"", "\"code\":\"L99\"", KV_CHECK_CLAIMS);
    check_payload_change("\"session\":\"ses_", "\"session\":\"ten_", KV_CHECK_CLAIMS);
    check_payload_change("\"v\":1,", "\"v\":2,", KV_CHECK_CLAIMS);
    check_payload_change("\"iss\":", "\"isa\":\"x\",\"iss\":", KV_CHECK_CLAIMS); /* a member that nobody knows */
    check_payload_change("\"iss\":\"kvrun:test-cluster\",", "", KV_CHECK_CLAIMS);
    check_payload_change("\"technique\":\"CE\"", "\"technique\":\"shredding\"", KV_CHECK_CLAIMS);
    check_payload_change("T17:18:18.000005Z", "T17:18:18.0000Z", KV_CHECK_CLAIMS);
}

Test(certificate_verify, of_a_tenant_is_valid_with_its_own_members_and_words_only)
{
    check_tenant_change("\"sessions\":\"12\"", "\"sessions\":\"13\"", -1); /* any number is a claim */
    check_tenant_change("\"sessions\":\"12\"", "\"sessions\":12", KV_CHECK_CLAIMS);
    check_tenant_change("\"sessions\":\"12\",", "", KV_CHECK_CLAIMS);
    check_tenant_change("\"kind\":\"tenant\"", "\"kind\":\"session\"", KV_CHECK_CLAIMS);
    check_tenant_change("\"kind\":\"tenant\"", "\"kind\":\"scope\"", KV_CHECK_CLAIMS);
    check_tenant_change("in one step", "in many steps", KV_CHECK_CLAIMS);
    check_tenant_change("several sessions", "most sessions", KV_CHECK_CLAIMS);
    check_payload_change("\"kind\":\"session\"", "\"kind\":\"tenant\"", KV_CHECK_CLAIMS);
}

Test(certificate_verify, checkpoint_fails_alone)
{
    struct cert_cases_log log = cert_cases_log(&cases);
    struct kv_buf payload, jws, bundle;
    good_payload(&payload);
    kv_buf_init(&jws, 65536);
    kv_buf_init(&bundle, 262144);
    cr_assert(eq(int, kv_cert_jws(kv_buf_bytes(&payload), cases.cert_key, &jws), KV_OK));
    log.key = cases.other_key;
    cert_cases_bundle(&log, kv_buf_bytes(&jws), &bundle);
    check_verdict(&bundle, KV_CHECK_CHECKPOINT);
    /* The key of certificates is not the log's key. */
    kv_buf_reset(&bundle);
    log.key = cases.cert_key;
    cert_cases_bundle(&log, kv_buf_bytes(&jws), &bundle);
    check_verdict(&bundle, KV_CHECK_CHECKPOINT);
    /* The right key, a log outside of the origin that the verifier trusts. */
    kv_buf_reset(&bundle);
    log.key = cases.log_key;
    cert_cases_bundle(&log, kv_buf_bytes(&jws), &bundle);
    check_verdict(&bundle, -1);
    strcpy(cases.keys.log_origin_prefix, CERT_CASES_PREFIX "/t_9f3a2");
    check_verdict(&bundle, KV_CHECK_CHECKPOINT);
    cases.keys.log_origin_prefix[0] = '\0';
    check_verdict(&bundle, -1);
    kv_buf_done(&payload);
    kv_buf_done(&jws);
    kv_buf_done(&bundle);
}

/* The line after "index 10". */
static char *first_proof_line(struct kv_buf *bundle)
{
    return strstr((char *)bundle->data, "\nindex 10\n") + strlen("\nindex 10\n");
}

Test(certificate_verify, inclusion_fails_alone)
{
    struct kv_buf bundle;
    kv_buf_init(&bundle, 262144);
    cert_cases_good(&cases, &bundle);
    char *line = first_proof_line(&bundle);
    *line = *line == 'A' ? 'B' : 'A';
    check_verdict(&bundle, KV_CHECK_INCLUSION);
    kv_buf_reset(&bundle);
    cert_cases_good(&cases, &bundle);
    line = first_proof_line(&bundle);
    line[-2] = '1'; /* index 11: a leaf beside it */
    check_verdict(&bundle, KV_CHECK_INCLUSION);
    kv_buf_reset(&bundle);
    cert_cases_good(&cases, &bundle);
    line = first_proof_line(&bundle);
    memmove(line, line + 45, strlen(line + 45) + 1); /* one element less */
    bundle.len -= 45;
    check_verdict(&bundle, KV_CHECK_INCLUSION);
    kv_buf_done(&bundle);
}

Test(certificate_verify, coverage_fails_alone)
{
    check_payload_change("\"destroy_index\":\"9\"", "\"destroy_index\":\"17\"", KV_CHECK_COVERS); /* after the leaf */
    check_payload_change("\"destroy_index\":\"9\"", "\"destroy_index\":\"18\"", KV_CHECK_COVERS); /* after the tree */
    check_payload_change("\"destroy_index\":\"9\"", "\"destroy_index\":\"10\"", KV_CHECK_COVERS); /* the leaf itself */
    check_payload_change("audit/t_9f3a2c", "audit/t_000000", KV_CHECK_COVERS);                    /* another log */
    check_payload_change("\"destroy_index\":\"9\"", "\"destroy_index\":\"5\"", -1);
}

static void check_form(const char *text, size_t len, const char *what)
{
    struct kv_cert_report report;
    cr_assert(eq(int, kv_cert_verify(KV_BYTES(text, len), &cases.keys, &report), KV_E_TAMPERED), "%s", what);
    cr_assert(not(report.checks[KV_CHECK_FORM].ok), "%s", what);
    cr_assert(not(report.ok));
    for (int i = KV_CHECK_FORM + 1; i < KV_CHECK_COUNT; i++) {
        cr_assert(not(report.checks[i].ok));
        cr_assert(eq(str, report.checks[i].detail, "not checked"));
    }
    kv_buf_done(&report.payload);
}

static void check_form_change(const struct kv_buf *good, const char *from, const char *to)
{
    char *changed = replaced((char *)good->data, from, to);
    check_form(changed, strlen(changed), to);
    free(changed);
}

Test(certificate_verify, what_is_not_a_bundle_fails_as_a_form)
{
    struct kv_buf good;
    kv_buf_init(&good, 262144);
    cert_cases_good(&cases, &good);
    check_verdict(&good, -1);
    check_form("", 0, "empty");
    check_form_change(&good, "tlog-proof@v1", "tlog-proof@v2");
    check_form_change(&good, "extra ", "Extra ");
    check_form_change(&good, "extra ", "extra  ");
    check_form_change(&good, "extra ", "extra =");
    check_form_change(&good, "extra ", "extra ZXh0cmE\nextra ");
    check_form_change(&good, "index 10", "index 010");
    check_form_change(&good, "index 10", "index -1");
    check_form_change(&good, "index 10\n", "index 10\nAAAA\n");
    check_form_change(&good, "index 10\n", "index 10 \n");
    check_form_change(&good, "index 10\n", "index 10\n\n");
    check_form_change(&good, "\n\n" CERT_CASES_ORIGIN, "\n\n\n" CERT_CASES_ORIGIN);
    check_form_change(&good, "\n18\n", "\n018\n");
    check_form_change(&good, "\n18\n", "\n18\r\n");
    check_form_change(&good, "=\n\n", "=\nnote\n\n");
    /* After the end. */
    kv_buf_text(&good, "x");
    check_form((char *)good.data, good.len, "one byte more");
    good.data[good.len - 1] = '\n';
    check_form((char *)good.data, good.len, "one line more");
    kv_buf_done(&good);
}

Test(certificate_verify, every_shorter_text_is_no_bundle)
{
    struct kv_buf good;
    kv_buf_init(&good, 262144);
    cert_cases_good(&cases, &good);
    for (size_t len = 0; len < good.len; len += len < 64 || len + 600 > good.len ? 1 : 97) {
        check_form((char *)good.data, len, "cut off");
    }
    kv_buf_done(&good);
}

Test(certificate_verify, a_jws_that_is_none_fails_as_a_form)
{
    const char *bad[] = {"a", "a.b", "a..b", "e30.e30.AAAA", "e30.e3=.AAAA", "e30.e30.AAAA.", "..", "e30.e31.AAAA"};
    const struct cert_cases_log log = cert_cases_log(&cases);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kv_buf bundle;
        kv_buf_init(&bundle, 262144);
        cert_cases_bundle(&log, KV_BYTES(bad[i], strlen(bad[i])), &bundle);
        check_form((char *)bundle.data, bundle.len, bad[i]);
        kv_buf_done(&bundle);
    }
}

Test(certificate_verify, a_flipped_bit_anywhere_is_never_valid)
{
    struct kv_buf good;
    kv_buf_init(&good, 262144);
    cert_cases_good(&cases, &good);
    for (size_t i = 0; i < good.len; i += 7) {
        struct kv_cert_report report;
        good.data[i] ^= (uint8_t)(1u << (i % 7));
        enum kv_err rc = kv_cert_verify(kv_buf_bytes(&good), &cases.keys, &report);
        good.data[i] ^= (uint8_t)(1u << (i % 7));
        cr_assert(eq(int, rc, KV_E_TAMPERED), "byte %zu", i);
        kv_buf_done(&report.payload);
    }
    check_verdict(&good, -1);
    kv_buf_done(&good);
}

Test(certificate_verify, a_jws_alone_passes_the_checks_that_it_has_and_claims_no_place_in_a_log)
{
    struct kv_buf payload, jws;
    char header[256];
    struct kv_cert_report report;
    good_payload(&payload);
    good_header(header, "EdDSA");
    kv_buf_init(&jws, 65536);
    cert_cases_jws(header, kv_buf_bytes(&payload), cases.cert_key, &jws);
    cr_assert(eq(int, kv_cert_verify_jws(kv_buf_bytes(&jws), &cases.keys, &report), KV_OK));
    for (int i = 0; i < KV_CHECK_COUNT; i++) {
        cr_assert(eq(int, report.checks[i].ok, i <= KV_CHECK_CLAIMS));
    }
    kv_buf_done(&report.payload);
    jws.data[jws.len - 3] ^= 1;
    cr_assert(eq(int, kv_cert_verify_jws(kv_buf_bytes(&jws), &cases.keys, &report), KV_E_TAMPERED));
    cr_assert_not(report.ok);
    kv_buf_done(&report.payload);
    cr_assert(eq(int, kv_cert_verify_jws(KV_BYTES("", 0), &cases.keys, &report), KV_E_TAMPERED), "no bytes at all");
    kv_buf_done(&report.payload);
    kv_buf_done(&payload);
    kv_buf_done(&jws);
}

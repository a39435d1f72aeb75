/* Making certificates: the same facts give the same bytes, and facts that describe no finished erasure give none. */
#include "audit/certificate.h"
#include "audit/jcs.h"
#include "kv_version.h"
#include "tests/lib/cert_cases.h"
#include "tests/lib/temp_folder.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>

#define GOLDEN KV_SOURCE_DIR "/tests/unit/audit/golden/"

static struct cert_cases cases;

static void setup(void)
{
    cert_cases_init(&cases);
}

static void teardown(void)
{
    cert_cases_done(&cases);
}

TestSuite(certificate, .init = setup, .fini = teardown);

static enum kv_err payload_of(const struct kv_cert_facts *facts, struct kv_buf *payload)
{
    kv_buf_init(payload, 65536);
    return kv_cert_payload(facts, payload);
}

static void check_golden(const char *name, const struct kv_buf *actual)
{
    static char expected[262144];
    char path[KVT_PATH_BYTES];
    kvt_path_join(path, GOLDEN, name);
    size_t len = kvt_file_read(path, 0, expected, sizeof(expected) - 1);
    cr_assert(gt(sz, len, 0), "%s", path);
    expected[len] = '\0';
    cr_assert(eq(str, (char *)actual->data, expected), "%s", name);
}

Test(certificate, payload_bytes_are_stable)
{
    struct kv_cert_facts facts = cert_cases_facts();
    struct kv_buf payload;
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    check_golden("certificate.payload.json", &payload);
    kv_buf_done(&payload);
}

Test(certificate, bundle_bytes_are_stable)
{
    struct kv_buf bundle;
    kv_buf_init(&bundle, 262144);
    cert_cases_good(&cases, &bundle);
    check_golden("certificate.tlog-proof", &bundle);
    kv_buf_done(&bundle);
}

Test(certificate, payload_is_its_own_canonical_form)
{
    struct kv_cert_facts facts = cert_cases_facts();
    struct kv_errinfo info = {.text = ""};
    struct kv_buf payload, canonical;
    facts.previous_sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    facts.reason_sha256 = facts.previous_sha256;
    facts.bytes = UINT64_MAX;
    facts.issuer = "kvrun:\"quoted\\\"";
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    kv_buf_init(&canonical, 131072);
    cr_assert(eq(int, kv_jcs_canonical(kv_buf_bytes(&payload), &info, &canonical), KV_OK), "%s", info.text);
    cr_assert(eq(str, (char *)payload.data, (char *)canonical.data));
    kv_buf_done(&payload);
    kv_buf_done(&canonical);
}

/* The key and the thumbprint of RFC 8037, appendix A.3. */
Test(certificate, kid_is_the_thumbprint_of_the_rfc)
{
    uint8_t public_key[32];
    char kid[44];
    size_t len = 0;
    const char *x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
    cr_assert(eq(int, kv_base64url_decode(x, strlen(x), public_key, 32, &len), KV_OK));
    cr_assert(eq(int, kv_cert_kid(public_key, kid), KV_OK));
    cr_assert(eq(str, kid, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"));
}

Test(certificate, every_limit_has_a_text_in_plain_ascii)
{
    char code[4];
    for (unsigned i = 1; i <= 10; i++) {
        (void)snprintf(code, sizeof(code), "L%u", i);
        const char *text = kv_limit_text(code);
        cr_assert(text != NULL && strlen(text) > 40, "%s", code);
        for (; *text != '\0'; text++) {
            cr_assert(text[0] >= 0x20 && text[0] <= 0x7e);
        }
    }
    cr_assert(kv_limit_text("L0") == NULL);
    cr_assert(kv_limit_text("L11") == NULL);
    cr_assert(kv_limit_text("") == NULL);
}

static void check_refused(const struct kv_cert_facts *facts, const char *what)
{
    struct kv_buf payload;
    cr_assert(ne(int, payload_of(facts, &payload), KV_OK), "%s", what);
    cr_assert(eq(sz, payload.len, 0));
    kv_buf_done(&payload);
}

Test(certificate, facts_of_an_erasure_that_did_not_succeed_give_none)
{
    const struct kv_cert_facts good = cert_cases_facts();
    struct kv_buf payload;
    cr_assert(eq(int, payload_of(&good, &payload), KV_OK));
    kv_buf_done(&payload);
    struct kv_cert_facts facts = good;
    facts.opened_after = 1;
    check_refused(&facts, "a sample still opens");
    facts = good;
    facts.control_opened = 3;
    check_refused(&facts, "a sample without control");
    facts = good;
    facts.old_root_gone = false;
    check_refused(&facts, "old root there");
    facts = good;
    facts.old_row_refused = false;
    check_refused(&facts, "old row opens");
    facts = good;
    facts.slots_absent = false;
    check_refused(&facts, "slots there");
    facts = good;
    facts.new_root = facts.old_root;
    check_refused(&facts, "one root");
    facts = good;
    facts.request_index = facts.destroy_index;
    check_refused(&facts, "request not before destruction");
    facts = good;
    facts.assurance = "E1";
    check_refused(&facts, "no certificate below E2");
    facts = good;
    facts.assurance = "E5";
    check_refused(&facts, "no such level");
    facts = good;
    facts.limit_count = 0;
    check_refused(&facts, "no limits");
}

Test(certificate, of_a_tenant_counts_sessions_and_names_none)
{
    struct kv_cert_facts facts = cert_cases_facts();
    struct kv_buf payload;
    facts.whole_tenant = true;
    facts.sessions = 100000;
    memset(facts.sessions_root.b, 0x5a, sizeof facts.sessions_root.b);
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    cr_assert(strstr((char *)payload.data, "\"sub\":{\"kind\":\"tenant\",\"sessions\":\"100000\",\"sessions_root\":"
                                           "\"5a5a") != NULL);
    cr_assert(strstr((char *)payload.data, "\"session\":") == NULL);
    cr_assert(strstr((char *)payload.data, "this session") == NULL, "the words are those for a tenant");
    kv_buf_done(&payload);
    facts.opened_after = 1;
    check_refused(&facts, "a sample still opens");
}

Test(certificate, of_a_scope_has_words_of_its_own)
{
    struct kv_cert_facts facts = cert_cases_facts();
    struct kv_buf payload;
    facts.is_scope = true;
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    cr_assert(strstr((char *)payload.data, "\"sub\":{\"kind\":\"scope\",\"session\":\"ses_") != NULL);
    cr_assert(strstr((char *)payload.data, "this session") == NULL);
    kv_buf_done(&payload);
    struct kv_cert_shared shared = {.scope = facts.session, .erasure = facts.erasure};
    facts.shared = &shared;
    check_refused(&facts, "a scope shares nothing further");
}

Test(certificate, what_a_session_shared_is_said_to_be_erased_or_retained)
{
    static const char *const with_l6[] = {"L1", "L6"};
    struct kv_cert_facts facts = cert_cases_facts();
    struct kv_cert_shared shared = {.scope = facts.session, .erasure = facts.erasure, .sessions = 3};
    struct kv_buf payload;
    facts.shared = &shared;
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    cr_assert(strstr((char *)payload.data, "\"shared\":{\"erased\":[{\"erasure\":\"era_") != NULL);
    cr_assert(strstr((char *)payload.data, "\"retained\":[]}") != NULL);
    kv_buf_done(&payload);
    memset(&shared.erasure, 0, sizeof shared.erasure);
    check_refused(&facts, "retained without its limit");
    facts.limits = with_l6;
    facts.limit_count = 2;
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    cr_assert(strstr((char *)payload.data, "\"shared\":{\"erased\":[],\"retained\":[{\"scope\":\"ses_") != NULL);
    cr_assert(strstr((char *)payload.data, "\"sessions\":\"3\"}]}") != NULL);
    kv_buf_done(&payload);
}

Test(certificate, no_samples_are_allowed_and_said)
{
    struct kv_cert_facts facts = cert_cases_facts();
    struct kv_buf payload;
    facts.samples = 0;
    facts.control_opened = 0;
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    cr_assert(strstr((char *)payload.data, "\"result\":\"no_samples\"") != NULL);
    kv_buf_done(&payload);
}

Test(certificate, unknown_and_repeated_limits_are_refused)
{
    static const char *const unknown[] = {"L1", "L11"};
    static const char *const twice[] = {"L1", "L2", "L1"};
    struct kv_cert_facts facts = cert_cases_facts();
    facts.limits = unknown;
    facts.limit_count = 2;
    check_refused(&facts, "unknown");
    facts.limits = twice;
    facts.limit_count = 3;
    check_refused(&facts, "twice");
    facts.limit_count = 2;
    struct kv_buf payload;
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    kv_buf_done(&payload);
    facts.limit_count = KV_LIMIT_CODES_MAX + 1;
    check_refused(&facts, "too many");
}

Test(certificate, hardware_levels_claim_purge)
{
    struct kv_cert_facts facts = cert_cases_facts();
    struct kv_buf payload;
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    cr_assert(strstr((char *)payload.data, "{\"claim\":\"clear\"") != NULL);
    kv_buf_done(&payload);
    facts.assurance = "E3";
    cr_assert(eq(int, payload_of(&facts, &payload), KV_OK));
    cr_assert(strstr((char *)payload.data, "{\"claim\":\"purge\"") != NULL);
    kv_buf_done(&payload);
}

Test(certificate, a_jws_ends_at_the_size_of_a_leaf)
{
    static uint8_t payload[65536];
    struct kv_buf jws;
    kv_buf_init(&jws, 200000);
    memset(payload, 'a', sizeof(payload));
    /* header 123 bytes in base64url, two dots, signature 86: 3 payload bytes make 4. */
    size_t fits = (65535 - 88) / 4 * 3;
    while (kv_cert_jws(KV_BYTES(payload, fits), cases.cert_key, &jws) != KV_OK) {
        fits--;
        cr_assert(gt(sz, fits, 48000));
    }
    cr_assert(le(sz, jws.len, 65535));
    kv_buf_reset(&jws);
    cr_assert(ne(int, kv_cert_jws(KV_BYTES(payload, fits + 1), cases.cert_key, &jws), KV_OK));
    cr_assert(eq(sz, jws.len, 0));
    kv_buf_done(&jws);
}

Test(certificate, parts_that_do_not_belong_together_make_no_bundle)
{
    struct kv_buf note, text;
    struct kv_checkpoint checkpoint = {.origin = "o", .size = 1};
    kv_buf_init(&note, 4096);
    kv_buf_init(&text, 4096);
    cr_assert(eq(int, kv_merkle_leaf(KV_BYTES("a.b.c", 5), &checkpoint.root), KV_OK));
    cr_assert(eq(int, kv_checkpoint_sign(&checkpoint, cases.log_key, &note), KV_OK));
    cr_assert(eq(int, kv_cert_bundle(KV_BYTES("a.b.d", 5), 0, NULL, 0, kv_buf_bytes(&note), &text), KV_E_TAMPERED));
    cr_assert(eq(sz, text.len, 0));
    cr_assert(eq(int, kv_cert_bundle(KV_BYTES("a.b.c", 5), 0, NULL, 0, kv_buf_bytes(&note), &text), KV_OK));
    kv_buf_done(&note);
    kv_buf_done(&text);
}

static enum kv_err parse_set(const char *json, size_t max, size_t *count)
{
    uint8_t keys[16][32];
    struct kv_errinfo info;
    return kv_cert_jwks_parse(KV_BYTES(json, strlen(json)), &info, keys, max, count);
}

Test(certificate, key_sets_read_back)
{
    struct kv_buf json;
    uint8_t keys[2][32];
    size_t count = 0;
    kv_buf_init(&json, 4096);
    cr_assert(eq(int, kv_cert_jwks(cases.keys.cert_public, &json), KV_OK));
    check_golden("jwks.json", &json);
    cr_assert(eq(int, kv_cert_jwks_parse(kv_buf_bytes(&json), NULL, keys, 2, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(eq(int, memcmp(keys[0], cases.keys.cert_public, 32), 0));
    kv_buf_done(&json);
}

#define GOOD_JWK                                                                                 \
    "\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"," \
    "\"kid\":\"kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k\""

Test(certificate, withdrawn_and_foreign_keys_are_passed_over)
{
    size_t count = 99;
    cr_assert(eq(int, parse_set("{\"keys\":[{" GOOD_JWK "},{\"kty\":\"EC\"}]}", 2, &count), KV_OK));
    cr_assert(eq(sz, count, 1));
    cr_assert(
        eq(int, parse_set("{\"keys\":[{" GOOD_JWK ",\"revoked_at\":\"2026-01-01T00:00:00Z\"}]}", 2, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
    cr_assert(eq(int, parse_set("{\"keys\":[]}", 2, &count), KV_OK));
    cr_assert(eq(sz, count, 0));
}

Test(certificate, broken_key_sets_are_refused)
{
    size_t count = 99;
    cr_assert(eq(int, parse_set("", 2, &count), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse_set("[]", 2, &count), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse_set("{\"keys\":[1]}", 2, &count), KV_E_INVALID_REQUEST));
    cr_assert(eq(int,
                 parse_set("{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"AA\",\"kid\":\"a\"}]}", 2, &count),
                 KV_E_INVALID_REQUEST));
    cr_assert(eq(int,
                 parse_set("{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"other\","
                           "\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}",
                           2, &count),
                 KV_E_INVALID_REQUEST));
    cr_assert(eq(int, parse_set("{\"keys\":[{" GOOD_JWK "},{" GOOD_JWK "}]}", 1, &count), KV_E_LIMIT));
    cr_assert(eq(sz, count, 99));
}

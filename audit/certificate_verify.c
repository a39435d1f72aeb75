/*
 * Verification of a bundle. Works on the bytes as they came: nothing is parsed and written again to be compared,
 * nothing is trusted that the bundle itself brings. Must never answer "valid" when a check could not be made.
 */
#include "audit/certificate_int.h"
#include "audit/jcs.h"
#include "audit/text_int.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The parts of a bundle. Slices are borrowed from the bundle or from the decoded buffers beside them. */
struct bundle {
    uint8_t *jws_bytes; /* owned; the leaf */
    struct kv_bytes jws;
    struct kv_bytes signing_input; /* header and payload with the dot */
    uint8_t header[512];
    size_t header_len;
    bool upgrade;           /* by its type */
    uint8_t *payload_bytes; /* owned */
    struct kv_bytes payload;
    uint8_t signature[64];
    uint64_t index;
    struct kv_hash proof[KV_MERKLE_DEPTH_MAX];
    size_t proof_count;
    struct kv_bytes note;
    struct kv_checkpoint checkpoint; /* parsed, its signature not checked */
};

static void bundle_done(struct bundle *bundle)
{
    kv_free(bundle->jws_bytes);
    kv_free(bundle->payload_bytes);
}

static void set_check(struct kv_cert_report *report, enum kv_cert_check check, bool ok, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void set_check(struct kv_cert_report *report, enum kv_cert_check check, bool ok, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report->checks[check].ok = ok;
    (void)vsnprintf(report->checks[check].detail, sizeof(report->checks[check].detail), format, args);
    va_end(args);
}

static KV_RC decode_extra(struct kv_bytes text, struct bundle *bundle, struct kv_errinfo *info)
{
    size_t len = 0;
    bundle->jws_bytes = kv_alloc((size_t)KV_MAX_CERTIFICATE_BYTES);
    if (bundle->jws_bytes == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory");
    }
    if (text.len == 0 || kv_base64_decode((const char *)text.data, text.len, bundle->jws_bytes,
                                          (size_t)KV_MAX_CERTIFICATE_BYTES, &len) != KV_OK) {
        return kv_fail(info, KV_E_TAMPERED, "the extra line is not canonical base64 of at most %lld bytes",
                       (long long)KV_MAX_CERTIFICATE_BYTES);
    }
    bundle->jws = KV_BYTES(bundle->jws_bytes, len);
    return KV_OK;
}

/* Three base64url parts with two dots, and nothing else. */
static KV_RC split_jws(struct bundle *bundle, struct kv_errinfo *info)
{
    const uint8_t *start = bundle->jws.data;
    const uint8_t *first = bundle->jws.len == 0 ? NULL : memchr(start, '.', bundle->jws.len);
    size_t header_len = first == NULL ? 0 : (size_t)(first - start);
    size_t rest_len = first == NULL ? 0 : bundle->jws.len - header_len - 1;
    const uint8_t *second = rest_len == 0 ? NULL : memchr(first + 1, '.', rest_len);
    if (second == NULL) {
        return kv_fail(info, KV_E_TAMPERED, "the extra line is not a compact JWS");
    }
    size_t payload_len = (size_t)(second - first) - 1;
    size_t signature_len = rest_len - payload_len - 1;
    size_t len = 0;
    bundle->signing_input = KV_BYTES(start, header_len + 1 + payload_len);
    bundle->payload_bytes = kv_alloc((size_t)KV_MAX_CERTIFICATE_BYTES);
    if (bundle->payload_bytes == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory");
    }
    if (kv_base64url_decode((const char *)start, header_len, bundle->header, sizeof(bundle->header),
                            &bundle->header_len) != KV_OK) {
        return kv_fail(info, KV_E_TAMPERED, "the JWS header is not canonical base64url");
    }
    if (kv_base64url_decode((const char *)first + 1, payload_len, bundle->payload_bytes,
                            (size_t)KV_MAX_CERTIFICATE_BYTES, &len) != KV_OK) {
        return kv_fail(info, KV_E_TAMPERED, "the JWS payload is not canonical base64url");
    }
    static const char upgrade[] = "\"" KV_UPGRADE_TYP "\"";
    bundle->upgrade = memmem(bundle->header, bundle->header_len, upgrade, sizeof(upgrade) - 1) != NULL;
    bundle->payload = KV_BYTES(bundle->payload_bytes, len);
    if (kv_base64url_decode((const char *)second + 1, signature_len, bundle->signature, sizeof(bundle->signature),
                            &len) != KV_OK ||
        len != sizeof(bundle->signature)) {
        return kv_fail(info, KV_E_TAMPERED, "the JWS signature is not 64 bytes of canonical base64url");
    }
    return KV_OK;
}

static KV_RC parse_proof(struct kv_bytes *text, struct bundle *bundle, struct kv_errinfo *info)
{
    struct kv_bytes line;
    while (kv_text_line(text, &line)) {
        if (line.len == 0) {
            return KV_OK;
        }
        if (bundle->proof_count == KV_MERKLE_DEPTH_MAX) {
            return kv_fail(info, KV_E_TAMPERED, "more than %d lines of proof", KV_MERKLE_DEPTH_MAX);
        }
        if (kv_text_hash(line, &bundle->proof[bundle->proof_count]) != KV_OK) {
            return kv_fail(info, KV_E_TAMPERED, "line %zu of the proof is not base64 of 32 bytes",
                           bundle->proof_count + 1);
        }
        bundle->proof_count++;
    }
    return kv_fail(info, KV_E_TAMPERED, "the proof does not end with an empty line");
}

static KV_RC parse_bundle(struct kv_bytes text, struct bundle *bundle, struct kv_errinfo *info)
{
    struct kv_bytes line;
    if (text.len > KV_CERT_BUNDLE_BYTES_MAX) {
        return kv_fail(info, KV_E_TAMPERED, "longer than %u bytes", KV_CERT_BUNDLE_BYTES_MAX);
    }
    if (!kv_text_line(&text, &line) || !kv_text_equal(line, KV_CERT_PROOF_LINE)) {
        return kv_fail(info, KV_E_TAMPERED, "the first line is not %s", KV_CERT_PROOF_LINE);
    }
    if (!kv_text_line(&text, &line) || !kv_text_prefix(&line, "extra ")) {
        return kv_fail(info, KV_E_TAMPERED, "the second line is not \"extra\" with the certificate");
    }
    KV_TRY(decode_extra(line, bundle, info));
    KV_TRY(split_jws(bundle, info));
    if (!kv_text_line(&text, &line) || !kv_text_prefix(&line, "index ") || kv_text_u64(line, &bundle->index) != KV_OK) {
        return kv_fail(info, KV_E_TAMPERED, "the third line is not \"index\" with a number");
    }
    KV_TRY(parse_proof(&text, bundle, info));
    bundle->note = text;
    if (kv_checkpoint_parse(text, &bundle->checkpoint) != KV_OK) {
        return kv_fail(info, KV_E_TAMPERED, "what follows the proof is not a checkpoint in canonical form");
    }
    return KV_OK;
}

static bool header_is(const struct bundle *bundle, const char *alg, const char *kid)
{
    char expected[256];
    int len = snprintf(expected, sizeof(expected), "{\"alg\":\"%s\",\"kid\":\"%s\",\"typ\":\"%s\"}", alg, kid,
                       bundle->upgrade ? KV_UPGRADE_TYP : KV_CERT_TYP);
    return (size_t)len == bundle->header_len && memcmp(expected, bundle->header, bundle->header_len) == 0;
}

static KV_RC check_header(const struct bundle *bundle, const struct kv_cert_keys *keys, struct kv_cert_report *report)
{
    char kid[44];
    KV_TRY(kv_cert_kid(keys->cert_public, kid));
    if (header_is(bundle, "EdDSA", kid) || header_is(bundle, "Ed25519", kid)) {
        set_check(report, KV_CHECK_HEADER, true, "key %s", kid);
    } else if (memmem(bundle->header, bundle->header_len, kid, strlen(kid)) == NULL) {
        set_check(report, KV_CHECK_HEADER, false, "names another key than %s", kid);
    } else {
        set_check(report, KV_CHECK_HEADER, false, "alg, kid and typ are not exactly what they have to be");
    }
    return KV_OK;
}

static void check_signature(const struct bundle *bundle, const struct kv_cert_keys *keys, struct kv_cert_report *report)
{
    bool ok = kv_verify(keys->cert_public, bundle->signing_input,
                        KV_BYTES(bundle->signature, sizeof(bundle->signature))) == KV_OK;
    set_check(report, KV_CHECK_SIGNATURE, ok, "%s", ok ? "Ed25519 over the exact bytes" : "does not verify");
}

static void check_canonical(const struct bundle *bundle, struct kv_cert_report *report)
{
    struct kv_errinfo info = {.text = "no memory"};
    struct kv_buf canonical KV_CLEANUP(kv_buf_done);
    kv_buf_init(&canonical, (size_t)KV_MAX_CERTIFICATE_BYTES * 6 + 16);
    if (kv_jcs_canonical(bundle->payload, &info, &canonical) != KV_OK) {
        set_check(report, KV_CHECK_CANONICAL, false, "%s", info.text);
        return;
    }
    bool ok = canonical.len == bundle->payload.len && memcmp(canonical.data, bundle->payload.data, canonical.len) == 0;
    set_check(report, KV_CHECK_CANONICAL, ok, "%s",
              ok ? "RFC 8785, restricted profile" : "the payload is not its own canonical form");
}

static bool origin_is_allowed(const char *origin, const char *prefix)
{
    size_t len = strlen(prefix);
    return len == 0 || (strncmp(origin, prefix, len) == 0 && (origin[len] == '\0' || origin[len] == '/'));
}

static void check_checkpoint(const struct bundle *bundle, const struct kv_cert_keys *keys,
                             struct kv_cert_report *report)
{
    struct kv_checkpoint checkpoint;
    enum kv_err rc = kv_checkpoint_verify(bundle->note, keys->log_public, &checkpoint);
    if (rc == KV_E_WRONG_KEY) {
        set_check(report, KV_CHECK_CHECKPOINT, false, "has no signature of the given log key");
    } else if (rc != KV_OK) {
        set_check(report, KV_CHECK_CHECKPOINT, false, "the log's signature does not verify");
    } else if (!origin_is_allowed(checkpoint.origin, keys->log_origin_prefix)) {
        set_check(report, KV_CHECK_CHECKPOINT, false, "signed for a log outside of the given origin");
    } else {
        set_check(report, KV_CHECK_CHECKPOINT, true, "size %llu of %.100s", (unsigned long long)checkpoint.size,
                  checkpoint.origin);
    }
}

static KV_RC check_inclusion(const struct bundle *bundle, struct kv_cert_report *report)
{
    struct kv_hash leaf;
    KV_TRY(kv_merkle_leaf(bundle->jws, &leaf));
    enum kv_err rc = kv_merkle_verify_inclusion(&leaf, bundle->index, bundle->checkpoint.size, bundle->proof,
                                                bundle->proof_count, &bundle->checkpoint.root);
    if (rc != KV_OK && rc != KV_E_TAMPERED) {
        return rc;
    }
    set_check(report, KV_CHECK_INCLUSION, rc == KV_OK, rc == KV_OK ? "leaf %llu" : "leaf %llu is not shown to be there",
              (unsigned long long)bundle->index);
    return KV_OK;
}

static void check_follows(const struct bundle *bundle, const struct kv_cert_claims *claims,
                          struct kv_cert_report *report)
{
    bool ok = claims->certificate_index < bundle->index;
    set_check(report, KV_CHECK_COVERS, ok,
              ok ? "certificate %llu" : "the statement is older than its certificate, %llu",
              (unsigned long long)claims->certificate_index);
}

static void check_covers(const struct bundle *bundle, const struct kv_cert_claims *claims,
                         struct kv_cert_report *report)
{
    uint64_t size = bundle->checkpoint.size;
    if (!claims->has_audit) {
        set_check(report, KV_CHECK_COVERS, false, "the payload does not say which leaves it means");
    } else if (strcmp(claims->origin, bundle->checkpoint.origin) != 0) {
        set_check(report, KV_CHECK_COVERS, false, "the payload means another log than the checkpoint's");
    } else if (bundle->upgrade) {
        check_follows(bundle, claims, report);
    } else if (claims->request_index >= size || claims->destroy_index >= size) {
        set_check(report, KV_CHECK_COVERS, false, "request or destruction is not below size %llu",
                  (unsigned long long)size);
    } else if (bundle->index <= claims->destroy_index || bundle->index <= claims->request_index) {
        set_check(report, KV_CHECK_COVERS, false, "the certificate is older than what it certifies");
    } else {
        set_check(report, KV_CHECK_COVERS, true, "request %llu, destruction %llu",
                  (unsigned long long)claims->request_index, (unsigned long long)claims->destroy_index);
    }
}

/* What can be checked of the JWS alone. */
static KV_RC check_jws(const struct bundle *bundle, const struct kv_cert_keys *keys, struct kv_cert_report *report,
                       struct kv_cert_claims *claims)
{
    struct kv_errinfo info = {.text = "no memory"};
    KV_TRY(check_header(bundle, keys, report));
    check_signature(bundle, keys, report);
    check_canonical(bundle, report);
    report->upgrade = bundle->upgrade;
    report->index = bundle->index;
    KV_TRY(kv_sha256(bundle->jws, report->jws_sha256));
    bool ok = (bundle->upgrade ? kv_upgrade_claims_parse(bundle->payload, &info, claims)
                               : kv_cert_claims_parse(bundle->payload, &info, claims)) == KV_OK;
    set_check(report, KV_CHECK_CLAIMS, ok, "%.150s", ok ? "complete, and they go together" : info.text);
    kv_buf_append(&report->payload, bundle->payload.data, bundle->payload.len);
    return kv_buf_check(&report->payload);
}

static KV_RC check_all(const struct bundle *bundle, const struct kv_cert_keys *keys, struct kv_cert_report *report)
{
    struct kv_cert_claims claims;
    KV_TRY(check_jws(bundle, keys, report, &claims));
    check_checkpoint(bundle, keys, report);
    KV_TRY(check_inclusion(bundle, report));
    check_covers(bundle, &claims, report);
    return KV_OK;
}

static KV_RC take_jws(struct kv_bytes jws, struct bundle *bundle, struct kv_errinfo *info)
{
    if (jws.len > (size_t)KV_MAX_CERTIFICATE_BYTES) {
        return kv_fail(info, KV_E_TAMPERED, "longer than %lld bytes", (long long)KV_MAX_CERTIFICATE_BYTES);
    }
    bundle->jws = jws;
    return split_jws(bundle, info);
}

KV_RC kv_cert_verify_jws(struct kv_bytes jws, const struct kv_cert_keys *keys, struct kv_cert_report *ret_report)
{
    struct kv_errinfo info = {.text = ""};
    struct kv_cert_claims claims;
    struct bundle parsed KV_CLEANUP(bundle_done) = {.jws_bytes = NULL};
    struct kv_cert_report report = {.ok = false};
    kv_buf_init(&report.payload, (size_t)KV_MAX_CERTIFICATE_BYTES);
    for (unsigned i = 0; i < KV_CHECK_COUNT; i++) {
        set_check(&report, (enum kv_cert_check)i, false,
                  i <= KV_CHECK_CLAIMS ? "not checked" : "not part of a JWS: the bundle has it");
    }
    enum kv_err rc = take_jws(jws, &parsed, &info);
    bool formed = rc == KV_OK;
    if (rc == KV_OK || rc == KV_E_TAMPERED) {
        set_check(&report, KV_CHECK_FORM, formed, "%s", formed ? "compact JWS" : info.text);
        rc = formed ? check_jws(&parsed, keys, &report, &claims) : KV_OK;
    }
    if (rc != KV_OK) {
        kv_buf_done(&report.payload);
        return rc;
    }
    report.ok = true;
    for (unsigned i = 0; i <= KV_CHECK_CLAIMS; i++) {
        report.ok = report.ok && report.checks[i].ok;
    }
    *ret_report = report;
    return report.ok ? KV_OK : KV_E_TAMPERED;
}

KV_RC kv_cert_verify(struct kv_bytes bundle, const struct kv_cert_keys *keys, struct kv_cert_report *ret_report)
{
    struct kv_errinfo info = {.text = ""};
    struct bundle parsed KV_CLEANUP(bundle_done) = {.jws_bytes = NULL};
    struct kv_cert_report report = {.ok = false};
    kv_buf_init(&report.payload, (size_t)KV_MAX_CERTIFICATE_BYTES);
    for (unsigned i = 0; i < KV_CHECK_COUNT; i++) {
        set_check(&report, (enum kv_cert_check)i, false, "not checked");
    }
    enum kv_err rc = parse_bundle(bundle, &parsed, &info);
    bool formed = rc == KV_OK;
    if (rc == KV_OK || rc == KV_E_TAMPERED) {
        set_check(&report, KV_CHECK_FORM, formed, "%s", formed ? KV_CERT_PROOF_LINE : info.text);
        rc = formed ? check_all(&parsed, keys, &report) : KV_OK;
    }
    if (rc != KV_OK) {
        kv_buf_done(&report.payload);
        return rc;
    }
    report.ok = true;
    for (unsigned i = 0; i < KV_CHECK_COUNT; i++) {
        report.ok = report.ok && report.checks[i].ok;
    }
    *ret_report = report;
    return report.ok ? KV_OK : KV_E_TAMPERED;
}

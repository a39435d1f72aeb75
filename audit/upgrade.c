/*
 * Making the statement that follows a certificate. Must never state more than its certificate allows: what it says of
 * the erasure is read out of that, and the payload is read back before it is handed out.
 */
#include "audit/upgrade.h"

#include "audit/certificate_int.h"
#include "audit/emit_int.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"

#include <stdio.h>
#include <string.h>

const char kv_upgrade_claim[] =
    "Every instance that may have held blocks of what the certificate names has confirmed that it holds none any more: "
    "their places in memory are free, and the index of its nvme names none, durably. Freed places may keep "
    "remnants of ciphertext until they are written again; no key opens them. The claim of the certificate holds on, at "
    "the "
    "assurance and within the limits stated here.";

const char *kv_upgrade_assurance(const char *of_certificate)
{
    return strcmp(of_certificate, "E3") == 0 ? "E4" : of_certificate;
}

static void put_certificate(struct kv_emit *emit, const struct kv_cert_claims *certificate, const uint8_t sha256[32])
{
    kv_emit_object(emit, "certificate");
    kv_emit_text(emit, "assurance", certificate->assurance);
    kv_emit_text(emit, "id", certificate->certificate);
    kv_emit_hex(emit, "sha256", sha256);
    kv_emit_close(emit);
}

static void put_closed(struct kv_emit *emit, const struct kv_upgrade_facts *facts)
{
    kv_emit_array(emit, "closed");
    for (size_t i = 0; i < facts->closed_count; i++) {
        kv_emit_object(emit, NULL);
        kv_emit_time(emit, "at", facts->closed[i].at_us);
        kv_emit_text(emit, "how", facts->closed[i].how);
        kv_emit_id(emit, "id", "ins", &facts->closed[i].instance);
        kv_emit_close(emit);
    }
    kv_emit_close(emit);
}

static void put_confirmed(struct kv_emit *emit, const struct kv_upgrade_facts *facts)
{
    kv_emit_array(emit, "confirmed");
    for (size_t i = 0; i < facts->confirmed_count; i++) {
        const struct kv_upgrade_confirmed *one = &facts->confirmed[i];
        kv_emit_object(emit, NULL);
        kv_emit_time(emit, "at", one->at_us);
        if (!kv_id_is_zero(&one->folder)) {
            kv_emit_id(emit, "folder", "nvm", &one->folder);
        }
        kv_emit_id(emit, "id", "ins", &one->instance);
        kv_emit_text(emit, "tiers", kv_id_is_zero(&one->folder) ? "dram" : "dram, nvme");
        kv_emit_close(emit);
    }
    kv_emit_close(emit);
}

/* The certificate's, but for the one that no longer holds. */
static void put_limits(struct kv_emit *emit, const struct kv_cert_claims *certificate)
{
    bool lifted = false;
    for (size_t i = 0; i < certificate->limit_count; i++) {
        lifted = lifted || strcmp(certificate->limits[i], KV_UPGRADE_LIFTS) == 0;
    }
    kv_emit_array(emit, "lifted");
    if (lifted) {
        kv_emit_text(emit, NULL, KV_UPGRADE_LIFTS);
    }
    kv_emit_close(emit);
    kv_emit_array(emit, "limits");
    for (size_t i = 0; i < certificate->limit_count; i++) {
        if (strcmp(certificate->limits[i], KV_UPGRADE_LIFTS) != 0) {
            kv_emit_object(emit, NULL);
            kv_emit_text(emit, "code", certificate->limits[i]);
            kv_emit_text(emit, "text", kv_limit_text(certificate->limits[i]));
            kv_emit_close(emit);
        }
    }
    kv_emit_close(emit);
}

static void put_subject(struct kv_emit *emit, const struct kv_cert_claims *certificate)
{
    kv_emit_object(emit, "sub");
    kv_emit_text(emit, "kind", certificate->words->kind);
    if (certificate->session[0] != '\0') {
        kv_emit_text(emit, "session", certificate->session);
    } else {
        kv_emit_decimal(emit, "sessions", certificate->sessions);
    }
    kv_emit_text(emit, "tenant", certificate->tenant);
    kv_emit_close(emit);
}

static KV_RC put_payload(const struct kv_upgrade_facts *facts, const struct kv_cert_claims *certificate,
                         const uint8_t sha256[32], struct kv_buf *json)
{
    struct kv_emit emit = kv_emit_begin(json);
    kv_emit_text(&emit, "assurance", kv_upgrade_assurance(certificate->assurance));
    kv_emit_object(&emit, "audit");
    kv_emit_decimal(&emit, "certificate_index", facts->certificate_index);
    kv_emit_text(&emit, "origin", certificate->origin);
    kv_emit_close(&emit);
    put_certificate(&emit, certificate, sha256);
    kv_emit_text(&emit, "ciphertext", "gone");
    kv_emit_text(&emit, "claim", kv_upgrade_claim);
    put_closed(&emit, facts);
    put_confirmed(&emit, facts);
    kv_emit_time(&emit, "iat", facts->issued_us);
    kv_emit_text(&emit, "iss", facts->issuer);
    kv_emit_id(&emit, "jti", "upg", &facts->jti);
    put_limits(&emit, certificate);
    put_subject(&emit, certificate);
    kv_emit_object(&emit, "tool");
    kv_emit_text(&emit, "name", "kvrun");
    kv_emit_text(&emit, "version", facts->tool_version);
    kv_emit_close(&emit);
    kv_emit_integer(&emit, "v", 1);
    return kv_emit_end(&emit);
}

static bool is_closed(const struct kv_upgrade_facts *facts, const struct kv_id *instance)
{
    for (size_t i = 0; i < facts->closed_count; i++) {
        if (kv_id_equal(&facts->closed[i].instance, instance)) {
            return true;
        }
    }
    return false;
}

/* Every instance that the certificate calls expired, and no other. */
static bool closes_all(const struct kv_upgrade_facts *facts, const struct kv_cert_claims *certificate)
{
    bool all = facts->closed_count == certificate->expired_count;
    for (size_t i = 0; i < certificate->expired_count; i++) {
        all = all && is_closed(facts, &certificate->expired[i]);
    }
    return all;
}

/* What the statement is about, as the certificate itself says it. */
static KV_RC read_certificate(struct kv_bytes jws, struct kv_cert_claims *ret_claims, uint8_t ret_sha256[32])
{
    size_t len = 0;
    const uint8_t *first = jws.len == 0 ? NULL : memchr(jws.data, '.', jws.len);
    const uint8_t *last = jws.len == 0 ? NULL : memrchr(jws.data, '.', jws.len);
    uint8_t *payload KV_CLEANUP(kv_freep) = kv_alloc((size_t)KV_MAX_CERTIFICATE_BYTES);
    if (payload == NULL) {
        return KV_E_NO_MEMORY;
    }
    if (first == NULL || first == last ||
        kv_base64url_decode((const char *)first + 1, (size_t)(last - first) - 1, payload,
                            (size_t)KV_MAX_CERTIFICATE_BYTES, &len) != KV_OK ||
        kv_cert_claims_parse(KV_BYTES(payload, len), NULL, ret_claims) != KV_OK) {
        return KV_E_INVALID_STATE;
    }
    return kv_sha256(jws, ret_sha256);
}

KV_RC kv_upgrade_payload(const struct kv_upgrade_facts *facts, struct kv_buf *ret_json)
{
    struct kv_buf json KV_CLEANUP(kv_buf_done);
    uint8_t sha256[32];
    struct kv_cert_claims *claims KV_CLEANUP(kv_freep) = kv_alloc_array(2, sizeof *claims);
    kv_buf_init(&json, (size_t)KV_MAX_CERTIFICATE_BYTES);
    if (claims == NULL) {
        return KV_E_NO_MEMORY;
    }
    if (facts->confirmed_count > KV_UPGRADE_CONFIRMED_MAX) {
        return KV_E_INVALID_REQUEST;
    }
    KV_TRY(read_certificate(facts->certificate, &claims[0], sha256));
    if (!closes_all(facts, &claims[0])) {
        return KV_E_INVALID_STATE;
    }
    KV_TRY(put_payload(facts, &claims[0], sha256, &json));
    if (kv_upgrade_claims_parse(kv_buf_bytes(&json), NULL, &claims[1]) != KV_OK) {
        return KV_E_INVALID_STATE;
    }
    kv_buf_append(ret_json, json.data, json.len);
    return kv_buf_check(ret_json);
}

KV_RC kv_upgrade_jws(struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws)
{
    return kv_cert_jws_of(KV_UPGRADE_TYP, payload, key, ret_jws);
}

/* --- with its certificate ---------------------------------------------------------------------------------------- */

/* The statement's limits are the certificate's without what it lifts. */
static bool limits_follow(const struct kv_cert_claims *statement, const struct kv_cert_claims *certificate)
{
    size_t kept = 0;
    bool lifted = false, same = true;
    for (size_t i = 0; i < certificate->limit_count; i++) {
        if (strcmp(certificate->limits[i], KV_UPGRADE_LIFTS) == 0) {
            lifted = true;
            continue;
        }
        same = same && kept < statement->limit_count && strcmp(statement->limits[kept], certificate->limits[i]) == 0;
        kept++;
    }
    return same && kept == statement->limit_count && lifted == statement->lifts;
}

static bool closes(const struct kv_cert_claims *statement, const struct kv_cert_claims *certificate)
{
    bool all = statement->expired_count == certificate->expired_count;
    for (size_t i = 0; all && i < certificate->expired_count; i++) {
        bool named = false;
        for (size_t j = 0; j < statement->expired_count; j++) {
            named = named || kv_id_equal(&statement->expired[j], &certificate->expired[i]);
        }
        all = named;
    }
    return all;
}

static const char *what_differs(const struct kv_cert_claims *statement, const struct kv_cert_claims *certificate,
                                const struct kv_cert_report *report)
{
    if (strcmp(statement->certificate, certificate->certificate) != 0) {
        return "it is about another certificate";
    }
    if (memcmp(statement->certificate_sha256, report->jws_sha256, sizeof report->jws_sha256) != 0) {
        return "the certificate it is about has other bytes";
    }
    if (strcmp(statement->tenant, certificate->tenant) != 0 || strcmp(statement->session, certificate->session) != 0 ||
        statement->sessions != certificate->sessions || statement->words != certificate->words) {
        return "the certificate is of something else";
    }
    if (strcmp(statement->origin, certificate->origin) != 0 || statement->certificate_index != report->index) {
        return "the certificate is at another place of the log";
    }
    if (strcmp(statement->certificate_assurance, certificate->assurance) != 0) {
        return "the certificate has another assurance";
    }
    if (!closes(statement, certificate)) {
        return "it does not close what the certificate left open";
    }
    return limits_follow(statement, certificate) ? NULL : "its limits do not follow from the certificate's";
}

bool kv_upgrade_follows(const struct kv_cert_report *statement, const struct kv_cert_report *certificate,
                        char ret_detail[160])
{
    struct kv_cert_claims *claims KV_CLEANUP(kv_freep) = kv_alloc_array(2, sizeof *claims);
    const char *why = "no memory";
    if (!statement->ok || !statement->upgrade || !certificate->ok || certificate->upgrade) {
        why = "one of the two is not valid, or not what it has to be";
    } else if (claims != NULL &&
               (kv_upgrade_claims_parse(kv_buf_bytes(&statement->payload), NULL, &claims[0]) != KV_OK ||
                kv_cert_claims_parse(kv_buf_bytes(&certificate->payload), NULL, &claims[1]) != KV_OK)) {
        why = "one of the two cannot be read";
    } else if (claims != NULL) {
        why = what_differs(&claims[0], &claims[1], certificate);
    }
    (void)snprintf(ret_detail, 160, "%s", why == NULL ? "it follows from the certificate" : why);
    return why == NULL;
}

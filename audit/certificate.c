/*
 * Making certificates: the payload, the JWS around it, the key set, the bundle. The same facts give the same bytes.
 * Must never make a certificate that the verifier would refuse: the payload is read back before it is handed out.
 */
#include "audit/certificate.h"

#include "audit/certificate_int.h"
#include "audit/emit_int.h"
#include "audit/text_int.h"
#include "dataplane/crypto/hash.h"

#include <string.h>

static void put_anchor(struct kv_emit *emit, const struct kv_cert_anchor *anchor)
{
    kv_emit_object(emit, "anchor");
    kv_emit_time(emit, "at", anchor->written_us);
    kv_emit_text(emit, "kind", anchor->kind);
    kv_emit_hex(emit, "log_root", anchor->log_root.b);
    kv_emit_decimal(emit, "log_size", anchor->log_size);
    kv_emit_id(emit, "root_id", "rot", &anchor->root);
    kv_emit_text(emit, "text", kv_cert_anchor_text);
    kv_emit_close(emit);
}

static void put_audit(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "audit");
    kv_emit_decimal(emit, "destroy_index", facts->destroy_index);
    kv_emit_text(emit, "origin", facts->log_origin);
    kv_emit_decimal(emit, "request_index", facts->request_index);
    kv_emit_close(emit);
}

static void put_crypto(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "crypto");
    kv_emit_text(emit, "alg", "AES-256-GCM");
    kv_emit_text(emit, "always_encrypted", "on every tier below the device");
    kv_emit_text(emit, "backend", facts->cipher_backend);
    kv_emit_text(emit, "construction", "c2sp.org/chunked-encryption");
    kv_emit_integer(emit, "key_bits", 256);
    kv_emit_text(emit, "rng", "getrandom(2)");
    kv_emit_text(emit, "sealer", facts->sealer);
    kv_emit_close(emit);
}

static void put_destroyed(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "destroyed");
    kv_emit_time(emit, "at", facts->destroyed_us);
    kv_emit_text(emit, "detail", facts->provider_detail);
    kv_emit_id(emit, "new_root_id", "rot", &facts->new_root);
    kv_emit_text(emit, "provider", facts->provider);
    kv_emit_hex(emit, "receipt_sha256", facts->receipt_sha256);
    kv_emit_id(emit, "root_id", "rot", &facts->old_root);
    kv_emit_close(emit);
}

static void put_instances(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_array(emit, "instances");
    for (size_t i = 0; i < facts->instance_count; i++) {
        kv_emit_object(emit, NULL);
        kv_emit_time(emit, "fenced_at", facts->instances[i].fenced_us);
        kv_emit_text(emit, "how", facts->instances[i].how);
        kv_emit_id(emit, "id", "ins", &facts->instances[i].id);
        kv_emit_time(emit, "purged_at", facts->instances[i].purged_us);
        kv_emit_close(emit);
    }
    kv_emit_close(emit);
}

static void put_limits(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_array(emit, "limits");
    for (size_t i = 0; i < facts->limit_count; i++) {
        kv_emit_object(emit, NULL);
        kv_emit_text(emit, "code", facts->limits[i]);
        kv_emit_text(emit, "text", kv_limit_text(facts->limits[i])); /* NULL is refused by the writer */
        kv_emit_close(emit);
    }
    kv_emit_close(emit);
}

static void put_request(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "request");
    kv_emit_text(emit, "basis", facts->basis);
    kv_emit_object(emit, "by");
    if (!kv_id_is_zero(&facts->requester_key)) {
        kv_emit_id(emit, "key", "key", &facts->requester_key);
    }
    kv_emit_text(emit, "role", facts->requester_role);
    kv_emit_close(emit);
    kv_emit_id(emit, "erasure", "era", &facts->erasure);
    if (facts->reason_sha256 != NULL && facts->reason_sha256[0] != '\0') {
        kv_emit_text(emit, "reason_sha256", facts->reason_sha256);
    }
    kv_emit_time(emit, "received_at", facts->requested_us);
    kv_emit_close(emit);
}

static void put_sanitization(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "sanitization");
    kv_emit_text(emit, "claim", kv_cert_sanitization(facts->assurance));
    kv_emit_array(emit, "standard");
    kv_emit_text(emit, NULL, KV_CERT_NIST_STANDARD);
    kv_emit_close(emit);
    kv_emit_text(emit, "technique", "CE");
    kv_emit_close(emit);
}

static void put_scope(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "scope");
    kv_emit_hex(emit, "block_root", facts->block_root.b);
    kv_emit_decimal(emit, "blocks", facts->blocks);
    kv_emit_decimal(emit, "bytes", facts->bytes);
    kv_emit_array(emit, "tiers");
    for (size_t i = 0; i < facts->tier_count; i++) {
        kv_emit_object(emit, NULL);
        kv_emit_decimal(emit, "blocks", facts->tiers[i].blocks);
        kv_emit_decimal(emit, "bytes", facts->tiers[i].bytes);
        kv_emit_text(emit, "status", facts->tiers[i].status);
        kv_emit_text(emit, "tier", facts->tiers[i].name);
        kv_emit_close(emit);
    }
    kv_emit_close(emit);
    kv_emit_close(emit);
}

static const struct kv_cert_words *words_of(const struct kv_cert_facts *facts)
{
    return facts->whole_tenant ? &kv_cert_tenant_words
           : facts->is_scope   ? &kv_cert_scope_words
                               : &kv_cert_session_words;
}

static void put_subject(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "sub");
    kv_emit_text(emit, "kind", words_of(facts)->kind);
    if (facts->whole_tenant) {
        kv_emit_decimal(emit, "sessions", facts->sessions);
        kv_emit_hex(emit, "sessions_root", facts->sessions_root.b);
    } else {
        kv_emit_id(emit, "session", "ses", &facts->session);
        kv_emit_integer(emit, "slot", facts->slot);
    }
    kv_emit_id(emit, "tenant", "ten", &facts->tenant);
    kv_emit_close(emit);
}

static void put_shared(struct kv_emit *emit, const struct kv_cert_shared *shared)
{
    bool retained = kv_id_is_zero(&shared->erasure);
    kv_emit_object(emit, "shared");
    for (int i = 0; i < 2; i++) {
        kv_emit_array(emit, i == 0 ? "erased" : "retained");
        if (retained == (i == 1)) {
            kv_emit_object(emit, NULL);
            if (!retained) {
                kv_emit_id(emit, "erasure", "era", &shared->erasure);
            }
            kv_emit_id(emit, "scope", "ses", &shared->scope);
            if (retained) {
                kv_emit_decimal(emit, "sessions", shared->sessions);
            }
            kv_emit_close(emit);
        }
        kv_emit_close(emit);
    }
    kv_emit_close(emit);
}

static void put_tool(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "tool");
    kv_emit_text(emit, "name", "kvrun");
    kv_emit_text(emit, "openssl", facts->openssl_version);
    kv_emit_text(emit, "version", facts->tool_version);
    kv_emit_close(emit);
}

static void put_verification(struct kv_emit *emit, const struct kv_cert_facts *facts)
{
    kv_emit_object(emit, "verification");
    kv_emit_time(emit, "at", facts->verified_us);
    kv_emit_integer(emit, "control_opened", facts->control_opened);
    kv_emit_text(emit, "method", words_of(facts)->method);
    kv_emit_bool(emit, "old_root_gone", facts->old_root_gone);
    kv_emit_bool(emit, "old_row_refused", facts->old_row_refused);
    kv_emit_integer(emit, "opened_after", facts->opened_after);
    kv_emit_text(emit, "result", facts->samples == 0 ? "no_samples" : "passed");
    kv_emit_integer(emit, "samples", facts->samples);
    kv_emit_bool(emit, "slots_absent", facts->slots_absent);
    kv_emit_close(emit);
}

static KV_RC put_payload(const struct kv_cert_facts *facts, struct kv_buf *json)
{
    struct kv_emit emit = kv_emit_begin(json);
    if (facts->anchor != NULL) {
        put_anchor(&emit, facts->anchor);
    }
    kv_emit_text(&emit, "assurance", facts->assurance);
    put_audit(&emit, facts);
    kv_emit_object(&emit, "backups");
    kv_emit_text(&emit, "database", words_of(facts)->backups);
    kv_emit_close(&emit);
    kv_emit_text(&emit, "claim", words_of(facts)->claim);
    put_crypto(&emit, facts);
    put_destroyed(&emit, facts);
    kv_emit_time(&emit, "iat", facts->issued_us);
    put_instances(&emit, facts);
    kv_emit_text(&emit, "iss", facts->issuer);
    kv_emit_id(&emit, "jti", "crt", &facts->jti);
    put_limits(&emit, facts);
    if (facts->previous_sha256 != NULL && facts->previous_sha256[0] != '\0') {
        kv_emit_text(&emit, "prev", facts->previous_sha256);
    }
    put_request(&emit, facts);
    put_sanitization(&emit, facts);
    put_scope(&emit, facts);
    if (facts->shared != NULL) {
        put_shared(&emit, facts->shared);
    }
    put_subject(&emit, facts);
    put_tool(&emit, facts);
    kv_emit_integer(&emit, "v", facts->anchor == NULL ? 1 : 2);
    put_verification(&emit, facts);
    return kv_emit_end(&emit);
}

KV_RC kv_cert_payload(const struct kv_cert_facts *facts, struct kv_buf *ret_json)
{
    struct kv_buf json KV_CLEANUP(kv_buf_done);
    struct kv_cert_claims claims;
    kv_buf_init(&json, (size_t)KV_MAX_CERTIFICATE_BYTES);
    if (facts->assurance == NULL || facts->limit_count > KV_LIMIT_CODES_MAX) {
        return KV_E_INVALID_REQUEST;
    }
    for (size_t i = 0; i < facts->limit_count; i++) {
        if (facts->limits[i] == NULL) {
            return KV_E_INVALID_REQUEST;
        }
    }
    KV_TRY(put_payload(facts, &json));
    if (kv_cert_claims_parse(kv_buf_bytes(&json), NULL, &claims) != KV_OK) {
        return KV_E_INVALID_STATE;
    }
    kv_buf_append(ret_json, json.data, json.len);
    return kv_buf_check(ret_json);
}

KV_RC kv_cert_kid(const uint8_t public_key[32], char ret_kid[44])
{
    char x[44], text[128];
    uint8_t hash[32];
    kv_base64url_encode(public_key, 32, x);
    struct kv_writer writer = kv_writer_of(text, sizeof(text));
    static const char before[] = "{\"crv\":\"Ed25519\",\"kty\":\"OKP\",\"x\":\"";
    kv_write_raw(&writer, before, sizeof(before) - 1);
    kv_write_raw(&writer, x, strlen(x));
    kv_write_raw(&writer, "\"}", 2);
    KV_TRY(kv_sha256(KV_BYTES(text, kv_writer_len(&writer)), hash));
    kv_base64url_encode(hash, sizeof(hash), ret_kid);
    return KV_OK;
}

KV_RC kv_cert_jws_of(const char *typ, struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws)
{
    uint8_t public_key[32], signature[64];
    char kid[44];
    struct kv_buf header KV_CLEANUP(kv_buf_done);
    struct kv_buf jws KV_CLEANUP(kv_buf_done);
    kv_buf_init(&header, 512);
    kv_buf_init(&jws, (size_t)KV_MAX_CERTIFICATE_BYTES);
    kv_sign_public(key, public_key);
    KV_TRY(kv_cert_kid(public_key, kid));
    struct kv_emit emit = kv_emit_begin(&header);
    kv_emit_text(&emit, "alg", "EdDSA");
    kv_emit_text(&emit, "kid", kid);
    kv_emit_text(&emit, "typ", typ);
    KV_TRY(kv_emit_end(&emit));
    kv_text_put_base64url(&jws, header.data, header.len);
    kv_buf_text(&jws, ".");
    kv_text_put_base64url(&jws, payload.data, payload.len);
    KV_TRY(kv_buf_check(&jws));
    KV_TRY(kv_sign(key, kv_buf_bytes(&jws), signature));
    kv_buf_text(&jws, ".");
    kv_text_put_base64url(&jws, signature, sizeof(signature));
    KV_TRY(kv_buf_check(&jws));
    kv_buf_append(ret_jws, jws.data, jws.len);
    return kv_buf_check(ret_jws);
}

KV_RC kv_cert_jws(struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws)
{
    return kv_cert_jws_of(KV_CERT_TYP, payload, key, ret_jws);
}

KV_RC kv_cert_jwks(const uint8_t public_key[32], struct kv_buf *ret_json)
{
    char kid[44], x[44];
    KV_TRY(kv_cert_kid(public_key, kid));
    kv_base64url_encode(public_key, 32, x);
    struct kv_emit emit = kv_emit_begin(ret_json);
    kv_emit_array(&emit, "keys");
    kv_emit_object(&emit, NULL);
    kv_emit_text(&emit, "alg", "EdDSA");
    kv_emit_text(&emit, "crv", "Ed25519");
    kv_emit_text(&emit, "kid", kid);
    kv_emit_text(&emit, "kty", "OKP");
    kv_emit_text(&emit, "use", "sig");
    kv_emit_text(&emit, "x", x);
    kv_emit_close(&emit);
    kv_emit_close(&emit);
    return kv_emit_end(&emit);
}

KV_RC kv_cert_bundle(struct kv_bytes jws, uint64_t index, const struct kv_hash *proof, size_t proof_count,
                     struct kv_bytes checkpoint_note, struct kv_buf *ret_text)
{
    struct kv_checkpoint checkpoint;
    struct kv_hash leaf;
    if (proof_count > KV_MERKLE_DEPTH_MAX) {
        return KV_E_INVALID_REQUEST;
    }
    /* A bundle whose parts do not belong together is our mistake, found here and not by its reader. */
    KV_TRY(kv_checkpoint_parse(checkpoint_note, &checkpoint));
    KV_TRY(kv_merkle_leaf(jws, &leaf));
    KV_TRY(kv_merkle_verify_inclusion(&leaf, index, checkpoint.size, proof, proof_count, &checkpoint.root));
    kv_buf_text(ret_text, KV_CERT_PROOF_LINE "\nextra ");
    kv_text_put_base64(ret_text, jws.data, jws.len);
    kv_buf_printf(ret_text, "\nindex %llu\n", (unsigned long long)index);
    for (size_t i = 0; i < proof_count; i++) {
        kv_text_put_base64(ret_text, proof[i].b, sizeof(proof[i].b));
        kv_buf_text(ret_text, "\n");
    }
    kv_buf_text(ret_text, "\n");
    kv_buf_append(ret_text, checkpoint_note.data, checkpoint_note.len);
    return kv_buf_check(ret_text);
}

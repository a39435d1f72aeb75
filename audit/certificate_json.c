/*
 * Reading a certificate's payload back: every member against its table, then that together they describe an erasure
 * that succeeded.
 */
#include "audit/certificate_int.h"

#include "audit/certificate_form_int.h"

#include <jansson.h>
#include <string.h>

static const struct kv_member payload_members[] = {
    {.name = "anchor", .kind = KV_FORM_PART, .optional = true},
    {.name = "assurance", .kind = KV_FORM_TEXT},
    {.name = "audit", .kind = KV_FORM_PART},
    {.name = "backups", .kind = KV_FORM_PART},
    {.name = "claim", .kind = KV_FORM_TEXT},
    {.name = "crypto", .kind = KV_FORM_PART},
    {.name = "destroyed", .kind = KV_FORM_PART},
    {.name = "iat", .kind = KV_FORM_TIME},
    {.name = "instances", .kind = KV_FORM_PART},
    {.name = "iss", .kind = KV_FORM_TEXT},
    {.name = "jti", .kind = KV_FORM_ID, .arg = "crt"},
    {.name = "limits", .kind = KV_FORM_PART},
    {.name = "prev", .kind = KV_FORM_HEX, .optional = true},
    {.name = "request", .kind = KV_FORM_PART},
    {.name = "sanitization", .kind = KV_FORM_PART},
    {.name = "scope", .kind = KV_FORM_PART},
    {.name = "shared", .kind = KV_FORM_PART, .optional = true},
    {.name = "sub", .kind = KV_FORM_PART},
    {.name = "tool", .kind = KV_FORM_PART},
    {.name = "v", .kind = KV_FORM_INTEGER},
    {.name = "verification", .kind = KV_FORM_PART},
    {.name = NULL},
};

static const struct kv_member anchor_members[] = {
    {.name = "at", .kind = KV_FORM_TIME},
    {.name = "kind", .kind = KV_FORM_TEXT},
    {.name = "log_root", .kind = KV_FORM_HEX},
    {.name = "log_size", .kind = KV_FORM_DECIMAL},
    {.name = "root_id", .kind = KV_FORM_ID, .arg = "rot"},
    {.name = "text", .kind = KV_FORM_FIXED, .arg = kv_cert_anchor_text},
    {.name = NULL},
};

static const struct kv_member audit_members[] = {
    {.name = "destroy_index", .kind = KV_FORM_DECIMAL},
    {.name = "origin", .kind = KV_FORM_TEXT},
    {.name = "request_index", .kind = KV_FORM_DECIMAL},
    {.name = NULL},
};

static const struct kv_member limit_members[] = {
    {.name = "code", .kind = KV_FORM_TEXT},
    {.name = "text", .kind = KV_FORM_TEXT},
    {.name = NULL},
};

static const struct kv_member tier_members[] = {
    {.name = "blocks", .kind = KV_FORM_DECIMAL},
    {.name = "bytes", .kind = KV_FORM_DECIMAL},
    {.name = "status", .kind = KV_FORM_TEXT},
    {.name = "tier", .kind = KV_FORM_TEXT},
    {.name = NULL},
};

static const struct kv_member instance_members[] = {
    {.name = "fenced_at", .kind = KV_FORM_TIME},
    {.name = "how", .kind = KV_FORM_TEXT},
    {.name = "id", .kind = KV_FORM_ID, .arg = "ins"},
    {.name = "purged_at", .kind = KV_FORM_TIME},
    {.name = NULL},
};

static const struct kv_member sanitization_members[] = {
    {.name = "claim", .kind = KV_FORM_TEXT},
    {.name = "standard", .kind = KV_FORM_PART},
    {.name = "technique", .kind = KV_FORM_FIXED, .arg = "CE"},
    {.name = NULL},
};

static const struct kv_member verification_members[] = {
    {.name = "at", .kind = KV_FORM_TIME},
    {.name = "control_opened", .kind = KV_FORM_INTEGER},
    {.name = "method", .kind = KV_FORM_TEXT},
    {.name = "old_root_gone", .kind = KV_FORM_TRUE},
    {.name = "old_row_refused", .kind = KV_FORM_TRUE},
    {.name = "opened_after", .kind = KV_FORM_INTEGER},
    {.name = "result", .kind = KV_FORM_TEXT},
    {.name = "samples", .kind = KV_FORM_INTEGER},
    {.name = "slots_absent", .kind = KV_FORM_TRUE},
    {.name = NULL},
};

static const struct kv_member shared_members[] = {
    {.name = "erased", .kind = KV_FORM_PART},
    {.name = "retained", .kind = KV_FORM_PART},
    {.name = NULL},
};

static const struct kv_member erased_members[] = {
    {.name = "erasure", .kind = KV_FORM_ID, .arg = "era"},
    {.name = "scope", .kind = KV_FORM_ID, .arg = "ses"},
    {.name = NULL},
};

static const struct kv_member retained_members[] = {
    {.name = "scope", .kind = KV_FORM_ID, .arg = "ses"},
    {.name = "sessions", .kind = KV_FORM_DECIMAL},
    {.name = NULL},
};

static const struct kv_member session_members[] = {
    {.name = "kind", .kind = KV_FORM_TEXT},
    {.name = "session", .kind = KV_FORM_ID, .arg = "ses"},
    {.name = "slot", .kind = KV_FORM_INTEGER},
    {.name = "tenant", .kind = KV_FORM_ID, .arg = "ten"},
    {.name = NULL},
};

static const struct kv_member tenant_members[] = {
    {.name = "kind", .kind = KV_FORM_FIXED, .arg = "tenant"},
    {.name = "sessions", .kind = KV_FORM_DECIMAL},
    {.name = "sessions_root", .kind = KV_FORM_HEX},
    {.name = "tenant", .kind = KV_FORM_ID, .arg = "ten"},
    {.name = NULL},
};

/* Objects of the payload that need no check but their members'. */
static const struct {
    const char *where, *object, *child;
    struct kv_member members[8];
} plain_objects[] = {
    {"/backups", "backups", NULL, {{.name = "database", .kind = KV_FORM_TEXT}}},
    {"/crypto",
     "crypto",
     NULL,
     {{.name = "alg", .kind = KV_FORM_TEXT},
      {.name = "always_encrypted", .kind = KV_FORM_TEXT},
      {.name = "backend", .kind = KV_FORM_TEXT},
      {.name = "construction", .kind = KV_FORM_TEXT},
      {.name = "key_bits", .kind = KV_FORM_INTEGER},
      {.name = "rng", .kind = KV_FORM_TEXT},
      {.name = "sealer", .kind = KV_FORM_TEXT}}},
    {"/destroyed",
     "destroyed",
     NULL,
     {{.name = "at", .kind = KV_FORM_TIME},
      {.name = "detail", .kind = KV_FORM_TEXT},
      {.name = "new_root_id", .kind = KV_FORM_ID, .arg = "rot"},
      {.name = "provider", .kind = KV_FORM_TEXT},
      {.name = "receipt_sha256", .kind = KV_FORM_HEX},
      {.name = "root_id", .kind = KV_FORM_ID, .arg = "rot"}}},
    {"/request",
     "request",
     NULL,
     {{.name = "basis", .kind = KV_FORM_TEXT},
      {.name = "by", .kind = KV_FORM_PART},
      {.name = "erasure", .kind = KV_FORM_ID, .arg = "era"},
      {.name = "reason_sha256", .kind = KV_FORM_HEX, .optional = true},
      {.name = "received_at", .kind = KV_FORM_TIME}}},
    {"/request/by",
     "request",
     "by",
     {{.name = "key", .kind = KV_FORM_ID, .arg = "key", .optional = true}, {.name = "role", .kind = KV_FORM_TEXT}}},
    {"/scope",
     "scope",
     NULL,
     {{.name = "block_root", .kind = KV_FORM_HEX},
      {.name = "blocks", .kind = KV_FORM_DECIMAL},
      {.name = "bytes", .kind = KV_FORM_DECIMAL},
      {.name = "tiers", .kind = KV_FORM_PART}}},
    {"/tool",
     "tool",
     NULL,
     {{.name = "name", .kind = KV_FORM_TEXT},
      {.name = "openssl", .kind = KV_FORM_TEXT},
      {.name = "version", .kind = KV_FORM_TEXT}}},
};

static void copy_text(const json_t *object, const char *name, char *target, size_t size)
{
    const json_t *value = json_object_get(object, name);
    size_t len = json_string_length(value);
    if (len < size) {
        memcpy(target, json_string_value(value), len + 1);
    }
}

static KV_RC read_audit(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *audit = json_object_get(root, "audit");
    KV_TRY(kv_form_object(audit, "/audit", audit_members, info));
    if (json_string_length(json_object_get(audit, "origin")) >= sizeof(claims->origin)) {
        return kv_fail(info, KV_E_TAMPERED, "/audit/origin is too long");
    }
    copy_text(audit, "origin", claims->origin, sizeof(claims->origin));
    claims->has_audit = kv_form_decimal(json_object_get(audit, "request_index"), &claims->request_index) &&
                        kv_form_decimal(json_object_get(audit, "destroy_index"), &claims->destroy_index);
    return KV_OK;
}

KV_RC kv_cert_limits_read(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *limits = json_object_get(root, "limits");
    KV_TRY(kv_form_array(limits, "/limits", limit_members, info));
    size_t count = json_array_size(limits);
    if (count == 0 || count > KV_LIMIT_CODES_MAX) {
        return kv_fail(info, KV_E_TAMPERED, "/limits is empty or too long: no erasure is without limits");
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *limit = json_array_get(limits, i);
        const char *code = json_string_value(json_object_get(limit, "code"));
        const char *text = kv_limit_text(code);
        if (text == NULL || strlen(code) >= sizeof(claims->limits[i]) ||
            !kv_form_is_text(json_object_get(limit, "text"), text)) {
            return kv_fail(info, KV_E_TAMPERED, "/limits/%zu is not a known limit with its text", i);
        }
        for (size_t j = 0; j < i; j++) {
            if (strcmp(claims->limits[j], code) == 0) {
                return kv_fail(info, KV_E_TAMPERED, "/limits/%zu is there twice", i);
            }
        }
        copy_text(limit, "code", claims->limits[i], sizeof(claims->limits[i]));
    }
    claims->limit_count = count;
    return KV_OK;
}

static KV_RC read_sanitization(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *sanitization = json_object_get(root, "sanitization");
    KV_TRY(kv_form_object(sanitization, "/sanitization", sanitization_members, info));
    const json_t *standard = json_object_get(sanitization, "standard");
    if (!json_is_array(standard) || json_array_size(standard) != 1 ||
        !kv_form_is_text(json_array_get(standard, 0), KV_CERT_NIST_STANDARD)) {
        return kv_fail(info, KV_E_TAMPERED, "/sanitization/standard is not what it has to be");
    }
    const char *assurance = json_string_value(json_object_get(root, "assurance"));
    const char *claim = kv_cert_sanitization(assurance);
    if (claim == NULL || !kv_form_is_text(json_object_get(sanitization, "claim"), claim)) {
        return kv_fail(info, KV_E_TAMPERED, "/assurance is not E2 to E4, or says something else than /sanitization");
    }
    copy_text(root, "assurance", claims->assurance, sizeof(claims->assurance));
    return KV_OK;
}

static KV_RC check_verification(const json_t *root, struct kv_errinfo *info)
{
    const json_t *verification = json_object_get(root, "verification");
    KV_TRY(kv_form_object(verification, "/verification", verification_members, info));
    json_int_t samples = json_integer_value(json_object_get(verification, "samples"));
    json_int_t control = json_integer_value(json_object_get(verification, "control_opened"));
    json_int_t after = json_integer_value(json_object_get(verification, "opened_after"));
    if (after != 0) {
        return kv_fail(info, KV_E_TAMPERED, "/verification says that samples still opened after the destruction");
    }
    if (control != samples) {
        return kv_fail(info, KV_E_TAMPERED, "/verification has samples without a control");
    }
    if (!kv_form_is_text(json_object_get(verification, "result"), samples == 0 ? "no_samples" : "passed")) {
        return kv_fail(info, KV_E_TAMPERED, "/verification/result does not belong to its samples");
    }
    return KV_OK;
}

static bool has_limit(const json_t *root, const char *code)
{
    const json_t *limits = json_object_get(root, "limits");
    for (size_t i = 0; i < json_array_size(limits); i++) {
        if (kv_form_is_text(json_object_get(json_array_get(limits, i), "code"), code)) {
            return true;
        }
    }
    return false;
}

/* How each one stopped; that one did not say so itself is a limit, and no certificate may hide it. */
static KV_RC read_instances(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *instances = json_object_get(root, "instances");
    KV_TRY(kv_form_array(instances, "/instances", instance_members, info));
    if (json_array_size(instances) == 0) {
        return kv_fail(info, KV_E_TAMPERED, "/instances is empty");
    }
    for (size_t i = 0; i < json_array_size(instances); i++) {
        const json_t *one = json_array_get(instances, i), *how = json_object_get(one, "how");
        bool expired = kv_form_is_text(how, "expired");
        if (!expired && !kv_form_is_text(how, "self") && !kv_form_is_text(how, "acked")) {
            return kv_fail(info, KV_E_TAMPERED, "/instances/%zu/how is not self, acked or expired", i);
        }
        if (expired && !has_limit(root, "L5")) {
            return kv_fail(info, KV_E_TAMPERED, "/instances/%zu expired, and the limit L5 is not among /limits", i);
        }
        if (expired) {
            KV_TRY(kv_id_parse("ins", json_string_value(json_object_get(one, "id")),
                               &claims->expired[claims->expired_count++]));
        }
    }
    return KV_OK;
}

/* What it shared: erased, or readable for others, which no certificate may hide. */
static KV_RC check_shared(const json_t *root, struct kv_errinfo *info)
{
    const json_t *shared = json_object_get(root, "shared");
    const json_t *erased = json_object_get(shared, "erased"), *retained = json_object_get(shared, "retained");
    if (shared == NULL) {
        return KV_OK;
    }
    KV_TRY(kv_form_object(shared, "/shared", shared_members, info));
    KV_TRY(kv_form_array(erased, "/shared/erased", erased_members, info));
    KV_TRY(kv_form_array(retained, "/shared/retained", retained_members, info));
    if (json_array_size(erased) + json_array_size(retained) == 0) {
        return kv_fail(info, KV_E_TAMPERED, "/shared is empty");
    }
    if (!kv_form_is_text(json_object_get(json_object_get(root, "sub"), "kind"), kv_cert_session_words.kind)) {
        return kv_fail(info, KV_E_TAMPERED, "/shared belongs to sessions");
    }
    return json_array_size(retained) == 0 || has_limit(root, "L6")
               ? KV_OK
               : kv_fail(info, KV_E_TAMPERED, "/shared has what was retained, and the limit L6 is not among /limits");
}

static KV_RC read_parts(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    for (size_t i = 0; i < sizeof(plain_objects) / sizeof(plain_objects[0]); i++) {
        const json_t *object = json_object_get(root, plain_objects[i].object);
        if (plain_objects[i].child != NULL) {
            object = json_object_get(object, plain_objects[i].child);
        }
        KV_TRY(kv_form_object(object, plain_objects[i].where, plain_objects[i].members, info));
    }
    KV_TRY(kv_form_array(json_object_get(json_object_get(root, "scope"), "tiers"), "/scope/tiers", tier_members, info));
    KV_TRY(read_instances(root, info, claims));
    KV_TRY(check_shared(root, info));
    const json_t *destroyed = json_object_get(root, "destroyed");
    if (json_equal(json_object_get(destroyed, "root_id"), json_object_get(destroyed, "new_root_id"))) {
        return kv_fail(info, KV_E_TAMPERED, "/destroyed names one root as both destroyed and new");
    }
    return KV_OK;
}

/* Version 2 is version 1 with an anchor. */
static KV_RC check_version(const json_t *root, struct kv_errinfo *info)
{
    const json_t *anchor = json_object_get(root, "anchor");
    json_int_t version = json_integer_value(json_object_get(root, "v"));
    if (version != 1 && version != 2) {
        return kv_fail(info, KV_E_TAMPERED, "version is neither 1 nor 2; a newer verifier is needed");
    }
    if ((version == 2) != (anchor != NULL)) {
        return kv_fail(info, KV_E_TAMPERED, "/anchor belongs to version 2, and only there");
    }
    return anchor == NULL ? KV_OK : kv_form_object(anchor, "/anchor", anchor_members, info);
}

/* Of what it is, and that the fixed texts are those for it. */
static KV_RC read_subject(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *subject = json_object_get(root, "sub");
    bool tenant = kv_form_is_text(json_object_get(subject, "kind"), kv_cert_tenant_words.kind);
    bool scope = kv_form_is_text(json_object_get(subject, "kind"), kv_cert_scope_words.kind);
    const struct kv_cert_words *words = tenant  ? &kv_cert_tenant_words
                                        : scope ? &kv_cert_scope_words
                                                : &kv_cert_session_words;
    KV_TRY(kv_form_object(subject, "/sub", tenant ? tenant_members : session_members, info));
    if (!kv_form_is_text(json_object_get(subject, "kind"), words->kind)) {
        return kv_fail(info, KV_E_TAMPERED, "/sub/kind is not session, scope or tenant");
    }
    if (!kv_form_is_text(json_object_get(root, "claim"), words->claim) ||
        !kv_form_is_text(json_object_get(json_object_get(root, "backups"), "database"), words->backups) ||
        !kv_form_is_text(json_object_get(json_object_get(root, "verification"), "method"), words->method)) {
        return kv_fail(info, KV_E_TAMPERED, "/claim, /backups or /verification/method is not the fixed text for a %s",
                       words->kind);
    }
    claims->words = words;
    copy_text(subject, "tenant", claims->tenant, sizeof(claims->tenant));
    if (tenant) {
        (void)kv_form_decimal(json_object_get(subject, "sessions"), &claims->sessions); /* by its form it is one */
    } else {
        copy_text(subject, "session", claims->session, sizeof(claims->session));
    }
    return KV_OK;
}

static KV_RC read_claims(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    KV_TRY(read_audit(root, info, claims));
    KV_TRY(kv_form_object(root, "", payload_members, info));
    KV_TRY(check_version(root, info));
    KV_TRY(read_parts(root, info, claims));
    KV_TRY(kv_cert_limits_read(root, info, claims));
    KV_TRY(read_sanitization(root, info, claims));
    KV_TRY(check_verification(root, info));
    KV_TRY(read_subject(root, info, claims));
    if (claims->request_index >= claims->destroy_index) {
        return kv_fail(info, KV_E_TAMPERED, "/audit has the destruction before the request");
    }
    copy_text(json_object_get(root, "destroyed"), "at", claims->destroyed_at, sizeof(claims->destroyed_at));
    copy_text(root, "jti", claims->certificate, sizeof(claims->certificate));
    return KV_OK;
}

KV_RC kv_cert_claims_parse(struct kv_bytes payload, struct kv_errinfo *info, struct kv_cert_claims *ret_claims)
{
    *ret_claims = (struct kv_cert_claims){.has_audit = false};
    json_t *root = json_loadb((const char *)payload.data, payload.len, JSON_REJECT_DUPLICATES, NULL);
    if (root == NULL) {
        return kv_fail(info, KV_E_TAMPERED, "the payload is not a JSON object");
    }
    enum kv_err rc = read_claims(root, info, ret_claims);
    json_decref(root);
    return rc;
}

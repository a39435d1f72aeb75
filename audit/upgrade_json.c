/* Reading back the payload of the statement that follows a certificate: every member, and that they go together. */
#include "audit/certificate_form_int.h"
#include "audit/certificate_int.h"
#include "audit/upgrade.h"

#include <jansson.h>
#include <string.h>

static const struct kv_member payload_members[] = {
    {.name = "assurance", .kind = KV_FORM_TEXT},
    {.name = "audit", .kind = KV_FORM_PART},
    {.name = "certificate", .kind = KV_FORM_PART},
    {.name = "ciphertext", .kind = KV_FORM_FIXED, .arg = "gone"},
    {.name = "claim", .kind = KV_FORM_FIXED, .arg = kv_upgrade_claim},
    {.name = "closed", .kind = KV_FORM_PART},
    {.name = "confirmed", .kind = KV_FORM_PART},
    {.name = "iat", .kind = KV_FORM_TIME},
    {.name = "iss", .kind = KV_FORM_TEXT},
    {.name = "jti", .kind = KV_FORM_ID, .arg = "upg"},
    {.name = "lifted", .kind = KV_FORM_PART},
    {.name = "limits", .kind = KV_FORM_PART},
    {.name = "sub", .kind = KV_FORM_PART},
    {.name = "tool", .kind = KV_FORM_PART},
    {.name = "v", .kind = KV_FORM_INTEGER},
    {.name = NULL},
};

static const struct kv_member audit_members[] = {
    {.name = "certificate_index", .kind = KV_FORM_DECIMAL},
    {.name = "origin", .kind = KV_FORM_TEXT},
    {.name = NULL},
};

static const struct kv_member certificate_members[] = {
    {.name = "assurance", .kind = KV_FORM_TEXT},
    {.name = "id", .kind = KV_FORM_ID, .arg = "crt"},
    {.name = "sha256", .kind = KV_FORM_HEX},
    {.name = NULL},
};

static const struct kv_member closed_members[] = {
    {.name = "at", .kind = KV_FORM_TIME},
    {.name = "how", .kind = KV_FORM_TEXT},
    {.name = "id", .kind = KV_FORM_ID, .arg = "ins"},
    {.name = NULL},
};

static const struct kv_member confirmed_members[] = {
    {.name = "at", .kind = KV_FORM_TIME},
    {.name = "folder", .kind = KV_FORM_ID, .arg = "nvm", .optional = true},
    {.name = "id", .kind = KV_FORM_ID, .arg = "ins"},
    {.name = "tiers", .kind = KV_FORM_TEXT},
    {.name = NULL},
};

static const struct kv_member session_members[] = {
    {.name = "kind", .kind = KV_FORM_TEXT}, /* or a scope: its id is one of a session */
    {.name = "session", .kind = KV_FORM_ID, .arg = "ses"},
    {.name = "tenant", .kind = KV_FORM_ID, .arg = "ten"},
    {.name = NULL},
};

static const struct kv_member tenant_members[] = {
    {.name = "kind", .kind = KV_FORM_FIXED, .arg = "tenant"},
    {.name = "sessions", .kind = KV_FORM_DECIMAL},
    {.name = "tenant", .kind = KV_FORM_ID, .arg = "ten"},
    {.name = NULL},
};

static const struct kv_member tool_members[] = {
    {.name = "name", .kind = KV_FORM_TEXT},
    {.name = "version", .kind = KV_FORM_TEXT},
    {.name = NULL},
};

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text == NULL ? "" : text;
}

static void copy_text(const json_t *object, const char *name, char *target, size_t size)
{
    const char *text = text_of(object, name);
    if (strlen(text) < size) {
        memcpy(target, text, strlen(text) + 1);
    }
}

static KV_RC read_audit(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *audit = json_object_get(root, "audit");
    KV_TRY(kv_form_object(audit, "/audit", audit_members, info));
    if (strlen(text_of(audit, "origin")) >= sizeof claims->origin) {
        return kv_fail(info, KV_E_TAMPERED, "/audit/origin is too long");
    }
    copy_text(audit, "origin", claims->origin, sizeof claims->origin);
    claims->has_audit = kv_form_decimal(json_object_get(audit, "certificate_index"), &claims->certificate_index);
    return KV_OK;
}

static KV_RC read_certificate(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *certificate = json_object_get(root, "certificate");
    KV_TRY(kv_form_object(certificate, "/certificate", certificate_members, info));
    const char *was = text_of(certificate, "assurance");
    bool known = strcmp(was, "E2") == 0 || strcmp(was, "E3") == 0;
    if (!known || !kv_form_is_text(json_object_get(root, "assurance"), kv_upgrade_assurance(was))) {
        return kv_fail(info, KV_E_TAMPERED, "/assurance does not follow from the certificate's");
    }
    copy_text(root, "assurance", claims->assurance, sizeof claims->assurance);
    copy_text(certificate, "assurance", claims->certificate_assurance, sizeof claims->certificate_assurance);
    copy_text(certificate, "id", claims->certificate, sizeof claims->certificate);
    return kv_hex_decode(text_of(certificate, "sha256"), claims->certificate_sha256, sizeof claims->certificate_sha256);
}

static KV_RC read_closed(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *closed = json_object_get(root, "closed");
    KV_TRY(kv_form_array(closed, "/closed", closed_members, info));
    for (size_t i = 0; i < json_array_size(closed); i++) {
        const json_t *one = json_array_get(closed, i), *how = json_object_get(one, "how");
        if (!kv_form_is_text(how, "acked") && !kv_form_is_text(how, "ended")) {
            return kv_fail(info, KV_E_TAMPERED, "/closed/%zu/how is not acked or ended", i);
        }
        KV_TRY(kv_id_parse("ins", text_of(one, "id"), &claims->expired[claims->expired_count++]));
    }
    return KV_OK;
}

static KV_RC check_confirmed(const json_t *root, struct kv_errinfo *info)
{
    const json_t *confirmed = json_object_get(root, "confirmed");
    KV_TRY(kv_form_array(confirmed, "/confirmed", confirmed_members, info));
    if (json_array_size(confirmed) == 0) {
        return kv_fail(info, KV_E_TAMPERED, "/confirmed is empty");
    }
    for (size_t i = 0; i < json_array_size(confirmed); i++) {
        const json_t *one = json_array_get(confirmed, i);
        const char *tiers = json_object_get(one, "folder") == NULL ? "dram" : "dram, nvme";
        if (!kv_form_is_text(json_object_get(one, "tiers"), tiers)) {
            return kv_fail(info, KV_E_TAMPERED, "/confirmed/%zu/tiers does not belong to its folder", i);
        }
    }
    return KV_OK;
}

/* What is lifted is no limit any more, and what was closed is the reason. */
static KV_RC read_limits(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *lifted = json_object_get(root, "lifted");
    size_t count = json_array_size(lifted);
    KV_TRY(kv_cert_limits_read(root, info, claims));
    if (!json_is_array(lifted) || count > 1 ||
        (count == 1 && !kv_form_is_text(json_array_get(lifted, 0), KV_UPGRADE_LIFTS))) {
        return kv_fail(info, KV_E_TAMPERED, "/lifted has something else than " KV_UPGRADE_LIFTS);
    }
    claims->lifts = count == 1;
    for (size_t i = 0; i < claims->limit_count; i++) {
        if (strcmp(claims->limits[i], KV_UPGRADE_LIFTS) == 0) {
            return kv_fail(info, KV_E_TAMPERED, KV_UPGRADE_LIFTS " is still among /limits");
        }
    }
    return claims->lifts == (claims->expired_count > 0)
               ? KV_OK
               : kv_fail(info, KV_E_TAMPERED, "/lifted and /closed do not go together");
}

static KV_RC read_subject(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    const json_t *subject = json_object_get(root, "sub");
    bool tenant = kv_form_is_text(json_object_get(subject, "kind"), kv_cert_tenant_words.kind);
    KV_TRY(kv_form_object(subject, "/sub", tenant ? tenant_members : session_members, info));
    bool scope = kv_form_is_text(json_object_get(subject, "kind"), kv_cert_scope_words.kind);
    claims->words = tenant ? &kv_cert_tenant_words : scope ? &kv_cert_scope_words : &kv_cert_session_words;
    if (!kv_form_is_text(json_object_get(subject, "kind"), claims->words->kind)) {
        return kv_fail(info, KV_E_TAMPERED, "/sub/kind is not session, scope or tenant");
    }
    copy_text(subject, "tenant", claims->tenant, sizeof claims->tenant);
    if (tenant) {
        (void)kv_form_decimal(json_object_get(subject, "sessions"), &claims->sessions); /* by its form it is one */
    } else {
        copy_text(subject, "session", claims->session, sizeof claims->session);
    }
    return KV_OK;
}

static KV_RC read_claims(const json_t *root, struct kv_errinfo *info, struct kv_cert_claims *claims)
{
    KV_TRY(read_audit(root, info, claims));
    KV_TRY(kv_form_object(root, "", payload_members, info));
    if (json_integer_value(json_object_get(root, "v")) != 1) {
        return kv_fail(info, KV_E_TAMPERED, "version is not 1; a newer verifier is needed");
    }
    KV_TRY(kv_form_object(json_object_get(root, "tool"), "/tool", tool_members, info));
    KV_TRY(read_certificate(root, info, claims));
    KV_TRY(read_closed(root, info, claims));
    KV_TRY(check_confirmed(root, info));
    KV_TRY(read_limits(root, info, claims));
    KV_TRY(read_subject(root, info, claims));
    copy_text(root, "iat", claims->issued_at, sizeof claims->issued_at);
    copy_text(root, "jti", claims->statement, sizeof claims->statement);
    return KV_OK;
}

KV_RC kv_upgrade_claims_parse(struct kv_bytes payload, struct kv_errinfo *info, struct kv_cert_claims *ret_claims)
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

/* What the makers and the verifier of certificates share: fixed texts, and the claims as they are read back. */
#ifndef KV_AUDIT_CERTIFICATE_INT_H
#define KV_AUDIT_CERTIFICATE_INT_H

#include "audit/certificate.h"
#include "dataplane/base/id.h"

#define KV_CERT_TYP "kvrun-erasure+jws"
#define KV_CERT_PROOF_LINE "c2sp.org/tlog-proof@v1"
#define KV_CERT_BUNDLE_BYTES_MAX 262144u
#define KV_CERT_NIST_STANDARD "NIST SP 800-88"
#define KV_CERT_JWKS_KEYS_MAX 16u

/* Fixed texts of a certificate, version 1. */
struct kv_cert_words {
    const char *kind; /* of the subject: "session", "scope", "tenant" */
    const char *claim, *backups, *method;
};
extern const struct kv_cert_words kv_cert_session_words, kv_cert_scope_words, kv_cert_tenant_words;
extern const char kv_cert_anchor_text[];
/* "clear" or "purge" for an assurance level that a certificate may state, NULL for any other text. */
const char *kv_cert_sanitization(const char *assurance);

/* What the payload says, as far as later checks and people need it. */
struct kv_cert_claims {
    bool has_audit; /* the next three were read */
    char origin[256];
    uint64_t request_index, destroy_index;
    const struct kv_cert_words *words; /* NULL: it is not known of what it is */
    char tenant[KV_ID_TEXT_SIZE], session[KV_ID_TEXT_SIZE], certificate[KV_ID_TEXT_SIZE];
    uint64_t sessions; /* of a tenant, and no session then */
    char destroyed_at[28];
    char assurance[4];
    char limits[KV_LIMIT_CODES_MAX][4]; /* codes */
    size_t limit_count;
};

/* Every required member, its type and its form, no member beside them, and that together they describe an erasure that
 * succeeded. KV_E_TAMPERED: `info` names the member. `ret_claims` holds what could be read even then. */
KV_RC kv_cert_claims_parse(struct kv_bytes payload, struct kv_errinfo *info, struct kv_cert_claims *ret_claims);

#endif

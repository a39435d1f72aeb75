/* What the makers and the verifier of certificates share: fixed texts, and the claims as they are read back. */
#ifndef KV_AUDIT_CERTIFICATE_INT_H
#define KV_AUDIT_CERTIFICATE_INT_H

#include "audit/certificate.h"
#include "dataplane/base/id.h"

#define KV_CERT_TYP "kvrun-erasure+jws"
#define KV_UPGRADE_TYP "kvrun-erasure-upgrade+jws"
#define KV_UPGRADE_LIFTS "L5" /* the limit that ends when an instance that was shut out is heard of */
#define KV_CERT_PROOF_LINE "c2sp.org/tlog-proof@v1"
#define KV_CERT_BUNDLE_BYTES_MAX 262144u
#define KV_CERT_NIST_STANDARD "NIST SP 800-88"
#define KV_CERT_JWKS_KEYS_MAX 16u
#define KV_CERT_INSTANCES_MAX 64u

/* Fixed texts of a certificate, version 1. */
struct kv_cert_words {
    const char *kind; /* of the subject: "session", "scope", "tenant" */
    const char *claim, *backups, *method;
};
extern const struct kv_cert_words kv_cert_session_words, kv_cert_scope_words, kv_cert_tenant_words;
extern const char kv_cert_anchor_text[];
/* "clear" or "purge" for an assurance level that a certificate may state, NULL for any other text. */
const char *kv_cert_sanitization(const char *assurance);
extern const char kv_upgrade_claim[];
const char *kv_upgrade_assurance(const char *of_certificate);
KV_RC kv_cert_jws_of(const char *typ, struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws);

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
    struct kv_id expired[KV_CERT_INSTANCES_MAX]; /* instances; of a statement those that are so no more */
    size_t expired_count;
    /* of the statement that follows a certificate */
    char statement[KV_ID_TEXT_SIZE], issued_at[28];
    uint64_t certificate_index;
    uint8_t certificate_sha256[32];
    char certificate_assurance[4];
    bool lifts;
};

/* Every required member, its type and its form, no member beside them, and that together they describe an erasure that
 * succeeded. KV_E_TAMPERED: `info` names the member. `ret_claims` holds what could be read even then. */
KV_RC kv_cert_claims_parse(struct kv_bytes payload, struct kv_errinfo *info, struct kv_cert_claims *ret_claims);
/* The same of the statement that follows one. */
KV_RC kv_upgrade_claims_parse(struct kv_bytes payload, struct kv_errinfo *info, struct kv_cert_claims *ret_claims);

#endif

/*
 * The erasure certificate: a payload in restricted JCS, signed as a compact JWS with Ed25519, a leaf of the tenant's
 * log; and the bundle, one text file (c2sp.org/tlog-proof@v1) with the JWS, its inclusion proof and the signed
 * checkpoint. FORMAT.md describes every member. The same inputs give the same bytes.
 */
#ifndef KV_AUDIT_CERTIFICATE_H
#define KV_AUDIT_CERTIFICATE_H

#include "audit/checkpoint.h"

#define KV_LIMIT_CODES_MAX 12

struct kv_cert_tier {
    const char *name;   /* "dram", "nvme" */
    const char *status; /* "cleaned" is never claimed here: "sealed, key destroyed" */
    uint64_t blocks, bytes;
};

struct kv_cert_instance {
    struct kv_id id;
    const char *how; /* "self", "acked", "expired" */
    uint64_t fenced_us, purged_us;
};

/* What an anchor outside of the database showed when the certificate was made. */
struct kv_cert_anchor {
    const char *kind; /* "file" */
    struct kv_id root;
    uint64_t log_size; /* of the operator's log */
    struct kv_hash log_root;
    uint64_t written_us;
};

/* The scope that a session shared with others. */
struct kv_cert_shared {
    struct kv_id scope;
    struct kv_id erasure; /* that destroyed its key, too; zero: retained, which needs the limit L6 */
    uint64_t sessions;    /* of one that is retained: that refer to it now */
};

/* Everything a certificate says; all pointers borrowed for the call. Strings are printable ASCII. */
struct kv_cert_facts {
    struct kv_id jti; /* certificate id, "crt" */
    uint64_t issued_us;
    const char *issuer; /* "kvrun:<cluster id>" */
    struct kv_id tenant, session, erasure;
    uint64_t slot;
    bool is_scope;                       /* a shared one, not a session */
    const struct kv_cert_shared *shared; /* NULL: it shared nothing */
    bool whole_tenant;                   /* instead of session and slot: */
    uint64_t sessions;
    struct kv_hash sessions_root; /* over their ids, 16 bytes each, sorted */
    /* request */
    uint64_t requested_us;
    const char *requester_role;
    struct kv_id requester_key;
    const char *basis;         /* "gdpr_art17", …, or "other" */
    const char *reason_sha256; /* hex of a salted hash, or "" */
    /* what there was */
    const struct kv_cert_tier *tiers;
    size_t tier_count;
    uint64_t blocks, bytes;
    struct kv_hash block_root;
    const char *sealer; /* "host" */
    /* what was done */
    const char *provider, *provider_detail;
    struct kv_id old_root, new_root;
    uint64_t destroyed_us;
    uint8_t receipt_sha256[32];
    const struct kv_cert_instance *instances; /* at least one; an expired one needs the limit L5 */
    size_t instance_count;
    const struct kv_cert_anchor *anchor; /* NULL: none was configured; else the payload is of version 2 */
    /* verification */
    uint64_t samples, control_opened, opened_after;
    bool old_root_gone, old_row_refused, slots_absent;
    uint64_t verified_us;
    const char *assurance;     /* "E2" */
    const char *const *limits; /* "L1", …; their fixed texts are put in */
    size_t limit_count;
    const char *log_origin;
    uint64_t request_index, destroy_index; /* leaves of the tenant's log */
    const char *previous_sha256;           /* of the tenant's previous certificate, or "" */
    const char *tool_version, *openssl_version, *cipher_backend;
};

/* "L7" -> its fixed text, NULL for an unknown code. */
const char *kv_limit_text(const char *code);

/* RFC 7638 thumbprint of the public key, base64url. */
KV_RC kv_cert_kid(const uint8_t public_key[32], char ret_kid[44]);
/* KV_E_INVALID_STATE: these facts describe no erasure that may be certified. KV_E_INVALID_REQUEST: a text or number
 * outside the profile. */
KV_RC kv_cert_payload(const struct kv_cert_facts *facts, struct kv_buf *ret_json);
KV_RC kv_cert_jws(struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws);
/* A JWK set (RFC 7517) with this one key, for /.well-known/kvrun/jwks.json. */
KV_RC kv_cert_jwks(const uint8_t public_key[32], struct kv_buf *ret_json);
/* The Ed25519 keys of a set, at most `max`. Passes over other kinds of keys and those with `revoked_at`; a key whose
 * kid is not its thumbprint spoils the set (KV_E_INVALID_REQUEST). */
KV_RC kv_cert_jwks_parse(struct kv_bytes jwks, struct kv_errinfo *info, uint8_t (*ret_keys)[32], size_t max,
                         size_t *ret_count);

KV_RC kv_cert_bundle(struct kv_bytes jws, uint64_t index, const struct kv_hash *proof, size_t proof_count,
                     struct kv_bytes checkpoint_note, struct kv_buf *ret_text);

struct kv_cert_keys {
    uint8_t cert_public[32];
    uint8_t log_public[32];
    char log_origin_prefix[256]; /* tenant logs are "<prefix>/t_…"; empty: any */
};

enum kv_cert_check {
    KV_CHECK_FORM,   /* the bundle's lines, canonical base64, nothing after the end */
    KV_CHECK_HEADER, /* alg, typ, kid allowed and of a known key */
    KV_CHECK_SIGNATURE,
    KV_CHECK_CANONICAL,  /* the payload is its own canonical form */
    KV_CHECK_CLAIMS,     /* required members, their types, states that make sense together */
    KV_CHECK_CHECKPOINT, /* signature of the log */
    KV_CHECK_INCLUSION,
    KV_CHECK_COVERS, /* the checkpoint covers request and destruction */
    KV_CHECK_COUNT
};

const char *kv_cert_check_name(enum kv_cert_check check); /* "form", "header", … */

struct kv_cert_report {
    bool ok;
    bool upgrade;           /* by its header it is the statement that follows a certificate (upgrade.h) */
    uint64_t index;         /* of the leaf; a JWS alone has none */
    uint8_t jws_sha256[32]; /* once it has the form */
    struct {
        bool ok;
        char detail[160];
    } checks[KV_CHECK_COUNT];
    struct kv_buf payload; /* owned: kv_buf_done */
};

/* Verifies a certificate, or the statement that follows one, whichever the header says. The bytes are taken as they
 * are; nothing is re-serialised. KV_E_TAMPERED when a check failed (the report says which); other codes: not verifiable
 * at all. The report is filled, and its payload owned by the caller, for KV_OK and KV_E_TAMPERED. */
KV_RC kv_cert_verify(struct kv_bytes bundle, const struct kv_cert_keys *keys, struct kv_cert_report *ret_report);
/* The same for a compact JWS alone: the first five checks. That it is in a log nothing here shows, and the report says
 * so. */
KV_RC kv_cert_verify_jws(struct kv_bytes jws, const struct kv_cert_keys *keys, struct kv_cert_report *ret_report);

#endif

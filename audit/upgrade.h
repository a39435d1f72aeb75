/*
 * What follows a certificate: one statement that the ciphertext is gone from every tier of every instance that may have
 * had any, and which instances that were shut out by their lease have been heard of since. A JWS of its own type,
 * signed like the certificate, a leaf of the same log, with a bundle of the same form. It takes everything about the
 * erasure from the certificate that it names. FORMAT.md describes every member. The same inputs give the same bytes.
 */
#ifndef KV_AUDIT_UPGRADE_H
#define KV_AUDIT_UPGRADE_H

#include "audit/certificate.h"

#define KV_UPGRADE_CONFIRMED_MAX 64u /* that a statement can name */

/* One that has dropped all blocks, durably. */
struct kv_upgrade_confirmed {
    struct kv_id instance;
    struct kv_id folder; /* of its nvme; zero: it has none, and confirms for dram alone */
    uint64_t at_us;
};

/* One that the certificate calls `expired`, and that holds no key any more. */
struct kv_upgrade_closed {
    struct kv_id instance;
    const char *how; /* "acked": it said so since; "ended": it left in order */
    uint64_t at_us;
};

/* All pointers borrowed for the call. */
struct kv_upgrade_facts {
    struct kv_id jti; /* "upg" */
    uint64_t issued_us;
    const char *issuer;
    struct kv_bytes certificate;                  /* the compact JWS */
    uint64_t certificate_index;                   /* its leaf */
    const struct kv_upgrade_confirmed *confirmed; /* at least one */
    size_t confirmed_count;
    const struct kv_upgrade_closed *closed; /* all that the certificate calls expired, or KV_E_INVALID_STATE */
    size_t closed_count;
    const char *tool_version;
};

/* KV_E_INVALID_STATE: these facts and this certificate make no statement. KV_E_INVALID_REQUEST: a text or number
 * outside the profile, or more than there is room for. */
KV_RC kv_upgrade_payload(const struct kv_upgrade_facts *facts, struct kv_buf *ret_json);
KV_RC kv_upgrade_jws(struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws);

/* Both verified: whether the statement is about this certificate, and follows from it. Says in any case why. */
bool kv_upgrade_follows(const struct kv_cert_report *statement, const struct kv_cert_report *certificate,
                        char ret_detail[160]);

#endif

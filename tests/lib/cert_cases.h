/*
 * Erasure certificates for tests: facts of an erasure that succeeded, two keys from fixed seeds, and a small log around
 * any JWS. Everything is repeatable: the same call gives the same bytes.
 */
#ifndef KV_TESTS_CERT_CASES_H
#define KV_TESTS_CERT_CASES_H

#include "audit/upgrade.h"

#define CERT_CASES_PREFIX "kv.example.com/audit"
#define CERT_CASES_ORIGIN CERT_CASES_PREFIX "/t_9f3a2c"

struct cert_cases {
    struct kv_sign_key *cert_key, *log_key, *other_key;
    struct kv_cert_keys keys;
};

/* Makes the secrets' arena, too. Exits 77 when it cannot. */
void cert_cases_init(struct cert_cases *cases);
void cert_cases_done(struct cert_cases *cases);

struct kv_cert_facts cert_cases_facts(void); /* borrowed static strings */

/* A log: so many other leaves before and after the certificate, signed with `key` for `origin`. */
struct cert_cases_log {
    uint64_t before, after;
    const char *origin;
    const struct kv_sign_key *key;
};
struct cert_cases_log cert_cases_log(const struct cert_cases *cases); /* 10 before, 7 after, the usual origin and key */
void cert_cases_bundle(const struct cert_cases_log *log, struct kv_bytes jws, struct kv_buf *ret_text);
/* A JWS over any header and payload, signed with `key`. */
void cert_cases_jws(const char *header, struct kv_bytes payload, const struct kv_sign_key *key, struct kv_buf *ret_jws);
struct kv_cert_facts cert_cases_anchored(void); /* the same with an anchor: version 2 of the payload */
/* A good bundle. */
void cert_cases_good(const struct cert_cases *cases, struct kv_buf *ret_text);
void cert_cases_of(const struct cert_cases *cases, const struct kv_cert_facts *facts, struct kv_buf *ret_text);
/* The certificate of these facts, and a statement that follows it; both bundles. */
struct kv_upgrade_facts cert_cases_upgrade(void); /* borrowed static strings; without certificate and index */
void cert_cases_statement(const struct cert_cases *cases, const struct kv_cert_facts *facts,
                          const struct kv_upgrade_facts *upgrade, struct kv_buf *ret_certificate,
                          struct kv_buf *ret_statement);
/* The payload of that statement alone; what kv_upgrade_payload said. */
enum kv_err cert_cases_statement_payload(const struct cert_cases *cases, const struct kv_cert_facts *facts,
                                         const struct kv_upgrade_facts *upgrade, struct kv_buf *ret_payload);
/* Writes jwks.json and log.vkey into `folder`. */
void cert_cases_write_keys(const struct cert_cases *cases, const char *folder);

#endif

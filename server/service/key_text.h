/*
 * The text of an API key: kvrun_<env>_<kid: 8 base62>_<secret: 43 base62>_<crc32 of all before, 6 base62>. Prefix and
 * check characters let secret scanners find it and a typo be refused without asking anybody. 256 random bits need no
 * slow hash: the database holds the SHA-256 of the secret. Thread: any.
 */
#ifndef KV_SERVICE_KEY_TEXT_H
#define KV_SERVICE_KEY_TEXT_H

#include "dataplane/base/env.h"
#include "server/store/store_tenant.h"

#define SVC_KEY_TEXT_SIZE 96

/* The parts of a key's text; the secret is hashed at once. False: it is not the text of a key. */
struct svc_key_parts {
    char kid[KV_API_KID_SIZE];
    uint8_t secret_sha256[32];
};
KV_RC svc_key_parse(const char *text, struct svc_key_parts *ret_parts); /* KV_E_UNAUTHENTICATED */

KV_RC svc_key_draw_kid(const struct kv_env *env, char ret_kid[KV_API_KID_SIZE]);
/* A new secret for `kid`: its text, to be wiped by the caller, and its hash. */
KV_RC svc_key_draw_secret(const struct kv_env *env, const char *kid, uint8_t ret_sha256[32],
                          char ret_text[SVC_KEY_TEXT_SIZE]);

#endif

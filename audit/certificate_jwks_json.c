/* Key sets (RFC 7517). Must never hand out a key that was withdrawn, or one that is not the key its name says. */
#include "audit/certificate.h"

#include "audit/certificate_form_int.h"

#include <jansson.h>
#include <string.h>

/* One key of a set: 1 taken, 0 passed over (another kind of key, or withdrawn), -1 not valid. */
static int read_jwk(const json_t *jwk, uint8_t ret_key[32])
{
    size_t len = 0;
    if (!json_is_object(jwk)) {
        return -1;
    }
    if (!kv_form_is_text(json_object_get(jwk, "kty"), "OKP") ||
        !kv_form_is_text(json_object_get(jwk, "crv"), "Ed25519") || json_object_get(jwk, "revoked_at") != NULL) {
        return 0;
    }
    const json_t *x = json_object_get(jwk, "x");
    uint8_t key[32];
    char kid[44];
    if (!kv_form_is_text(x, NULL) ||
        kv_base64url_decode(json_string_value(x), json_string_length(x), key, sizeof(key), &len) != KV_OK ||
        len != sizeof(key) || kv_cert_kid(key, kid) != KV_OK || !kv_form_is_text(json_object_get(jwk, "kid"), kid)) {
        return -1;
    }
    memcpy(ret_key, key, sizeof(key));
    return 1;
}

KV_RC kv_cert_jwks_parse(struct kv_bytes jwks, struct kv_errinfo *info, uint8_t (*ret_keys)[32], size_t max,
                         size_t *ret_count)
{
    json_t *root = json_loadb((const char *)jwks.data, jwks.len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *keys = json_object_get(root, "keys");
    size_t count = 0;
    enum kv_err rc =
        json_is_array(keys) ? KV_OK : kv_fail(info, KV_E_INVALID_REQUEST, "not a JWK set: it has no array \"keys\"");
    for (size_t i = 0; rc == KV_OK && i < json_array_size(keys); i++) {
        if (count == max) {
            rc = kv_fail(info, KV_E_LIMIT, "more than %zu keys in the set", max);
            break;
        }
        int taken = read_jwk(json_array_get(keys, i), ret_keys[count]);
        if (taken < 0) {
            rc = kv_fail(info, KV_E_INVALID_REQUEST,
                         "key %zu of the set is not a valid Ed25519 key with its thumbprint", i);
        }
        count += taken > 0 ? 1 : 0;
    }
    json_decref(root);
    KV_TRY(rc);
    *ret_count = count;
    return KV_OK;
}

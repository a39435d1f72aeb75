/*
 * HKDF-Expand-SHA512 for many outputs of one key, as the blocks of a session need it: HMAC hashes its key into two
 * states, and that, with looking the digest up, takes as long as the rest, so both are kept. They are worth as much as
 * the key: they lie in OpenSSL's heap (heap.c), a copy of the key to compare with in the arena, and all of it is wiped
 * by kv_expander_forget. Must never outlive what entitles its owner to the key.
 */
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash_int.h"
#include "dataplane/crypto/kdf_int.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <string.h>

enum { HASH_BYTES = 64 };

struct kv_expander {
    EVP_MAC *mac;
    EVP_MAC_CTX *keyed;    /* NULL: no key */
    struct kv_secret *key; /* of `keyed` */
};

KV_RC kv_expander_new(struct kv_expander **ret_expander)
{
    struct kv_expander *expander = kv_alloc(sizeof *expander);
    if (expander == NULL) {
        return KV_E_NO_MEMORY;
    }
    expander->mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    if (expander->mac == NULL) {
        kv_free(expander);
        return kv_crypto_failed();
    }
    *ret_expander = expander;
    return KV_OK;
}

void kv_expander_forget(struct kv_expander *expander)
{
    EVP_MAC_CTX_free(expander->keyed);
    kv_secret_free(expander->key);
    expander->keyed = NULL;
    expander->key = NULL;
}

void kv_expander_free(struct kv_expander *expander)
{
    if (expander != NULL) {
        kv_expander_forget(expander);
        EVP_MAC_free(expander->mac);
        kv_free(expander);
    }
}

static bool has_key(const struct kv_expander *expander, struct kv_bytes prk)
{
    return expander->keyed != NULL && kv_secret_len(expander->key) == prk.len &&
           kv_equal_constant_time(kv_secret_data(expander->key), prk.data, prk.len);
}

static KV_RC take_key(struct kv_expander *expander, struct kv_bytes prk)
{
    char digest[] = "SHA512";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                 OSSL_PARAM_construct_end()};
    kv_expander_forget(expander);
    KV_TRY(kv_secret_copy(prk.data, prk.len, &expander->key));
    expander->keyed = EVP_MAC_CTX_new(expander->mac);
    if (expander->keyed == NULL || EVP_MAC_init(expander->keyed, prk.data, prk.len, params) != 1) {
        kv_expander_forget(expander);
        return kv_crypto_failed();
    }
    return KV_OK;
}

/* T(i) = HMAC(key, T(i-1) | info | i), RFC 5869 section 2.3. A start without a key takes the states that are kept. */
static bool next_part(EVP_MAC_CTX *keyed, struct kv_bytes before, struct kv_bytes info, uint8_t number,
                      uint8_t ret_part[HASH_BYTES])
{
    size_t written = 0;
    return EVP_MAC_init(keyed, NULL, 0, NULL) == 1 &&
           (before.len == 0 || EVP_MAC_update(keyed, before.data, before.len) == 1) &&
           (info.len == 0 || EVP_MAC_update(keyed, info.data, info.len) == 1) &&
           EVP_MAC_update(keyed, &number, 1) == 1 && EVP_MAC_final(keyed, ret_part, &written, HASH_BYTES) == 1 &&
           written == HASH_BYTES;
}

static bool expand(EVP_MAC_CTX *keyed, struct kv_bytes info, uint8_t *okm, size_t len)
{
    uint8_t part[HASH_BYTES];
    size_t before = 0;
    bool done = true;
    for (uint8_t number = 1; done && len > 0; number++) {
        size_t take = len < HASH_BYTES ? len : HASH_BYTES;
        done = next_part(keyed, KV_BYTES(part, before), info, number, part);
        if (done) {
            memcpy(okm, part, take);
        }
        before = HASH_BYTES;
        okm += take;
        len -= take;
    }
    kv_wipe(part, sizeof part);
    return done;
}

KV_RC kv_expander_expand(struct kv_expander *expander, struct kv_bytes prk, struct kv_bytes info, void *ret_okm,
                         size_t len)
{
    if (len == 0 || prk.len == 0) {
        return KV_E_INVALID_REQUEST;
    }
    if (len > 255 * HASH_BYTES || prk.len > (size_t)KV_MAX_SECRET_BYTES) {
        return KV_E_LIMIT;
    }
    if (!has_key(expander, prk)) {
        KV_TRY(take_key(expander, prk));
    }
    bool done = expand(expander->keyed, info, ret_okm, len);
    kv_forget();
    if (!done) {
        kv_expander_forget(expander);
        return kv_crypto_failed();
    }
    return KV_OK;
}

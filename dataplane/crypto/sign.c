/*
 * Ed25519 over OpenSSL, from a seed in the arena: OpenSSL's own form of the key lives for one signature and is wiped
 * when it is freed. Never sign what another part of the program has not framed with its purpose.
 */
#include "dataplane/crypto/sign.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash_int.h"
#include "dataplane/crypto/sign_int.h"

#include <openssl/evp.h>
#include <string.h>

enum { SIGNATURE_BYTES = 64, PUBLIC_BYTES = 32 };

struct kv_sign_key {
    struct kv_secret *seed; /* owned */
    uint8_t public_key[PUBLIC_BYTES];
};

static EVP_PKEY *private_key(const struct kv_secret *seed)
{
    return EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, kv_secret_data(seed), kv_secret_len(seed));
}

static KV_RC fill_public(struct kv_sign_key *key)
{
    EVP_PKEY *pkey = private_key(key->seed);
    size_t len = sizeof key->public_key;
    bool done = pkey != NULL && EVP_PKEY_get_raw_public_key(pkey, key->public_key, &len) == 1;
    EVP_PKEY_free(pkey);
    kv_forget();
    return done ? KV_OK : kv_crypto_failed();
}

KV_RC kv_sign_key_of(struct kv_secret *seed, struct kv_sign_key **ret_key)
{
    struct kv_sign_key *key = kv_alloc(sizeof *key);
    if (key == NULL) {
        kv_secret_free(seed);
        return KV_E_NO_MEMORY;
    }
    key->seed = seed;
    enum kv_err rc = fill_public(key);
    if (rc != KV_OK) {
        kv_sign_key_free(key);
        return rc;
    }
    *ret_key = key;
    return KV_OK;
}

KV_RC kv_sign_key_from_seed(const uint8_t seed[32], struct kv_sign_key **ret_key)
{
    struct kv_secret *secret = NULL;
    KV_TRY(kv_secret_copy(seed, KV_SIGN_SEED_BYTES, &secret));
    return kv_sign_key_of(secret, ret_key);
}

void kv_sign_key_free(struct kv_sign_key *key)
{
    if (key == NULL) {
        return;
    }
    kv_secret_free(key->seed);
    kv_free(key);
}

void kv_sign_public(const struct kv_sign_key *key, uint8_t ret_public[32])
{
    memcpy(ret_public, key->public_key, PUBLIC_BYTES);
}

/* OpenSSL takes no NULL message, not even an empty one. */
static const uint8_t *message_data(struct kv_bytes message)
{
    static const uint8_t none[1];
    return message.len > 0 ? message.data : none;
}

KV_RC kv_sign(const struct kv_sign_key *key, struct kv_bytes message, uint8_t ret_signature[64])
{
    EVP_PKEY *pkey = private_key(key->seed);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    size_t len = SIGNATURE_BYTES;
    bool done = pkey != NULL && ctx != NULL && EVP_DigestSignInit(ctx, NULL, NULL, NULL, pkey) == 1 &&
                EVP_DigestSign(ctx, ret_signature, &len, message_data(message), message.len) == 1 &&
                len == SIGNATURE_BYTES;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(pkey);
    kv_forget();
    return done ? KV_OK : kv_crypto_failed();
}

KV_RC kv_verify(const uint8_t public_key[32], struct kv_bytes message, struct kv_bytes signature)
{
    if (signature.len != SIGNATURE_BYTES) {
        return KV_E_TAMPERED;
    }
    EVP_PKEY *pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, public_key, PUBLIC_BYTES);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ready = pkey != NULL && ctx != NULL && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pkey) == 1;
    bool valid = ready && EVP_DigestVerify(ctx, signature.data, signature.len, message_data(message), message.len) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(pkey);
    if (valid) {
        return KV_OK;
    }
    enum kv_err rc = kv_crypto_failed();
    return ready ? KV_E_TAMPERED : rc;
}

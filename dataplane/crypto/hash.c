/*
 * SHA-256 and HMAC over OpenSSL. Contexts live for one call, because OpenSSL wipes what it kept of a key when it frees
 * one.
 */
#define OPENSSL_SUPPRESS_DEPRECATED /* for SHA256_Init and its like, see kv_sha256_public */

#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/hash_int.h"
#include "dataplane/crypto/heap_int.h"
#include "dataplane/crypto/selftest.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/sha.h>
#include <pthread.h>

enum kv_err kv_crypto_failed(void)
{
    ERR_clear_error();
    return kv_heap_refused() ? KV_E_NO_MEMORY : KV_E_CRYPTO;
}

KV_RC kv_sha256(struct kv_bytes data, uint8_t ret_hash[32])
{
    return kv_sha256_parts(&data, 1, ret_hash);
}

/* Asking OpenSSL for an algorithm by name takes longer than hashing a few hundred bytes, so it is asked once. */
static EVP_MD *sha256;
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;

static void fetch_sha256(void)
{
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
}

static bool sha256_run(EVP_MD_CTX *ctx, const struct kv_bytes *parts, size_t count, uint8_t ret_hash[32])
{
    if (pthread_once(&sha256_once, fetch_sha256) != 0 || sha256 == NULL || EVP_DigestInit_ex2(ctx, sha256, NULL) != 1) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].len > 0 && EVP_DigestUpdate(ctx, parts[i].data, parts[i].len) != 1) {
            return false;
        }
    }
    return EVP_DigestFinal_ex(ctx, ret_hash, NULL) == 1;
}

KV_RC kv_sha256_parts(const struct kv_bytes *parts, size_t count, uint8_t ret_hash[32])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool done = ctx != NULL && sha256_run(ctx, parts, count, ret_hash);
    EVP_MD_CTX_free(ctx);
    return done ? KV_OK : kv_crypto_failed();
}

/* OpenSSL's EVP takes longer to get ready than to hash 65 bytes, so this goes past it. */
KV_RC kv_sha256_public(const struct kv_bytes *parts, size_t count, uint8_t ret_hash[32])
{
    SHA256_CTX ctx;
    bool done = SHA256_Init(&ctx) == 1;
    for (size_t i = 0; i < count && done; i++) {
        done = parts[i].len == 0 || SHA256_Update(&ctx, parts[i].data, parts[i].len) == 1;
    }
    return done && SHA256_Final(ret_hash, &ctx) == 1 ? KV_OK : kv_crypto_failed();
}

static bool hmac_run(EVP_MAC_CTX *ctx, const char *digest, struct kv_bytes key, const struct kv_bytes *parts,
                     size_t count)
{
    char name[16];
    if (OPENSSL_strlcpy(name, digest, sizeof name) >= sizeof name) {
        return false;
    }
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name, 0),
                           OSSL_PARAM_construct_end()};
    if (EVP_MAC_init(ctx, key.data, key.len, params) != 1) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (parts[i].len > 0 && EVP_MAC_update(ctx, parts[i].data, parts[i].len) != 1) {
            return false;
        }
    }
    return true;
}

KV_RC kv_hmac_raw(const char *digest, struct kv_bytes key, const struct kv_bytes *parts, size_t count, uint8_t *ret_mac,
                  size_t mac_len)
{
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = mac != NULL ? EVP_MAC_CTX_new(mac) : NULL;
    size_t written = 0;
    bool done = ctx != NULL && hmac_run(ctx, digest, key, parts, count) && EVP_MAC_CTX_get_mac_size(ctx) == mac_len &&
                EVP_MAC_final(ctx, ret_mac, &written, mac_len) == 1 && written == mac_len;
    EVP_MAC_CTX_free(ctx);
    EVP_MAC_free(mac);
    kv_forget();
    return done ? KV_OK : kv_crypto_failed();
}

KV_RC kv_hmac_sha256(const struct kv_secret *key, const struct kv_bytes *parts, size_t count, uint8_t ret_mac[32])
{
    return kv_hmac_raw("SHA256", KV_BYTES(kv_secret_data(key), kv_secret_len(key)), parts, count, ret_mac, 32);
}

const char *kv_crypto_version(void)
{
    return OpenSSL_version(OPENSSL_FULL_VERSION_STRING);
}

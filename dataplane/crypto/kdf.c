/*
 * HKDF over OpenSSL's EVP_KDF. The KDF context lives for one call: freeing it wipes OpenSSL's copy of the key.
 * Never call with a text that somebody outside chose as the purpose.
 */
#include "dataplane/crypto/kdf.h"
#include "dataplane/base/check.h"
#include "dataplane/crypto/hash_int.h"
#include "dataplane/crypto/kdf.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <string.h>

#define LABEL_PREFIX "kvrun/v1/"

enum { INFO_BYTES_MAX = 1024 /* OpenSSL's own bound is somewhat above */ };

struct hkdf_input {
    const char *digest;
    int mode;
    size_t hash_len;
    struct kv_bytes key, salt, info;
};

/* OSSL_PARAM wants pointers to mutable bytes although it only reads them. */
static void *unconst(const void *pointer)
{
    return (void *)(uintptr_t)pointer;
}

static size_t add_octets(OSSL_PARAM *param, const char *name, struct kv_bytes bytes)
{
    static const uint8_t none[1];
    const uint8_t *data = bytes.len > 0 ? bytes.data : none;
    *param = OSSL_PARAM_construct_octet_string(name, unconst(data), bytes.len);
    return 1;
}

static bool hkdf_run(EVP_KDF_CTX *ctx, const struct hkdf_input *input, void *ret_okm, size_t len)
{
    OSSL_PARAM params[6];
    size_t count = 0;
    int mode = input->mode;
    params[count++] = OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, unconst(input->digest), 0);
    params[count++] = OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode);
    count += add_octets(&params[count], OSSL_KDF_PARAM_KEY, input->key);
    if (input->salt.len > 0) {
        count += add_octets(&params[count], OSSL_KDF_PARAM_SALT, input->salt);
    }
    if (input->info.len > 0) {
        count += add_octets(&params[count], OSSL_KDF_PARAM_INFO, input->info);
    }
    params[count] = OSSL_PARAM_construct_end();
    return EVP_KDF_derive(ctx, ret_okm, len, params) == 1;
}

static KV_RC derive(const struct hkdf_input *input, void *ret_okm, size_t len)
{
    if (len == 0) {
        return KV_E_INVALID_REQUEST;
    }
    if (input->info.len > INFO_BYTES_MAX || len > 255 * input->hash_len) {
        return KV_E_LIMIT;
    }
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf != NULL ? EVP_KDF_CTX_new(kdf) : NULL;
    bool done = ctx != NULL && hkdf_run(ctx, input, ret_okm, len);
    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    kv_forget();
    return done ? KV_OK : kv_crypto_failed();
}

KV_RC kv_hkdf_sha512(struct kv_bytes salt, struct kv_bytes ikm, struct kv_bytes info, void *ret_okm, size_t len)
{
    const struct hkdf_input input = {.digest = "SHA512",
                                     .mode = EVP_KDF_HKDF_MODE_EXTRACT_AND_EXPAND,
                                     .hash_len = 64,
                                     .key = ikm,
                                     .salt = salt,
                                     .info = info};
    return derive(&input, ret_okm, len);
}

KV_RC kv_hkdf_expand_sha512(struct kv_bytes prk, struct kv_bytes info, void *ret_okm, size_t len)
{
    const struct hkdf_input input = {
        .digest = "SHA512", .mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY, .hash_len = 64, .key = prk, .info = info};
    return derive(&input, ret_okm, len);
}

KV_RC kv_hkdf_sha256(struct kv_bytes salt, struct kv_bytes ikm, struct kv_bytes info, void *ret_okm, size_t len)
{
    const struct hkdf_input input = {.digest = "SHA256",
                                     .mode = EVP_KDF_HKDF_MODE_EXTRACT_AND_EXPAND,
                                     .hash_len = 32,
                                     .key = ikm,
                                     .salt = salt,
                                     .info = info};
    return derive(&input, ret_okm, len);
}

static void write_prefixed(struct kv_writer *writer, struct kv_bytes field)
{
    if (field.len > UINT16_MAX) {
        writer->failed = true;
        return;
    }
    kv_write_u16(writer, (uint16_t)field.len);
    kv_write_raw(writer, field.data, field.len);
}

/* info = length | "kvrun/v1/" purpose | (length | field) …  The label has its length in front, too, so that no label is
 * the beginning of another. */
static KV_RC write_info(const char *purpose, const struct kv_bytes *fields, size_t count, struct kv_writer *writer)
{
    size_t purpose_len = strlen(purpose);
    KV_ASSERT(purpose_len > 0 && purpose_len < 128);
    kv_write_u16(writer, (uint16_t)(sizeof LABEL_PREFIX - 1 + purpose_len));
    kv_write_raw(writer, LABEL_PREFIX, sizeof LABEL_PREFIX - 1);
    kv_write_raw(writer, purpose, purpose_len);
    for (size_t i = 0; i < count && !writer->failed; i++) {
        write_prefixed(writer, fields[i]);
    }
    return writer->failed ? KV_E_LIMIT : KV_OK;
}

KV_RC kv_kdf_derive(const struct kv_secret *key, const char *purpose, const struct kv_bytes *fields, size_t count,
                    size_t len, struct kv_secret **ret_secret)
{
    uint8_t info[INFO_BYTES_MAX];
    struct kv_writer writer = kv_writer_of(info, sizeof info);
    struct kv_secret *secret = NULL;
    KV_TRY(kv_secret_new(len, &secret));
    enum kv_err rc = write_info(purpose, fields, count, &writer);
    if (rc == KV_OK) {
        rc = kv_hkdf_sha512(KV_BYTES(NULL, 0), KV_BYTES(kv_secret_data(key), kv_secret_len(key)),
                            KV_BYTES(info, kv_writer_len(&writer)), kv_secret_data_mutable(secret), len);
    }
    /* A field may itself be secret (a tenant's outer share). */
    kv_wipe(info, sizeof info);
    if (rc != KV_OK) {
        kv_secret_free(secret);
        return rc;
    }
    *ret_secret = secret;
    return KV_OK;
}

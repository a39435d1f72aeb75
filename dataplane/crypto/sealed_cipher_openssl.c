/*
 * AES-256-GCM over OpenSSL's EVP. The cipher is fetched once; the context is reset after each block, because that is
 * what makes OpenSSL wipe its key schedule.
 */
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash_int.h"
#include "dataplane/crypto/sealed_int.h"

#include <limits.h>
#include <openssl/evp.h>

struct state {
    EVP_CIPHER *cipher;
    EVP_CIPHER_CTX *ctx;
};

static void openssl_close(void *opaque)
{
    struct state *state = opaque;
    if (state == NULL) {
        return;
    }
    EVP_CIPHER_CTX_free(state->ctx);
    EVP_CIPHER_free(state->cipher);
    kv_free(state);
}

static KV_RC openssl_open(void **ret_state)
{
    struct state *state = kv_alloc(sizeof *state);
    if (state == NULL) {
        return KV_E_NO_MEMORY;
    }
    state->cipher = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    state->ctx = EVP_CIPHER_CTX_new();
    if (state->cipher == NULL || state->ctx == NULL) {
        openssl_close(state);
        return kv_crypto_failed();
    }
    *ret_state = state;
    return KV_OK;
}

static KV_RC openssl_set_key(void *opaque, const uint8_t key[KV_AEAD_KEY_BYTES])
{
    struct state *state = opaque;
    /* The direction is told again with each nonce; GCM's schedule is the same for both. */
    return EVP_CipherInit_ex2(state->ctx, state->cipher, key, NULL, 1, NULL) == 1 ? KV_OK : kv_crypto_failed();
}

static void openssl_clear(void *opaque)
{
    struct state *state = opaque;
    EVP_CIPHER_CTX_reset(state->ctx);
}

static KV_RC openssl_start(void *opaque, const uint8_t nonce[KV_AEAD_NONCE_BYTES], bool sealing)
{
    struct state *state = opaque;
    return EVP_CipherInit_ex2(state->ctx, NULL, NULL, nonce, sealing ? 1 : 0, NULL) == 1 ? KV_OK : kv_crypto_failed();
}

static KV_RC openssl_update(void *opaque, uint8_t *target, const uint8_t *source, size_t len)
{
    struct state *state = opaque;
    int written = 0;
    if (len > INT_MAX) {
        return KV_E_LIMIT;
    }
    if (len == 0) {
        return KV_OK;
    }
    return EVP_CipherUpdate(state->ctx, target, &written, source, (int)len) == 1 && (size_t)written == len
               ? KV_OK
               : kv_crypto_failed();
}

static KV_RC openssl_finish_seal(void *opaque, uint8_t ret_tag[KV_AEAD_TAG_BYTES])
{
    struct state *state = opaque;
    uint8_t none[16];
    int written = 0;
    bool done = EVP_CipherFinal_ex(state->ctx, none, &written) == 1 && written == 0 &&
                EVP_CIPHER_CTX_ctrl(state->ctx, EVP_CTRL_AEAD_GET_TAG, (int)KV_AEAD_TAG_BYTES, ret_tag) == 1;
    return done ? KV_OK : kv_crypto_failed();
}

static KV_RC openssl_finish_open(void *opaque, const uint8_t tag[KV_AEAD_TAG_BYTES])
{
    struct state *state = opaque;
    uint8_t none[16];
    int written = 0;
    /* The call only reads the tag, though its parameter is not const. */
    if (EVP_CIPHER_CTX_ctrl(state->ctx, EVP_CTRL_AEAD_SET_TAG, (int)KV_AEAD_TAG_BYTES, (void *)(uintptr_t)tag) != 1) {
        return kv_crypto_failed();
    }
    if (EVP_CipherFinal_ex(state->ctx, none, &written) != 1) {
        kv_crypto_failed();
        return KV_E_TAMPERED;
    }
    return KV_OK;
}

const struct kv_cipher_ops kv_cipher_openssl = {
    .name = "openssl",
    .open = openssl_open,
    .close = openssl_close,
    .set_key = openssl_set_key,
    .clear = openssl_clear,
    .start = openssl_start,
    .update = openssl_update,
    .finish_seal = openssl_finish_seal,
    .finish_open = openssl_finish_open,
};

/*
 * What `kvrun bench seal` is held against beside memcpy: OpenSSL's AES-256-GCM as anybody would call it, without
 * chunks, derivation or header. Its speed depends on where the heap puts a context, so there are eight.
 */
#include "server/bench/bench_seal_int.h"

#include "dataplane/base/mem.h"

#include <openssl/evp.h>
#include <string.h>

struct seal_evp {
    EVP_CIPHER *cipher;
    EVP_CIPHER_CTX *contexts[SEAL_CONTEXTS];
    uint64_t messages;
};

KV_RC seal_evp_new(struct seal_evp **ret_evp)
{
    static const uint8_t key[32] = {1};
    struct seal_evp *evp = kv_alloc(sizeof *evp);
    if (evp == NULL) {
        return KV_E_NO_MEMORY;
    }
    evp->cipher = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    for (unsigned i = 0; i < SEAL_CONTEXTS; i++) {
        evp->contexts[i] = EVP_CIPHER_CTX_new();
        if (evp->cipher == NULL || evp->contexts[i] == NULL ||
            EVP_EncryptInit_ex2(evp->contexts[i], evp->cipher, key, NULL, NULL) != 1) {
            seal_evp_free(evp);
            return KV_E_CRYPTO;
        }
    }
    *ret_evp = evp;
    return KV_OK;
}

void seal_evp_free(struct seal_evp *evp)
{
    for (unsigned i = 0; evp != NULL && i < SEAL_CONTEXTS; i++) {
        EVP_CIPHER_CTX_free(evp->contexts[i]);
    }
    if (evp != NULL) {
        EVP_CIPHER_free(evp->cipher);
    }
    kv_free(evp);
}

KV_RC seal_evp_seal(struct seal_evp *evp, unsigned context, const struct kv_segment *source, size_t count,
                    uint8_t *target)
{
    EVP_CIPHER_CTX *ctx = evp->contexts[context];
    uint8_t nonce[12] = {0}, tag[16];
    int len = 0;
    evp->messages++;
    memcpy(nonce, &evp->messages, sizeof evp->messages);
    bool done = EVP_EncryptInit_ex2(ctx, NULL, NULL, nonce, NULL) == 1;
    for (size_t i = 0; done && i < count; i++) {
        done = EVP_EncryptUpdate(ctx, target, &len, source[i].data, (int)source[i].len) == 1;
        target += source[i].len;
    }
    done = done && EVP_EncryptFinal_ex(ctx, target, &len) == 1 &&
           EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG, (int)sizeof tag, tag) == 1;
    return done ? KV_OK : KV_E_CRYPTO;
}

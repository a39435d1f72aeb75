/*
 * AES-256-GCM over libipsec-mb's direct functions, several times as fast as EVP on processors with VAES. Key schedule
 * and message state lie in locked memory and are wiped after each block. The manager itself holds function pointers and
 * no keys.
 */
#ifdef KV_HAVE_IPSEC_MB
#include "dataplane/base/mem.h"
#include "dataplane/crypto/sealed_int.h"

#include <intel-ipsec-mb.h>

struct state {
    struct gcm_key_data key; /* aligned to 64 bytes by its own declaration */
    struct gcm_context_data message;
    IMB_MGR *manager;
    bool sealing;
};

static void ipsec_close(void *opaque)
{
    struct state *state = opaque;
    if (state == NULL) {
        return;
    }
    if (state->manager != NULL) {
        free_mb_mgr(state->manager);
    }
    kv_locked_free(state, sizeof *state);
}

static KV_RC ipsec_open(void **ret_state)
{
    void *memory = NULL;
    KV_TRY(kv_locked_alloc(sizeof(struct state), &memory));
    struct state *state = memory;
    state->manager = alloc_mb_mgr(0);
    if (state->manager == NULL) {
        ipsec_close(state);
        return KV_E_NO_MEMORY;
    }
    IMB_ARCH arch = IMB_ARCH_NONE;
    init_mb_mgr_auto(state->manager, &arch);
    if (imb_get_errno(state->manager) != 0 || arch == IMB_ARCH_NONE || arch == IMB_ARCH_NOAESNI) {
        ipsec_close(state);
        return KV_E_UNSUPPORTED;
    }
    *ret_state = state;
    return KV_OK;
}

static KV_RC checked(const struct state *state)
{
    return imb_get_errno(state->manager) == 0 ? KV_OK : KV_E_CRYPTO;
}

static KV_RC ipsec_set_key(void *opaque, const uint8_t key[KV_AEAD_KEY_BYTES])
{
    struct state *state = opaque;
    IMB_AES256_GCM_PRE(state->manager, key, &state->key);
    return checked(state);
}

static void ipsec_clear(void *opaque)
{
    struct state *state = opaque;
    kv_wipe(&state->key, sizeof state->key);
    kv_wipe(&state->message, sizeof state->message);
}

static KV_RC ipsec_start(void *opaque, const uint8_t nonce[KV_AEAD_NONCE_BYTES], bool sealing)
{
    struct state *state = opaque;
    static const uint8_t no_aad[1];
    state->sealing = sealing;
    IMB_AES256_GCM_INIT(state->manager, &state->key, &state->message, nonce, no_aad, 0);
    return checked(state);
}

static KV_RC ipsec_update(void *opaque, uint8_t *target, const uint8_t *source, size_t len)
{
    struct state *state = opaque;
    if (len == 0) {
        return KV_OK;
    }
    if (state->sealing) {
        IMB_AES256_GCM_ENC_UPDATE(state->manager, &state->key, &state->message, target, source, len);
    } else {
        IMB_AES256_GCM_DEC_UPDATE(state->manager, &state->key, &state->message, target, source, len);
    }
    return checked(state);
}

static KV_RC ipsec_finish_seal(void *opaque, uint8_t ret_tag[KV_AEAD_TAG_BYTES])
{
    struct state *state = opaque;
    IMB_AES256_GCM_ENC_FINALIZE(state->manager, &state->key, &state->message, ret_tag, KV_AEAD_TAG_BYTES);
    return checked(state);
}

static KV_RC ipsec_finish_open(void *opaque, const uint8_t tag[KV_AEAD_TAG_BYTES])
{
    struct state *state = opaque;
    uint8_t computed[KV_AEAD_TAG_BYTES];
    IMB_AES256_GCM_DEC_FINALIZE(state->manager, &state->key, &state->message, computed, sizeof computed);
    enum kv_err rc = checked(state);
    if (rc == KV_OK && !kv_equal_constant_time(computed, tag, sizeof computed)) {
        rc = KV_E_TAMPERED;
    }
    /* The right tag of a forged text is worth something to a forger. */
    kv_wipe(computed, sizeof computed);
    return rc;
}

const struct kv_cipher_ops kv_cipher_ipsec_mb = {
    .name = "ipsec-mb",
    .open = ipsec_open,
    .close = ipsec_close,
    .set_key = ipsec_set_key,
    .clear = ipsec_clear,
    .start = ipsec_start,
    .update = ipsec_update,
    .finish_seal = ipsec_finish_seal,
    .finish_open = ipsec_finish_open,
};
#else
/* ISO C wants at least one declaration in a file. */
extern int kv_cipher_ipsec_mb_is_absent;
#endif

/*
 * From a slot's secret to the keys of one scope. Every derivation has its own label; nothing here keeps a key.
 */
#include "dataplane/crypto/kdf.h"
#include "dataplane/crypto/tell.h"
#include "dataplane/keys/keyring.h"

#include <string.h>

KV_RC kv_scope_secret(const struct kv_secret *slot, const struct kv_id *tenant, const struct kv_id *scope,
                      struct kv_secret **ret_secret)
{
    /* The outer share and its flag have their place in the derivation from the start, so that a tenant without one can
     * never be confused with a tenant whose share happens to be zero. */
    static const uint8_t no_share[32] = {0};
    static const uint8_t no_share_flag = 0;
    const struct kv_bytes fields[] = {
        KV_BYTES(no_share, sizeof(no_share)),
        KV_BYTES(&no_share_flag, 1),
        KV_BYTES(tenant->b, sizeof(tenant->b)),
        KV_BYTES(scope->b, sizeof(scope->b)),
    };
    struct kv_secret *secret = NULL;
    KV_TRY(kv_kdf_derive(slot, "scope", fields, sizeof(fields) / sizeof(fields[0]), 32, &secret));
    KV_TELL_KEY("slot", KV_BYTES(scope->b, sizeof(scope->b)), KV_BYTES(kv_secret_data(slot), kv_secret_len(slot)));
    KV_TELL_KEY("scope", KV_BYTES(scope->b, sizeof(scope->b)), KV_BYTES(kv_secret_data(secret), 32));
    *ret_secret = secret;
    return KV_OK;
}

static KV_RC derive_key(const struct kv_secret *scope_secret, const char *purpose, struct kv_secret **ret_key)
{
    struct kv_secret *key = NULL;
    KV_TRY(kv_kdf_derive(scope_secret, purpose, NULL, 0, 32, &key));
    KV_TELL_KEY(purpose, KV_BYTES(kv_secret_data(scope_secret), kv_secret_len(scope_secret)),
                KV_BYTES(kv_secret_data(key), 32));
    *ret_key = key;
    return KV_OK;
}

KV_RC kv_scope_key_block(const struct kv_secret *scope_secret, struct kv_secret **ret_key)
{
    return derive_key(scope_secret, "block", ret_key);
}

KV_RC kv_scope_key_ids(const struct kv_secret *scope_secret, struct kv_secret **ret_key)
{
    return derive_key(scope_secret, "ids", ret_key);
}

KV_RC kv_scope_key_meta(const struct kv_secret *scope_secret, struct kv_secret **ret_key)
{
    return derive_key(scope_secret, "meta", ret_key);
}

KV_RC kv_scope_fingerprint(const struct kv_secret *scope_secret, uint8_t ret_fingerprint[KV_SCOPE_FINGERPRINT_BYTES])
{
    struct kv_secret *name KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_kdf_derive(scope_secret, "fingerprint", NULL, 0, KV_SCOPE_FINGERPRINT_BYTES, &name));
    memcpy(ret_fingerprint, kv_secret_data(name), KV_SCOPE_FINGERPRINT_BYTES);
    return KV_OK;
}

KV_RC kv_tenant_key_lookup(const struct kv_secret *slot, const struct kv_id *tenant, struct kv_secret **ret_key)
{
    const struct kv_bytes fields[] = {KV_BYTES(tenant->b, sizeof(tenant->b))};
    return kv_kdf_derive(slot, "lookup", fields, 1, 32, ret_key);
}

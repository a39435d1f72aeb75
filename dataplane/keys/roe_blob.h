/*
 * The envelope around a root secret, as the providers of this folder make it: for them, and for the attack program,
 * which tries wrapping keys that it found itself. No medium, no state.
 */
#ifndef KV_KEYS_ROE_BLOB_H
#define KV_KEYS_ROE_BLOB_H

#include "dataplane/base/buf.h"
#include "dataplane/crypto/secret.h"

/* The root secret E under a wrapping key, bound to the root's id. */
KV_RC kv_roe_blob_seal(const struct kv_env *env, const struct kv_secret *wrapping_key, const struct kv_id *id,
                       const struct kv_secret *root, struct kv_buf *ret_blob);
/* KV_E_WRONG_KEY, KV_E_TAMPERED, KV_E_TRUNCATED, KV_E_CORRUPT as kv_sealed_open_flat. */
KV_RC kv_roe_blob_open(const struct kv_secret *wrapping_key, const struct kv_id *id, struct kv_bytes blob,
                       struct kv_secret **ret_root);

#endif

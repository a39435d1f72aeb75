/*
 * What the providers of this folder share: the decisions of the state diagram in roe.h as pure functions over what is
 * on the medium, the envelope around a root secret, and the receipt. It never touches a medium.
 */
#ifndef KV_KEYS_ROE_INT_H
#define KV_KEYS_ROE_INT_H

#include "dataplane/base/id.h"
#include "dataplane/keys/roe.h"

/* What a medium holds; a zero id is "none". */
struct kv_roe_view {
    struct kv_id active, staged;
};

enum kv_roe_step {
    KV_ROE_NOTHING,  /* the wanted state is there already */
    KV_ROE_DESTROY,  /* destroy the other key, then activate */
    KV_ROE_ACTIVATE, /* the other key is gone already (or there never was one): only activate */
    KV_ROE_WRITE,    /* create: write a fresh staged key; discard: destroy the staged one */
};

KV_RC kv_roe_plan_create(const struct kv_roe_view *view, const struct kv_id *id, enum kv_roe_step *ret_step);
KV_RC kv_roe_plan_commit(const struct kv_roe_view *view, const struct kv_id *fresh, const struct kv_id *old,
                         enum kv_roe_step *ret_step);
KV_RC kv_roe_plan_discard(const struct kv_roe_view *view, const struct kv_id *staged, enum kv_roe_step *ret_step);

/* The root secret E under a wrapping key, bound to the root's id. */
KV_RC kv_roe_blob_seal(const struct kv_env *env, const struct kv_secret *wrapping_key, const struct kv_id *id,
                       const struct kv_secret *root, struct kv_buf *ret_blob);
/* KV_E_WRONG_KEY, KV_E_TAMPERED, KV_E_TRUNCATED, KV_E_CORRUPT as kv_sealed_open_flat. */
KV_RC kv_roe_blob_open(const struct kv_secret *wrapping_key, const struct kv_id *id, struct kv_bytes blob,
                       struct kv_secret **ret_root);

KV_RC kv_roe_receipt_make(const struct kv_env *env, const char *provider, const struct kv_id *fresh,
                          const struct kv_id *old, struct kv_roe_receipt *ret_receipt);

#endif

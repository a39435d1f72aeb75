/*
 * What the providers of this folder share: the decisions of the state diagram in roe.h as pure functions over what is
 * on the medium, and the receipt. It never touches a medium.
 */
#ifndef KV_KEYS_ROE_INT_H
#define KV_KEYS_ROE_INT_H

#include "dataplane/base/id.h"
#include "dataplane/keys/roe.h"
#include "dataplane/keys/roe_blob.h"

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

KV_RC kv_roe_receipt_make(const struct kv_env *env, const char *provider, const struct kv_id *fresh,
                          const struct kv_id *old, struct kv_roe_receipt *ret_receipt);

#endif

/*
 * What ktree.c lends to rekey.c: the root as it is now, for the length of one call.
 */
#ifndef KV_KEYS_KTREE_INT_H
#define KV_KEYS_KTREE_INT_H

#include "dataplane/keys/node_int.h"

/* A copy of the root that a running call works with. While it is held, a change of the root waits. */
struct ktree_use {
    struct kv_id root_id;
    struct kv_secret *root_secret; /* owned */
    uint64_t epoch;
    struct kv_sealer *sealer; /* owned */
    uint8_t *plain;           /* owned, locked: room for one node */
};

/* KV_E_INVALID_STATE when no root is set. */
KV_RC ktree_use_begin(struct kv_ktree *tree, struct ktree_use *ret_use);
/* Wipes. KV_E_STALE when the root was changed meanwhile: then nothing that was opened may be handed out. */
KV_RC ktree_use_end(struct kv_ktree *tree, struct ktree_use *use);

/* The public name of a tenant's secret. */
KV_RC tenant_fingerprint(const struct kv_secret *secret, const struct kv_id *tenant,
                         uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES]);

const struct kv_env *ktree_env(const struct kv_ktree *tree);
const struct kv_id *ktree_cluster(const struct kv_ktree *tree);

#endif

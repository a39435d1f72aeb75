/*
 * One node of the erasure tree as bytes, and the way from the top to a slot. Plaintexts are plain locked memory of
 * KV_NODE_PLAINTEXT_BYTES: 64 secrets in a row, then the presence bitmap. Nothing here stores or caches.
 */
#ifndef KV_KEYS_NODE_INT_H
#define KV_KEYS_NODE_INT_H

#include "dataplane/base/id.h"
#include "dataplane/keys/ktree.h"

#define NODE_SECRET_BYTES 32u
/* A sealer lives for one call here. This backend is made in microseconds, the faster one takes far longer than a node.
 */
#define NODE_CIPHER KV_CIPHER_OPENSSL
#define TREE_PATH_NODES (2 * KV_TREE_LEVELS)

/* One step of the way: in the node `key`, the child `child` is what the next step opens. */
struct tree_step {
    struct kv_node_key key;
    unsigned child;
};

/* The directory's nodes, then the tenant's, top first; the last step's child is the slot itself.
 * KV_E_INVALID_REQUEST for the zero tenant, KV_E_LIMIT for a slot that three levels do not have. */
KV_RC tree_path(const struct kv_id *tenant, uint32_t directory_slot, uint32_t slot,
                struct tree_step ret_path[TREE_PATH_NODES]);
bool tree_is_top(const struct kv_node_key *key); /* the directory's top node, the one that is sealed under E */
bool tree_key_equal(const struct kv_node_key *a, const struct kv_node_key *b);

KV_RC node_fill(const struct kv_env *env, uint8_t *plain); /* 64 fresh children, all present */
bool node_has(const uint8_t *plain, unsigned child);
/* KV_E_SESSION_ERASED when the child is absent. */
KV_RC node_child(const uint8_t *plain, unsigned child, struct kv_secret **ret_secret);
KV_RC node_refresh_child(const struct kv_env *env, uint8_t *plain,
                         unsigned child); /* a fresh secret for a present one */
void node_drop_child(uint8_t *plain, unsigned child);

/* What a node is sealed with and for. `id` is the node's id; of the directory's top node the root's. */
struct node_seal {
    const struct kv_id *cluster;
    const struct kv_node_key *key;
    const struct kv_id *id;
    const struct kv_secret *secret;
};

/* Fills node_id, version and sealed of the row; `sealed` is owned by the row. */
KV_RC node_seal_row(const struct kv_env *env, struct kv_sealer *sealer, const struct node_seal *seal,
                    const uint8_t *plain, int64_t version, struct kv_node_row *ret_row);
/* Into `plain`, which is wiped on failure. */
KV_RC node_open(struct kv_sealer *sealer, const struct node_seal *seal, struct kv_bytes sealed, uint8_t *plain);
void node_row_done(struct kv_node_row *row);

#endif

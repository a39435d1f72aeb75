/*
 * The erasure tree: pure node arithmetic over a storage contract that server/store fills.
 *
 *   E (root secret of one epoch, wrapped by the root of erasure)
 *    └ directory tree, tree id zero: 3 levels of 64; its leaf slot d is the secret of tenant d's tree root node
 *       └ tenant tree, tree id = tenant id: 3 levels of 64; its leaf slots are the slot secrets of sessions
 *
 * Level 2 is a tree's top node, level 0 a leaf. A node's plaintext is KV_TREE_FANOUT child secrets of 32 bytes and a
 * 64-bit presence bitmap; it is sealed with the compact KVR1 envelope under its own node secret, which its parent
 * holds. The directory's top node is sealed under E. A node is written whole, all children, once, by insert; its
 * children exist as secrets before they exist as rows. Only a re-key updates nodes, with fresh secrets on the whole
 * path, and drops the erased slots.
 *
 * Context of a node: kind NODE (directory top: ROOT), tenant = tree id, scope = node id (directory top: root id),
 * block_id = cluster id[16] | u32 level | u32 idx | zeroes[8], seq 0.
 * Thread: any; the cache inside has one mutex, which is not held while the storage is called.
 */
#ifndef KV_KEYS_KTREE_H
#define KV_KEYS_KTREE_H

#include "dataplane/base/buf.h"
#include "dataplane/crypto/sealed.h"
#include "dataplane/crypto/secret.h"

#define KV_TREE_LEVELS 3
#define KV_NODE_PLAINTEXT_BYTES (KV_TREE_FANOUT * 32 + 8)

struct kv_node_key {
    struct kv_id tree; /* zero: the directory */
    uint32_t level, idx;
};

struct kv_node_row {
    struct kv_id node_id; /* changes with every seal */
    int64_t version;      /* counts up; for UPDATE … WHERE node_ver = seen */
    uint8_t *sealed;      /* owned: kv_free */
    size_t sealed_len;
};

/* Storage of rows; what writes is always inside a transaction of the caller. */
struct kv_ktree_store {
    void *ctx;
    KV_RC (*load)(void *ctx, const struct kv_node_key *key, struct kv_node_row *ret_row); /* KV_E_MISSING */
    /* KV_E_STALE when it exists. */
    KV_RC (*insert)(void *ctx, const struct kv_node_key *key, const struct kv_node_row *row);
    /* KV_E_STALE unless exactly the row with `seen_version` was replaced. */
    KV_RC (*update)(void *ctx, const struct kv_node_key *key, int64_t seen_version, const struct kv_node_row *row);
};

struct kv_ktree;

KV_RC kv_ktree_new(const struct kv_env *env, const struct kv_id *cluster, struct kv_ktree **ret_tree);
void kv_ktree_free(struct kv_ktree *tree); /* wipes */

/* The epoch in use: R and E. Setting another one wipes every cached node (PURGE). `root_secret` is copied. Setting and
 * purging wait up to 5 s for calls that still work with an earlier root (those then return KV_E_STALE and nothing
 * else). KV_E_BUSY: the root is set, but such a call goes on; the purge counts only when a repeated call is KV_OK. */
KV_RC kv_ktree_set_root(struct kv_ktree *tree, const struct kv_id *root_id, const struct kv_secret *root_secret);
void kv_ktree_purge(struct kv_ktree *tree); /* wipes E and all node secrets; the root must be set again */
/* Wipes everything unless the root in use is `next`; never waits. KV_OK: nothing that was opened under another root is
 * left in this module. KV_E_BUSY: a call that began under one still runs. */
KV_RC kv_ktree_leave(struct kv_ktree *tree, const struct kv_id *next);
bool kv_ktree_root(const struct kv_ktree *tree, struct kv_id *ret_root_id); /* false when purged */
size_t kv_ktree_cached(struct kv_ktree *tree);

/* First start: writes the directory's top node under E. */
KV_RC kv_ktree_format(struct kv_ktree *tree, const struct kv_ktree_store *store);

/* The secret of slot `slot` of the tree `tenant`, which hangs at `directory_slot`: the tenant's id, or after an erasure
 * of the whole tenant another one, since a tree and a directory slot are never used again. Nodes on the way that have
 * no row yet are inserted when `fill` is set (the caller's transaction holds kroot FOR SHARE), else KV_E_MISSING.
 * KV_E_SESSION_ERASED: the slot's secret is gone. KV_E_WRONG_KEY: a row on the way is not of this epoch.
 * KV_E_INVALID_STATE: no root is set. KV_E_STALE: the root changed meanwhile. KV_E_LIMIT: no such slot in three levels.
 */
KV_RC kv_ktree_slot(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_id *tenant,
                    uint32_t directory_slot, uint32_t slot, bool fill, struct kv_secret **ret_secret);

/* The secret of the top of the tree at `directory_slot`. KV_E_SESSION_ERASED: it is gone, and every slot of the tree
 * with it. KV_E_MISSING: nothing was ever put there. Else as kv_ktree_slot. */
KV_RC kv_ktree_top(struct kv_ktree *tree, const struct kv_ktree_store *store, uint32_t directory_slot,
                   struct kv_secret **ret_secret);

/* A public name of the secret that the tenant's tree hangs under: one way, and nothing else is derived like it. */
#define KV_FINGERPRINT_BYTES 16
/* Of the secret that is in force. Errors as of kv_ktree_slot; no row of the tenant's own is needed. */
KV_RC kv_ktree_fingerprint(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_id *tenant,
                           uint32_t directory_slot, bool fill, uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES]);

/* All of the leaf that `slot` is in: KV_TREE_FANOUT secrets, the caller's, NULL where one is gone. The way ends as
 * above; nothing is filled. */
KV_RC kv_ktree_leaf(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_id *tenant,
                    uint32_t directory_slot, uint32_t slot, struct kv_secret **ret_secrets);

struct kv_ktree_target {
    struct kv_id tenant; /* the tree, as above */
    uint32_t directory_slot, slot;
    bool whole; /* not one slot but the tree: its place in the directory is dropped, whatever is below */
};

/* Re-key: drops the targets' slots and reseals every node on their paths with fresh secrets; the directory's top node
 * is sealed under `fresh_secret` for `fresh_id`. At most KV_ERASE_BATCH targets, any order, repeats allowed; a slot
 * already absent, or never filled, is fine; without a target only the top moves. The tree goes on using its current
 * root until kv_ktree_set_root. The caller's transaction holds kroot FOR UPDATE. */
KV_RC kv_ktree_rekey(struct kv_ktree *tree, const struct kv_ktree_store *store, const struct kv_ktree_target *targets,
                     size_t count, const struct kv_id *fresh_id, const struct kv_secret *fresh_secret);

/* A tenant whose key is rotated: every node of its tree gets a fresh secret, and every slot from `slots_used` on, which
 * nobody has been given yet. Slots below keep theirs. */
struct kv_ktree_rotation {
    struct kv_id tenant;
    uint32_t directory_slot;
    uint32_t slots_used; /* at most KV_MAX_TENANT_SLOTS */
};
/* Re-key without a target that rotates one tenant's key; the rest as kv_ktree_rekey. `ret_fingerprint` is that of the
 * tenant's fresh secret. KV_E_SESSION_ERASED: the tenant itself is gone from the directory. KV_E_MISSING: nothing of
 * its tree was ever written. */
KV_RC kv_ktree_rotate(struct kv_ktree *tree, const struct kv_ktree_store *store,
                      const struct kv_ktree_rotation *rotation, const struct kv_id *fresh_id,
                      const struct kv_secret *fresh_secret, uint8_t ret_fingerprint[KV_FINGERPRINT_BYTES]);

/* For verification and for the attack program: opens one sealed node row with a given secret, no cache, no storage. */
KV_RC kv_node_open(const struct kv_id *cluster, const struct kv_node_key *key, const struct kv_id *node_or_root_id,
                   const struct kv_secret *secret, struct kv_bytes sealed,
                   struct kv_secret **ret_children /* [64], NULL where absent */);

#endif

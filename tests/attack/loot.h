/*
 * What the attacker holds: rows of the key tree and wrapped roots from dumps of any age, wrapping keys from root files,
 * ids of sessions. Collected once, read only afterwards.
 */
#ifndef KV_ATTACK_LOOT_H
#define KV_ATTACK_LOOT_H

#include "dataplane/keys/ktree.h"

#include <stdio.h>

#define LOOT_SEALED_MAX 65536u

struct loot_node {
    struct kv_node_key key;
    struct kv_id node_id;
    uint8_t *sealed; /* owned */
    size_t sealed_len;
};

struct loot_root { /* a row of kroot */
    struct kv_id root_id;
    uint8_t *blob; /* owned */
    size_t blob_len;
};

struct loot_session {
    struct kv_id id, tenant;
    char state[16];
};

struct loot_key { /* from a slot of a root file */
    struct kv_id root_id;
    struct kv_secret *key; /* owned */
    const char *state;     /* static text */
};

struct loot {
    struct loot_node *nodes;
    struct loot_root *roots;
    struct loot_session *sessions;
    struct loot_key *keys;
    struct kv_id *clusters;
    size_t node_count, root_count, session_count, key_count, cluster_count;
    size_t rows_not_understood; /* rows of our tables with values that could not be read */
};

void loot_done(struct loot *loot);
KV_RC loot_add_dump(struct loot *loot, FILE *dump); /* may be called for several dumps */
/* Slots are read without a lock, whatever their state; KV_E_TRUNCATED when the file is too short to hold one. */
KV_RC loot_add_root_file(struct loot *loot, FILE *root);
const struct loot_session *loot_session_find(const struct loot *loot, const struct kv_id *id);

#endif

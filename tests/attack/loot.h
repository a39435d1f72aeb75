/*
 * What the attacker holds: rows of the key tree and wrapped roots from dumps of any age or from raw files, wrapping
 * keys from root files, pieces of memory that may be keys, ids of sessions. Collected once, read only afterwards.
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
    int64_t slot; /* -1: not known */
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
    uint8_t (*windows)[32]; /* of memory: each may be a secret. Owned */
    size_t node_count, root_count, session_count, key_count, cluster_count, window_count;
    size_t nodes_seen;          /* with those that were there already */
    size_t rows_not_understood; /* rows of our tables with values that could not be read */
};

void loot_done(struct loot *loot);
KV_RC loot_add_dump(struct loot *loot, FILE *dump); /* may be called for several dumps */
/* Slots are read without a lock, whatever their state; KV_E_TRUNCATED when the file is too short to hold one. */
KV_RC loot_add_root_file(struct loot *loot, FILE *root);
/* Every 32 bytes at a multiple of 16 that could be random, as is all key material; also a file of secrets, one after
 * the other. */
KV_RC loot_add_memory(struct loot *loot, FILE *memory);
/* What another source found. The bytes are copied; what is there already is passed over. */
void loot_add_node(struct loot *loot, const struct loot_node *node);
void loot_add_root(struct loot *loot, const struct loot_root *root);
void loot_add_cluster(struct loot *loot, const struct kv_id *cluster);
const struct loot_session *loot_session_find(const struct loot *loot, const struct kv_id *id);

#endif

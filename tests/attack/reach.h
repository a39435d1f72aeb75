/*
 * From loot to secrets: unwraps every root with every wrapping key, opens every node row with every secret found, until
 * nothing new opens. What is reached is every secret that any row of any age leads to.
 */
#ifndef KV_ATTACK_REACH_H
#define KV_ATTACK_REACH_H

#include "tests/attack/loot.h"
#include "tests/attack/quick.h"

#define REACH_ROOT_LEVEL ((uint32_t)KV_TREE_LEVELS)
#define REACH_LOOSE_LEVEL UINT32_MAX /* found in memory: what it is of is not known */

struct reached_secret {
    uint8_t bytes[32];
    struct quick_key key;
    struct kv_node_key of; /* the node that holds it; one of the levels above for a root secret and a loose one */
    unsigned child;
};

struct reach {
    struct reached_secret *secrets; /* owned; test code, so in plain memory */
    uint32_t *by_bytes;             /* owned; open addressing, index plus one */
    size_t count, size;
    size_t roots_opened, nodes_opened, tries;
    bool complete; /* every secret was tried on every row that is still closed */
};

/* Tries are bounded by `tries_max`; 0 for the default. */
KV_RC reach_from(const struct loot *loot, size_t tries_max, struct reach *ret_reach);
void reach_done(struct reach *reach);

#endif

/*
 * From loot to secrets: unwraps every root with every wrapping key, opens every node row with every secret found, until
 * nothing new opens. What is reached is every secret that any row of any age leads to.
 */
#ifndef KV_ATTACK_REACH_H
#define KV_ATTACK_REACH_H

#include "tests/attack/loot.h"

struct reached_secret {
    uint8_t bytes[32];
    struct kv_node_key of; /* the node that holds it; level KV_TREE_LEVELS for a root secret */
    unsigned child;
};

struct reach {
    struct reached_secret *secrets; /* owned; test code, so in plain memory */
    size_t count, size;
    size_t roots_opened, nodes_opened, tries;
};

/* Tries are bounded by `tries_max`; 0 for the default. */
KV_RC reach_from(const struct loot *loot, size_t tries_max, struct reach *ret_reach);
void reach_done(struct reach *reach);

#endif

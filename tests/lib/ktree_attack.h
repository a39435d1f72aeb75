/*
 * The adversary of the erasure tree: holds every row that was ever written and some secrets, and tries every secret
 * that he reaches on every row.
 */
#ifndef KV_TESTS_KTREE_ATTACK_H
#define KV_TESTS_KTREE_ATTACK_H

#include "tests/lib/ktree_store_history.h"

struct kvt_reached {
    uint8_t (*secrets)[32];
    size_t count, size;
};

void kvt_reach(struct kvt_reached *reached, const uint8_t secret[32]); /* he has this one */
bool kvt_reached_has(const struct kvt_reached *reached, const uint8_t secret[32]);
/* Adds all that the secrets lead to. A row is tried under its own id and under `root_id`. */
void kvt_ktree_attack(const struct kvt_history *history, const struct kv_id *cluster, const struct kv_id *root_id,
                      struct kvt_reached *reached);
void kvt_reached_done(struct kvt_reached *reached);

#endif

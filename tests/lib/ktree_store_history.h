/*
 * Rows of the erasure tree in memory, every version that was ever written kept: what somebody holds who has every
 * backup of every age. Implements struct kv_ktree_store for tests.
 */
#ifndef KV_TESTS_KTREE_STORE_HISTORY_H
#define KV_TESTS_KTREE_STORE_HISTORY_H

#include "dataplane/keys/ktree.h"

#include <pthread.h>

struct kvt_row {
    struct kv_node_key key;
    struct kv_node_row row; /* `sealed` owned */
    bool current;           /* false: only a backup has it still */
};

struct kvt_history {
    struct kvt_row *rows; /* owned; oldest first */
    size_t count, size;
    size_t loads, inserts, updates;
    pthread_mutex_t mutex;
    /* Called before each load, for tests that do something in between. */
    void (*before_load)(void *arg);
    void *before_load_arg;
};

void kvt_history_init(struct kvt_history *history);
void kvt_history_done(struct kvt_history *history);
struct kv_ktree_store kvt_history_store(struct kvt_history *history);
/* The present row; NULL. */
struct kvt_row *kvt_history_find(struct kvt_history *history, const struct kv_node_key *key);
/* Ends a transaction by undoing it: rows written after `mark` (an earlier value of count) are no longer current, and
 * the rows that they replaced are. */
void kvt_history_roll_back(struct kvt_history *history, size_t mark);

#endif

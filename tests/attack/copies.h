/*
 * Copies of sealed blocks, and opening them: every reached secret is taken for the slot secret of the copy's scope.
 */
#ifndef KV_ATTACK_COPIES_H
#define KV_ATTACK_COPIES_H

#include "tests/attack/reach.h"

struct candidate {
    bool derived;
    uint8_t key[32];
};

/* The block keys that the reached secrets give for one scope of one tenant, derived when they are first tried. */
struct scope_keys {
    struct kv_id tenant, scope;
    struct candidate *candidates; /* owned; one for each reached secret */
    size_t good;                  /* which one opened the last copy, tried first */
};

struct opener {
    const struct loot *loot;
    const struct reach *reach;
    struct kv_sealer *sealer;  /* owned */
    struct scope_keys *scopes; /* owned */
    size_t scope_count;
};

KV_RC opener_init(struct opener *opener, const struct loot *loot, const struct reach *reach);
void opener_done(struct opener *opener);
/* Opens the copy fully: all tags, all bytes. `scope` is what the index of the drive says. */
bool opener_try(struct opener *opener, const struct kv_id *scope, struct kv_bytes sealed);

#endif

/*
 * Copies of sealed blocks, and opening them: every reached secret is taken for the slot secret of the copy's scope; one
 * from memory, of which nobody knows what it is, for each key on the way as well.
 */
#ifndef KV_ATTACK_COPIES_H
#define KV_ATTACK_COPIES_H

#include "tests/attack/reach.h"

/* What the reached secrets give for one scope of one tenant, derived when it is first tried. */
struct scope_keys {
    struct kv_id tenant, scope;
    bool *derived;               /* owned; one for each reached secret, like the next */
    struct quick_key *block_key; /* owned */
    size_t good;                 /* which one opened the last copy, tried first; reach->count for none */
};

struct opener {
    const struct loot *loot;
    const struct reach *reach;
    struct kv_sealer *sealer;   /* owned */
    struct scope_keys keys;     /* of the scope that was tried last: copies come scope by scope */
    struct quick_key *slot_prk; /* owned; the first step of a derivation is the same for all scopes */
    bool loosely;               /* secrets from memory are tried, too; the longest part by far */
    size_t tries;
};

KV_RC opener_init(struct opener *opener, const struct loot *loot, const struct reach *reach);
void opener_done(struct opener *opener);
/* Opens the copy fully: all tags, all bytes. `scope` is what the index of the drive says. */
bool opener_try(struct opener *opener, const struct kv_id *scope, struct kv_bytes sealed);

#endif

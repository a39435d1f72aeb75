/*
 * Inside of the keyring: the table of open scopes and the set of scopes that were dropped for good. Neither locks; the
 * keyring's mutex covers them. They never derive a key.
 */
#ifndef KV_KEYS_KEYRING_INT_H
#define KV_KEYS_KEYRING_INT_H

#include "dataplane/base/id.h"
#include "dataplane/keys/keyring.h"

/*
 * An entry's life:
 *
 *   FREE --open--> OPEN --drop or wipe, idle--------------------> FREE
 *                    \---drop or wipe, borrowed--> CLOSING --last return--> FREE
 *
 * OPEN and CLOSING entries are in their bucket's chain; FREE ones in the free list. Keys exist in OPEN and CLOSING
 * only.
 */
enum scope_state { SCOPE_FREE, SCOPE_OPEN, SCOPE_CLOSING };

struct scope_entry {
    enum scope_state state;
    uint32_t borrowers;
    bool recent; /* opened or borrowed since the search for room came by last */
    struct kv_id tenant, scope;
    struct kv_secret *block, *ids; /* owned */
    struct scope_entry *next;      /* chain or free list */
};

struct scope_table {
    struct scope_entry *entries; /* owned; never moves, so an entry's address is good while it is borrowed */
    struct scope_entry **buckets;
    struct scope_entry *free;
    size_t entries_max, bucket_mask, open_count;
    size_t hand; /* where the search for room goes on */
};

KV_RC scope_table_init(struct scope_table *table, size_t entries_max);
void scope_table_done(struct scope_table *table); /* wipes */
struct scope_entry *scope_table_find(const struct scope_table *table, const struct kv_id *scope);
/* NULL when all are in use. The entry is OPEN and has no keys yet. */
struct scope_entry *scope_table_add(struct scope_table *table, const struct kv_id *tenant, const struct kv_id *scope);
/* Closes an OPEN entry: wiped and FREE when idle, else CLOSING. */
void scope_table_close(struct scope_table *table, struct scope_entry *entry);
/* Closes an OPEN entry that is idle, not a recent one before it was passed once. False: all are borrowed. */
bool scope_table_evict(struct scope_table *table);
/* One borrower less; a CLOSING entry without borrowers is wiped and FREE. True when that happened. */
bool scope_table_return(struct scope_table *table, struct scope_entry *entry);

/* A growing set of ids with open addressing. */
struct id_set {
    struct kv_id *slots; /* owned; the zero id is an empty slot */
    size_t mask, count, count_max;
};

void id_set_init(struct id_set *set, size_t count_max);
void id_set_done(struct id_set *set);
bool id_set_has(const struct id_set *set, const struct kv_id *id);
KV_RC id_set_add(struct id_set *set, const struct kv_id *id); /* KV_E_LIMIT at count_max, KV_E_NO_MEMORY */

size_t id_hash(const struct kv_id *id);

#endif

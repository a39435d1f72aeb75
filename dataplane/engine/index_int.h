/*
 * The block index of a lane: (scope, block id) → replicas. Fixed capacity, open addressing, entries from a pool;
 * nothing is allocated after kv_index_new. Entries of a scope hang on a list, so that a fence, a drop or a usage
 * question costs what the scope has and not what the server has. It must never do I/O and never decide what to evict:
 * it keeps the lists from which placement picks.
 */
#ifndef KV_ENGINE_INDEX_INT_H
#define KV_ENGINE_INDEX_INT_H

#include "dataplane/base/env.h"
#include "dataplane/engine/engine.h"

struct link {
    struct link *next, *prev; /* both NULL: on no list */
};

#define LINK_OF(pointer, type, member) ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

void kv_list_init(struct link *head);
void kv_list_append(struct link *head, struct link *link);
void kv_list_remove(struct link *link); /* fine when on no list */
bool kv_list_empty(const struct link *head);
static inline bool kv_list_has(const struct link *link)
{
    return link->next != NULL;
}

/* What a tenant keeps here, of all its scopes, and how much of it may. Lives as long as one of its scopes. */
struct account {
    struct kv_id tenant;
    uint32_t hash, scopes;
    uint64_t version;                /* of the limits: an older one never replaces a newer */
    uint64_t used[KV_ENGINE_TIERS];  /* sealed bytes that rest there, or are on their way down to it */
    uint64_t limit[KV_ENGINE_TIERS]; /* UINT64_MAX: none */
    struct account *next_free;
};

/* A scope that has blocks here, is used by an operation, or is fenced. Freed when none of these holds any more. */
struct scope {
    struct kv_id id;
    struct link blocks; /* entry.in_scope, oldest first */
    struct link fenced; /* on index.fenced */
    uint32_t hash;
    uint32_t operations; /* that run on it */
    uint32_t graves;     /* entries killed whose replicas are not yet given back */
    bool is_fenced;
    struct kv_scope_usage usage;
    struct account *account;         /* NULL: nobody said yet whose it is */
    uint64_t live_bytes;             /* sealed, each block once */
    uint64_t used[KV_ENGINE_TIERS];  /* what it has charged its account with */
    uint64_t limit[KV_ENGINE_TIERS]; /* UINT64_MAX: none */
    uint64_t version;                /* of the limits */
    struct scope *next_free;
};

/* What an entry is to placement while no operation uses it. */
enum entry_rank {
    RANK_NONE,  /* pinned, moving, or not in dram */
    RANK_CLEAN, /* also on nvme: its dram copy can go at once */
    RANK_DIRTY, /* only in dram; may be written down */
    RANK_KEPT,  /* only in dram; policy or configuration keeps it from nvme */
    RANK_COUNT
};

/* One block. Alive: found by its key. Dead: on index.graves until nothing touches its replicas, then freed. */
struct entry {
    struct kv_id scope_id;
    struct kv_block_id block_id;
    struct scope *scope;
    uint32_t hash;
    uint32_t pins;  /* block operations that hold it */
    uint64_t bytes; /* sealed */
    uint64_t plaintext_bytes;
    uint8_t *slot;              /* dram copy, or NULL */
    uint64_t where;             /* on nvme */
    uint64_t hold_seq;          /* dead: the nvme room is kept until this record is durable */
    uint64_t writer;            /* serial of the operation that stored it, 0 for none */
    uint8_t layout[32];         /* valid when layout_known */
    enum kv_err put_rc, get_rc; /* of the last write-down and the last read */
    uint8_t rank;               /* enum entry_rank: which dram list it is on */
    uint8_t get_errors;
    bool on_nvme, promised;
    bool writing, fetching; /* a tier has it right now */
    bool dead;
    bool layout_known;
    bool slot_verified;            /* the dram copy opened, or was sealed here */
    bool no_nvme, no_dram;         /* not allowed there */
    bool charged[KV_ENGINE_TIERS]; /* its bytes count there */
    bool shared;                   /* another operation than its writer answered for it */
    struct link in_scope;          /* or in index.graves when dead */
    struct link in_dram;           /* index.ranks[rank] */
    struct link in_nvme;           /* index.nvme_cold: on nvme, not promised, not in use */
    struct entry *next_free;
};

struct table {
    uint32_t *cells; /* number of the item plus one; 0 is empty */
    uint32_t mask;
};

struct index {
    struct entry *entries;
    struct scope *scopes;
    uint32_t entries_max, scopes_max;
    struct entry *free_entries;
    struct scope *free_scopes;
    struct table by_key, by_scope, by_account;
    struct account *accounts, *free_accounts;
    uint32_t accounts_max;
    uint64_t seed;
    uint32_t live, pinned_slots;
    struct link ranks[RANK_COUNT]; /* coldest first */
    struct link nvme_cold;
    struct link graves, fenced;
    uint32_t fenced_count;
};

#define FENCED_MAX 4096u

KV_RC kv_index_new(uint64_t blocks_max, const struct kv_env *env, struct index **ret_index);
void kv_index_free(struct index *index);

struct entry *kv_index_find(struct index *index, const struct kv_id *scope, const struct kv_block_id *block_id);
/* A new entry, alive, in no dram or nvme list. KV_E_LIMIT: the index is full. The key must not be there. */
KV_RC kv_index_add(struct index *index, const struct kv_tier_key *key, uint64_t bytes, struct entry **ret_entry);
/* Out of the index and onto the graves; its replicas are given back by the lane. */
void kv_index_kill(struct index *index, struct entry *entry);
/* A second replica of a key that is alive: an entry that was never found, on the graves from birth. */
KV_RC kv_index_add_grave(struct index *index, const struct kv_tier_key *key, uint64_t bytes, struct entry **ret_entry);
void kv_index_free_entry(struct index *index, struct entry *entry); /* dead, without replicas or users */

/* Replicas: these keep usage and lists right. */
void kv_index_set_slot(struct index *index, struct entry *entry, uint8_t *slot); /* NULL: none */
void kv_index_set_nvme(struct index *index, struct entry *entry, bool on_nvme, uint64_t where);
void kv_index_set_plaintext(struct entry *entry, uint64_t plaintext_bytes);
void kv_index_pin(struct index *index, struct entry *entry);
void kv_index_unpin(struct index *index, struct entry *entry);
/* Moves the entry to the hot end of its lists, and to the list that its flags now call for. */
void kv_index_touch(struct index *index, struct entry *entry);

struct scope *kv_index_scope_find(struct index *index, const struct kv_id *id);
KV_RC kv_index_scope_get(struct index *index, const struct kv_id *id, struct scope **ret_scope); /* KV_E_LIMIT */
void kv_index_scope_release(struct index *index, struct scope *scope); /* frees it when nothing holds it */

/* --- quota.c: who may keep how much where. Bytes are charged when they come to rest on a tier, or set out for it, and
 * taken back when they leave, so that what is charged is what is there. A lane is one thread: to look and to charge is
 * one step. --- */

/* The scope belongs to the tenant; what it has is charged there from now on. KV_E_LIMIT: no account is free. */
KV_RC kv_quota_assign(struct index *index, struct scope *scope, const struct kv_id *tenant);
void kv_quota_set_limits(struct scope *scope, const struct kv_transfer_limits *limits);
bool kv_quota_fits(const struct scope *scope, enum kv_tier_id tier, uint64_t bytes);
void kv_quota_charge(struct entry *entry, enum kv_tier_id tier);
void kv_quota_give_back(struct entry *entry, enum kv_tier_id tier); /* nothing when it was not charged */
void kv_quota_leave(struct index *index, struct scope *scope);      /* the scope goes, and its account with the last */
struct account *kv_quota_find(struct index *index, const struct kv_id *tenant);

void kv_index_table_put(struct table *table, uint32_t hash, uint32_t number);
void kv_index_table_remove(struct index *index, struct table *table, uint32_t hash, uint32_t number);
uint32_t kv_index_hash_id(const struct index *index, const struct kv_id *id);

#endif

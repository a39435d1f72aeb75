/*
 * The policies of the tenants in use, laid out so that a transfer's decision reads one cache line: a table of a fixed
 * size, found by tenant and class without a lock, a reference or a pointer to follow. Names are in it as keyed hashes
 * of 64 bits, which whoever asks computes once for a session, not once for a decision.
 *
 * It is a memory of what was read, and may forget: who finds nothing decides by the policy itself (policy_set.h), which
 * gives the same answer. An entry is good while its stamp is the asker's and its time is not over, and is read as a
 * whole or not at all, so no decision mixes two versions. Must never hold a tenant that is not active, and never allow
 * what the policy itself does not.
 */
#ifndef KV_POLICY_TABLE_H
#define KV_POLICY_TABLE_H

#include "policies/policy_set.h"

struct kv_policy_table;

#define KV_POLICY_TABLE_MAX 32768

/* Keyed with what nobody outside knows: whoever could choose a name with the hash of another would be taken for it. */
struct kv_policy_hasher {
    KV_RC (*hash)(void *ctx, const char *text, uint64_t *ret_hash);
    void *ctx;
};

/* `capacity` in entries, one for each class in use of each tenant: a power of two from 64 to KV_POLICY_TABLE_MAX. 200
 * bytes each. Owned by the caller. KV_E_NO_MEMORY. */
KV_RC kv_policy_table_new(uint32_t capacity, const struct kv_policy_hasher *hasher, struct kv_policy_table **ret_table);
void kv_policy_table_free(struct kv_policy_table *table); /* NULL is fine; nobody uses it any more */

/* Of a class or a name; 0 for NULL and "", which is on no list. The hasher's errors. Thread: any. */
KV_RC kv_policy_table_hash(const struct kv_policy_table *table, const char *text, uint64_t *ret_hash);

struct kv_policy_entry {
    struct kv_id tenant; /* which is active */
    uint64_t stamp;      /* counts up; an entry never takes the place of a newer one */
    uint64_t until_ns;   /* on the asker's clock; rounded down to a fifteenth of a second */
    const struct kv_policy_set *set;
    const struct kv_policy *policy; /* the class, of the set; nothing of either is kept */
};
/* False: not kept. It has rules that speak of names, or more than 10 names, or there was no room. Thread: any. */
bool kv_policy_table_put(struct kv_policy_table *table, const struct kv_policy_entry *entry);

struct kv_policy_subject {
    struct kv_id tenant;
    uint64_t class_hash, names[KV_POLICY_KINDS]; /* of kv_policy_table_hash */
    uint64_t stamp, now_ns;                      /* the caller's, read once for as many decisions as it takes at once */
    uint32_t place; /* in and out: a guess at where its entry is, the last decision's; 0 is as good as any */
};
/* What a decision will read is on its way from now on: for whoever knows the place and has something else to do before
 * it decides. Thread: any. */
void kv_policy_table_expect(const struct kv_policy_table *table, uint32_t place);
/* `facts` without its names. False: nothing is known here, or it is an erasure, or a
 * session that is to share. `ret_bounds` may be NULL. Neither locks
 * nor waits nor allocates. Thread: any. */
bool kv_policy_table_decide(const struct kv_policy_table *table, struct kv_policy_subject *subject,
                            const struct kv_policy_facts *facts, struct kv_policy_decision *ret_decision,
                            struct kv_policy_bounds *ret_bounds);

#endif

/*
 * Rows there is one of (cluster, kroot, revocation head) and the instances that serve it.
 * kroot holds the wrapped root, never the root. See README.md for who may hold which lock. Thread: the connection's.
 */
#ifndef KV_STORE_CLUSTER_H
#define KV_STORE_CLUSTER_H

#include "server/store/pg.h"

/* The cluster's id; `fresh_id` becomes it when there is none yet. Write. */
KV_RC kv_store_cluster_ensure(struct kv_pg *pg, const struct kv_id *fresh_id, struct kv_errinfo *info,
                              struct kv_id *ret_id);
/* The cluster's row, to the end of the transaction. Write. */
KV_RC kv_store_cluster_lock(struct kv_pg *pg, struct kv_errinfo *info);
/* What cursors of lists are signed with; `fresh` becomes it when there is none yet. Write. */
KV_RC kv_store_cursor_key_ensure(struct kv_pg *pg, const uint8_t fresh[32], struct kv_errinfo *info,
                                 uint8_t ret_key[32]);
/* KV_E_MISSING before the first kv_store_cluster_ensure. */
KV_RC kv_store_cluster_get(struct kv_pg *pg, struct kv_errinfo *info, struct kv_id *ret_id);

/* ---- kroot: the root in force and the fence of the eraser ---- */

#define KV_PROVIDER_SIZE 32

struct kv_store_kroot {
    struct kv_id root_id;
    char provider[KV_PROVIDER_SIZE]; /* "memory", "file", … */
    int64_t fence;
    struct kv_id eraser; /* the instance that took the fence last; zero: none yet */
    uint64_t updated_us;
    struct kv_buf blob; /* the wrapped root; owned: kv_store_kroot_done */
};
void kv_store_kroot_done(struct kv_store_kroot *kroot);

struct kv_store_root_set {
    struct kv_id root_id;
    const char *provider;
    struct kv_bytes blob; /* 1 to 65,536 bytes */
};

/* The first root. KV_E_STALE when there is one. Write. */
KV_RC kv_store_kroot_init(struct kv_pg *pg, const struct kv_store_root_set *root, struct kv_errinfo *info);
/* KV_E_MISSING when there is none. */
KV_RC kv_store_kroot_get(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_kroot *ret_kroot);
/* FOR SHARE, to the end of the transaction: no re-key goes on meanwhile. For filling tree nodes. Write. */
KV_RC kv_store_kroot_share(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_kroot *ret_kroot);
/* FOR UPDATE and fence + 1: from the commit on every other eraser's statements are stale. `ret_kroot` shows the new
 * fence. KV_E_STALE: another instance is the eraser and its lease runs. KV_E_BUSY when another backend holds the row
 * longer than the lock timeout: kv_store_kroot_evict, then again. Write. */
KV_RC kv_store_kroot_take(struct kv_pg *pg, const struct kv_id *eraser, struct kv_errinfo *info,
                          struct kv_store_kroot *ret_kroot);
/* FOR UPDATE; KV_E_STALE unless the fence is still `fence`. Write. */
KV_RC kv_store_kroot_lock(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info, struct kv_store_kroot *ret_kroot);
/* FOR SHARE, to the end of the transaction; KV_E_STALE unless the fence is still `fence`. What every statement of the
 * eraser stands on: nobody takes over before its transaction ends. Write. */
KV_RC kv_store_kroot_hold(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info);
/* Nobody is the eraser any more. KV_E_STALE unless the fence is still `fence`. Write. */
KV_RC kv_store_kroot_release(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info);
/* Puts `root` in the place of `old_root`. KV_E_STALE unless exactly the row with that id and fence was hit. Write. */
KV_RC kv_store_kroot_set(struct kv_pg *pg, const struct kv_id *old_root, int64_t fence,
                         const struct kv_store_root_set *root, struct kv_errinfo *info);
/* Ends other backends of the same database user whose transaction has locked kroot and began longer ago than this
 * connection waits for a lock: of a process that died, was stopped, or is cut off. One of them may be in its COMMIT;
 * what came of that is seen by whoever takes kroot then. Not in a transaction. */
KV_RC kv_store_kroot_evict(struct kv_pg *pg, struct kv_errinfo *info, uint32_t *ret_count);

/* ---- revocations: numbered in the order of their commits ---- */

struct kv_store_revocation {
    int64_t seq;
    struct kv_id tenant, session; /* no session: all of the tenant's from first_slot up to, not with, slot */
    struct kv_id erasure;
    uint32_t first_slot, slot;
};

/* Holds the head's row lock to the commit. Write. */
KV_RC kv_store_revocation_next(struct kv_pg *pg, struct kv_errinfo *info, int64_t *ret_seq);
/* The same lock without a number: nobody is revoked before the commit, and all that were before are seen. Write. */
KV_RC kv_store_revocation_hold(struct kv_pg *pg, struct kv_errinfo *info);
/* `count` of them at once; the first one. Numbers that are not used in the end are no harm. */
KV_RC kv_store_revocations_next(struct kv_pg *pg, size_t count, struct kv_errinfo *info, int64_t *ret_first);
KV_RC kv_store_revocation_head(struct kv_pg *pg, struct kv_errinfo *info, int64_t *ret_seq); /* 0: none yet */
/* Those after `seq`, oldest first, at most `max`. */
KV_RC kv_store_revocations_since(struct kv_pg *pg, int64_t seq, size_t max, struct kv_errinfo *info,
                                 struct kv_store_revocation *ret_list, size_t *ret_count);

/* ---- instances ---- */

struct kv_store_instance {
    struct kv_id id;
    int64_t incarnation;     /* one more with each start, and after an end that was not one */
    int64_t lease_ctr;       /* one more with each renewal */
    uint32_t lease_ms;       /* how long one renewal is good for */
    uint64_t lease_until_us; /* the database's clock */
    int64_t acked_seq;       /* revocations up to here are applied */
    struct kv_id acked_root;
    uint64_t started_us;
    uint64_t expired_us; /* its lease was seen to have run out, and it has not joined since; 0: no */
    uint8_t keys_sha256[32];
};

struct kv_store_join {
    struct kv_id id;
    uint32_t lease_ms;
    int64_t acked_seq; /* what a start need not apply, because nothing is open */
    uint8_t keys_sha256[32];
};

/* Joins, or takes over the row of an earlier incarnation; waits for transactions under way in that one's name. Write.
 */
KV_RC kv_store_instance_join(struct kv_pg *pg, const struct kv_store_join *join, struct kv_errinfo *info,
                             struct kv_store_instance *ret_instance);
/* Compare-and-swap on incarnation and lease_ctr of `seen`, which also brings what is acknowledged. KV_E_STALE: somebody
 * else renewed with this identity (a clone), or took it over, or ended its lease. Another incarnation in
 * `ret_instance`: a clone was found out elsewhere and this one goes on, but everything that both may have open is to be
 * wiped. Write. */
KV_RC kv_store_instance_renew(struct kv_pg *pg, const struct kv_store_instance *seen, struct kv_errinfo *info,
                              struct kv_store_instance *ret_instance);
/* The row, whatever its state. KV_E_MISSING. */
KV_RC kv_store_instance_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                            struct kv_store_instance *ret_instance);
/* Two processes have this incarnation: whoever renewed it last has to wipe. Nothing happens when it is another one by
 * now. Write. */
KV_RC kv_store_instance_mark_cloned(struct kv_pg *pg, const struct kv_id *id, int64_t incarnation,
                                    struct kv_errinfo *info);
/* The lease of `seen`, which whoever calls this saw run out, is over for good: no renewal of that incarnation hits a
 * row from now on. KV_E_STALE: it was renewed meanwhile. Write. */
KV_RC kv_store_instance_expire(struct kv_pg *pg, const struct kv_store_instance *seen, struct kv_errinfo *info);
/* The lease ends now. KV_E_STALE: not this incarnation's any more. Write. */
KV_RC kv_store_instance_leave(struct kv_pg *pg, const struct kv_id *id, int64_t incarnation, struct kv_errinfo *info);
/* All others have ended: for an instance whose root of erasure nobody else can have. Write. */
KV_RC kv_store_instances_end_others(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info);
/* Those whose lease runs by the database's clock, by id, at most `max`. */
KV_RC kv_store_instances_live(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_instance *ret_list,
                              size_t *ret_count);
/* Those that have not left, by id, at most `max`. */
KV_RC kv_store_instances_list(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_instance *ret_list,
                              size_t *ret_count);
/* Ends other backends whose transaction has locked an instance's row and began longer ago than this connection waits
 * for a lock. Not in a transaction. */
KV_RC kv_store_instance_evict(struct kv_pg *pg, struct kv_errinfo *info, uint32_t *ret_count);

#endif

/*
 * Erasures and the batches that carry them out. A row is evidence: states go only forward, and what a certificate is
 * made of is written once. Thread: the connection's.
 *
 *   erasure  requested ─► fenced ─► staged ─► rekeyed ─► destroyed ─► purged ─► verified ─► certified
 *            (staged ─► fenced when an attempt is given up; any ─► quarantined; blocked_hold, needs_approval ─►
 * requested) batch    staged ─► rekeyed ─► destroyed ─► purged ─► done, or staged ─► abandoned
 */
#ifndef KV_STORE_ERASURE_H
#define KV_STORE_ERASURE_H

#include "server/store/page.h"
#include "server/store/store_cluster.h"
#include "server/store/store_session.h"

#define KV_ERASURE_STATES (KV_ERASURE_QUARANTINED + 1)
#define KV_BASIS_SIZE 33
#define KV_SCOPE_SIZE 16
#define KV_ROLE_TEXT_SIZE 33

const char *kv_erasure_state_name(enum kv_erasure_state state); /* "requested" */

/* Bits of kv_store_facts.checks. */
enum kv_erasure_check { KV_ERASED_ROOT_GONE = 1, KV_ERASED_ROW_REFUSED = 2, KV_ERASED_SLOTS_ABSENT = 4 };

/* What the certificate says, collected on the way. */
struct kv_store_facts {
    uint64_t blocks, bytes;
    uint64_t dram_blocks, dram_bytes, nvme_blocks, nvme_bytes;
    uint8_t block_root[32];
    uint32_t samples;        /* blocks looked at */
    uint32_t control_opened; /* of them, opened before the re-key */
    uint32_t opened_after;   /* of them, opened after: must be 0 */
    uint32_t checks;         /* enum kv_erasure_check */
};

struct kv_store_erasure {
    struct kv_id id, tenant, session;
    uint32_t slot, directory_slot;
    enum kv_erasure_state state;
    char basis[KV_BASIS_SIZE];              /* a closed word, [a-z0-9_] */
    char reason_sha256[KV_SHA256_HEX_SIZE]; /* hex of a salted hash, or "" */
    struct kv_id requested_by;              /* API key; zero: the system */
    char requested_role[KV_ROLE_TEXT_SIZE];
    int64_t revocation_seq;
    struct kv_id batch; /* zero: in none yet */
    uint64_t
        at_us[KV_ERASURE_STATES]; /* when each state was reached last; 0: never. [REQUESTED] is the request's time */
    bool has_facts;
    struct kv_store_facts facts;
    struct kv_id certificate;                 /* zero: not issued */
    int64_t certificate_index;                /* leaf of the tenant's log; -1: not known yet */
    char previous_sha256[KV_SHA256_HEX_SIZE]; /* of the tenant's certificate before; "" */
    bool has_samples, has_jws, has_bundle;
    bool whole_tenant; /* no session: all from first_slot up to, not with, slot */
    struct kv_id tree; /* that the slots are of */
    uint32_t first_slot;
    uint64_t sessions;         /* of a whole tenant: how many */
    uint8_t sessions_root[32]; /* and the Merkle root of their ids, once has_sessions */
    bool has_sessions;
    struct kv_id group;                        /* zero: asked for alone */
    struct kv_id hold;                         /* one that covered the session, the last to be seen; zero: none did */
    uint64_t unblocked_us;                     /* when none covered it any more; 0: none ever did, or one does */
    char scope[KV_SCOPE_SIZE];                 /* of the request that it is part of: "session", or the group's */
    char reference_sha256[KV_SHA256_HEX_SIZE]; /* like reason_sha256 */
};

/* The request: the row, and the session goes to ERASING with `revocation_seq` (from kv_store_revocation_next, same
 * transaction). Reads id, tenant, session, state (REQUESTED, BLOCKED_HOLD or NEEDS_APPROVAL), basis, reason_sha256,
 * requested_by, requested_role, revocation_seq, at_us[state], group, hold and reference_sha256. KV_E_NOT_FOUND: no such
 * session of this tenant. KV_E_STALE: it is not active; the session's row names the erasure there is. The session's
 * external id and labels are forgotten with it; when a hold blocks it, the labels stay until it goes on. Write. */
KV_RC kv_store_erasure_insert(struct kv_pg *pg, const struct kv_store_erasure *erasure, struct kv_errinfo *info);
KV_RC kv_store_erasure_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_erasure *ret_erasure); /* KV_E_NOT_FOUND */
KV_RC kv_store_erasure_get_by_certificate(struct kv_pg *pg, const struct kv_id *certificate, struct kv_errinfo *info,
                                          struct kv_store_erasure *ret_erasure); /* KV_E_NOT_FOUND */
/* Those between REQUESTED and VERIFIED (or, without `verified`, PURGED), in the order of their revocations, at most
 * `max`. */
KV_RC kv_store_erasure_list_open(struct kv_pg *pg, bool verified, size_t max, struct kv_errinfo *info,
                                 struct kv_store_erasure *ret_list, size_t *ret_count);
/* How many there are of those, and when the oldest was asked for (0: none). */
KV_RC kv_store_erasure_count_open(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count,
                                  uint64_t *ret_oldest_us);
KV_RC kv_store_erasure_list_batch(struct kv_pg *pg, const struct kv_id *batch, size_t max, struct kv_errinfo *info,
                                  struct kv_store_erasure *ret_list, size_t *ret_count);

/* A page of a tenant's, by the time of the request. `ret_list` has room for page->limit + 1. */
struct kv_store_erasure_filter {
    struct kv_id tenant;
    struct kv_id session, group; /* zero: any */
    bool alone;                  /* of no group */
    const char *state;           /* NULL: any */
};
KV_RC kv_store_erasure_page(struct kv_pg *pg, const struct kv_store_erasure_filter *filter, struct kv_page *page,
                            struct kv_errinfo *info, struct kv_store_erasure *ret_list, size_t *ret_count);
/* The certified ones, by the time of their certificate; [from, to), 0: open. The same room. */
struct kv_store_certified_filter {
    struct kv_id tenant, group; /* no group: any */
    uint64_t from_us, to_us;
};
KV_RC kv_store_erasure_page_certified(struct kv_pg *pg, const struct kv_store_certified_filter *filter,
                                      struct kv_page *page, struct kv_errinfo *info, struct kv_store_erasure *ret_list,
                                      size_t *ret_count);

/* KV_E_STALE unless the row was in `from`. KV_E_INVALID_REQUEST: not an arrow of the diagram. KV_E_INVALID_STATE: the
 * schema misses something that `to` stands for (a batch from STAGED on, facts at VERIFIED, the bundle at CERTIFIED).
 * Write. */
KV_RC kv_store_erasure_advance(struct kv_pg *pg, const struct kv_id *id, enum kv_erasure_state from,
                               enum kv_erasure_state to, uint64_t at_us, struct kv_errinfo *info);
/* Joins a batch (zero: leaves it), only while REQUESTED, FENCED or STAGED; KV_E_STALE. Write. */
KV_RC kv_store_erasure_set_batch(struct kv_pg *pg, const struct kv_id *id, const struct kv_id *batch,
                                 struct kv_errinfo *info);
/* May be written again until VERIFIED, then frozen: KV_E_STALE. Write. */
KV_RC kv_store_erasure_set_facts(struct kv_pg *pg, const struct kv_id *id, const struct kv_store_facts *facts,
                                 struct kv_errinfo *info);
/* Header pages of sampled blocks (sealed, at most 1 MiB), kept until VERIFIED; an empty one clears. KV_E_STALE when
 * certified. Write. */
KV_RC kv_store_erasure_set_samples(struct kv_pg *pg, const struct kv_id *id, struct kv_bytes samples,
                                   struct kv_errinfo *info);
KV_RC kv_store_erasure_samples(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                               struct kv_buf *ret_samples); /* KV_E_MISSING */

/* Appended to the caller's buffer. KV_E_MISSING: not there yet. */
KV_RC kv_store_erasure_jws(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info, struct kv_buf *ret_jws);
KV_RC kv_store_erasure_bundle(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                              struct kv_buf *ret_bundle);

/* ---- of a whole tenant, store_erasure_tenant.c ---- */

/* The request for all sessions of a tenant that have no erasure of their own: the row, and the tenant goes on with a
 * fresh tree at a fresh place in the directory, unless it is `erasing` itself. The number of statements does not depend
 * on the number of sessions. Reads what kv_store_erasure_insert reads, but a session; fills slot, first_slot,
 * directory_slot, tree and sessions. Take revocation_seq first, then call this: it locks the tenant. KV_E_NOT_FOUND: no
 * such tenant. KV_E_STALE: it is erased. KV_E_LIMIT: the directory is full. Write. */
KV_RC kv_store_erasure_insert_tenant(struct kv_pg *pg, struct kv_store_erasure *erasure, struct kv_errinfo *info);
/* Ids of the sessions that are meant, after `after`, in their order, at most `max`. */
KV_RC kv_store_erasure_sessions(struct kv_pg *pg, const struct kv_store_revocation *what, const struct kv_id *after,
                                size_t max, struct kv_errinfo *info, struct kv_id *ret_ids, size_t *ret_count);
/* How many there were, and the root over their ids; until VERIFIED, then KV_E_STALE. Write. */
KV_RC kv_store_erasure_set_sessions(struct kv_pg *pg, const struct kv_store_erasure *erasure, struct kv_errinfo *info);
/* Up to `max` sessions of a certified one get rows that say so themselves, and that know nothing else of them; with the
 * last ones the rows of the tree go, which hang nowhere. *ret_count: how many; below `max` the oldest is done. Write.
 */
KV_RC kv_store_erasure_settle(struct kv_pg *pg, size_t max, uint64_t now_us, struct kv_errinfo *info,
                              uint64_t *ret_count);

/* ---- many at once, up to KV_ERASE_BATCH: contracts as above; KV_E_STALE unless all were hit ---- */

struct kv_store_ids {
    const struct kv_id *ids; /* each once; borrowed */
    size_t count;
};
struct kv_store_meant {
    struct kv_id session, erasure;
    struct kv_id hold; /* that covers it: the erasure begins as BLOCKED_HOLD; zero: none */
};
/* Requests, as kv_store_erasure_insert has them, for up to KV_ERASE_BATCH sessions of one tenant, each once. Everything
 * that they share is in `like`; the first has its revocation_seq, the others those after it. The ones that were taken
 * on, in the order of their revocations, into room for `count`, which may be `meant` itself; a session that is not
 * active any more, or not of this tenant, is left out. Write. */
KV_RC kv_store_erasures_insert(struct kv_pg *pg, const struct kv_store_erasure *like,
                               const struct kv_store_meant *meant, size_t count, struct kv_errinfo *info,
                               struct kv_store_meant *ret_taken, size_t *ret_count);
/* In the order of their revocations. KV_E_NOT_FOUND unless there are all of them. */
KV_RC kv_store_erasures_get(struct kv_pg *pg, const struct kv_store_ids *ids, struct kv_errinfo *info,
                            struct kv_store_erasure *ret_list);
struct kv_store_move {
    enum kv_erasure_state from, to;
    uint64_t at_us;
};
KV_RC kv_store_erasures_advance(struct kv_pg *pg, const struct kv_store_ids *ids, const struct kv_store_move *move,
                                struct kv_errinfo *info);
KV_RC kv_store_erasures_set_batch(struct kv_pg *pg, const struct kv_store_ids *ids, const struct kv_id *batch,
                                  struct kv_errinfo *info);
struct kv_store_found {
    struct kv_id id; /* of the erasure */
    struct kv_store_facts facts;
    struct kv_bytes samples;
};
KV_RC kv_store_erasures_set_facts(struct kv_pg *pg, const struct kv_store_found *found, size_t count,
                                  struct kv_errinfo *info);
KV_RC kv_store_erasures_set_samples(struct kv_pg *pg, const struct kv_store_found *found, size_t count,
                                    struct kv_errinfo *info);
struct kv_store_issued {
    struct kv_id erasure, certificate;
    struct kv_bytes text;                     /* the signed certificate, or the bundle; borrowed */
    char previous_sha256[KV_SHA256_HEX_SIZE]; /* of the certificates */
    uint64_t leaf_index;                      /* of the bundles */
};
/* Once, in VERIFIED; KV_E_STALE the second time or out of state. The tenants' chains are moved apart:
 * kv_store_tenant_certificate_move. Write. */
KV_RC kv_store_erasures_set_certificates(struct kv_pg *pg, const struct kv_store_issued *issued, size_t count,
                                         struct kv_errinfo *info);
/* Once, after the certificates; KV_E_STALE. Advancing to CERTIFIED belongs into the same transaction. Write. */
KV_RC kv_store_erasures_set_bundles(struct kv_pg *pg, const struct kv_store_issued *issued, size_t count,
                                    struct kv_errinfo *info);
/* Into as many initialised buffers, in the order of `ids`. KV_E_MISSING: one has none yet. */
KV_RC kv_store_erasures_jws(struct kv_pg *pg, const struct kv_store_ids *ids, struct kv_errinfo *info,
                            struct kv_buf *ret_jws);
/* ERASING to ERASED; a second time is fine. KV_E_STALE: one was not even erasing. Write. */
KV_RC kv_store_sessions_set_erased(struct kv_pg *pg, const struct kv_store_ids *sessions, struct kv_errinfo *info);

/* ---- what each instance did ---- */

enum kv_fenced_how { KV_FENCED_NOT, KV_FENCED_SELF, KV_FENCED_ACKED, KV_FENCED_EXPIRED };
const char *kv_fenced_how_name(enum kv_fenced_how how); /* "acked"; "" for NOT */

struct kv_store_erasure_instance {
    struct kv_id erasure, instance;
    int64_t incarnation;
    uint64_t reported_us;        /* 0: it said nothing of what it has */
    uint64_t journal_seq;        /* its transfer records up to here are to be in the log first */
    struct kv_store_facts facts; /* what it has: blocks, bytes, block_root, samples */
    enum kv_fenced_how fenced_how, purged_how;
    uint64_t fenced_us, purged_us;
};

struct kv_store_report {
    struct kv_id erasure, instance;
    int64_t incarnation;
    uint64_t journal_seq, at_us;
    struct kv_store_facts facts;
    struct kv_bytes samples; /* framed headers; may be empty */
};
/* What an instance has of what is being erased, said before it acknowledges the revocation. Once: a repeated
 * one changes nothing, and neither does one of an earlier incarnation. Write. */
KV_RC kv_store_erasure_report(struct kv_pg *pg, const struct kv_store_report *report, struct kv_errinfo *info);
/* Of up to KV_STORE_IDS_MAX erasures, by erasure and instance. */
KV_RC kv_store_erasure_instances(struct kv_pg *pg, const struct kv_id *erasures, size_t count, size_t max,
                                 struct kv_errinfo *info, struct kv_store_erasure_instance *ret_list,
                                 size_t *ret_count);
KV_RC kv_store_erasure_instance_samples(struct kv_pg *pg, const struct kv_id *erasure, const struct kv_id *instance,
                                        struct kv_errinfo *info, struct kv_buf *ret_samples); /* KV_E_MISSING */
struct kv_store_fenced {
    struct kv_id instance;
    int64_t incarnation;
    enum kv_fenced_how how;
    uint64_t at_us;
};
/* The instance uses the sessions no more. Write. */
KV_RC kv_store_erasure_fenced_by(struct kv_pg *pg, const struct kv_id *erasure, const struct kv_store_fenced *fenced,
                                 struct kv_errinfo *info);
KV_RC kv_store_erasures_fenced_by(struct kv_pg *pg, const struct kv_store_ids *ids,
                                  const struct kv_store_fenced *fenced, struct kv_errinfo *info);
/* The instance holds nothing from before the batch's root; for one that came later that is all there is to say. Write.
 */
KV_RC kv_store_erasure_purged_by(struct kv_pg *pg, const struct kv_id *batch, const struct kv_store_fenced *purged,
                                 struct kv_errinfo *info);
/* The others that took part have left in order since: nothing is left of them. Write. */
KV_RC kv_store_erasure_purged_rest(struct kv_pg *pg, const struct kv_id *batch, uint64_t at_us,
                                   struct kv_errinfo *info);
/* An instance whose lease ran out unseen may have the keys of this session, or of this tenant, or a root that leads to
 * them, in its memory: it ended after the subject was made, or no root was destroyed in between. */
KV_RC kv_store_instance_lingers(struct kv_pg *pg, const struct kv_id *instance, const struct kv_id *subject,
                                struct kv_errinfo *info, bool *ret_lingers);

/* ---- batches ---- */

enum kv_batch_state {
    KV_BATCH_STAGED = 0,
    KV_BATCH_REKEYED,
    KV_BATCH_DESTROYED,
    KV_BATCH_PURGED,
    KV_BATCH_DONE,
    KV_BATCH_ABANDONED,
};
const char *kv_batch_state_name(enum kv_batch_state state);

#define KV_PROVIDER_DETAIL_SIZE 129

struct kv_store_batch {
    struct kv_id id, old_root, new_root;
    enum kv_batch_state state;
    int64_t fence;
    char provider[KV_PROVIDER_SIZE]; /* the one that destroys old_root */
    char provider_detail[KV_PROVIDER_DETAIL_SIZE];
    bool has_receipt;
    uint8_t receipt_sha256[32];
    uint64_t created_us, destroyed_us, purged_us;
};

/* Starts STAGED. `old_top` (may be empty) is the sealed top row of the directory as it was, kept to show that it no
 * longer opens. KV_E_STALE: another batch is staged or re-keyed, there is only one at a time. Write. */
KV_RC kv_store_batch_insert(struct kv_pg *pg, const struct kv_store_batch *batch, struct kv_bytes old_top,
                            struct kv_errinfo *info);
KV_RC kv_store_batch_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                         struct kv_store_batch *ret_batch); /* KV_E_NOT_FOUND */
/* The root in force, or one that was in force before. */
KV_RC kv_store_root_known(struct kv_pg *pg, const struct kv_id *root, struct kv_errinfo *info, bool *ret_known);
/* The one that replaced `old_root`, or is about to. KV_E_NOT_FOUND. */
KV_RC kv_store_batch_of_root(struct kv_pg *pg, const struct kv_id *old_root, struct kv_errinfo *info,
                             struct kv_store_batch *ret_batch);
/* How often the root was replaced, and when it was last (0: never). Looks at all batches. */
KV_RC kv_store_root_history(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count, uint64_t *ret_last_us);
/* Those from STAGED to PURGED, oldest first. */
KV_RC kv_store_batch_list_open(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_batch *ret_list,
                               size_t *ret_count);
/* KV_E_STALE unless it was in `from`; KV_E_INVALID_REQUEST: not an arrow. DESTROYED needs the receipt (32 bytes),
 * others pass NULL. Write. */
KV_RC kv_store_batch_advance(struct kv_pg *pg, const struct kv_id *id, enum kv_batch_state from, enum kv_batch_state to,
                             uint64_t at_us, const uint8_t *receipt_sha256, struct kv_errinfo *info);
KV_RC kv_store_batch_set_old_top(struct kv_pg *pg, const struct kv_id *id, struct kv_bytes old_top,
                                 struct kv_errinfo *info); /* only while STAGED: KV_E_STALE. Write. */
KV_RC kv_store_batch_old_top(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                             struct kv_buf *ret_old_top); /* KV_E_MISSING */

#endif

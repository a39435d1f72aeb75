/*
 * What the files of the service share: the one object, its registries and its background threads.
 *
 * Locks, never held across a call into the database or the engine:
 *   registry_mutex  engines, pools, descriptor tokens, sessions, known API keys
 *   roe_mutex       the root-of-erasure provider (one caller at a time) and changes of the tree's root
 *   sequencer_mutex one integration of the outbox at a time (held across its transaction: that is its purpose)
 *   wake_mutex      the conditions that background threads sleep on
 *   peers_mutex     what was seen last of the other instances
 */
#ifndef KV_SVC_INT_H
#define KV_SVC_INT_H

#include "audit/anchor.h"
#include "dataplane/keys/ktree.h"
#include "policies/policy_table.h"
#include "server/service/event.h"
#include "server/service/idmap.h"
#include "server/service/session_views.h"
#include "server/service/svc.h"
#include "server/service/svc_certificate.h"
#include "server/service/svc_erase.h"
#include "server/service/svc_session.h"
#include "server/store/pg.h"
#include "server/store/store_audit.h"
#include "server/store/store_erasure.h"

#include <pthread.h>
#include <stdatomic.h>

/* A session as transfers know it. Once revoked it stays so; it may be forgotten, since the keyring refuses it and the
 * database knows. */
struct svc_session {
    struct kv_id id, tenant;
    struct kv_model model;
    char class_name[33], region[64];
    uint64_t class_hash, region_hash; /* of svc->decisions */
    uint32_t policy_place;            /* where its policy was in there last */
    uint64_t created_us;
    struct kv_id shared;           /* the scope that it shares; zero: none */
    bool is_scope;                 /* it is one, and no transfer names it */
    bool revoked, lost;            /* the latter: with its root of erasure */
    struct kv_id erasure;          /* when revoked */
    uint64_t used_us, recorded_us; /* last use as noted here, and as the database has it */
};

struct svc_engine {
    struct kv_id id, tenant;
    struct kv_engine_new facts;
    uint64_t registered_us;
    uint64_t lease_until_ns; /* CLOCK_BOOTTIME */
    uint64_t lease_until_us;
    int64_t seen_revocation; /* position in the ring of revocations */
};

/* What a pool's pages are named by. */
struct svc_pool_names {
    struct kv_model model;
    char layout[65];                  /* the fingerprint in hex */
    uint64_t model_hash, layout_hash; /* of svc->decisions */
};

struct svc_pool {
    struct kv_pool *pool; /* one reference */
    struct kv_id engine;
    struct svc_pool_names names;
};

struct svc_fd_token {
    char text[48];
    int fd;
    int64_t peer_pid;
    uint64_t expires_ns;
};

struct svc_revocation {
    struct kv_id session, tenant;
};

struct svc_known_key {
    struct kv_store_api_key row;
    uint64_t fresh_until_ns; /* CLOCK_BOOTTIME: known under the lease, like everything that transfers need */
    uint64_t stamp;          /* of svc->change_stamp before it was read */
    uint64_t used_us;        /* last use as noted here */
};

#define SVC_REVOCATION_RING 4096
#define SVC_FD_TOKENS 64

#define SVC_INSTANCES_MAX 64
#define SVC_PROVIDERS_MAX 4

/* Another instance, as its row was seen last. Its lease is over when the counter has not moved for its whole length and
 * the margin, by this process's own clock: whatever the database's clock says, and from the start again in a new
 * process. */
struct svc_peer {
    struct kv_store_instance row;
    uint64_t since_ns; /* CLOCK_BOOTTIME: this counter was seen first */
};

struct kv_top;

struct svc_thread {
    pthread_t thread;
    bool started;
    struct kv_pg *pg;
};

struct kv_svc {
    struct kv_svc_conf conf;
    const struct kv_env *env;
    struct kv_id cluster, instance, incarnation;
    struct kv_pg_token token; /* in whose name the connections work */
    uint8_t keys_sha256[32];  /* of the public keys that it signs with */
    uint64_t started_us;
    char issuer[64], log_prefix[200];

    struct kv_engine *engine;
    struct kv_keyring *keyring;
    size_t keys_max; /* sessions whose keys may be open at once */
    struct kv_ktree *tree;
    struct kv_roe *_Atomic roe;             /* the one that kroot names; used under roe_mutex */
    struct kv_roe *roes[SVC_PROVIDERS_MAX]; /* those that are open; under roe_mutex */
    size_t roe_count;
    struct kv_anchor *anchor;         /* NULL: none is configured */
    struct kv_anchor_record anchored; /* what it shows; the start, then the eraser only */
    struct kv_journal *journal;
    struct kv_sign_key *cert_key, *log_key;
    struct kv_events *events;
    struct kv_secret *cursor_key; /* of the cluster; signs cursors of lists */

    pthread_mutex_t registry_mutex;
    struct kv_idmap sessions, engines, pools;
    struct kv_idmap rules;             /* svc_rules, by tenant */
    struct kv_policy_table *decisions; /* of those, what transfers ask; has its own lock */
    struct kv_secret *names_key;       /* keys the hashes in it; of this process */
    struct svc_fd_token fd_tokens[SVC_FD_TOKENS];
    struct kv_idmap known_keys; /* by the kid, spread over an id */
    struct svc_views *views;    /* of sessions, for those who must not wait */
    struct kv_idmap moved;      /* what tenants transferred since the start, see svc_tenant_usage.c */
    struct svc_revocation revocations[SVC_REVOCATION_RING];
    int64_t revocation_count;

    /* Openings of sessions that run, by the epoch they began in (even, odd); under registry_mutex. */
    uint64_t opening_epoch;
    unsigned opening[2];
    pthread_cond_t opening_ended;

    pthread_mutex_t roe_mutex, sequencer_mutex, wake_mutex;
    pthread_cond_t eraser_wake, janitor_wake, operation_wake, stopping_wake;
    unsigned eraser_work; /* counts requests; under wake_mutex */
    unsigned janitor_work, operation_work;
    struct kv_id root_unwanted; /* the eraser replaces it; zero: none. Under wake_mutex */
    const char *root_target;    /* the provider of the one that takes its place; NULL: the same. Static */
    const char *root_sweep;     /* where one may be staged that nobody wants any more; NULL: nowhere. Static */

    pthread_mutex_t peers_mutex;
    struct svc_peer peers[SVC_INSTANCES_MAX];
    size_t peer_count;

    atomic_ullong change_stamp; /* what was read from the database under an older one is read again before use */

    atomic_uint tiers_draining;                  /* mask of 1 << kv_tier_id: no new block goes there */
    atomic_ullong tier_revs[KV_TIER_OBJECT + 1]; /* changes by operators since the start */

    atomic_bool retiring, stopping, lease_stop, sequencer_stop, db_ok, lease_ok, migrated;
    atomic_bool root_ok;              /* the root of erasure could be read when the eraser tried last */
    atomic_bool anchor_ok;            /* the anchor could be written when there was something to write */
    _Atomic uint64_t erasures_open;   /* of the cluster, as the eraser saw last */
    atomic_ullong erase_usual_us;     /* from request to certificate, smoothed; 0: none yet */
    atomic_bool exporting;            /* one archive at a time */
    atomic_bool groups_open;          /* erasures of many that have not ended, as the janitor saw last */
    _Atomic(const char *) quarantine; /* why; NULL: not quarantined */

    struct kv_top *top;                      /* metrics by tenant */
    uint64_t sample_due_ns;                  /* janitor only */
    uint64_t operators_said_us;              /* janitor only: when the end of operator keys was said last */
    uint64_t clean_since_us, clean_waits_ns; /* the same, see erase_clean.c */

    struct kv_store_instance lease_row; /* lease thread only, after start */
    bool lease_lost;                    /* to a clone; the same */
    bool nvme_up;                       /* as it was last told; lease thread only */
    atomic_ullong lease_turn_ns;        /* when its thread was last seen at work */
    int64_t change_seq;                 /* of the last renewal; the same */
    int64_t start_fence;                /* of kroot, taken by the start; 0: not */
    struct svc_thread lease, eraser, sequencer, janitor, operations, fd_socket, listener;
    int fd_listener, fd_stop; /* the side socket and the eventfd that ends its thread */
    int listener_stop;        /* the eventfd that ends the listener for changes */
};

/* --- svc.c */
KV_RC svc_pg_open(struct kv_svc *svc, const char *name, struct kv_errinfo *info, struct kv_pg **ret_pg);
/* Refuses what needs keys while quarantined or stopping. */
KV_RC svc_may_work(struct kv_svc *svc, struct kv_errinfo *info);
void svc_quarantine(struct kv_svc *svc, const char *static_reason);
/* Sleeps until the deadline or the stop; true when stopping. */
bool svc_sleep(struct kv_svc *svc, uint64_t ns);

/* --- svc.c */
/* For a call from memory: sets call->missing. */
KV_RC svc_not_in_memory(struct kv_call *call);

/* --- page_guard.c */
struct svc_page_guard { /* of one call; zeroed */
    bool asked, erased;
    struct kv_id session;
};
/* Whether the page of block `index` may not be used: its generation went back, or (`seals`) it holds what an erased
 * session left there. */
bool svc_page_stale(struct kv_call *call, struct kv_pool *pool, bool seals, const struct kv_blocks_in *in,
                    uint32_t index, struct svc_page_guard *guard);
/* After a transfer that was done. */
void svc_pages_used(struct kv_pool *pool, const struct kv_blocks_in *in, const struct kv_blocks_out *out);

/* --- svc_cursor.c */
KV_RC svc_cursor_key(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info); /* in the start's transaction */

/* --- svc_tx.c */
/* Policies, tenants or API keys changed, here or elsewhere: call it after the commit. Thread: any. */
void svc_changed(struct kv_svc *svc);
/* Every change that a caller asks for: one transaction with `fn`, what the Idempotency-Key needs around it, and the
 * answer that call->render makes. With call->dry_run all of it is rolled back; KV_OK still says that it would have
 * succeeded, and the caller leaves out what comes after a commit. KV_E_STALE with call->once->replay: another request
 * with this key ended meanwhile and its answer is there. */
KV_RC svc_tx(struct kv_call *call, enum kv_tx what, kv_pg_tx_fn fn, void *ctx);
/* In a transaction, on the row that was just locked or read: does its revision satisfy If-Match? */
KV_RC svc_match(const struct kv_call *call, uint64_t rev, struct kv_errinfo *info);
/* The role that the caller acts in, for audit entries. */
const char *svc_role_name(unsigned roles);

/* --- eraser.c */
/* If `root` is the root in force, it is replaced, also when nothing is to be erased; by one of the provider `target`
 * (static), or NULL: of the same. Forgotten with the process. */
void svc_root_replace(struct kv_svc *svc, const struct kv_id *root, const char *target);

/* --- erase_sweep.c */
/* No root is unwanted any more, and what is staged in this provider (static) is discarded before the next batch. */
void svc_root_call_off(struct kv_svc *svc, const char *provider);
bool svc_root_is_swept(struct kv_svc *svc);

/* --- providers.c: under roe_mutex */
const char *svc_provider_name(const char *text); /* the same, static; NULL: no such provider */
/* Opened when it is not. KV_E_CONFIG …: what kv_roe_open says. Valid to the end of the service. */
KV_RC svc_provider(struct kv_svc *svc, const char *name, struct kv_errinfo *info, struct kv_roe **ret_roe);
/* svc->roe is the one of this name from now on. */
KV_RC svc_provider_follow(struct kv_svc *svc, const char *name, struct kv_errinfo *info);
void svc_providers_fence(struct kv_svc *svc, uint64_t fence);
void svc_providers_close(struct kv_svc *svc);

/* --- root.c: kroot, the provider and the tree belong together */
KV_RC svc_root_start(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
/* Makes this process the one that may change the root: waits for a change that is under way, and none that began
 * before can commit after it. Release with kv_store_kroot_done. */
KV_RC svc_root_take(struct kv_svc *svc, struct kv_pg *pg, enum kv_tx what, struct kv_errinfo *info,
                    struct kv_store_kroot *ret_kroot); /* KV_E_STALE: another instance has it, and its lease runs */
/* KV_E_STALE unless the fence is still `fence`. What was read of the provider before this call, it may act on after it,
 * however late that is: nobody else has given it a meaning since. */
KV_RC svc_root_still(struct kv_pg *pg, int64_t fence, struct kv_errinfo *info);
/* The database's root is one that the provider has, also when another instance changes both meanwhile; else quarantine
 * and KV_E_ROLLBACK_DETECTED. */
KV_RC svc_root_check(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
/* `rc` of a call to the root's provider, with its own words where it had some, else `text`. Under roe_mutex. */
KV_RC svc_root_said(struct kv_svc *svc, enum kv_err rc, struct kv_errinfo *info, const char *text);
/* Makes the tree use the root of `kroot`; a no-op when it does already. Not while holding kroot FOR UPDATE with another
 * root in the tree: the change waits for calls that began under the old one. */
KV_RC svc_root_use(struct kv_svc *svc, const struct kv_store_kroot *kroot, struct kv_errinfo *info);
/* The same, and KV_OK means that nothing opened under an earlier root is left in memory: what a purge acknowledges. */
KV_RC svc_root_purge(struct kv_svc *svc, const struct kv_store_kroot *kroot, struct kv_errinfo *info);
/* The database's root is another than the one in the tree: what was opened under it is wiped. Never waits long.
 * *ret_root is the root under which alone something may be open here, or zero while a call that began before still
 * runs. Thread: lease. */
KV_RC svc_root_follow(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, struct kv_id *ret_root);
/* The database's root, and whether the provider has that one alone in force: then no crash leads to another. Not asked
 * when the root is `known` already. */
KV_RC svc_root_settled(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *known, struct kv_errinfo *info,
                       struct kv_id *ret_root, bool *ret_alone);
struct svc_tree_store {
    struct kv_pg *pg;
    struct kv_errinfo *info;
};
/* Fills the tree's storage contract with rows; valid as long as `store` is. */
struct kv_ktree_store svc_tree_store(struct svc_tree_store *store);

/* --- anchor.c: what is written down outside of the database. Thread: the start, then the eraser. */
KV_RC svc_anchor_open(struct kv_svc *svc, struct kv_errinfo *info);
/* Quarantines when the database does not know what the anchor shows. */
KV_RC svc_anchor_check(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
/* KV_OK: none is configured, or it shows the root in force, durably. KV_E_BUSY: the root is being changed. */
KV_RC svc_anchor_follow(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
/* What it shows, for a certificate; false: none is configured. */
bool svc_anchor_shown(const struct kv_svc *svc, struct kv_anchor_record *ret_record, const char **ret_kind);
void svc_anchor_close(struct kv_svc *svc);

/* --- arena.c */
/* Refuses an nvme folder of another cluster (KV_E_FOREIGN_FILE), then drops what nobody can read again. Not in
 * quarantine: the database may be the wrong one. */
KV_RC svc_arena_start(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);

/* --- svc_access.c */
/* The key changed here: what was known of it is of no use any more, not even while the database is away. Thread: any.
 */
void svc_key_forget(struct kv_svc *svc, const char *kid);
/* The key's ranges let it be used from the caller's address. */
bool svc_key_from_here(const struct kv_call *call, const struct kv_store_api_key *key);

/* --- svc_session.c */
/* The session is active and its keys are open; from memory when it was used before. KV_E_SESSION_ERASED sets
 * call->erasure. */
KV_RC svc_session_open(struct kv_call *call, const struct kv_id *session, struct svc_session *ret_session);
/* Opens the keys; closes those of a session that was not used lately when there is no room. */
KV_RC svc_session_keys(struct kv_svc *svc, const struct kv_id *tenant, const struct kv_id *session,
                       const struct kv_secret *scope_secret);
/* Its next decision finds the policy there. */
void svc_session_place(struct kv_svc *svc, const struct kv_id *session, uint32_t policy_place);
/* A session's row. Another tenant's is answered like one that does not exist, to the letter. */
KV_RC svc_session_row(struct kv_pg *pg, const struct kv_id *session, const struct kv_id *tenant,
                      struct kv_errinfo *info, struct kv_store_session *ret_row);
void svc_model_of_row(const struct kv_store_session *row, struct kv_model *ret_model);
/* No opening that began before this call holds a secret any more: with svc_root_purge what a purge acknowledges.
 * KV_E_BUSY after the deadline. Thread: eraser. */
KV_RC svc_session_settle(struct kv_svc *svc, uint64_t deadline_ns, struct kv_errinfo *info);
/* From now on the session is refused here: registry, engine fence, keys dropped for good. Idempotent. */
KV_RC svc_session_revoke(struct kv_svc *svc, const struct kv_id *tenant, const struct kv_id *session,
                         const struct kv_id *erasure, uint64_t deadline_ns);
const char *svc_revoke_text(enum kv_err rc);                             /* why it did not succeed */
bool svc_session_known(struct kv_svc *svc, const struct kv_id *session); /* in memory, whatever its state */

/* --- tenant_revoke.c: all of a tenant's sessions by one number */
struct kv_store_revocation svc_revocation_of(const struct kv_store_erasure *row);
/* The ids of all that are meant, in their order, appended as 16 bytes each. */
KV_RC svc_revocation_sessions(struct kv_pg *pg, const struct kv_store_revocation *what, struct kv_errinfo *info,
                              struct kv_buf *ret_ids);
/* A session, or all of a tenant's that are meant, like svc_session_revoke; the text is in `info`. */
KV_RC svc_revoke(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what, uint64_t deadline_ns,
                 struct kv_errinfo *info);

/* --- svc_session_view.c */
/* KV_E_SESSION_LOST, with its text. */
KV_RC svc_session_lost(struct kv_errinfo *info);
/* Everything but the external id, which needs keys: svc_external_open_all. */
void svc_session_view_of(const struct kv_store_session *row, struct kv_session_view *ret_view);
/* A session's row of the caller's tenant, locked; KV_E_SESSION_ERASED unless it is active. In a transaction. */
KV_RC svc_session_lock(struct kv_call *call, struct kv_pg *pg, const struct kv_id *session, struct kv_errinfo *info,
                       struct kv_store_session *ret_row);

/* --- svc_external.c: a client's own ids for sessions */
/* The key of the hashes by which names of the tenant's clients are found. As below. */
KV_RC svc_external_key(struct kv_svc *svc, const struct kv_ktree_store *rows, const struct kv_store_tenant *tenant,
                       bool fill, struct kv_secret **ret_key);
/* The keyed hash by which the tenant's external ids are found. In a transaction that holds kroot FOR SHARE, with the
 * tenant's system slot taken; `fill` when nodes may be written. */
KV_RC svc_external_hmac(struct kv_svc *svc, const struct kv_ktree_store *rows, const struct kv_store_tenant *tenant,
                        bool fill, const char *external_id, uint8_t ret_hmac[32]);
/* The same for a caller that only looks: *ret_known is false when the tenant never used one. */
KV_RC svc_external_lookup(struct kv_call *call, const char *external_id, bool *ret_known, uint8_t ret_hmac[32]);
/* Sealed under the session's K_meta. */
KV_RC svc_external_seal(struct kv_svc *svc, const struct kv_secret *slot, const struct kv_store_session *session,
                        const char *external_id, struct kv_buf *ret_sealed);
/* Fills external_id of the views of these rows. One whose key is gone, or all in quarantine, stay empty. */
KV_RC svc_external_open_all(struct kv_call *call, const struct kv_store_session *rows, struct kv_session_view *views,
                            size_t count);

/* --- svc_use.c, svc_expire.c: steps of the janitor */
/* When sessions and API keys were used last, from memory to the database. */
KV_RC svc_use_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);
/* Sessions past their lifetime and tenants past their grace time are begun to be erased. */
KV_RC svc_expire_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);
/* A session is used now; that of one which is not in memory is not noted. Thread: any. */
void svc_use_note(struct kv_svc *svc, const struct kv_id *session, uint64_t at_us);
/* What is noted here of uses of the tenant's sessions since then, and every transfer's entry so far, are in the
 * database when it returns: it can tell which sessions are idle. Not in a transaction. Thread: any. */
KV_RC svc_use_settle(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, uint64_t since_us,
                     struct kv_errinfo *info);
/* The last use that is noted here; 0: none. Thread: any. */
uint64_t svc_use_noted(struct kv_svc *svc, const struct kv_id *session);

/* --- svc_tenant.c, svc_tenant_usage.c */
/* The caller's own tenant, or any for whoever sees all of them: else KV_E_NOT_FOUND. */
KV_RC svc_tenant_visible(struct kv_call *call, const struct kv_id *tenant);
KV_RC svc_region_check(struct kv_call *call, const char *region); /* NULL and "" are fine; points at /region */
/* svc_policy.c: the first policy of a tenant that the transaction makes; what it refuses points below /policy. */
KV_RC svc_policy_first(struct kv_call *call, struct kv_pg *pg, const struct kv_id *tenant, struct kv_bytes text,
                       struct kv_errinfo *info);
/* Counts what a transfer moved. */
void svc_tenant_moved(struct kv_svc *svc, const struct kv_id *tenant, enum kv_transfer_kind kind, uint64_t blocks,
                      uint64_t bytes);
/* svc_status.c: nothing new goes to the tier, or again something. Tells it when it was the other way. */
KV_RC svc_tier_set_draining(struct kv_svc *svc, enum kv_tier_id id, bool draining);
/* A janitor's step: hours that nobody can ask for any more. */
KV_RC svc_usage_expire(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);

/* --- svc_engine.c */
/* A pool of the caller's tenant whose engine's lease runs; the reference is the caller's. */
KV_RC svc_pool_borrow(struct kv_call *call, const struct kv_id *pool, struct kv_pool **ret_pool,
                      struct svc_pool_names *ret_names);
/* Engines and descriptors whose time is over. Never waits for a transfer: the lease's thread calls it. */
void svc_engines_expire(struct kv_svc *svc);
void svc_engines_done(struct kv_svc *svc);

/* --- svc_cursor.c */
/* The order of lists that are made in memory, as the database's (time, id): < 0, 0, > 0. */
int svc_page_order(uint64_t a_us, const struct kv_id *a, uint64_t b_us, const struct kv_id *b);

/* --- sequencer.c */
#define SVC_REF_BYTES 17
enum svc_ref { SVC_REF_REQUEST = 'q', SVC_REF_DESTROY = 'd', SVC_REF_CERTIFICATE = 'c', SVC_REF_UPGRADE = 'u' };
void svc_ref(enum svc_ref kind, const struct kv_id *id, uint8_t ret_ref[SVC_REF_BYTES]);
/* Puts an entry into the outbox of the caller's transaction; the log is the event's tenant's, or the operator's. */
KV_RC svc_audit(struct kv_svc *svc, struct kv_pg *pg, const struct kv_audit_event *event, struct kv_bytes ref,
                struct kv_errinfo *info);
/* The same without a service. */
KV_RC svc_audit_entry(const struct kv_env *env, struct kv_pg *pg, const struct kv_audit_event *event,
                      struct kv_bytes ref, struct kv_errinfo *info);
/* Ships the journal, integrates the outbox, signs heads. Thread: any, one at a time. */
KV_RC svc_sequence(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, size_t *ret_done);
/* Gives every entry that waits its place, and signs nothing. Thread: any. */
KV_RC svc_place_all(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
/* --- svc_proof.c */
KV_RC svc_inclusion_proof(struct kv_pg *pg, const struct kv_id *log, uint64_t index, uint64_t size,
                          struct kv_errinfo *info, struct kv_hash *ret_proof, size_t *ret_count);
/* The right edge of the tree of the first `size` entries, from what is stored of it. */
KV_RC svc_log_frontier(struct kv_pg *pg, const struct kv_id *log, uint64_t size, struct kv_errinfo *info,
                       struct kv_frontier *ret_frontier);
KV_RC svc_consistency_proof(struct kv_pg *pg, const struct kv_id *log, uint64_t from, uint64_t to,
                            struct kv_errinfo *info, struct kv_hash *ret_proof, size_t *ret_count);
void *svc_sequencer_main(void *svc);

/* --- svc_audit.c: one archive is made at a time, and bounded */
KV_RC svc_export_begin(struct kv_call *call);
KV_RC svc_export_end(struct kv_call *call, enum kv_err rc, const struct kv_buf *tar);

/* --- eraser.c, erase_steps.c, certify.c */
void *svc_eraser_main(void *svc);
void svc_eraser_signal(struct kv_svc *svc);
void svc_erasure_publish(struct kv_svc *svc, const struct kv_store_erasure *row); /* its state, to those who watch */

struct erase_round; /* one batch on its way, see erase_int.h */

/* --- peers.c: the other instances */
KV_RC svc_peers_look(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
/* A copy of what was seen last; `ret_peers` has room for SVC_INSTANCES_MAX. */
size_t svc_peers(struct kv_svc *svc, struct svc_peer *ret_peers);
/* It may use keys no longer, whatever it believes: marked so in the database already, or not heard of for its lease and
 * the margin. */
bool svc_peer_is_over(const struct kv_svc *svc, const struct svc_peer *peer);
/* How long after an instance was last heard of its lease counts as over. */
uint64_t svc_peer_patience_ns(uint32_t lease_ms);
/* Another instance's lease runs, as far as is known here. */
bool svc_peers_any(struct kv_svc *svc);

/* --- lease.c */
KV_RC svc_lease_join(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info);
void *svc_lease_main(void *svc);
/* Two steps of the end: the thread first, because it uses the engine; the lease when nothing uses keys any more. */
void svc_lease_stop(struct kv_svc *svc);
void svc_lease_leave(struct kv_svc *svc);

/* --- listener.c */
void *svc_listener_main(void *svc);

/* --- fd_socket.c */
KV_RC svc_fd_socket_open(struct kv_svc *svc, struct kv_errinfo *info);
void *svc_fd_socket_main(void *svc);
void svc_fd_socket_close(struct kv_svc *svc);

#endif

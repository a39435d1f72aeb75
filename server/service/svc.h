/*
 * The use cases of the server: what a request means, without HTTP, JSON or SQL. Handlers in server/http decode a
 * request into these structs, call one function here and encode the answer.
 *
 * Thread: a service thread, which owns its `struct kv_call` and through it one database connection. A function blocks
 * on the database or on an engine future, never on both at once. What a transfer must know is held in memory under the
 * instance's lease, so offload, restore and lookup of an open session never wait for the database.
 */
#ifndef KV_SVC_H
#define KV_SVC_H

#include "audit/certificate.h"
#include "audit/journal.h"
#include "dataplane/engine/engine.h"
#include "dataplane/keys/roe.h"
#include "server/store/page.h"
#include "server/store/pg.h"
#include "server/store/store_once.h"

struct kv_svc;

struct kv_svc_conf {
    const char *db_url; /* libpq connection string */
    enum kv_pg_prepare db_prepare;
    uint32_t db_statement_timeout_ms, db_lock_timeout_ms; /* 0: pg.h's */
    uint64_t db_start_wait_ns;                            /* how long the start waits for an answer; 0: 30 s */
    bool migrate_auto;        /* apply pending migrations at start; else they refuse the start */
    const char *state_folder; /* ours, 0700: journal, signing keys, sockets */
    const char *root_provider, *root_path;
    const char *anchor_file; /* NULL or "": none */
    struct kv_roe_pkcs11_conf root_pkcs11;
    struct kv_roe_transit_conf root_transit;
    const char *engine_socket, *fd_socket; /* paths, for GET /version; NULL: none */
    const char *host_name;                 /* origin prefix of the logs: "<host_name>/audit" */
    uint64_t lease_ns;                     /* of this instance; 5 s */
    uint64_t
        standby_wait_ns; /* how long an erasure waits for standbys of the database before it destroys; 0: not at all */
    uint64_t journal_bytes_max, journal_lag_max_ns;
    unsigned erase_batch_max;       /* erasures that share a re-key; 0: KV_ERASE_BATCH */
    uint64_t erase_batch_window_us; /* how long a batch waits for more after its first */
    uint64_t operation_keep_us;     /* how long an operation that ended can be looked at */
    unsigned tenant_labels;       /* how many tenants have a label of their own in metrics; 0: no families by tenant */
    struct kv_engine_conf engine; /* keyring and sink are filled in by the service */
    const struct kv_env *env;
    bool (*cancelled)(void); /* NULL: never. Asked while the start waits for the database */
};

/* Puts the metric families of the service and the data plane there, all zero, before the listeners open. */
void kv_svc_metrics_init(void);

/* Blocks until the database answers and everything is open, or fails with a text that says what to do. Starts the
 * threads: lease keeper, eraser, sequencer, descriptor socket. */
KV_RC kv_svc_start(const struct kv_svc_conf *conf, struct kv_errinfo *info, struct kv_svc **ret_svc);
/* Readiness goes; everything else goes on, for load balancers to notice. */
void kv_svc_retire(struct kv_svc *svc);
/* The threads that everything hangs on have turned lately. A database that does not answer is no reason for a no.
 * Thread: any; never waits. */
bool kv_svc_alive(struct kv_svc *svc);
/* Readiness goes and new work is refused. Before the listeners stop; they answer those that wait for something. */
void kv_svc_begin_stop(struct kv_svc *svc);
/* After the listeners stopped. Running transfers end, the journal is shipped as far as the database is there, threads
 * end. */
KV_RC kv_svc_stop(struct kv_svc *svc);

struct kv_principal {
    struct kv_id key, tenant; /* tenant is zero for the operator's keys */
    unsigned roles;           /* mask of enum kv_role */
};

/* What a conditional request asks of the resource's revision (If-Match). */
struct kv_match {
    bool present, any; /* any: "*" */
    uint64_t rev;
};

/* An answer as it is kept for its Idempotency-Key; texts and body are borrowed until the transaction ended. */
struct kv_answer {
    int status;
    const char *location, *etag, *content_type; /* "" when absent */
    struct kv_bytes body;
    bool secret; /* the body is not kept */
};
typedef void kv_render_fn(void *ctx, struct kv_answer *ret_answer);

/* A request that came with an Idempotency-Key. */
struct kv_once {
    struct kv_store_once_key key;
    uint8_t fingerprint[32];
    bool for_ever; /* kept as long as the database is */
    bool replay;   /* it was answered before: what follows is that answer */
    struct kv_store_once kept;
    struct kv_buf body;
};

/* One request's call. The service thread keeps one and reuses it. What a handler sets before it calls a use case:
 * dry_run, match, once, render. */
struct kv_call {
    struct kv_svc *svc;
    struct kv_pg *pg; /* owned by the thread's worker */
    struct kv_principal who;
    struct kv_errinfo info; /* filled where a failure happens */
    struct kv_id erasure;   /* with KV_E_SESSION_ERASED: the erasure whose certificate says so, or zero */
    uint64_t engine_ns;     /* time spent waiting for the engine, for Server-Timing */
    uint64_t db_before_ns;  /* what its connection had waited for the database before this call */
    char request_id[65];
    uint8_t trace[16]; /* W3C trace id; zero: none */
    bool has_peer;
    uint8_t peer[16]; /* the caller's address as IPv6 (IPv4: ::ffff:a.b.c.d); absent on the UNIX socket */

    bool dry_run; /* everything is checked and decided, and rolled back: nothing is written, nothing happens after it */
    struct kv_match match;
    struct kv_once *once; /* NULL: none; borrowed */
    /* Makes the answer from what the use case put into its ret_ parameters; called inside the transaction (once for
     * each try), so a use case fills them before its transaction function returns. */
    kv_render_fn *render;
    void *render_ctx;

    /* Of a call without a connection (kv_call_from_memory): what is not in memory fails with KV_E_STALE and sets
     * `missing`; nothing was done then but what may be done twice, and the call is made again with a connection. */
    bool from_memory, missing;
    /* Its address has sent too many keys that are none: the database is not asked about another (kv_svc_authenticate).
     */
    bool known_keys_only;
};

KV_RC kv_call_init(struct kv_svc *svc, struct kv_call *ret_call); /* opens the thread's connection lazily */
/* A call for a thread that must not wait: it has no connection. Nothing to release. */
void kv_call_from_memory(struct kv_svc *svc, struct kv_call *ret_call);
void kv_call_done(struct kv_call *call);
void kv_call_reset(struct kv_call *call);           /* before each request */
uint64_t kv_call_db_ns(const struct kv_call *call); /* time that this call waited for the database */

/* With call->once: was it answered before? Then call->once->replay is true and the answer is there. KV_OK either way;
 * KV_E_IDEMPOTENCY_MISMATCH when the key was used for another request. */
KV_RC kv_svc_once_find(struct kv_call *call);

/* --- access ------------------------------------------------------------------------------------------------------ */

/* `token` is the text after "Bearer ". KV_E_UNAUTHENTICATED whatever the reason. Known keys are answered from memory;
 * with call->known_keys_only any other is KV_E_RATE_LIMITED. */
KV_RC kv_svc_authenticate(struct kv_call *call, const char *token);
void kv_svc_count_role_refused(void); /* for the metrics: the key is good, its roles are not those of the route */

/* --- shared by sessions and engines ------------------------------------------------------------------------------- */

struct kv_model {
    char id[129], revision[129];
    uint8_t fingerprint[32]; /* zero when absent */
};

/* --- engines and pools ------------------------------------------------------------------------------------------- */

struct kv_engine_new {
    char name[129], kind[17], engine_version[129], boot_id[65];
    int64_t pid;
    struct kv_model model;
    uint32_t lease_seconds; /* 0: 5 */
};
struct kv_engine_view {
    struct kv_id id, server_incarnation;
    uint64_t lease_expires_us;
    uint32_t lease_seconds;
    bool existed;
};
KV_RC kv_svc_engine_register(struct kv_call *call, const struct kv_engine_new *in, struct kv_engine_view *ret_engine);

#define KV_REVOCATIONS_MAX 64
struct kv_heartbeat_view {
    struct kv_engine_view engine;
    struct kv_id revoked[KV_REVOCATIONS_MAX]; /* sessions revoked since the engine's last heartbeat */
    size_t revoked_count;
};
KV_RC kv_svc_engine_heartbeat(struct kv_call *call, const struct kv_id *engine, struct kv_heartbeat_view *ret_view);
KV_RC kv_svc_engine_remove(struct kv_call *call, const struct kv_id *engine);

struct kv_pool_new {
    struct kv_id engine;
    char fd_token[48];
    struct kv_pool_spec spec; /* fd, id, engine and tenant are filled in by the service */
};
struct kv_pool_view {
    struct kv_id id;
    uint64_t bytes_per_block;
    uint8_t layout_fingerprint[32];
};
KV_RC kv_svc_pool_register(struct kv_call *call, struct kv_pool_new *in, struct kv_pool_view *ret_pool);
KV_RC kv_svc_pool_remove(struct kv_call *call, const struct kv_id *pool);

/* A descriptor came in over the side socket. `ret_token` has room for 40. Takes `fd` on success. */
KV_RC kv_svc_fd_offer(struct kv_svc *svc, int fd, int64_t peer_pid, char ret_token[48]);

/* --- transfers --------------------------------------------------------------------------------------------------- */

struct kv_blocks_in {
    struct kv_id session, pool;
    uint32_t count;
    const uint8_t (*hashes)[32]; /* the engine's chained token hashes; borrowed */
    const uint32_t *slots;       /* NULL for a lookup */
    const uint64_t *generations; /* of the slots' pages; NULL: the engine does not count them */
    uint32_t shared;             /* so many of the first are of the scope that the session shares */
    enum kv_transfer_wait wait;
    uint64_t deadline_ms; /* 0: KV_MAX_TRANSFER_MS */
};
struct kv_blocks_out {
    struct kv_id op;
    enum kv_block_result *results; /* the caller's arrays, `count` each */
    uint8_t *tiers;                /* transfers: the kv_tier_id; lookup: mask of 1 << kv_tier_id */
    uint32_t done_blocks, present_blocks, leading_blocks;
    uint64_t bytes, duration_us;
};
KV_RC kv_svc_offload(struct kv_call *call, const struct kv_blocks_in *in, struct kv_blocks_out *out);
KV_RC kv_svc_restore(struct kv_call *call, const struct kv_blocks_in *in, struct kv_blocks_out *out);
KV_RC kv_svc_lookup(struct kv_call *call, const struct kv_blocks_in *in, struct kv_blocks_out *out);

/* --- operators ---------------------------------------------------------------------------------------------------- */

void kv_svc_stats(struct kv_svc *svc, struct kv_engine_stats *ret_stats);

struct kv_ready_check {
    const char *name; /* "db", "migrations", "root_key", "anchor", "audit", "lease", "tiers", "shutdown" */
    bool ok;
    const char *detail; /* static text */
};
#define KV_READY_CHECKS 8
/* From cached state; never waits. True when all are ok. */
bool kv_svc_ready(struct kv_svc *svc, struct kv_ready_check ret_checks[KV_READY_CHECKS]);

struct kv_about {
    struct kv_id cluster, instance;
    const char *engine_socket, *fd_socket, *io_name, *cipher_name, *root_provider;
    uint64_t block_bytes_max; /* of this server: what one block may have */
};
void kv_svc_about(struct kv_svc *svc, struct kv_about *ret_about);

#endif

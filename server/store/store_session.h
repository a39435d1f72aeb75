/*
 * Sessions: which key slot each has and whether it lives. A slot number is given out once and never again.
 * Thread: the connection's.
 */
#ifndef KV_STORE_SESSION_H
#define KV_STORE_SESSION_H

#include "server/store/store_tenant.h"
#include "server/store/store_tenant_key.h"

/*  ACTIVE ── kv_store_erasure_insert ──► ERASING ── kv_store_sessions_set_erased ──► ERASED
 *     └───────────────────────────────────┴── kv_store_lose_everything ──► LOST */
enum kv_session_state {
    KV_SESSION_ACTIVE = 0,
    KV_SESSION_ERASING,
    KV_SESSION_ERASED,
    KV_SESSION_LOST, /* with its root of erasure */
    KV_SESSION_UNKNOWN
};
const char *kv_session_state_name(enum kv_session_state state);

#define KV_CLASS_SIZE 33
#define KV_EXTERNAL_SEALED_MAX 512

/* What its key's state follows from, beside its own. */
struct kv_store_session_key {
    uint32_t version; /* of the tenant's key, in which it was made */
    bool has_fingerprint;
    uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES];
    bool destroyed;   /* its erasure has destroyed the root */
    bool compromised; /* somebody said so of that version */
    enum kv_tenant_state tenant_state;
};

struct kv_store_session {
    struct kv_id id, tenant;
    struct kv_id created_by;       /* API key; zero: the system */
    struct kv_id erasure;          /* zero: none asked for */
    bool held;                     /* it is ERASING, and a hold keeps that from going on */
    struct kv_id shared;           /* the scope that it shares; zero: none */
    bool is_scope;                 /* it is one itself, see store_shared.h */
    uint32_t slot, directory_slot; /* the latter, and the tree, are the tenant's */
    struct kv_id tree;
    enum kv_session_state state;
    char model_id[KV_STORE_TEXT_SIZE], model_revision[KV_STORE_TEXT_SIZE], model_fingerprint[KV_STORE_TEXT_SIZE];
    uint64_t created_us;
    int64_t revoked_seq; /* 0: not revoked */
    uint64_t rev;
    char class[KV_CLASS_SIZE]; /* "": default */
    char region[KV_REGION_SIZE];
    struct kv_labels labels;
    uint64_t updated_us, last_used_us, expires_us; /* 0: none */
    uint64_t idle_seconds;                         /* erased when not used for so long; 0: never */
    uint64_t idle_us;                              /* when that is, as known here; memory may know a later use */
    uint64_t pinned_until_us;
    uint8_t external_sealed[KV_EXTERNAL_SEALED_MAX]; /* the client's own id, under the session's K_meta */
    size_t external_len;                             /* of that; 0: none */
    struct kv_store_session_key key;
};

/* A session that went with its whole tenant is so by its slot alone until its row is settled. For statements on
 * `session s`: `t` is its tenant, `c` the erasure that it went with, if it did. */
#define KV_SESSION_CUT                                                                                            \
    " JOIN tenant t ON t.id = s.tenant_id LEFT JOIN LATERAL (SELECT e.id, e.state, e.revocation_seq FROM erasure" \
    " e WHERE s.state = 'active' AND s.slot < t.first_slot AND e.tenant_id = s.tenant_id AND e.scope = 'tenant'"  \
    " AND s.slot >= e.first_slot AND s.slot < e.slot) c ON true "
#define KV_SESSION_STATE \
    "CASE WHEN c.id IS NULL THEN s.state WHEN c.state = 'certified' THEN 'erased' ELSE 'erasing' END"

/* Gives the next slot of the tenant, in the struct as well, with its directory slot and tree. Reads id, tenant,
 * created_by, model_*, created_us, class, region, labels, expires_us, idle_seconds, idle_us, shared, is_scope.
 * KV_E_NOT_FOUND: no such tenant. KV_E_TENANT_SUSPENDED, or KV_E_INVALID_STATE: the tenant is not active.
 * KV_E_TENANT_FULL past KV_MAX_TENANT_SLOTS. Write. */
KV_RC kv_store_session_insert(struct kv_pg *pg, struct kv_store_session *session, struct kv_errinfo *info);
/* Once. KV_E_STALE. Write. */
KV_RC kv_store_session_set_fingerprint(struct kv_pg *pg, const struct kv_id *id,
                                       const uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES], struct kv_errinfo *info);
/* Also erased ones (the caller answers 410). KV_E_NOT_FOUND. */
KV_RC kv_store_session_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_session *ret_session);
/* The same, and nobody else changes it until the end of the transaction. Write. */
KV_RC kv_store_session_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                            struct kv_store_session *ret_session);
/* Gives the session its client's own id: keyed hash and sealed text. KV_E_STALE: not there, or not active. Write. */
struct kv_store_external {
    uint8_t hmac[32];
    const uint8_t *sealed; /* at most KV_EXTERNAL_SEALED_MAX */
    size_t sealed_len;
};
KV_RC kv_store_session_set_external(struct kv_pg *pg, const struct kv_id *id, const struct kv_store_external *external,
                                    struct kv_errinfo *info);
/* The active session of the tenant with this keyed hash. KV_E_NOT_FOUND. */
KV_RC kv_store_session_find(struct kv_pg *pg, const struct kv_id *tenant, const uint8_t hmac[32],
                            struct kv_errinfo *info, struct kv_store_session *ret_session);
struct kv_store_session_filter {
    struct kv_id tenant;
    const uint8_t *external_hmac;              /* 32 bytes; NULL: any */
    const struct kv_label *label;              /* NULL: any */
    const char *state, *model;                 /* NULL: any; "held" are those that are, and not among "erasing" */
    uint64_t idle_before_us, created_after_us; /* 0: any; idle: as far as rows and the log say */
    bool scopes;                               /* these, not the sessions that share them */
};
/* One page; `ret_list` has room for page->limit + 1. */
KV_RC kv_store_session_list(struct kv_pg *pg, const struct kv_store_session_filter *filter, struct kv_page *page,
                            struct kv_errinfo *info, struct kv_store_session *ret_list, size_t *ret_count);
/* Writes labels, expires_us, idle_seconds, idle_us, pinned_until_us, last_used_us and updated_us of an active row that
 * was locked at `rev`, and counts rev up, in the struct as well. KV_E_STALE. Write. */
KV_RC kv_store_session_update(struct kv_pg *pg, struct kv_store_session *session, struct kv_errinfo *info);
/* When sessions were used last; never moved back, and the idle time is counted from it. At most KV_STORE_USES_MAX.
 * Write. */
KV_RC kv_store_session_used(struct kv_pg *pg, const struct kv_store_use *uses, size_t count, struct kv_errinfo *info);
/* Active sessions past their lifetime at `now_us`: the whole one, or the idle one by `grace_us` and with no entry in
 * the log within it. Those that are pinned or held are not among them. The longest overdue first, at most `max`. */
struct kv_store_overdue {
    struct kv_id id, tenant;
    uint64_t expires_us, idle_seconds; /* as in the row */
};
KV_RC kv_store_session_list_overdue(struct kv_pg *pg, uint64_t now_us, uint64_t grace_us, size_t max,
                                    struct kv_errinfo *info, struct kv_store_overdue *ret_list, size_t *ret_count);
/* Ids of a tenant's active sessions after `after`, in their order, at most `max`. */
KV_RC kv_store_session_ids(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *after, size_t max,
                           struct kv_errinfo *info, struct kv_id *ret_ids, size_t *ret_count);
/* What the log says of a session, newest first, at most `max`. */
struct kv_store_session_entry {
    uint64_t at_us;
    char op[33], outcome[33];
    struct kv_id actor; /* zero: the system */
};
KV_RC kv_store_session_entries(struct kv_pg *pg, const struct kv_id *id, size_t max, struct kv_errinfo *info,
                               struct kv_store_session_entry *ret_list, size_t *ret_count);
/* Sessions of a tenant by state, without scopes. */
KV_RC kv_store_session_count(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info,
                             uint64_t ret_counts[KV_SESSION_UNKNOWN]);
/* The state of each of `ids`, in their order; KV_SESSION_UNKNOWN for one that is no session here. At most
 * KV_STORE_IDS_MAX. */
#define KV_STORE_IDS_MAX 4096
KV_RC kv_store_session_states(struct kv_pg *pg, const struct kv_id *ids, size_t count, struct kv_errinfo *info,
                              enum kv_session_state *ret_states);

#endif

/*
 * Legal holds: what they cover, and the erasures that wait for their end. Who places a hold, asks for an erasure or
 * lets one go holds the head of the revocations to its commit, so that each of them sees what the others did. Thread:
 * the connection's.
 */
#ifndef KV_STORE_HOLD_H
#define KV_STORE_HOLD_H

#include "server/store/store_group.h"

enum kv_hold_scope { KV_HOLD_SESSION = 0, KV_HOLD_LABEL, KV_HOLD_TENANT };
#define KV_GROUND_SIZE 33

struct kv_store_hold {
    struct kv_id id, tenant;
    enum kv_hold_scope scope;
    struct kv_id session;            /* SESSION */
    char label[KV_GROUP_LABEL_SIZE]; /* LABEL: a JSON object, its value null once the hold has ended; else "" */
    char ground[KV_GROUND_SIZE];     /* a closed word, or "" */
    char reason_sha256[KV_SHA256_HEX_SIZE], reference_sha256[KV_SHA256_HEX_SIZE];
    uint64_t rev;
    struct kv_id created_by, released_by;
    char created_role[KV_ROLE_TEXT_SIZE];
    uint64_t created_us, expires_us;
    uint64_t released_us, ended_us; /* 0: not */
    uint64_t blocked;               /* erasures that wait for it */
};

/* `hold h` covers `session s` at the time that parameter `at` says, and a shared scope where it covers a session that
 * keeps it. For statements on both. */
#define KV_HOLD_COVERS(at)                                                                                        \
    "h.tenant_id = s.tenant_id AND h.ended_at IS NULL AND h.expires_at > $" at                                    \
    "::timestamptz AND (h.scope = 'tenant' OR h.session_id = s.id OR (h.scope = 'label' AND s.labels @> h.label)" \
    " OR (s.kind = 'scope' AND EXISTS (SELECT FROM session r LEFT JOIN erasure w ON w.id = r.erasure_id"          \
    " WHERE r.scope_id = s.id AND (r.state = 'active' OR w.state = 'blocked_hold')"                               \
    " AND (h.session_id = r.id OR (h.scope = 'label' AND r.labels @> h.label)))))"

/* Reads all but rev, released_*, ended_us and blocked. KV_E_LIMIT: the tenant has `open_max` that have not ended.
 * Write. */
KV_RC kv_store_hold_insert(struct kv_pg *pg, const struct kv_store_hold *hold, uint64_t open_max,
                           struct kv_errinfo *info);
KV_RC kv_store_hold_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                        struct kv_store_hold *ret_hold); /* KV_E_NOT_FOUND */
KV_RC kv_store_hold_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                         struct kv_store_hold *ret_hold); /* the same, locked. Write. */
/* A page of a tenant's. `ret_list` has room for page->limit + 1. */
struct kv_store_hold_filter {
    struct kv_id tenant;
    const char *state; /* "active", "released", "expired" at `now_us`; NULL: any */
    uint64_t now_us;
};
KV_RC kv_store_hold_page(struct kv_pg *pg, const struct kv_store_hold_filter *filter, struct kv_page *page,
                         struct kv_errinfo *info, struct kv_store_hold *ret_list, size_t *ret_count);
/* Writes released_us, released_by and ended_us of one that has not ended, and counts rev up, in the struct as well; of
 * a label the name stays. KV_E_STALE. Write. */
KV_RC kv_store_hold_end(struct kv_pg *pg, struct kv_store_hold *hold, struct kv_errinfo *info);
/* Past their time and not ended, the longest first, at most `max`. */
KV_RC kv_store_hold_list_expired(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                                 struct kv_id *ret_ids, size_t *ret_count);

/* ---- what is covered ---- */

/* Of up to KV_STORE_IDS_MAX sessions those that are covered, each with the hold that lasts longest. */
struct kv_store_held {
    struct kv_id session, hold;
};
KV_RC kv_store_held_of(struct kv_pg *pg, const struct kv_store_ids *sessions, uint64_t now_us, struct kv_errinfo *info,
                       struct kv_store_held *ret_list, size_t *ret_count);
/* How many holds cover one of them. */
KV_RC kv_store_holds_over(struct kv_pg *pg, const struct kv_store_ids *sessions, uint64_t now_us,
                          struct kv_errinfo *info, uint64_t *ret_count);
/* The one of the tenant's that lasts longest, whatever it covers. KV_E_MISSING: none is active. */
KV_RC kv_store_hold_any(struct kv_pg *pg, const struct kv_id *tenant, uint64_t now_us, struct kv_errinfo *info,
                        struct kv_id *ret_hold);
/* How many of the tenant's sessions that are not erased it covers. */
KV_RC kv_store_hold_sessions(struct kv_pg *pg, const struct kv_id *hold, uint64_t now_us, struct kv_errinfo *info,
                             uint64_t *ret_count);

/* ---- erasures that wait ---- */

/* Whether the hold of one that waits is over. */
KV_RC kv_store_holds_over_for(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, bool *ret_any);
/* Up to `max` whose session no hold covers any more go on as requested, and the labels of their sessions go.
 * Fills id, tenant, session and group. Call kv_store_revocation_hold first. Write. */
KV_RC kv_store_holds_let_go(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                            struct kv_store_erasure *ret_list, size_t *ret_count);
/* Of up to `max` whose hold is over, those that another one covers name that one. Write. */
KV_RC kv_store_holds_hand_over(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info);

#endif

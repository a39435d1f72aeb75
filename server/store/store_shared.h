/*
 * Shared scopes: rows of `session` that several sessions of a tenant refer to. When one is due to be erased is said by
 * the schema, in scope_is_due. Thread: the connection's.
 */
#ifndef KV_STORE_SHARED_H
#define KV_STORE_SHARED_H

#include "server/store/store_erasure.h"
#include "server/store/store_session.h"

/* The tenant's active scope with this keyed hash, held so that nobody erases it before the transaction has ended: for a
 * session that is about to refer to it. KV_E_NOT_FOUND. Write. */
KV_RC kv_store_scope_refer(struct kv_pg *pg, const struct kv_id *tenant, const uint8_t hmac[32],
                           struct kv_errinfo *info, struct kv_id *ret_scope);

/* Active scopes of these sessions, with the classes that the sessions have, in the order of the scopes. */
struct kv_store_shares {
    struct kv_id scope;
    char class[KV_CLASS_SIZE];
    uint64_t others; /* active sessions that share it and are none of these */
};
KV_RC kv_store_scopes_of(struct kv_pg *pg, const struct kv_store_ids *sessions, struct kv_errinfo *info,
                         struct kv_store_shares *ret_list, size_t *ret_count);
/* Those of the sessions that have this class and share this scope take it along. Write. */
KV_RC kv_store_scope_take(struct kv_pg *pg, const struct kv_store_ids *sessions, const struct kv_store_shares *shares,
                          struct kv_errinfo *info);
/* Whether it is due. Waits for sessions that are being made, and none comes to it any more before the transaction has
 * ended. KV_E_NOT_FOUND. Write. */
KV_RC kv_store_scope_lock(struct kv_pg *pg, const struct kv_id *scope, struct kv_errinfo *info, bool *ret_due);

/* Active scopes that are due, at most `max`: those of sessions whose erasure was blocked. */
struct kv_store_scope_due {
    struct kv_id id, tenant;
};
KV_RC kv_store_scopes_due(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_scope_due *ret_list,
                          size_t *ret_count);
/* How many of these are shared by a session of the batch. In the transaction of the re-key. */
KV_RC kv_store_scopes_left_behind(struct kv_pg *pg, const struct kv_id *batch, struct kv_errinfo *info,
                                  uint64_t *ret_count);

/* What certificates say of scopes: of these erasures those of a scope, or of a session that shared one. */
struct kv_store_shared {
    struct kv_id erasure;
    bool is_scope; /* it is a scope's itself, and nothing else is said */
    struct kv_id scope;
    struct kv_id scope_erasure;        /* zero: none */
    enum kv_erasure_state scope_state; /* of that erasure */
    uint64_t sessions;                 /* that refer to the scope and are active */
};
KV_RC kv_store_erasures_shared(struct kv_pg *pg, const struct kv_store_ids *erasures, struct kv_errinfo *info,
                               struct kv_store_shared *ret_list, size_t *ret_count);

#endif

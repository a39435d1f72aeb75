/*
 * Sessions: which key slot each has and whether it lives. A slot number is given out once and never again.
 * Thread: the connection's.
 */
#ifndef KV_STORE_SESSION_H
#define KV_STORE_SESSION_H

#include "server/store/store_tenant.h"

/*  ACTIVE ── kv_store_erasure_insert ──► ERASING ── kv_store_session_set_erased ──► ERASED */
enum kv_session_state { KV_SESSION_ACTIVE = 0, KV_SESSION_ERASING, KV_SESSION_ERASED, KV_SESSION_UNKNOWN };
const char *kv_session_state_name(enum kv_session_state state);

struct kv_store_session {
    struct kv_id id, tenant;
    struct kv_id created_by;       /* API key; zero: the system */
    struct kv_id erasure;          /* zero: none asked for */
    uint32_t slot, directory_slot; /* the latter is the tenant's */
    enum kv_session_state state;
    char model_id[KV_STORE_TEXT_SIZE], model_revision[KV_STORE_TEXT_SIZE], model_fingerprint[KV_STORE_TEXT_SIZE];
    uint64_t created_us;
    int64_t revoked_seq; /* 0: not revoked */
};

/* Gives the next slot of the tenant. Reads id, tenant, created_by, model_*, created_us. KV_E_NOT_FOUND: no such tenant.
 * KV_E_INVALID_STATE: the tenant is not active. KV_E_TENANT_FULL past KV_MAX_TENANT_SLOTS. Write. */
KV_RC kv_store_session_insert(struct kv_pg *pg, const struct kv_store_session *session, struct kv_errinfo *info,
                              uint32_t *ret_slot, uint32_t *ret_directory_slot);
/* Also erased ones (the caller answers 410). KV_E_NOT_FOUND. */
KV_RC kv_store_session_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_session *ret_session);
/* Of a tenant, by id, after `after`. */
KV_RC kv_store_session_list(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *after, size_t max,
                            struct kv_errinfo *info, struct kv_store_session *ret_list, size_t *ret_count);
/* The state of each of `ids`, in their order; KV_SESSION_UNKNOWN for one that is no session here. At most
 * KV_STORE_IDS_MAX. */
#define KV_STORE_IDS_MAX 4096
KV_RC kv_store_session_states(struct kv_pg *pg, const struct kv_id *ids, size_t count, struct kv_errinfo *info,
                              enum kv_session_state *ret_states);
/* ERASING to ERASED; a second time is fine. KV_E_STALE: it was not even erasing. Write. */
KV_RC kv_store_session_set_erased(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info);

#endif

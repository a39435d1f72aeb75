/*
 * Groups of erasures: one request that meant several sessions. The group's row says which sessions are meant; every
 * session that it took on has an erasure of its own. Thread: the connection's.
 *
 *   EXPANDING (there may be sessions that it has not taken on) ─► RUNNING ─► CERTIFIED, or QUARANTINED when one was
 */
#ifndef KV_STORE_GROUP_H
#define KV_STORE_GROUP_H

#include "server/store/store_erasure.h"

enum kv_group_scope { KV_GROUP_LABEL = 0, KV_GROUP_IDLE, KV_GROUP_TENANT };
enum kv_group_state { KV_GROUP_EXPANDING = 0, KV_GROUP_RUNNING, KV_GROUP_CERTIFIED, KV_GROUP_QUARANTINED };
const char *kv_group_scope_name(enum kv_group_scope scope); /* "label" */

#define KV_GROUP_LABEL_SIZE 1280 /* {"name":"value"} with everything escaped */

struct kv_store_group {
    struct kv_id id, tenant;
    enum kv_group_scope scope;
    char label[KV_GROUP_LABEL_SIZE]; /* a JSON object, its value null once all are taken on; "" unless the scope is a
                                        label */
    uint64_t idle_before_us;         /* 0 unless the scope is idleness */
    uint64_t cutoff_us;              /* sessions made after it are not meant */
    char basis[KV_BASIS_SIZE];
    char reason_sha256[KV_SHA256_HEX_SIZE], reference_sha256[KV_SHA256_HEX_SIZE];
    struct kv_id requested_by; /* with the role `engine`, only sessions that this key made are meant */
    char requested_role[KV_ROLE_TEXT_SIZE];
    enum kv_group_state state;
    uint64_t sessions; /* taken on so far */
    uint64_t created_us, ended_us;
};

/* Starts EXPANDING with no session. Write. */
KV_RC kv_store_group_insert(struct kv_pg *pg, const struct kv_store_group *group, struct kv_errinfo *info);
KV_RC kv_store_group_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                         struct kv_store_group *ret_group); /* KV_E_NOT_FOUND */
/* FOR UPDATE: one at a time takes sessions on. KV_E_NOT_FOUND. Write. */
KV_RC kv_store_group_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                          struct kv_store_group *ret_group);
/* Not ended, oldest first; without those that wait for a hold: they cannot end before it does. */
KV_RC kv_store_group_list_open(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_group *ret_list,
                               size_t *ret_count);
/* Its state, how many sessions it took on, and with an end when. KV_E_STALE: it has ended already. Write. */
KV_RC kv_store_group_set(struct kv_pg *pg, const struct kv_store_group *group, struct kv_errinfo *info);

/* Active sessions that are meant and not taken on yet, at most `max` (up to KV_STORE_IDS_MAX). Reads tenant, scope,
 * label, idle_before_us, cutoff_us, requested_by, requested_role. A pinned session is not idle. */
KV_RC kv_store_group_match(struct kv_pg *pg, const struct kv_store_group *group, size_t max, struct kv_errinfo *info,
                           struct kv_id *ret_sessions, size_t *ret_count);
KV_RC kv_store_group_match_count(struct kv_pg *pg, const struct kv_store_group *group, struct kv_errinfo *info,
                                 uint64_t *ret_count);

/* A tenant in the state `erasing` becomes `erased`, unless one of its sessions is left. Does nothing to another. Write.
 */
KV_RC kv_store_group_tenant_erased(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info);

struct kv_store_group_progress {
    enum kv_erasure_state reached;       /* by each one that it took on; CERTIFIED when it took on none */
    uint64_t states[KV_ERASURE_STATES];  /* erasures in each */
    uint64_t last_us[KV_ERASURE_STATES]; /* when the last one got there; 0: none did */
};
KV_RC kv_store_group_progress(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                              struct kv_store_group_progress *ret_progress);

/* A page of a tenant's, by the time of the request, each with how far it is. `state`: NULL, or what all its sessions
 * reached, "requested" while it is EXPANDING. `ret_list` has room for page->limit + 1. */
struct kv_store_group_status {
    struct kv_store_group group;
    struct kv_store_group_progress progress;
};
KV_RC kv_store_group_page(struct kv_pg *pg, const struct kv_id *tenant, const char *state, struct kv_page *page,
                          struct kv_errinfo *info, struct kv_store_group_status *ret_list, size_t *ret_count);

#endif

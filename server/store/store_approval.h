/*
 * Approvals: proposals that wait for a second person. Whoever decides one holds its row; what it asks for happens in
 * the same transaction. Thread: the connection's.
 */
#ifndef KV_STORE_APPROVAL_H
#define KV_STORE_APPROVAL_H

#include "server/store/page.h"
#include "server/store/store_session.h"

/* Stored by name. */
enum kv_approval_action { KV_APPROVAL_TENANT_DELETE = 0, KV_APPROVAL_TENANT_DELETE_NOW, KV_APPROVAL_HOLD_RELEASE };
const char *kv_approval_action_name(enum kv_approval_action action); /* "tenant.delete" */

enum kv_approval_state { KV_APPROVAL_PENDING = 0, KV_APPROVAL_APPROVED, KV_APPROVAL_REJECTED };
const char *kv_approval_state_name(enum kv_approval_state state);

#define KV_APPROVAL_REQUEST_SIZE 256

struct kv_store_approval {
    struct kv_id id, tenant;
    enum kv_approval_action action;
    struct kv_id target; /* the tenant, or a hold */
    uint64_t target_rev, versions[2];
    char request[KV_APPROVAL_REQUEST_SIZE]; /* canonical JSON */
    uint8_t request_sha256[32];
    enum kv_approval_state state;
    uint64_t rev;
    struct kv_id proposed_by, decided_by;
    char proposed_role[33];
    uint64_t created_us, expires_us, decided_us;
};

/* Reads what a proposal is. KV_E_LIMIT: the tenant has `open_max` that wait at created_us. Write. */
KV_RC kv_store_approval_insert(struct kv_pg *pg, const struct kv_store_approval *approval, uint64_t open_max,
                               struct kv_errinfo *info);
/* One that waits for the same request of the same proposer on the same state of things. KV_E_MISSING. */
KV_RC kv_store_approval_find(struct kv_pg *pg, const struct kv_store_approval *like, struct kv_errinfo *info,
                             struct kv_store_approval *ret_approval);
KV_RC kv_store_approval_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                            struct kv_store_approval *ret_approval); /* KV_E_NOT_FOUND */
KV_RC kv_store_approval_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                             struct kv_store_approval *ret_approval); /* the same, locked. Write. */
struct kv_store_approval_filter {
    struct kv_id tenant; /* zero: any */
    const char *state;   /* "pending", "approved", "rejected", "expired" at `now_us`; NULL: any */
    uint64_t now_us;
};
/* `ret_list` has room for page->limit + 1. */
KV_RC kv_store_approval_page(struct kv_pg *pg, const struct kv_store_approval_filter *filter, struct kv_page *page,
                             struct kv_errinfo *info, struct kv_store_approval *ret_list, size_t *ret_count);
/* Writes state, decided_by and decided_us of one that waits, and counts rev up, in the struct as well. KV_E_STALE.
 * Write. */
KV_RC kv_store_approval_decide(struct kv_pg *pg, struct kv_store_approval *approval, struct kv_errinfo *info);

/* How many keys with the role security_officer work at `now_us` for the tenant: its own, and the platform's (zero:
 * those alone). */
KV_RC kv_store_approvers(struct kv_pg *pg, const struct kv_id *tenant, uint64_t now_us, struct kv_errinfo *info,
                         uint64_t *ret_count);

#endif

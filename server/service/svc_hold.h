/*
 * Legal holds as people place and release them. What one covers is not erased while it lasts: a request for it is kept
 * as blocked_hold, its session refused all the same, and goes on by itself when no hold covers it any more. Thread and
 * errors as in svc.h.
 */
#ifndef KV_SVC_HOLD_H
#define KV_SVC_HOLD_H

#include "server/service/svc_approval.h"
#include "server/store/store_hold.h"

/* Texts are borrowed; `reason` and `reference` are kept as salted hashes only. */
struct kv_hold_new {
    enum kv_hold_scope scope;
    struct kv_id session, tenant; /* of those scopes; the tenant is the caller's own */
    const char *label_key, *label_value;
    const char *ground; /* NULL: none */
    const char *reason, *reference;
    uint64_t expires_us;
};

struct kv_hold_view {
    struct kv_store_hold row; /* its label: a JSON object, its name, and null in place of the value */
    const char *state;        /* "active", "released", "expired" */
    bool has_sessions;        /* it was counted: not in lists */
    uint64_t sessions;        /* that it covers now */
};

/* KV_E_POLICY_DENIED: the tenant's policy has no holds, or none so long. KV_E_IRREVERSIBLE: the session's erasure has
 * begun. KV_E_NOT_FOUND: another tenant's. KV_E_INVALID_STATE: the tenant is being erased. */
KV_RC kv_svc_hold_create(struct kv_call *call, const struct kv_hold_new *in, struct kv_hold_view *ret_hold);
KV_RC kv_svc_hold_get(struct kv_call *call, const struct kv_id *hold, struct kv_hold_view *ret_hold);
/* `state` NULL: any. `ret_list` has room for KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_hold_list(struct kv_call *call, const char *state, struct kv_page *page, struct kv_hold_view *ret_list,
                       size_t *ret_count);
/* `ret_approval`: as in kv_svc_tenant_delete. KV_E_INVALID_STATE: it has ended. */
KV_RC kv_svc_hold_release(struct kv_call *call, const struct kv_id *hold, struct kv_hold_view *ret_hold,
                          struct kv_approval_view *ret_approval);

/* --- for erasures. In a transaction that holds the head of the revocations: nobody places a hold before its commit. */

/* The row that is about to be inserted begins as blocked_hold when its session is covered. */
KV_RC svc_hold_block(struct kv_pg *pg, struct kv_store_erasure *row, struct kv_errinfo *info);
/* The same for many sessions, each once; the rows of `ret_list` are as many. */
KV_RC svc_hold_find(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_ids *sessions, struct kv_errinfo *info,
                    struct kv_store_held *ret_list, size_t *ret_count);
void svc_hold_mark(const struct kv_store_held *list, size_t count, struct kv_store_erasure *row);
/* KV_E_HOLD_ACTIVE: the tenant has a hold, so it does not go as a whole. */
KV_RC svc_hold_forbids(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info);

/* The janitor's step: holds past their time end, and erasures go on that none covers any more. */
KV_RC svc_holds_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more);

#endif

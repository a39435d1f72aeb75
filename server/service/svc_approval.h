/*
 * Approvals: what a policy lets one person only propose (`approvals`) is done when a security officer who is not that
 * person approves it. An approval is good for one request, on the state of things that it was proposed on, once, and
 * for KV_MAX_APPROVAL_SECONDS. Thread and errors as in svc.h.
 */
#ifndef KV_SVC_APPROVAL_H
#define KV_SVC_APPROVAL_H

#include "server/service/svc.h"
#include "server/store/store_approval.h"

struct kv_approval_view {
    struct kv_store_approval row; /* an id of zero: nothing waits */
    const char *state;            /* "pending", "approved", "rejected", "expired" */
};

/* A key of a tenant sees its own, one of the platform all. KV_E_NOT_FOUND. */
KV_RC kv_svc_approval_get(struct kv_call *call, const struct kv_id *approval, struct kv_approval_view *ret_approval);
/* `state` NULL: any. `ret_list` has room for KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_approval_list(struct kv_call *call, const char *state, struct kv_page *page,
                           struct kv_approval_view *ret_list, size_t *ret_count);
/* Does what was proposed. KV_E_SAME_SUBJECT: the caller proposed it. KV_E_INVALID_STATE: it was decided, or its time is
 * over. KV_E_STALE: its target, a policy or its proposer's key is not what it was; propose it again. And what the thing
 * itself can be refused with: the approval waits on then. */
KV_RC kv_svc_approval_approve(struct kv_call *call, const struct kv_id *approval,
                              struct kv_approval_view *ret_approval);
KV_RC kv_svc_approval_reject(struct kv_call *call, const struct kv_id *approval, struct kv_approval_view *ret_approval);

/* --- for what may need one. In its transaction, with its target locked. */

struct svc_proposal {
    enum kv_approval_action action;
    struct kv_id tenant, target; /* a tenant that is its own target: twice the same */
    uint64_t target_rev;
};
/* When the policy asks for a second person: writes the proposal down, or finds the caller's that waits, and its id is
 * not zero. */
KV_RC svc_approval_ask(struct kv_call *call, struct kv_pg *pg, const struct svc_proposal *what, struct kv_errinfo *info,
                       struct kv_approval_view *ret_approval);
/* After the commit. */
void svc_approval_asked(struct kv_call *call, const struct kv_approval_view *approval);
/* A policy that asks for a second person where there is none would stop what it is about. KV_E_INVALID_STATE. */
KV_RC svc_approval_possible(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info);

/* --- what is done, in the transaction of the approval and after it */

struct kv_tenant_view;
KV_RC svc_tenant_delete_approved(struct kv_call *call, struct kv_pg *pg, const struct kv_store_approval *approval,
                                 struct kv_errinfo *info);
void svc_tenant_deleted(struct kv_call *call, const struct kv_id *tenant);
KV_RC svc_hold_release_approved(struct kv_call *call, struct kv_pg *pg, const struct kv_store_approval *approval,
                                struct kv_errinfo *info);
void svc_hold_released(struct kv_call *call, const struct kv_id *tenant, const struct kv_id *hold);

#endif

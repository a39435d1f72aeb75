/*
 * Long-running operations: started by a caller, run by the executor's thread a piece at a time, looked at and cancelled
 * meanwhile. What was started goes on after a crash. Thread and errors as in svc.h.
 */
#ifndef KV_SVC_OPERATION_H
#define KV_SVC_OPERATION_H

#include "server/service/svc.h"
#include "server/store/store_operation.h"

struct kv_operation_view {
    struct kv_store_operation row;
};
bool kv_operation_ended(const struct kv_operation_view *operation);

/* Recomputes the caller's log from entry `from` up to `to`: every leaf from its entry, and from them and what is stored
 * of the tree before and after, the root against the signed head. KV_E_NOT_YET: nothing is signed so far.
 * KV_E_INVALID_REQUEST: not a range of what is signed. KV_E_BUSY: KV_MAX_OPERATIONS_OPEN are open, or an eighth of them
 * by this tenant. */
struct kv_audit_range {
    uint64_t from, to; /* `to` is the entry after the last; 0: all that the head covers */
};
KV_RC kv_svc_audit_verify(struct kv_call *call, const struct kv_audit_range *range,
                          struct kv_operation_view *ret_operation);
/* Reads up to `samples` (at most KV_MAX_PROVE_SAMPLES) stored blocks of each tier here of a session that was erased,
 * and tries all keys of its leaf on them; checks the certificate again; tries a session that lives as the control.
 * KV_E_NOT_FOUND; KV_E_NOT_YET: not certified. */
KV_RC kv_svc_erasure_prove(struct kv_call *call, const struct kv_id *erasure, uint32_t samples,
                           struct kv_operation_view *ret_operation);
/* Writes every block of memory down and frees it. Operators. */
KV_RC kv_svc_drain(struct kv_call *call, enum kv_tier_id tier, struct kv_operation_view *ret_operation);

/* Replaces the root of erasure: a re-key of no erasures, on the eraser's ordinary path. Operators. */
KV_RC kv_svc_root_rotate(struct kv_call *call, struct kv_operation_view *ret_operation);

/* The same, and the fresh root is the provider's `to`; the old one destroys its own. KV_E_INVALID_REQUEST: it cannot be
 * opened, or is no place for a root. KV_E_INVALID_STATE: it has the root already, or another one, or cannot be shared
 * by the instances that run. Operators. */
KV_RC kv_svc_root_migrate(struct kv_call *call, const char *to, struct kv_operation_view *ret_operation);

/* Operations of the caller's tenant; for keys without one, the operator's. Another one's: KV_E_NOT_FOUND. */
KV_RC kv_svc_operation_get(struct kv_call *call, const struct kv_id *id, struct kv_operation_view *ret_operation);
struct kv_operation_filter {
    const char *state, *kind; /* NULL: any */
};
/* `ret_list` has room for KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_operation_list(struct kv_call *call, const struct kv_operation_filter *filter, struct kv_page *page,
                            struct kv_operation_view *ret_list, size_t *ret_count);
/* It ends soon, at the next piece. A second time is fine; KV_E_INVALID_STATE: it has ended otherwise. */
KV_RC kv_svc_operation_cancel(struct kv_call *call, const struct kv_id *id, struct kv_operation_view *ret_operation);

#endif

/*
 * Tenants: who is a customer, in which state, and what it uses. A tenant sees itself, operators see all; any other
 * tenant's id answers as if it did not exist. See svc.h for the rules of a use case.
 */
#ifndef KV_SVC_TENANT_H
#define KV_SVC_TENANT_H

#include "server/service/svc.h"
#include "server/store/labels.h"

struct kv_tenant_view {
    struct kv_id id;
    char name[64], display_name[257], state[16], region[64];
    struct kv_labels labels;
    uint64_t rev;
    uint64_t created_us, updated_us, suspended_us, delete_us; /* 0: not */
};

struct kv_tenant_new {
    const char *name, *display_name, *region; /* the latter two may be NULL */
    struct kv_labels labels;
    struct kv_bytes policy; /* JSON; empty: the built-in one */
};
/* A policy is judged as in kv_svc_policy_put, against the built-in one, and becomes active with the tenant or not at
 * all; what is wrong with it points below /policy. */
KV_RC kv_svc_tenant_create(struct kv_call *call, const struct kv_tenant_new *in, struct kv_tenant_view *ret_tenant);
KV_RC kv_svc_tenant_get(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_view *ret_tenant);

struct kv_tenant_filter {
    const char *state;            /* NULL: any */
    const struct kv_label *label; /* NULL: any */
};
/* `ret_list` has room for KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_tenant_list(struct kv_call *call, const struct kv_tenant_filter *filter, struct kv_page *page,
                         struct kv_tenant_view *ret_list, size_t *ret_count);

struct kv_tenant_patch {
    const char *display_name; /* NULL: as it is; "": none */
    const char *region;       /* the same; an operator's to change, and of new sessions alone */
    struct kv_labels labels;
};
KV_RC kv_svc_tenant_update(struct kv_call *call, const struct kv_id *tenant, const struct kv_tenant_patch *patch,
                           struct kv_tenant_view *ret_tenant);

/* A suspended tenant's transfers and new sessions are refused, everywhere within the lease; its data stays, and it may
 * still erase. Of `reason` (may be NULL) a salted hash is kept. KV_E_INVALID_STATE unless it was active. */
KV_RC kv_svc_tenant_suspend(struct kv_call *call, const struct kv_id *tenant, const char *reason,
                            struct kv_tenant_view *ret_tenant);
KV_RC kv_svc_tenant_resume(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_view *ret_tenant);
/* To be erased when KV_MAX_ERASURE_GRACE_SECONDS are over, or at once with `now`; refused like a suspended one until
 * then. A second deletion changes nothing but the time, and that only with `now`. */
struct kv_approval_view;
/* `ret_approval`: where the policy asks for a second person, the proposal that waits for one; then nothing else was
 * done. Else its id is zero. KV_E_HOLD_ACTIVE. */
KV_RC kv_svc_tenant_delete(struct kv_call *call, const struct kv_id *tenant, bool now,
                           struct kv_tenant_view *ret_tenant, struct kv_approval_view *ret_approval);
/* Calls the deletion back. KV_E_INVALID_STATE: it was not to be deleted. KV_E_IRREVERSIBLE: the grace time is over. */
KV_RC kv_svc_tenant_restore(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_view *ret_tenant);

struct kv_tenant_usage {
    uint64_t sessions_active, sessions_erasing, sessions_erased, sessions_lost;
    struct kv_scope_usage blocks;               /* of active sessions, in this server's tiers */
    uint64_t since_us;                          /* what follows is counted from then: this process's start */
    uint64_t offloaded_blocks, offloaded_bytes; /* stored; what was there already does not count */
    uint64_t restored_blocks, restored_bytes;
    /* With a window: what all instances moved in the hours from `from_us` on, as far as the log knows; it begins with
     * an hour, or when counting began. */
    struct kv_tenant_window {
        uint64_t from_us, until_us;
        uint64_t offloaded_blocks, offloaded_bytes, restored_blocks, restored_bytes;
    } window;
};
/* `window_seconds`: how far back, or 0. */
KV_RC kv_svc_tenant_usage(struct kv_call *call, const struct kv_id *tenant, uint64_t window_seconds,
                          struct kv_tenant_usage *ret_usage);

#endif

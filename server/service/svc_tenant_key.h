/*
 * The key of a tenant: its versions, their states, and rotating it. A key's bytes are in no answer; a fingerprint is
 * one way. Thread and errors as in svc.h.
 *
 * States are those of SP 800-57, of a version here and of a session's key in svc_session.h:
 *   pre_activation  nothing was made in it yet, or the rotation that makes it is on its way
 *   active          new sessions get their keys in it
 *   suspended       it would be active, but nothing is opened now: the tenant is suspended or to be deleted
 *   deactivated     nothing new is made in it, but it could still be opened: until the root it hung under is destroyed;
 *                   or its tenant is erased
 *   compromised     somebody said that others may know it
 *   destroyed       the root that it hung under is destroyed, everywhere
 */
#ifndef KV_SVC_TENANT_KEY_H
#define KV_SVC_TENANT_KEY_H

#include "server/service/svc.h"
#include "server/service/svc_operation.h"
#include "server/store/store_tenant_key.h"

struct kv_tenant_key_view {
    struct kv_store_tenant_key row;
    const char *state; /* static; the row's, and the tenant's on top of it */
};

/* Of the caller's own tenant, or any for a security officer of the platform. `ret_list` has room for
 * KV_MAX_PAGE_ITEMS. */
KV_RC kv_svc_tenant_key_list(struct kv_call *call, const struct kv_id *tenant, struct kv_page *page,
                             struct kv_tenant_key_view *ret_list, size_t *ret_count);
/* Starts the operation. `compromised`: others may know the key that is in use, and the keys of sessions made in it so
 * far. KV_E_INVALID_STATE: one is under way, no key is in use yet, or the tenant is being erased. */
KV_RC kv_svc_tenant_key_rotate(struct kv_call *call, const struct kv_id *tenant, bool compromised,
                               struct kv_operation_view *ret_operation);

#endif

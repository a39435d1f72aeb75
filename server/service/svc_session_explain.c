/*
 * Why a session is treated as it is: what the policy says of it now, where its blocks are, what the log says of it.
 * Must never show an operator what its tenant calls it.
 */
#include "server/service/svc_session.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "policies/policy.h"
#include "server/service/svc_int.h"

#include <stdio.h>

static KV_RC find(struct kv_call *call, const struct kv_id *session, struct kv_store_session *ret_row)
{
    bool any_tenant = (call->who.roles & KV_ROLE_OPERATOR) != 0 && kv_id_is_zero(&call->who.tenant);
    if (!any_tenant) {
        return svc_session_row(call->pg, session, &call->who.tenant, &call->info, ret_row);
    }
    enum kv_err rc = kv_store_session_get(call->pg, session, &call->info, ret_row);
    return rc == KV_E_NOT_FOUND ? kv_fail(&call->info, rc, "no such session") : rc;
}

static void decide(const struct kv_explain_view *view, enum kv_policy_action action, bool *ret_allowed,
                   char ret_reason[65])
{
    struct kv_policy_decision decision;
    struct kv_policy_facts facts = {.action = action,
                                    .tenant_active = view->tenant_state[0] == 'a',
                                    .session_active = view->session.state[0] == 'a',
                                    .same_tenant = true};
    kv_policy_eval(&kv_policy_standard, &facts, &decision);
    *ret_allowed = decision.allowed;
    snprintf(ret_reason, 65, "%s", decision.allowed ? "" : kv_policy_reason_name(decision.reasons));
}

static KV_RC fill(struct kv_call *call, const struct kv_store_session *row, struct kv_explain_view *view)
{
    struct kv_store_tenant *tenant KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tenant);
    if (tenant == NULL) {
        return KV_E_NO_MEMORY;
    }
    svc_session_view_of(row, &view->session);
    view->session.labels = (struct kv_labels){0};
    KV_TRY(kv_store_tenant_get(call->pg, &row->tenant, &call->info, tenant));
    snprintf(view->tenant_state, sizeof view->tenant_state, "%s", kv_tenant_state_name(tenant->state));
    KV_TRY(kv_engine_scope_usage(call->svc->engine, &row->id, &view->session.usage));
    view->session.has_usage = true;
    decide(view, KV_POLICY_OFFLOAD, &view->offload_allowed, view->offload_reason);
    decide(view, KV_POLICY_RESTORE, &view->restore_allowed, view->restore_reason);
    return kv_store_session_entries(call->pg, &row->id, KV_EXPLAIN_ENTRIES, &call->info, view->entries,
                                    &view->entry_count);
}

KV_RC kv_svc_session_explain(struct kv_call *call, const struct kv_id *session, struct kv_explain_view *ret_view)
{
    struct kv_store_session *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    struct kv_explain_view *view KV_CLEANUP(kv_freep) = kv_alloc(sizeof *view);
    if (row == NULL || view == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(find(call, session, row));
    KV_TRY(fill(call, row, view));
    *ret_view = *view;
    return KV_OK;
}

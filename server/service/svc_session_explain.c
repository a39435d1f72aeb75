/*
 * Why a session is treated as it is: what the policy says of it now, where its blocks are, what the log says of it.
 * Must never show an operator what its tenant calls it.
 */
#include "server/service/svc_session.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"
#include "server/service/svc_rules.h"

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

/* As a transfer now would be decided; layout and block size are not known here, so nothing is said of them. */
static void decide(const struct svc_rules *rules, const struct kv_store_session *row, struct kv_policy_facts facts,
                   bool *ret_allowed, char ret_reason[65])
{
    struct kv_policy_decision decision;
    const struct kv_policy *policy = kv_policy_class(rules->set, row->class);
    facts.tenant_active = rules->active;
    facts.session_active = row->state == KV_SESSION_ACTIVE;
    facts.same_tenant = true;
    facts.names[KV_POLICY_MODEL] = kv_policy_text(row->model_id);
    facts.names[KV_POLICY_REGION] = kv_policy_text(row->region);
    facts.obligations_known = KV_POLICY_OBLIGATIONS_ALL;
    kv_policy_eval(policy, &facts, &decision);
    uint32_t reasons = decision.reasons & ~(uint32_t)KV_POLICY_LAYOUT_FORBIDDEN;
    *ret_allowed = reasons == 0;
    snprintf(ret_reason, 65, "%s", kv_policy_reason_name(reasons));
}

static KV_RC decide_both(struct kv_call *call, const struct kv_store_session *row, struct kv_explain_view *view)
{
    const struct svc_rules *rules = NULL;
    uint64_t now = call->svc->env->realtime_us(call->svc->env->ctx);
    struct kv_policy_facts facts = {.action = KV_POLICY_OFFLOAD,
                                    .session_age_s = now > row->created_us ? (now - row->created_us) / 1000000 : 0};
    KV_TRY(svc_rules_get(call, &row->tenant, &rules));
    decide(rules, row, facts, &view->offload_allowed, view->offload_reason);
    facts.action = KV_POLICY_RESTORE;
    decide(rules, row, facts, &view->restore_allowed, view->restore_reason);
    svc_rules_put(call->svc, rules);
    return KV_OK;
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
    KV_TRY(decide_both(call, row, view));
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

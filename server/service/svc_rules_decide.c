/*
 * Asking the policies: for transfers, which come often and are answered from the table of policies in use, and for
 * sessions and erasures. See svc_rules.h. Must never decide by what is older than the lease or the last change.
 */
#include "server/service/svc_rules.h"

#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "server/service/svc_metrics.h"
#include "server/store/store_policy.h"

#include <stdio.h>
#include <string.h>

static void list_reasons(uint32_t reasons, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < KV_POLICY_REASONS && used < size; i++) {
        if ((reasons & 1u << i) != 0) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used == 0 ? "" : ", ",
                                     kv_policy_reason_name(1u << i));
        }
    }
}

/* Counts the decision. `state` is the tenant's. */
static KV_RC conclude(struct kv_call *call, enum kv_policy_action action, const char *state,
                      const struct kv_policy_decision *decision)
{
    char text[140];
    uint32_t reasons = decision->reasons;
    svc_metrics_decision(action, reasons);
    if (decision->allowed) {
        return KV_OK;
    }
    if ((reasons & KV_POLICY_TENANT_INACTIVE) != 0) {
        return kv_fail(&call->info, KV_E_TENANT_SUSPENDED, "the tenant is %s, so nothing is moved for it", state);
    }
    list_reasons(reasons, text, sizeof text);
    return kv_fail(&call->info, KV_E_POLICY_DENIED, "denied by policy: %s", text);
}

KV_RC svc_rules_decide(struct kv_call *call, const struct svc_rules *rules, const char *class_name,
                       const struct kv_policy_facts *facts, struct kv_policy_decision *ret_decision)
{
    struct kv_policy_facts all = *facts;
    all.tenant_active = rules->active;
    all.obligations_known = KV_POLICY_OBLIGATIONS_ALL; /* the engine records before it answers, and passes blocks on */
    kv_policy_eval(kv_policy_class(rules->set, class_name), &all, ret_decision);
    return conclude(call, facts->action, rules->state, ret_decision);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

/* The next transfer finds it in the table, if it fits in there. */
static void keep(struct kv_svc *svc, const struct svc_rules *rules, const struct kv_policy *policy,
                 const struct kv_policy_subject *subject)
{
    const struct kv_policy_entry entry = {.tenant = rules->tenant,
                                          .stamp = rules->stamp,
                                          .until_ns = rules->fresh_until_ns,
                                          .set = rules->set,
                                          .policy = policy};
    if (rules->active && rules->stamp == subject->stamp && subject->now_ns < rules->fresh_until_ns) {
        (void)kv_policy_table_put(svc->decisions, &entry);
    }
}

static KV_RC decide_by_rules(struct kv_call *call, const struct kv_policy_subject *subject, const char *class_name,
                             const struct kv_policy_facts *facts, struct svc_verdict *ret_verdict)
{
    const struct svc_rules *rules = NULL;
    struct kv_policy_decision decision;
    KV_TRY(svc_rules_get(call, &subject->tenant, &rules));
    enum kv_err rc = svc_rules_decide(call, rules, class_name, facts, &decision);
    const struct kv_policy *policy = kv_policy_class(rules->set, class_name);
    if (policy != NULL) {
        keep(call->svc, rules, policy, subject);
    }
    if (rc == KV_OK) {
        ret_verdict->tiers_allowed = decision.tiers_allowed;
        kv_policy_bounds(rules->set, policy, &ret_verdict->bounds);
    }
    svc_rules_put(call->svc, rules);
    return rc;
}

KV_RC svc_rules_transfer(struct kv_call *call, const struct svc_session *session, const struct svc_pool_names *pool,
                         struct kv_policy_facts *facts, struct svc_verdict *ret_verdict)
{
    struct kv_svc *svc = call->svc;
    struct kv_policy_decision decision;
    struct kv_policy_subject subject = {.tenant = call->who.tenant,
                                        .class_hash = session->class_hash,
                                        .names = {pool->model_hash, pool->layout_hash, session->region_hash},
                                        .stamp = atomic_load(&svc->change_stamp),
                                        .now_ns = svc->env->boottime_ns(svc->env->ctx),
                                        .place = session->policy_place};
    facts->tenant_active = true; /* in the table nobody else is */
    facts->obligations_known = KV_POLICY_OBLIGATIONS_ALL;
    if (!kv_policy_table_decide(svc->decisions, &subject, facts, &decision, &ret_verdict->bounds)) {
        facts->names[KV_POLICY_MODEL] = kv_policy_text(pool->model.id);
        facts->names[KV_POLICY_LAYOUT] = kv_policy_text(pool->layout);
        facts->names[KV_POLICY_REGION] = kv_policy_text(session->region);
        return decide_by_rules(call, &subject, session->class_name, facts, ret_verdict);
    }
    if (subject.place != session->policy_place) {
        svc_session_place(svc, &session->id, subject.place);
    }
    ret_verdict->tiers_allowed = decision.tiers_allowed;
    return conclude(call, facts->action, "active", &decision);
}

/* --- sessions ----------------------------------------------------------------------------------------------------- */

static const char *class_or_default(const char *name)
{
    return name == NULL || name[0] == '\0' ? "default" : name;
}

KV_RC svc_rules_session(struct kv_call *call, const struct svc_session_ask *ask, uint64_t *ret_max_age_s,
                        uint64_t *ret_max_idle_s)
{
    const struct svc_rules *rules = NULL;
    const char *class_name = class_or_default(ask->class_name);
    struct kv_policy_decision decision;
    struct kv_policy_facts facts = {
        .action = KV_POLICY_SESSION,
        .same_tenant = true,
        .shared = ask->scope != NULL,
        .names = {kv_policy_text(ask->model), {0}, kv_policy_text(ask->region), kv_policy_text(ask->scope)}};
    KV_TRY(svc_rules_get(call, &call->who.tenant, &rules));
    enum kv_err rc = svc_rules_decide(call, rules, class_name, &facts, &decision);
    if (rc == KV_OK) {
        const struct kv_policy *policy = kv_policy_class(rules->set, class_name);
        *ret_max_age_s = policy->limits.age_s;
        *ret_max_idle_s = policy->limits.idle_s;
    }
    svc_rules_put(call->svc, rules);
    return rc;
}

KV_RC svc_rules_session_quota(struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    struct svc_rules *rules KV_CLEANUP(svc_rules_freep) = NULL;
    uint64_t count = 0;
    KV_TRY(svc_rules_read(pg, tenant, info, &rules));
    if (rules->set->quota.sessions == KV_POLICY_NO_LIMIT) {
        return KV_OK;
    }
    KV_TRY(kv_store_session_count_kept(pg, tenant, info, &count));
    if (count <= rules->set->quota.sessions) {
        return KV_OK;
    }
    return kv_fail(info, KV_E_QUOTA_SESSIONS, "the policy allows %llu sessions; erase one that is not needed any more",
                   (unsigned long long)rules->set->quota.sessions);
}

static enum kv_policy_basis basis_of(const char *name)
{
    static const char *const names[KV_BASES] = {"gdpr_art17", "retention", "contract", "other"};
    unsigned i = 0;
    while (i < KV_BASES && strcmp(names[i], name) != 0) {
        i++;
    }
    return (enum kv_policy_basis)i; /* KV_BASES: not known, and so denied */
}

KV_RC svc_rules_erasure(struct kv_call *call, const struct kv_id *tenant, const char *basis, bool reason_given)
{
    const struct svc_rules *rules = NULL;
    struct kv_policy_decision decision;
    struct kv_policy_facts facts = {
        .action = KV_POLICY_ERASE, .same_tenant = true, .basis = basis_of(basis), .reason_given = reason_given};
    KV_TRY(svc_rules_get(call, tenant, &rules));
    enum kv_err rc = svc_rules_decide(call, rules, "default", &facts, &decision); /* the same for every class */
    svc_rules_put(call->svc, rules);
    return rc;
}

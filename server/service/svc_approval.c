/*
 * See svc_approval.h. A proposal names what it was made on: revision of its target, versions of the policies.
 * Everything is looked at once more in the transaction that approves, on locked rows, so that nobody approves something
 * else than what was proposed. Must never do a thing that its proposer approved alone.
 */
#include "server/service/svc_approval.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "server/service/event.h"
#include "server/service/svc_int.h"
#include "server/service/svc_rules.h"

#include <stdio.h>
#include <string.h>

static uint64_t now_us(struct kv_svc *svc)
{
    return svc->env->realtime_us(svc->env->ctx);
}

static void view_of(struct kv_svc *svc, const struct kv_store_approval *row, struct kv_approval_view *ret_view)
{
    bool over = row->state == KV_APPROVAL_PENDING && row->expires_us <= now_us(svc);
    *ret_view = (struct kv_approval_view){.row = *row, .state = over ? "expired" : kv_approval_state_name(row->state)};
}

static void tell(struct kv_svc *svc, const struct kv_approval_view *approval)
{
    svc_publish(svc, &(struct kv_event){.type = KV_EVENT_APPROVAL_STATE,
                                        .tenant = approval->row.tenant,
                                        .subject = approval->row.id,
                                        .subject_prefix = "apr",
                                        .name = kv_approval_action_name(approval->row.action),
                                        .state = approval->state});
}

static KV_RC record(struct kv_call *call, struct kv_pg *pg, const struct kv_store_approval *row, enum kv_audit_op op,
                    struct kv_errinfo *info)
{
    char sha256[65];
    kv_hex_encode(row->request_sha256, sizeof row->request_sha256, sha256);
    struct kv_audit_event event = {.op = op,
                                   .tenant = row->tenant,
                                   .actor = call->who.key,
                                   .actor_role = svc_role_name(call->who.roles),
                                   .subject = row->id,
                                   .subject_prefix = "apr",
                                   .detail_sha256 = sha256};
    return svc_audit(call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

/* --- proposing --------------------------------------------------------------------------------------------------- */

static uint32_t asked_by(enum kv_approval_action action)
{
    return action == KV_APPROVAL_HOLD_RELEASE ? KV_POLICY_TWO_FOR_HOLD_RELEASE : KV_POLICY_TWO_FOR_TENANT_ERASE;
}

/* What is approved, to the letter: members in the order of their names, no spaces. */
static KV_RC put_request(struct kv_store_approval *row)
{
    char tenant[KV_ID_TEXT_SIZE], hold[KV_ID_TEXT_SIZE];
    const char *action = kv_approval_action_name(row->action);
    kv_id_text("ten", &row->tenant, tenant);
    kv_id_text("hld", &row->target, hold);
    if (row->action == KV_APPROVAL_HOLD_RELEASE) {
        snprintf(row->request, sizeof row->request, "{\"action\":\"%s\",\"hold_id\":\"%s\",\"tenant_id\":\"%s\"}",
                 action, hold, tenant);
    } else {
        snprintf(row->request, sizeof row->request, "{\"action\":\"%s\",\"tenant_id\":\"%s\"}", action, tenant);
    }
    return kv_sha256(KV_BYTES(row->request, strlen(row->request)), row->request_sha256);
}

static KV_RC fill_new(struct kv_call *call, const struct svc_proposal *what, const struct kv_policy_set *set,
                      struct kv_store_approval *row)
{
    *row = (struct kv_store_approval){.tenant = what->tenant,
                                      .action = what->action,
                                      .target = what->target,
                                      .target_rev = what->target_rev,
                                      .versions = {set->versions[0], set->versions[1]},
                                      .rev = 1,
                                      .proposed_by = call->who.key,
                                      .created_us = now_us(call->svc)};
    row->expires_us = row->created_us + (uint64_t)KV_MAX_APPROVAL_SECONDS * UINT64_C(1000000);
    snprintf(row->proposed_role, sizeof row->proposed_role, "%s", svc_role_name(call->who.roles));
    KV_TRY(kv_id_new(call->svc->env, &row->id));
    return put_request(row);
}

static KV_RC propose(struct kv_call *call, struct kv_pg *pg, struct kv_store_approval *row, struct kv_errinfo *info,
                     struct kv_approval_view *ret_approval)
{
    struct kv_store_approval found;
    struct kv_errinfo none = {0};
    enum kv_err rc = kv_store_approval_find(pg, row, &none, &found);
    if (rc == KV_OK) {
        view_of(call->svc, &found, ret_approval);
        return KV_OK;
    }
    if (rc != KV_E_MISSING) {
        *info = none;
        return rc;
    }
    KV_TRY(kv_store_approval_insert(pg, row, (uint64_t)KV_MAX_APPROVALS_OPEN, info));
    KV_TRY(record(call, pg, row, KV_AUDIT_APPROVE_REQUEST, info));
    view_of(call->svc, row, ret_approval);
    return KV_OK;
}

KV_RC svc_approval_ask(struct kv_call *call, struct kv_pg *pg, const struct svc_proposal *what, struct kv_errinfo *info,
                       struct kv_approval_view *ret_approval)
{
    struct svc_rules *rules KV_CLEANUP(svc_rules_freep) = NULL;
    struct kv_store_approval row;
    *ret_approval = (struct kv_approval_view){.state = ""};
    KV_TRY(svc_rules_read(pg, &what->tenant, info, &rules));
    if ((rules->set->approvals & asked_by(what->action)) == 0) {
        return KV_OK;
    }
    KV_TRY(fill_new(call, what, rules->set, &row));
    return propose(call, pg, &row, info, ret_approval);
}

void svc_approval_asked(struct kv_call *call, const struct kv_approval_view *approval)
{
    tell(call->svc, approval);
}

KV_RC svc_approval_possible(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, struct kv_errinfo *info)
{
    uint64_t count = 0;
    KV_TRY(kv_store_approvers(pg, tenant, now_us(svc), info, &count));
    return count > 0 ? KV_OK
                     : kv_fail_at(info, KV_E_INVALID_STATE, "/approvals",
                                  "nobody could approve: make a key with the role security_officer first");
}

/* --- looking ----------------------------------------------------------------------------------------------------- */

static KV_RC visible(const struct kv_call *call, enum kv_err rc, const struct kv_store_approval *row,
                     struct kv_errinfo *info)
{
    bool platform = kv_id_is_zero(&call->who.tenant);
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !platform && !kv_id_equal(&row->tenant, &call->who.tenant))) {
        return kv_fail(info, KV_E_NOT_FOUND, "no such approval");
    }
    return rc;
}

KV_RC kv_svc_approval_get(struct kv_call *call, const struct kv_id *approval, struct kv_approval_view *ret_approval)
{
    struct kv_store_approval row;
    KV_TRY(visible(call, kv_store_approval_get(call->pg, approval, &call->info, &row), &row, &call->info));
    view_of(call->svc, &row, ret_approval);
    return KV_OK;
}

KV_RC kv_svc_approval_list(struct kv_call *call, const char *state, struct kv_page *page,
                           struct kv_approval_view *ret_list, size_t *ret_count)
{
    struct kv_store_approval *rows KV_CLEANUP(kv_freep) = kv_alloc_array(page->limit + 1u, sizeof *rows);
    struct kv_store_approval_filter filter = {.tenant = call->who.tenant, .state = state, .now_us = now_us(call->svc)};
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_approval_page(call->pg, &filter, page, &call->info, rows, ret_count));
    for (size_t i = 0; i < *ret_count; i++) {
        view_of(call->svc, &rows[i], &ret_list[i]);
    }
    return KV_OK;
}

/* --- deciding ---------------------------------------------------------------------------------------------------- */

struct decide_tx {
    struct kv_call *call;
    struct kv_id id;
    bool approve;
    struct kv_store_approval row;
    struct kv_store_tenant tenant;
    struct kv_store_api_key proposer;
    struct kv_approval_view *view;
};

static KV_RC check_proposer(struct decide_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    const struct kv_store_api_key *key = &tx->proposer;
    KV_TRY(kv_store_api_key_get(pg, &tx->row.proposed_by, info, &tx->proposer));
    return key->revoked_us == 0 && key->expires_us > now_us(tx->call->svc)
               ? KV_OK
               : kv_fail(info, KV_E_STALE, "the key that proposed it works no more; propose it again with another");
}

static KV_RC check_policies(struct decide_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct svc_rules *rules KV_CLEANUP(svc_rules_freep) = NULL;
    KV_TRY(svc_rules_read(pg, &tx->row.tenant, info, &rules));
    return memcmp(rules->set->versions, tx->row.versions, sizeof tx->row.versions) == 0
               ? KV_OK
               : kv_fail(info, KV_E_STALE, "a policy changed since it was proposed; propose it again");
}

static KV_RC carry_out(struct decide_tx *tx, struct kv_pg *pg, struct kv_errinfo *info)
{
    if (kv_id_equal(&tx->row.proposed_by, &tx->call->who.key)) {
        return kv_fail(info, KV_E_SAME_SUBJECT, "whoever proposes a thing does not approve it; that takes another key");
    }
    KV_TRY(check_policies(tx, pg, info));
    KV_TRY(check_proposer(tx, pg, info));
    switch (tx->row.action) {
    case KV_APPROVAL_TENANT_DELETE:
    case KV_APPROVAL_TENANT_DELETE_NOW:
        return svc_tenant_delete_approved(tx->call, pg, &tx->row, info);
    case KV_APPROVAL_HOLD_RELEASE:
        return svc_hold_release_approved(tx->call, pg, &tx->row, info);
    }
    return kv_fail(info, KV_E_INTERNAL, "an action that this server does not know");
}

static KV_RC decide_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct decide_tx *tx = ctx;
    struct kv_store_approval *row = &tx->row;
    uint64_t now = now_us(tx->call->svc);
    KV_TRY(visible(tx->call, kv_store_approval_get(pg, &tx->id, info, row), row, info));
    KV_TRY(kv_store_tenant_lock(pg, &row->tenant, info, &tx->tenant)); /* before the approval, as whoever proposes */
    KV_TRY(kv_store_approval_lock(pg, &tx->id, info, row));
    if (row->state != KV_APPROVAL_PENDING || row->expires_us <= now) {
        view_of(tx->call->svc, row, tx->view);
        return kv_fail(info, KV_E_INVALID_STATE, "it is %s", tx->view->state);
    }
    KV_TRY(tx->approve ? carry_out(tx, pg, info) : KV_OK);
    row->state = tx->approve ? KV_APPROVAL_APPROVED : KV_APPROVAL_REJECTED;
    row->decided_by = tx->call->who.key;
    row->decided_us = now;
    KV_TRY(kv_store_approval_decide(pg, row, info));
    KV_TRY(record(tx->call, pg, row, tx->approve ? KV_AUDIT_APPROVE_GRANT : KV_AUDIT_APPROVE_REJECT, info));
    view_of(tx->call->svc, row, tx->view);
    return KV_OK;
}

static void carried_out(struct kv_call *call, const struct kv_store_approval *row)
{
    if (row->action == KV_APPROVAL_HOLD_RELEASE) {
        svc_hold_released(call, &row->tenant, &row->target);
    } else {
        svc_tenant_deleted(call, &row->tenant);
    }
}

static KV_RC decide(struct kv_call *call, const struct kv_id *approval, bool approve,
                    struct kv_approval_view *ret_approval)
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct decide_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->call = call;
    tx->id = *approval;
    tx->approve = approve;
    tx->view = ret_approval;
    KV_TRY(svc_tx(call, KV_TX_APPROVAL_DECIDE, decide_tx, tx));
    if (call->dry_run) {
        return KV_OK;
    }
    if (KV_FAULT("approval/decided")) {
        return KV_E_INTERNAL;
    }
    tell(call->svc, ret_approval);
    if (approve) {
        carried_out(call, &tx->row);
    }
    return KV_OK;
}

KV_RC kv_svc_approval_approve(struct kv_call *call, const struct kv_id *approval, struct kv_approval_view *ret_approval)
{
    return decide(call, approval, true, ret_approval);
}

KV_RC kv_svc_approval_reject(struct kv_call *call, const struct kv_id *approval, struct kv_approval_view *ret_approval)
{
    return decide(call, approval, false, ret_approval);
}

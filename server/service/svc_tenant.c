/*
 * Tenants: making them, their states, what people may set on them. Every change is one transaction on the tenant's
 * locked row with its entry in the log; whoever holds the tenant in memory reads it again. What a tenant uses is in
 * svc_tenant_usage.c. Must never end a tenant itself: a deletion only says when, the janitor does it.
 */
#include "server/service/svc_tenant.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/crypto/hash.h"
#include "server/service/event.h"
#include "server/service/janitor.h"
#include "server/service/svc_approval.h"
#include "server/service/svc_hold.h"
#include "server/service/svc_metrics.h"
#include "server/store/store_change.h"

#include <stdio.h>
#include <string.h>

static uint64_t now_us(const struct kv_call *call)
{
    return call->svc->env->realtime_us(call->svc->env->ctx);
}

static void view_of(const struct kv_store_tenant *row, struct kv_tenant_view *ret_view)
{
    *ret_view = (struct kv_tenant_view){.id = row->id,
                                        .labels = row->labels,
                                        .rev = row->rev,
                                        .created_us = row->created_us,
                                        .updated_us = row->updated_us,
                                        .suspended_us = row->suspended_us,
                                        .delete_us = row->delete_us};
    snprintf(ret_view->name, sizeof ret_view->name, "%s", row->name);
    snprintf(ret_view->display_name, sizeof ret_view->display_name, "%.256s", row->display_name);
    snprintf(ret_view->region, sizeof ret_view->region, "%s", row->region);
    snprintf(ret_view->state, sizeof ret_view->state, "%s", kv_tenant_state_name(row->state));
}

KV_RC svc_tenant_visible(struct kv_call *call, const struct kv_id *tenant)
{
    bool platform = kv_id_is_zero(&call->who.tenant) && (call->who.roles & (KV_ROLE_OPERATOR | KV_ROLE_VIEWER)) != 0;
    return platform || (!kv_id_is_zero(tenant) && kv_id_equal(&call->who.tenant, tenant))
               ? KV_OK
               : kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
}

static KV_RC operator_only(struct kv_call *call, const struct kv_id *tenant)
{
    KV_TRY(svc_tenant_visible(call, tenant));
    return (call->who.roles & KV_ROLE_OPERATOR) != 0
               ? KV_OK
               : kv_fail(&call->info, KV_E_FORBIDDEN, "this needs the operator role");
}

/* --- making ------------------------------------------------------------------------------------------------------ */

struct create_tx {
    struct kv_call *call;
    struct kv_store_tenant row;
    struct kv_bytes policy;
    struct kv_tenant_view *view;
};

static KV_RC create_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct create_tx *tx = ctx;
    KV_TRY(kv_store_tenant_insert(pg, &tx->row, info, &tx->row.directory_slot));
    struct kv_audit_event event = {.op = KV_AUDIT_TENANT_CREATE,
                                   .tenant = tx->row.id,
                                   .actor = tx->call->who.key,
                                   .actor_role = "operator",
                                   .subject = tx->row.id,
                                   .subject_prefix = "ten"};
    KV_TRY(svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info));
    if (tx->policy.len > 0) {
        KV_TRY(svc_policy_first(tx->call, pg, &tx->row.id, tx->policy, info));
    }
    view_of(&tx->row, tx->view);
    return KV_OK;
}

static KV_RC check_new(struct kv_call *call, const struct kv_tenant_new *in)
{
    size_t len = strlen(in->name);
    if (len < 2 || len > (size_t)KV_MAX_TENANT_NAME_BYTES ||
        strspn(in->name, "abcdefghijklmnopqrstuvwxyz0123456789-") != len) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/name", "2 to 63 characters of a-z, 0-9 and -");
    }
    return svc_region_check(call, in->region);
}

KV_RC svc_region_check(struct kv_call *call, const char *region)
{
    size_t len = region == NULL ? 0 : strlen(region);
    bool ok = len < KV_REGION_SIZE && (len == 0 || strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") == len);
    return ok ? KV_OK
              : kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/region", "1 to 63 characters of a-z, 0-9 and -");
}

static void tell_state(struct kv_svc *svc, const struct kv_tenant_view *tenant)
{
    svc_publish(svc, &(struct kv_event){.type = KV_EVENT_TENANT_STATE, .tenant = tenant->id, .state = tenant->state});
}

KV_RC kv_svc_tenant_create(struct kv_call *call, const struct kv_tenant_new *in, struct kv_tenant_view *ret_tenant)
{
    KV_TRY(check_new(call, in));
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct create_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct create_tx){.call = call, .policy = in->policy, .view = ret_tenant};
    KV_TRY(kv_id_new(call->svc->env, &tx->row.id));
    snprintf(tx->row.name, sizeof tx->row.name, "%s", in->name);
    snprintf(tx->row.display_name, sizeof tx->row.display_name, "%s", in->display_name == NULL ? "" : in->display_name);
    snprintf(tx->row.region, sizeof tx->row.region, "%s", in->region == NULL ? "" : in->region);
    KV_TRY(kv_labels_merge(&tx->row.labels, &in->labels));
    tx->row.rev = 1;
    tx->row.created_us = now_us(call);
    KV_TRY(svc_tx(call, KV_TX_TENANT_CREATE, create_tx, tx));
    if (!call->dry_run) {
        tell_state(call->svc, ret_tenant);
    }
    return KV_OK;
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

KV_RC kv_svc_tenant_get(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_view *ret_tenant)
{
    KV_TRY(svc_tenant_visible(call, tenant));
    struct kv_store_tenant *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    enum kv_err rc = kv_store_tenant_get(call->pg, tenant, &call->info, row);
    if (rc == KV_E_NOT_FOUND) {
        return kv_fail(&call->info, rc, "no such tenant");
    }
    KV_TRY(rc);
    view_of(row, ret_tenant);
    return KV_OK;
}

KV_RC kv_svc_tenant_list(struct kv_call *call, const struct kv_tenant_filter *filter, struct kv_page *page,
                         struct kv_tenant_view *ret_list, size_t *ret_count)
{
    struct kv_id none = {0};
    KV_TRY(svc_tenant_visible(call, &none));
    struct kv_store_tenant_filter wanted = {.state = filter->state, .label = filter->label};
    struct kv_store_tenant *rows KV_CLEANUP(kv_freep) = kv_alloc_array(page->limit + 1u, sizeof *rows);
    size_t count = 0;
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_tenant_list(call->pg, &wanted, page, &call->info, rows, &count));
    for (size_t i = 0; i < count; i++) {
        view_of(&rows[i], &ret_list[i]);
    }
    *ret_count = count;
    return KV_OK;
}

/* --- changing ---------------------------------------------------------------------------------------------------- */

struct change_tx;
/* Changes the locked row, or says why not; *ret_same: there is nothing to change. */
typedef KV_RC change_fn(struct change_tx *tx, struct kv_store_tenant *row, struct kv_errinfo *info, bool *ret_same);

struct change_tx {
    struct kv_call *call;
    struct kv_id tenant;
    change_fn *change;
    enum kv_audit_op op;
    const struct kv_tenant_patch *patch;
    bool now;
    uint64_t now_us;
    char reason_sha256[KV_SHA256_HEX_SIZE]; /* "": none */
    struct kv_store_tenant row;
    struct kv_tenant_view *view;
    struct kv_approval_view *approval;        /* NULL: none is needed, or it is there */
    const struct kv_store_approval *approved; /* then who proposed it is who does it */
};

static const struct kv_id *actor(const struct change_tx *tx)
{
    return tx->approved == NULL ? &tx->call->who.key : &tx->approved->proposed_by;
}

static KV_RC record(struct kv_pg *pg, const struct change_tx *tx, struct kv_errinfo *info)
{
    struct kv_audit_event event = {.op = tx->op,
                                   .tenant = tx->tenant,
                                   .actor = *actor(tx),
                                   .actor_role = tx->approved == NULL ? svc_role_name(tx->call->who.roles)
                                                                      : tx->approved->proposed_role,
                                   .subject = tx->tenant,
                                   .subject_prefix = "ten",
                                   .detail_sha256 = tx->reason_sha256[0] == '\0' ? NULL : tx->reason_sha256};
    return svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC change_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct change_tx *tx = ctx;
    bool same = false;
    enum kv_err rc = kv_store_tenant_lock(pg, &tx->tenant, info, &tx->row);
    if (rc == KV_E_NOT_FOUND) {
        return kv_fail(info, rc, "no such tenant");
    }
    KV_TRY(rc);
    KV_TRY(svc_match(tx->call, tx->row.rev, info));
    if (tx->row.state == KV_TENANT_ERASING || tx->row.state == KV_TENANT_ERASED) {
        return kv_fail(info, KV_E_INVALID_STATE, "the tenant is %s", kv_tenant_state_name(tx->row.state));
    }
    KV_TRY(tx->change(tx, &tx->row, info, &same));
    if (!same) {
        tx->row.updated_us = tx->now_us;
        KV_TRY(kv_store_tenant_update(pg, &tx->row, info));
        KV_TRY(record(pg, tx, info));
        KV_TRY(kv_store_change(pg, info));
    }
    view_of(&tx->row, tx->view);
    return KV_OK;
}

static KV_RC change(const struct change_tx *wanted, enum kv_tx what)
{
    struct kv_call *call = wanted->call;
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct change_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = *wanted;
    KV_TRY(svc_tx(call, what, change_tx, tx));
    if (!call->dry_run) {
        svc_changed(call->svc);
        svc_views_drop_all(call->svc->views); /* a session's key shows the tenant's state */
    }
    return KV_OK;
}

static KV_RC apply_patch(struct change_tx *tx, struct kv_store_tenant *row, struct kv_errinfo *info, bool *ret_same)
{
    const struct kv_tenant_patch *patch = tx->patch;
    if (patch->display_name != NULL) {
        snprintf(row->display_name, sizeof row->display_name, "%s", patch->display_name);
    }
    if (patch->region != NULL) {
        snprintf(row->region, sizeof row->region, "%s", patch->region);
    }
    *ret_same = patch->display_name == NULL && patch->region == NULL && patch->labels.count == 0;
    if (kv_labels_merge(&row->labels, &patch->labels) != KV_OK) {
        return kv_fail_at(info, KV_E_INVALID_REQUEST, "/labels", "at most %d labels would be left", KV_LABELS_MAX);
    }
    return KV_OK;
}

KV_RC kv_svc_tenant_update(struct kv_call *call, const struct kv_id *tenant, const struct kv_tenant_patch *patch,
                           struct kv_tenant_view *ret_tenant)
{
    KV_TRY(svc_tenant_visible(call, tenant));
    KV_TRY(svc_region_check(call, patch->region));
    if (patch->region != NULL && (call->who.roles & KV_ROLE_OPERATOR) == 0) {
        return kv_fail_at(&call->info, KV_E_FORBIDDEN, "/region", "only an operator moves a tenant to another region");
    }
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .change = apply_patch,
                           .op = KV_AUDIT_TENANT_UPDATE,
                           .patch = patch,
                           .now_us = now_us(call),
                           .view = ret_tenant};
    return change(&tx, KV_TX_TENANT_UPDATE);
}

/* --- suspending -------------------------------------------------------------------------------------------------- */

static KV_RC apply_suspend(struct change_tx *tx, struct kv_store_tenant *row, struct kv_errinfo *info, bool *ret_same)
{
    (void)ret_same;
    if (row->state != KV_TENANT_ACTIVE) {
        return kv_fail(info, KV_E_INVALID_STATE, "the tenant is %s; only an active one can be suspended",
                       kv_tenant_state_name(row->state));
    }
    row->state = KV_TENANT_SUSPENDED;
    row->suspended_us = tx->now_us;
    memcpy(row->suspend_reason_sha256, tx->reason_sha256, sizeof row->suspend_reason_sha256);
    return KV_OK;
}

static KV_RC apply_resume(struct change_tx *tx, struct kv_store_tenant *row, struct kv_errinfo *info, bool *ret_same)
{
    (void)tx;
    (void)ret_same;
    if (row->state != KV_TENANT_SUSPENDED) {
        return kv_fail(info, KV_E_INVALID_STATE, "the tenant is %s, not suspended", kv_tenant_state_name(row->state));
    }
    row->state = KV_TENANT_ACTIVE;
    row->suspended_us = 0;
    row->suspend_reason_sha256[0] = '\0';
    return KV_OK;
}

/* Salted with the tenant's id and the time, which the view shows: who knows the text can show that it was this one, and
 * no table of texts finds it. */
static KV_RC hash_reason(struct change_tx *tx, const char *reason)
{
    uint8_t hash[32], at[8];
    struct kv_writer w = kv_writer_of(at, sizeof at);
    kv_write_u64(&w, tx->now_us);
    struct kv_bytes parts[] = {KV_BYTES(tx->tenant.b, sizeof tx->tenant.b), KV_BYTES(at, sizeof at),
                               KV_BYTES(reason, strlen(reason))};
    KV_TRY(kv_sha256_parts(parts, 3, hash));
    kv_hex_encode(hash, sizeof hash, tx->reason_sha256);
    return KV_OK;
}

KV_RC kv_svc_tenant_suspend(struct kv_call *call, const struct kv_id *tenant, const char *reason,
                            struct kv_tenant_view *ret_tenant)
{
    KV_TRY(operator_only(call, tenant));
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .change = apply_suspend,
                           .op = KV_AUDIT_TENANT_SUSPEND,
                           .now_us = now_us(call),
                           .view = ret_tenant};
    if (reason != NULL) {
        KV_TRY(hash_reason(&tx, reason));
    }
    KV_TRY(change(&tx, KV_TX_TENANT_SUSPEND));
    if (!call->dry_run) {
        tell_state(call->svc, ret_tenant);
    }
    return KV_OK;
}

KV_RC kv_svc_tenant_resume(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_view *ret_tenant)
{
    KV_TRY(operator_only(call, tenant));
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .change = apply_resume,
                           .op = KV_AUDIT_TENANT_RESUME,
                           .now_us = now_us(call),
                           .view = ret_tenant};
    KV_TRY(change(&tx, KV_TX_TENANT_RESUME));
    if (!call->dry_run) {
        tell_state(call->svc, ret_tenant);
    }
    return KV_OK;
}

/* --- deleting ---------------------------------------------------------------------------------------------------- */

static KV_RC propose_delete(struct change_tx *tx, const struct kv_store_tenant *row, struct kv_errinfo *info)
{
    const struct svc_proposal what = {.action = tx->now ? KV_APPROVAL_TENANT_DELETE_NOW : KV_APPROVAL_TENANT_DELETE,
                                      .tenant = row->id,
                                      .target = row->id,
                                      .target_rev = row->rev};
    return svc_approval_ask(tx->call, tx->call->pg, &what, info, tx->approval);
}

static KV_RC apply_delete(struct change_tx *tx, struct kv_store_tenant *row, struct kv_errinfo *info, bool *ret_same)
{
    KV_TRY(svc_hold_forbids(tx->call->svc, tx->call->pg, &tx->tenant, info));
    bool sooner = tx->now && row->delete_us > tx->now_us;
    *ret_same = row->state == KV_TENANT_DELETING && !sooner;
    if (!*ret_same && tx->approval != NULL) {
        KV_TRY(propose_delete(tx, row, info));
        *ret_same = !kv_id_is_zero(&tx->approval->row.id);
    }
    if (!*ret_same) {
        row->state = KV_TENANT_DELETING;
        row->delete_us = tx->now_us + (tx->now ? 0 : (uint64_t)KV_MAX_ERASURE_GRACE_SECONDS * UINT64_C(1000000));
        row->deleted_by = *actor(tx);
    }
    return KV_OK;
}

static KV_RC apply_restore(struct change_tx *tx, struct kv_store_tenant *row, struct kv_errinfo *info, bool *ret_same)
{
    (void)ret_same;
    if (row->state != KV_TENANT_DELETING) {
        return kv_fail(info, KV_E_INVALID_STATE, "the tenant is %s, not to be deleted",
                       kv_tenant_state_name(row->state));
    }
    if (row->delete_us <= tx->now_us) {
        return kv_fail(info, KV_E_IRREVERSIBLE, "the grace time is over; the tenant's sessions are being erased");
    }
    row->state = row->suspended_us == 0 ? KV_TENANT_ACTIVE : KV_TENANT_SUSPENDED;
    row->delete_us = 0;
    row->deleted_by = (struct kv_id){0};
    return KV_OK;
}

void svc_tenant_deleted(struct kv_call *call, const struct kv_id *tenant)
{
    svc_changed(call->svc);
    svc_views_drop_all(call->svc->views);
    svc_publish(call->svc, &(struct kv_event){.type = KV_EVENT_TENANT_STATE, .tenant = *tenant, .state = "deleting"});
    svc_janitor_signal(call->svc);
}

KV_RC svc_tenant_delete_approved(struct kv_call *call, struct kv_pg *pg, const struct kv_store_approval *approval,
                                 struct kv_errinfo *info)
{
    struct kv_tenant_view view;
    struct change_tx tx = {.call = call,
                           .tenant = approval->tenant,
                           .change = apply_delete,
                           .op = KV_AUDIT_TENANT_DELETE,
                           .now = approval->action == KV_APPROVAL_TENANT_DELETE_NOW,
                           .now_us = now_us(call),
                           .view = &view,
                           .approved = approval};
    KV_TRY(kv_store_tenant_lock(pg, &approval->tenant, info, &tx.row));
    return tx.row.rev == approval->target_rev
               ? change_tx(pg, &tx, info)
               : kv_fail(info, KV_E_STALE, "the tenant changed since it was proposed; propose it again");
}

KV_RC kv_svc_tenant_delete(struct kv_call *call, const struct kv_id *tenant, bool now,
                           struct kv_tenant_view *ret_tenant, struct kv_approval_view *ret_approval)
{
    *ret_approval = (struct kv_approval_view){.state = ""};
    KV_TRY(operator_only(call, tenant));
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .change = apply_delete,
                           .op = KV_AUDIT_TENANT_DELETE,
                           .now = now,
                           .now_us = now_us(call),
                           .view = ret_tenant,
                           .approval = ret_approval};
    KV_TRY(change(&tx, KV_TX_TENANT_DELETE));
    if (!call->dry_run && !kv_id_is_zero(&ret_approval->row.id)) {
        svc_approval_asked(call, ret_approval);
    } else if (!call->dry_run) {
        tell_state(call->svc, ret_tenant);
        svc_janitor_signal(call->svc);
    }
    return KV_OK;
}

KV_RC kv_svc_tenant_restore(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_view *ret_tenant)
{
    KV_TRY(operator_only(call, tenant));
    struct change_tx tx = {.call = call,
                           .tenant = *tenant,
                           .change = apply_restore,
                           .op = KV_AUDIT_TENANT_RESTORE,
                           .now_us = now_us(call),
                           .view = ret_tenant};
    KV_TRY(change(&tx, KV_TX_TENANT_RESTORE));
    if (!call->dry_run) {
        svc_metrics_canceled();
        tell_state(call->svc, ret_tenant);
    }
    return KV_OK;
}

/*
 * Tenants, and the making of sessions: a session is a key slot of its tenant, given once.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/store/store_ktree.h"

#include <stdio.h>
#include <string.h>

#define CREATE_TRIES 3

static void tenant_view(const struct kv_store_tenant *row, struct kv_tenant_view *ret_view)
{
    *ret_view = (struct kv_tenant_view){.id = row->id, .created_us = row->created_us};
    snprintf(ret_view->name, sizeof ret_view->name, "%s", row->name);
    snprintf(ret_view->display_name, sizeof ret_view->display_name, "%.256s", row->display_name);
    snprintf(ret_view->state, sizeof ret_view->state, "%s", kv_tenant_state_name(row->state));
}

/* --- tenants ----------------------------------------------------------------------------------------------------- */

struct tenant_tx {
    struct kv_call *call;
    struct kv_store_tenant row;
};

static KV_RC tenant_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct tenant_tx *tx = ctx;
    KV_TRY(kv_store_tenant_insert(pg, &tx->row, info, &tx->row.directory_slot));
    struct kv_audit_event event = {.op = KV_AUDIT_TENANT_CREATE,
                                   .tenant = tx->row.id,
                                   .actor = tx->call->who.key,
                                   .actor_role = "operator",
                                   .subject = tx->row.id,
                                   .subject_prefix = "ten"};
    return svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC check_name(struct kv_call *call, const char *name)
{
    size_t len = strlen(name);
    bool ok = len >= 2 && len <= (size_t)KV_MAX_TENANT_NAME_BYTES &&
              strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
    return ok ? KV_OK : kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/name", "2 to 63 characters of a-z, 0-9 and -");
}

KV_RC kv_svc_tenant_create(struct kv_call *call, const char *name, const char *display_name,
                           struct kv_tenant_view *ret_tenant)
{
    KV_TRY(check_name(call, name));
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct tenant_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->call = call;
    KV_TRY(kv_id_new(call->svc->env, &tx->row.id));
    snprintf(tx->row.name, sizeof tx->row.name, "%s", name);
    snprintf(tx->row.display_name, sizeof tx->row.display_name, "%s", display_name == NULL ? "" : display_name);
    tx->row.created_us = call->svc->env->realtime_us(call->svc->env->ctx);
    KV_TRY(kv_pg_tx(call->pg, "tenant-create", tenant_tx, tx, &call->info, NULL));
    tenant_view(&tx->row, ret_tenant);
    return KV_OK;
}

KV_RC kv_svc_tenant_get(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_view *ret_tenant)
{
    if ((call->who.roles & KV_ROLE_OPERATOR) == 0 && !kv_id_equal(&call->who.tenant, tenant)) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such tenant");
    }
    struct kv_store_tenant *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_tenant_get(call->pg, tenant, &call->info, row));
    tenant_view(row, ret_tenant);
    return KV_OK;
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

struct session_tx {
    struct kv_call *call;
    struct kv_store_session row;
    struct kv_secret *slot;
};

static KV_RC session_rows(struct kv_pg *pg, struct session_tx *tx, struct kv_errinfo *info)
{
    KV_TRY(kv_store_session_insert(pg, &tx->row, info, &tx->row.slot, &tx->row.directory_slot));
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    kv_secret_free(tx->slot);
    tx->slot = NULL;
    KV_TRY(kv_ktree_slot(tx->call->svc->tree, &rows, &tx->row.tenant, tx->row.directory_slot, tx->row.slot, true,
                         &tx->slot));
    struct kv_audit_event event = {.op = KV_AUDIT_SESSION_CREATE,
                                   .tenant = tx->row.tenant,
                                   .session = tx->row.id,
                                   .actor = tx->call->who.key,
                                   .actor_role =
                                       (tx->call->who.roles & KV_ROLE_ENGINE) != 0 ? "engine" : "tenant_admin"};
    return svc_audit(tx->call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC session_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct session_tx *tx = ctx;
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_share(pg, info, &kroot)); /* nodes may be filled: no re-key meanwhile */
    enum kv_err rc = svc_root_use(tx->call->svc, &kroot, info);
    kv_store_kroot_done(&kroot);
    KV_TRY(rc);
    return session_rows(pg, tx, info);
}

static KV_RC open_new(struct kv_call *call, const struct session_tx *tx)
{
    struct kv_secret *scope = NULL;
    KV_TRY(kv_scope_secret(tx->slot, &tx->row.tenant, &tx->row.id, &scope));
    enum kv_err rc = svc_session_keys(call->svc, &tx->row.tenant, &tx->row.id, scope);
    kv_secret_free(scope);
    return rc;
}

static void model_to_row(const struct kv_model *model, struct kv_store_session *row)
{
    static const uint8_t none[32];
    snprintf(row->model_id, sizeof row->model_id, "%s", model->id);
    snprintf(row->model_revision, sizeof row->model_revision, "%s", model->revision);
    if (memcmp(model->fingerprint, none, sizeof none) != 0) {
        kv_hex_encode(model->fingerprint, sizeof model->fingerprint, row->model_fingerprint);
    }
}

KV_RC kv_svc_session_create(struct kv_call *call, const struct kv_model *model, struct kv_session_view *ret_session)
{
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct session_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->call = call;
    tx->row.tenant = call->who.tenant;
    tx->row.created_by = call->who.key;
    tx->row.created_us = call->svc->env->realtime_us(call->svc->env->ctx);
    model_to_row(model, &tx->row);
    KV_TRY(kv_id_new(call->svc->env, &tx->row.id));
    enum kv_err rc = KV_E_STALE;
    for (int tries = 0; rc == KV_E_STALE && tries < CREATE_TRIES; tries++) { /* the root changed meanwhile */
        rc = kv_pg_tx(call->pg, "session-create", session_tx, tx, &call->info, NULL);
    }
    if (rc == KV_OK) {
        KV_IGNORE(open_new(call, tx), "a session that could not be opened now is opened at its first use");
        struct kv_event event = {
            .type = KV_EVENT_SESSION_CREATED, .tenant = tx->row.tenant, .session = tx->row.id, .state = "active"};
        svc_publish(call->svc, &event);
        *ret_session = (struct kv_session_view){.id = tx->row.id,
                                                .tenant = tx->row.tenant,
                                                .state = "active",
                                                .model = *model,
                                                .created_us = tx->row.created_us};
    }
    kv_secret_free(tx->slot);
    return rc;
}

KV_RC kv_svc_session_get(struct kv_call *call, const struct kv_id *session, struct kv_session_view *ret_session)
{
    struct kv_store_session *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(svc_session_row(call->pg, session, &call->who.tenant, &call->info, row));
    if (row->state != KV_SESSION_ACTIVE) {
        call->erasure = row->erasure;
        return kv_fail(&call->info, KV_E_SESSION_ERASED, "this session was erased");
    }
    struct kv_session_view view = {
        .id = row->id, .tenant = row->tenant, .state = "active", .created_us = row->created_us};
    svc_model_of_row(row, &view.model);
    KV_TRY(kv_engine_scope_usage(call->svc->engine, session, &view.usage));
    *ret_session = view;
    return KV_OK;
}

/*
 * What a caller sees of long-running operations. Starting one is a row and an audit entry; the executor
 * (operation_run.c) does the rest.
 */
#include "server/service/svc_operation.h"

#include "server/service/operation_run.h"
#include "server/service/svc_status.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool kv_operation_ended(const struct kv_operation_view *operation)
{
    return operation->row.state != KV_OPERATION_QUEUED && operation->row.state != KV_OPERATION_RUNNING;
}

/* --- starting ---------------------------------------------------------------------------------------------------- */

KV_RC svc_operation_fill(struct kv_call *call, const char *kind, const char *params, struct kv_operation_view *view)
{
    view->row = (struct kv_store_operation){.tenant = call->who.tenant,
                                            .created_by = call->who.key,
                                            .instance = call->svc->instance,
                                            .created_us = call->svc->env->realtime_us(call->svc->env->ctx)};
    snprintf(view->row.kind, sizeof view->row.kind, "%s", kind);
    snprintf(view->row.params, sizeof view->row.params, "%s", params);
    return kv_id_new(call->svc->env, &view->row.id);
}

KV_RC svc_operation_insert(struct kv_pg *pg, struct kv_store_operation *row, struct kv_errinfo *info)
{
    KV_TRY(kv_store_operation_insert(pg, row, (uint64_t)KV_MAX_OPERATIONS_OPEN, info));
    return kv_store_operation_get(pg, &row->id, info, row);
}

void svc_operation_started(struct kv_svc *svc, const struct kv_store_operation *row)
{
    svc_operation_publish(svc, row);
    svc_operations_signal(svc);
}

struct start_tx {
    struct kv_call *call;
    struct kv_operation_view *view;
    const struct kv_audit_event *also;
};

static KV_RC record(struct kv_call *call, struct kv_pg *pg, enum kv_audit_op op, const struct kv_store_operation *row,
                    struct kv_errinfo *info)
{
    struct kv_audit_event event = {.op = op,
                                   .tenant = row->tenant,
                                   .actor = call->who.key,
                                   .actor_role = svc_role_name(call->who.roles),
                                   .subject = row->id,
                                   .subject_prefix = "opr"};
    return svc_audit(call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC start_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct start_tx *tx = ctx;
    KV_TRY(svc_operation_insert(pg, &tx->view->row, info));
    KV_TRY(record(tx->call, pg, KV_AUDIT_OPERATION_START, &tx->view->row, info));
    return tx->also == NULL ? KV_OK : svc_audit(tx->call->svc, pg, tx->also, KV_BYTES(NULL, 0), info);
}

KV_RC svc_operation_start(struct kv_call *call, const struct svc_operation_new *asked, struct kv_operation_view *view)
{
    KV_TRY(svc_operation_fill(call, asked->kind, asked->params, view));
    struct start_tx tx = {.call = call, .view = view, .also = asked->also};
    KV_TRY(svc_tx(call, KV_TX_OPERATION_START, start_tx, &tx));
    if (!call->dry_run) {
        svc_operation_started(call->svc, &view->row);
    }
    return KV_OK;
}

static KV_RC signed_head(struct kv_call *call, struct kv_checkpoint *ret_head)
{
    struct kv_buf note;
    uint64_t size = 0;
    kv_buf_init(&note, 16384);
    enum kv_err rc = kv_store_log_note(call->pg, &call->who.tenant, &call->info, &note, &size);
    if (rc == KV_E_MISSING) {
        rc = kv_fail(&call->info, KV_E_NOT_YET, "this log has no entry yet, so no head is signed");
    } else if (rc == KV_OK && kv_checkpoint_parse(kv_buf_bytes(&note), ret_head) != KV_OK) {
        rc = kv_fail(&call->info, KV_E_CORRUPT, "the log's signed head is not one");
    }
    kv_buf_done(&note);
    return rc;
}

KV_RC kv_svc_audit_verify(struct kv_call *call, const struct kv_audit_range *range,
                          struct kv_operation_view *ret_operation)
{
    struct kv_checkpoint head;
    KV_TRY(svc_may_work(call->svc, &call->info));
    KV_TRY(signed_head(call, &head));
    uint64_t to = range->to == 0 ? head.size : range->to;
    if (to > head.size) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/to", "the signed head covers %" PRIu64 " entries",
                          head.size);
    }
    if (range->from >= to) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/from", "must be below `to`, which is %" PRIu64, to);
    }
    char root[KV_SHA256_HEX_SIZE], params[224];
    kv_hex_encode(head.root.b, sizeof head.root.b, root);
    snprintf(params, sizeof params, "{\"from\":%" PRIu64 ",\"root\":\"%s\",\"size\":%" PRIu64 ",\"to\":%" PRIu64 "}",
             range->from, root, head.size, to);
    struct svc_operation_new asked = {.kind = "audit.verify", .params = params};
    return svc_operation_start(call, &asked, ret_operation);
}

KV_RC kv_svc_drain(struct kv_call *call, enum kv_tier_id tier, struct kv_operation_view *ret_operation)
{
    if ((call->who.roles & KV_ROLE_OPERATOR) == 0) {
        return kv_fail(&call->info, KV_E_FORBIDDEN, "draining a tier needs the operator role");
    }
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct kv_tier_view view;
    if (!kv_svc_tier(call->svc, tier, &view)) {
        return kv_fail(&call->info, KV_E_NOT_FOUND, "no such tier here; GET /v1/tiers names those that are");
    }
    struct svc_operation_new asked = {.kind = "tier.drain",
                                      .params = tier == KV_TIER_DRAM ? "{\"tier\":\"dram\"}" : "{\"tier\":\"nvme\"}"};
    return svc_operation_start(call, &asked, ret_operation);
}

KV_RC kv_svc_root_rotate(struct kv_call *call, struct kv_operation_view *ret_operation)
{
    if ((call->who.roles & KV_ROLE_OPERATOR) == 0) {
        return kv_fail(&call->info, KV_E_FORBIDDEN, "replacing the root of erasure needs the operator role");
    }
    KV_TRY(svc_may_work(call->svc, &call->info));
    struct svc_operation_new asked = {.kind = "root.rotate", .params = "{}"};
    return svc_operation_start(call, &asked, ret_operation);
}

static KV_RC check_target(struct kv_call *call, const char *to)
{
    struct kv_svc *svc = call->svc;
    struct kv_errinfo why = {0};
    struct kv_id active = {0}, staged;
    struct kv_roe *roe = NULL;
    pthread_mutex_lock(&svc->roe_mutex);
    bool same = strcmp(svc->roe->ops->name, to) == 0;
    enum kv_err rc = same ? KV_OK : svc_provider(svc, to, &why, &roe);
    rc = rc == KV_OK && !same ? roe->ops->list(roe, &active, &staged) : rc;
    pthread_mutex_unlock(&svc->roe_mutex);
    if (rc != KV_OK) {
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/to", "cannot be used: %s",
                          why.text[0] != '\0' ? why.text : kv_err_title(rc));
    }
    if (same || !kv_id_is_zero(&active)) {
        return kv_fail(&call->info, KV_E_INVALID_STATE,
                       same ? "the root is there already" : "the new provider holds another root already");
    }
    pthread_mutex_lock(&svc->peers_mutex);
    bool alone = svc->peer_count == 0;
    pthread_mutex_unlock(&svc->peers_mutex);
    return roe->ops->shared || alone
               ? KV_OK
               : kv_fail(&call->info, KV_E_INVALID_STATE, "other instances run, and the new provider cannot be shared");
}

KV_RC kv_svc_root_migrate(struct kv_call *call, const char *to, struct kv_operation_view *ret_operation)
{
    char params[64];
    const char *name = svc_provider_name(to);
    if ((call->who.roles & KV_ROLE_OPERATOR) == 0) {
        return kv_fail(&call->info, KV_E_FORBIDDEN, "moving the root of erasure needs the operator role");
    }
    KV_TRY(svc_may_work(call->svc, &call->info));
    if (name == NULL || strcmp(name, kv_roe_memory.name) == 0) { /* a restart would lose all that is kept */
        return kv_fail_at(&call->info, KV_E_INVALID_REQUEST, "/to", "must be file, pkcs11 or transit");
    }
    KV_TRY(check_target(call, name));
    snprintf(params, sizeof params, "{\"to\":\"%s\"}", name);
    struct svc_operation_new asked = {.kind = "root.migrate", .params = params};
    return svc_operation_start(call, &asked, ret_operation);
}

/* --- looking at them --------------------------------------------------------------------------------------------- */

static KV_RC check_owner(const struct kv_call *call, enum kv_err rc, const struct kv_store_operation *row,
                         struct kv_errinfo *info)
{
    bool foreign = rc == KV_OK && !kv_id_equal(&row->tenant, &call->who.tenant);
    return rc == KV_E_NOT_FOUND || foreign ? kv_fail(info, KV_E_NOT_FOUND, "no such operation") : rc;
}

KV_RC kv_svc_operation_get(struct kv_call *call, const struct kv_id *id, struct kv_operation_view *ret_operation)
{
    enum kv_err rc = kv_store_operation_get(call->pg, id, &call->info, &ret_operation->row);
    return check_owner(call, rc, &ret_operation->row, &call->info);
}

KV_RC kv_svc_operation_list(struct kv_call *call, const struct kv_operation_filter *filter, struct kv_page *page,
                            struct kv_operation_view *ret_list, size_t *ret_count)
{
    struct kv_store_operation *rows KV_CLEANUP(kv_freep) = kv_alloc_array((size_t)page->limit + 1, sizeof *rows);
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    struct kv_store_operation_filter wanted = {
        .tenant = call->who.tenant, .state = filter->state, .kind = filter->kind};
    KV_TRY(kv_store_operation_page(call->pg, &wanted, page, &call->info, rows, ret_count));
    for (size_t i = 0; i < *ret_count; i++) {
        ret_list[i].row = rows[i];
    }
    return KV_OK;
}

/* --- cancelling -------------------------------------------------------------------------------------------------- */

struct cancel_tx {
    struct kv_call *call;
    struct kv_operation_view *view;
    struct kv_id id;
};

static KV_RC cancel_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct cancel_tx *tx = ctx;
    struct kv_store_operation *row = &tx->view->row;
    KV_TRY(check_owner(tx->call, kv_store_operation_lock(pg, &tx->id, info, row), row, info));
    if (row->state == KV_OPERATION_CANCELED || row->cancel_requested_us != 0) {
        return KV_OK;
    }
    if (kv_operation_ended(tx->view)) {
        return kv_fail(info, KV_E_INVALID_STATE, "the operation has ended: it %s",
                       row->state == KV_OPERATION_FAILED ? "failed" : "succeeded");
    }
    uint64_t now_us = tx->call->svc->env->realtime_us(tx->call->svc->env->ctx);
    KV_TRY(kv_store_operation_cancel(pg, &tx->id, now_us, info));
    KV_TRY(record(tx->call, pg, KV_AUDIT_OPERATION_CANCEL, row, info));
    return kv_store_operation_get(pg, &tx->id, info, row);
}

KV_RC kv_svc_operation_cancel(struct kv_call *call, const struct kv_id *id, struct kv_operation_view *ret_operation)
{
    struct cancel_tx tx = {.call = call, .view = ret_operation, .id = *id};
    KV_TRY(svc_tx(call, KV_TX_OPERATION_CANCEL, cancel_tx, &tx));
    if (!call->dry_run) {
        svc_operations_signal(call->svc);
    }
    return KV_OK;
}

/*
 * Sessions as people see them: one, a page of many. Must never tell another tenant's session from one that does not
 * exist.
 */
#include "server/service/svc_session.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"

#include <stdio.h>
#include <string.h>

static const char *key_state(const struct kv_store_session *row)
{
    if (row->key.destroyed || row->state == KV_SESSION_ERASED) {
        return "destroyed";
    }
    if (row->key.compromised) {
        return "compromised";
    }
    return row->state == KV_SESSION_ACTIVE && row->key.tenant_state == KV_TENANT_ACTIVE ? "active" : "suspended";
}

static void key_of(const struct kv_store_session *row, struct kv_session_key *ret_key)
{
    *ret_key = (struct kv_session_key){.version = row->key.version, .has_fingerprint = row->key.has_fingerprint};
    memcpy(ret_key->fingerprint, row->key.fingerprint, sizeof ret_key->fingerprint);
    snprintf(ret_key->state, sizeof ret_key->state, "%s", key_state(row));
}

void svc_session_view_of(const struct kv_store_session *row, struct kv_session_view *ret_view)
{
    *ret_view = (struct kv_session_view){.id = row->id,
                                         .tenant = row->tenant,
                                         .labels = row->labels,
                                         .rev = row->rev,
                                         .created_us = row->created_us,
                                         .updated_us = row->updated_us,
                                         .last_used_us = row->last_used_us,
                                         .expires_us = row->expires_us,
                                         .idle_us = row->idle_us,
                                         .pinned_until_us = row->pinned_until_us,
                                         .idle_seconds = row->idle_seconds,
                                         .erasure = row->erasure,
                                         .shared = row->shared,
                                         .is_scope = row->is_scope};
    snprintf(ret_view->state, sizeof ret_view->state, "%s", row->held ? "held" : kv_session_state_name(row->state));
    snprintf(ret_view->class, sizeof ret_view->class, "%s", row->class);
    snprintf(ret_view->region, sizeof ret_view->region, "%s", row->region);
    svc_model_of_row(row, &ret_view->model);
    key_of(row, &ret_view->key);
}

enum kv_err svc_session_lost(struct kv_errinfo *info)
{
    return kv_fail(
        info, KV_E_SESSION_LOST,
        "this session's key was lost with the root of erasure; its blocks can only be recomputed in a new one");
}

static KV_RC refuse_erased(struct kv_call *call, const struct kv_store_session *row, struct kv_errinfo *info)
{
    if (row->state == KV_SESSION_LOST) {
        return svc_session_lost(info);
    }
    call->erasure = row->erasure;
    return kv_fail(info, KV_E_SESSION_ERASED, "this session was erased");
}

KV_RC svc_session_lock(struct kv_call *call, struct kv_pg *pg, const struct kv_id *session, struct kv_errinfo *info,
                       struct kv_store_session *ret_row)
{
    enum kv_err rc = kv_store_session_lock(pg, session, info, ret_row);
    if (rc == KV_E_NOT_FOUND || (rc == KV_OK && !kv_id_equal(&ret_row->tenant, &call->who.tenant))) {
        return kv_fail(info, KV_E_NOT_FOUND, "no such session");
    }
    KV_TRY(rc);
    return ret_row->state == KV_SESSION_ACTIVE ? KV_OK : refuse_erased(call, ret_row, info);
}

static KV_RC read_view(struct kv_call *call, const struct kv_store_session *row, struct kv_session_view *ret_view)
{
    svc_session_view_of(row, ret_view);
    KV_TRY(svc_external_open_all(call, row, ret_view, 1));
    KV_TRY(kv_engine_scope_usage(call->svc->engine, &row->id, &ret_view->usage));
    ret_view->has_usage = true;
    return KV_OK;
}

/* In quarantine clients' ids are not shown, so nothing comes from memory. */
static KV_RC get_from_memory(struct kv_call *call, const struct kv_id *session, struct kv_session_view *ret_session)
{
    struct kv_svc *svc = call->svc;
    bool found =
        atomic_load(&svc->quarantine) == NULL && svc_views_get(svc->views, session, &call->who.tenant, ret_session);
    return found ? KV_OK : svc_not_in_memory(call);
}

KV_RC kv_svc_session_get(struct kv_call *call, const struct kv_id *session, bool erased,
                         struct kv_session_view *ret_session)
{
    if (call->from_memory) {
        return get_from_memory(call, session, ret_session);
    }
    struct kv_store_session *row KV_CLEANUP(kv_freep) = kv_alloc(sizeof *row);
    if (row == NULL) {
        return KV_E_NO_MEMORY;
    }
    struct svc_view_mark mark = svc_views_mark(call->svc->views, session); /* before the reads */
    KV_TRY(svc_session_row(call->pg, session, &call->who.tenant, &call->info, row));
    if (row->state != KV_SESSION_ACTIVE && !erased) {
        return refuse_erased(call, row, &call->info);
    }
    struct kv_session_view view;
    KV_TRY(read_view(call, row, &view));
    if (row->state == KV_SESSION_ACTIVE && atomic_load(&call->svc->quarantine) == NULL) {
        svc_views_put(call->svc->views, &mark, &view);
    }
    *ret_session = view;
    return KV_OK;
}

static KV_RC list_rows(struct kv_call *call, const struct kv_session_filter *filter, struct kv_page *page,
                       struct kv_store_session *rows, size_t *ret_count)
{
    uint8_t hmac[32];
    bool known = true;
    struct kv_store_session_filter wanted = {.tenant = call->who.tenant,
                                             .label = filter->label,
                                             .state = filter->state,
                                             .model = filter->model,
                                             .idle_before_us = filter->idle_before_us,
                                             .created_after_us = filter->created_after_us,
                                             .scopes = filter->scopes};
    if (filter->external_id != NULL) {
        KV_TRY(svc_external_lookup(call, filter->external_id, &known, hmac));
        wanted.external_hmac = hmac;
    }
    if (filter->idle_before_us != 0 && atomic_load(&call->svc->quarantine) == NULL) {
        /* What only memory knows of is a use, too: it is written first. */
        KV_TRY(svc_use_settle(call->svc, call->pg, &call->who.tenant, filter->idle_before_us, &call->info));
    }
    if (!known) {
        page->more = false;
        *ret_count = 0;
        return KV_OK;
    }
    return kv_store_session_list(call->pg, &wanted, page, &call->info, rows, ret_count);
}

KV_RC kv_svc_session_list(struct kv_call *call, const struct kv_session_filter *filter, struct kv_page *page,
                          struct kv_session_view *ret_list, size_t *ret_count)
{
    struct kv_store_session *rows KV_CLEANUP(kv_freep) = kv_alloc_array(page->limit + 1u, sizeof *rows);
    size_t count = 0;
    if (rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(list_rows(call, filter, page, rows, &count));
    for (size_t i = 0; i < count; i++) {
        svc_session_view_of(&rows[i], &ret_list[i]);
    }
    KV_TRY(svc_external_open_all(call, rows, ret_list, count));
    *ret_count = count;
    return KV_OK;
}

/*
 * The ends that nobody asks for at the time: sessions past their lifetime, tenants past the grace time of their
 * deletion. Each becomes an erasure like one that somebody asked for. Must never end a session that was used meanwhile:
 * what the database lists is judged once more on the row that the erasure locked, and memory is asked for a use that is
 * yet to be written.
 */
#include "server/service/erase_request.h"
#include "server/service/event.h"
#include "server/service/janitor.h"
#include "server/service/svc_shared.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/store_change.h"

#define SESSIONS_AT_ONCE 64
#define TENANTS_AT_ONCE 16
#define SECOND_US UINT64_C(1000000)
#define GRACE_US ((uint64_t)KV_MAX_IDLE_GRACE_SECONDS * SECOND_US)

/* --- sessions ---------------------------------------------------------------------------------------------------- */

struct session_tx {
    struct kv_svc *svc;
    const struct kv_store_overdue *overdue;
    uint64_t now_us;
    struct kv_store_session row;
    struct kv_store_erasure erasure;
    bool idle; /* that is why, not its whole lifetime */
    struct svc_group_taken scopes;
};

static bool is_idle(const struct session_tx *tx)
{
    uint64_t noted = svc_use_noted(tx->svc, &tx->row.id);
    bool recorded_idle = tx->row.idle_us != 0 && tx->row.idle_us + GRACE_US <= tx->now_us;
    return recorded_idle && noted + tx->row.idle_seconds * SECOND_US <= tx->now_us;
}

static KV_RC session_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct session_tx *tx = ctx;
    const struct svc_erase_by by = {.role = "system", .basis = "retention"};
    KV_TRY(svc_erase_session(tx->svc, pg, &tx->overdue->tenant, &tx->overdue->id, &by, info, &tx->erasure));
    KV_TRY(kv_store_session_get(pg, &tx->overdue->id, info, &tx->row));
    bool ended = tx->row.expires_us != 0 && tx->row.expires_us <= tx->now_us;
    tx->idle = !ended && is_idle(tx);
    if (tx->row.pinned_until_us > tx->now_us || (!ended && !tx->idle)) {
        return kv_fail(info, KV_E_STALE, "the session lives on"); /* used, or pinned, since it was listed */
    }
    const struct svc_leaving leaving = {.sessions = {.ids = &tx->overdue->id, .count = 1}, .as = &tx->erasure};
    tx->scopes.count = 0;
    return svc_shared_leave(tx->svc, pg, &leaving, info, &tx->scopes);
}

static void tell_idle(struct kv_svc *svc, const struct kv_store_overdue *overdue)
{
    svc_publish(
        svc, &(struct kv_event){
                 .type = KV_EVENT_SESSION_IDLE, .tenant = overdue->tenant, .session = overdue->id, .state = "erasing"});
}

static KV_RC end_session(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_overdue *overdue, uint64_t now_us,
                         struct kv_errinfo *info)
{
    struct session_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    struct svc_group_taken scopes = {.rows = kv_alloc_array(1, sizeof *scopes.rows)};
    void *rows KV_CLEANUP(kv_freep) = scopes.rows;
    if (tx == NULL || rows == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct session_tx){.svc = svc, .overdue = overdue, .now_us = now_us, .scopes = scopes};
    enum kv_err rc = kv_pg_tx(pg, KV_TX_EXPIRE_SESSION, session_tx, tx, info, NULL);
    if (rc == KV_E_STALE || rc == KV_E_NOT_FOUND) {
        return KV_OK;
    }
    KV_TRY(rc);
    if (KV_FAULT("expire/requested")) {
        return KV_E_INTERNAL;
    }
    if (tx->idle) {
        tell_idle(svc, overdue);
    }
    svc_erase_begin(svc, pg, &tx->erasure);
    svc_shared_begin(svc, pg, &overdue->tenant, &tx->scopes);
    return KV_OK;
}

static KV_RC end_sessions(struct kv_svc *svc, struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info,
                          bool *ret_more)
{
    struct kv_store_overdue list[SESSIONS_AT_ONCE];
    size_t count = 0;
    KV_TRY(kv_store_session_list_overdue(pg, now_us, GRACE_US, SESSIONS_AT_ONCE, info, list, &count));
    for (size_t i = 0; i < count && !atomic_load(&svc->stopping); i++) {
        KV_TRY(end_session(svc, pg, &list[i], now_us, info));
    }
    *ret_more = *ret_more || count == SESSIONS_AT_ONCE;
    return KV_OK;
}

/* --- tenants ----------------------------------------------------------------------------------------------------- */

struct tenant_tx {
    struct kv_svc *svc;
    struct kv_id tenant;
    uint64_t now_us;
    struct kv_store_tenant row;
    struct kv_store_erasure erasure;
};

static KV_RC tenant_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct tenant_tx *tx = ctx;
    struct kv_store_erasure *erasure = &tx->erasure;
    /* Before the tenant's row is locked, in the order of all requests. */
    KV_TRY(kv_store_revocation_next(pg, info, &erasure->revocation_seq));
    KV_TRY(kv_store_tenant_lock(pg, &tx->tenant, info, &tx->row));
    if (tx->row.state != KV_TENANT_DELETING || tx->row.delete_us > tx->now_us) {
        return kv_fail(info, KV_E_STALE, "the deletion was called back");
    }
    *erasure = (struct kv_store_erasure){.tenant = tx->tenant,
                                         .requested_by = tx->row.deleted_by,
                                         .requested_role = "operator",
                                         .basis = "contract",
                                         .revocation_seq = erasure->revocation_seq};
    KV_TRY(kv_id_new(tx->svc->env, &erasure->id));
    tx->row.state = KV_TENANT_ERASING;
    tx->row.delete_us = 0;
    tx->row.updated_us = tx->now_us;
    KV_TRY(kv_store_tenant_update(pg, &tx->row, info));
    KV_TRY(svc_erase_tenant(tx->svc, pg, erasure, info));
    return kv_store_change(pg, info);
}

static KV_RC end_tenant(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *tenant, uint64_t now_us,
                        struct kv_errinfo *info)
{
    struct tenant_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    *tx = (struct tenant_tx){.svc = svc, .tenant = *tenant, .now_us = now_us};
    enum kv_err rc = kv_pg_tx(pg, KV_TX_EXPIRE_TENANT, tenant_tx, tx, info, NULL);
    if (rc == KV_E_STALE || rc == KV_E_HOLD_ACTIVE) {
        return KV_OK;
    }
    KV_TRY(rc);
    svc_changed(svc);
    svc_publish(svc, &(struct kv_event){.type = KV_EVENT_TENANT_STATE, .tenant = *tenant, .state = "erasing"});
    if (KV_FAULT("expire/tenant-requested")) {
        return KV_E_INTERNAL;
    }
    svc_erase_begin(svc, pg, &tx->erasure);
    return KV_OK;
}

static KV_RC end_tenants(struct kv_svc *svc, struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, bool *ret_more)
{
    struct kv_id list[TENANTS_AT_ONCE];
    size_t count = 0;
    KV_TRY(kv_store_tenant_list_due(pg, now_us, TENANTS_AT_ONCE, info, list, &count));
    for (size_t i = 0; i < count && !atomic_load(&svc->stopping); i++) {
        KV_TRY(end_tenant(svc, pg, &list[i], now_us, info));
    }
    *ret_more = *ret_more || count == TENANTS_AT_ONCE;
    return KV_OK;
}

KV_RC svc_expire_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    uint64_t now_us = svc->env->realtime_us(svc->env->ctx);
    KV_TRY(end_sessions(svc, pg, now_us, info, ret_more));
    KV_TRY(svc_shared_end_due(svc, pg, info, ret_more));
    return end_tenants(svc, pg, now_us, info, ret_more);
}

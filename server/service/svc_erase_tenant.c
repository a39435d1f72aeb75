/*
 * All of a tenant's sessions as one erasure: the request, and what is left to do for the rows of its sessions. Must
 * never let one of them be used because its row does not say yet that it is erased: every reading of a row asks the
 * tenant's slots as well (KV_SESSION_CUT).
 */
#include "server/service/erase_request.h"
#include "server/service/janitor.h"
#include "server/service/svc_hold.h"

#include "dataplane/base/fault.h"

#define SETTLE_MAX 1000

/* Its fresh tree is a version of its own; a tenant that goes as well has no other. */
static KV_RC end_key(struct kv_pg *pg, const struct kv_store_erasure *row, struct kv_errinfo *info)
{
    struct kv_store_tenant tenant;
    KV_TRY(kv_store_tenant_get(pg, &row->tenant, info, &tenant));
    const struct kv_store_key_end end = {.tenant = row->tenant,
                                         .erasure = row->id,
                                         .at_us = row->at_us[KV_ERASURE_REQUESTED],
                                         .goes_on = tenant.state != KV_TENANT_ERASING};
    return kv_store_tenant_key_end(pg, &end, info);
}

KV_RC svc_erase_tenant(struct kv_svc *svc, struct kv_pg *pg, struct kv_store_erasure *row, struct kv_errinfo *info)
{
    KV_TRY(svc_hold_forbids(svc, pg, &row->tenant, info));
    row->state = KV_ERASURE_REQUESTED;
    row->at_us[KV_ERASURE_REQUESTED] = svc->env->realtime_us(svc->env->ctx);
    KV_TRY(kv_store_erasure_insert_tenant(pg, row, info));
    KV_TRY(end_key(pg, row, info));
    return svc_erase_record(svc, pg, row, info);
}

struct settle_tx {
    uint64_t now_us, count;
};

static KV_RC settle_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct settle_tx *tx = ctx;
    return kv_store_erasure_settle(pg, SETTLE_MAX, tx->now_us, info, &tx->count);
}

KV_RC svc_erase_settle(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct settle_tx tx = {.now_us = svc->env->realtime_us(svc->env->ctx)};
    KV_TRY(kv_pg_tx(pg, KV_TX_ERASE_SETTLE, settle_tx, &tx, info, NULL));
    *ret_more = *ret_more || tx.count == SETTLE_MAX;
    return KV_FAULT("erase/settled") ? KV_E_INTERNAL : KV_OK;
}

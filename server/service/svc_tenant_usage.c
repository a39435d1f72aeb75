/*
 * What a tenant uses: sessions from the database, blocks and bytes from the data plane's counters, transfers from
 * counters of this process. Must never make the lane stand still for long: it asks about a bounded number of sessions
 * at a time.
 */
#include "server/service/svc_tenant.h"

#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"
#include "server/store/store_usage.h"

#define TENANTS_COUNTED_MAX 4096
#define HOUR_US UINT64_C(3600000000)
#define EXPIRE_MAX 1000

/* --- transfers --------------------------------------------------------------------------------------------------- */

struct moved {
    uint64_t blocks[2], bytes[2]; /* by enum kv_transfer_kind */
};

/* Under registry_mutex. NULL: not counted; there is no memory, or there are more tenants than are counted. */
static struct moved *moved_of(struct kv_svc *svc, const struct kv_id *tenant, bool make)
{
    struct moved *moved = kv_idmap_get(&svc->moved, tenant);
    if (moved == NULL && make && svc->moved.count < TENANTS_COUNTED_MAX) {
        moved = kv_alloc(sizeof *moved);
        if (moved != NULL && kv_idmap_put(&svc->moved, tenant, moved) != KV_OK) {
            kv_free(moved);
            moved = NULL;
        }
    }
    return moved;
}

void svc_tenant_moved(struct kv_svc *svc, const struct kv_id *tenant, enum kv_transfer_kind kind, uint64_t blocks,
                      uint64_t bytes)
{
    pthread_mutex_lock(&svc->registry_mutex);
    struct moved *moved = moved_of(svc, tenant, true);
    if (moved != NULL) {
        moved->blocks[kind] += blocks;
        moved->bytes[kind] += bytes;
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

static void fill_moved(struct kv_svc *svc, const struct kv_id *tenant, struct kv_tenant_usage *usage)
{
    pthread_mutex_lock(&svc->registry_mutex);
    const struct moved *moved = moved_of(svc, tenant, false);
    if (moved != NULL) {
        usage->offloaded_blocks = moved->blocks[KV_TRANSFER_OFFLOAD];
        usage->offloaded_bytes = moved->bytes[KV_TRANSFER_OFFLOAD];
        usage->restored_blocks = moved->blocks[KV_TRANSFER_RESTORE];
        usage->restored_bytes = moved->bytes[KV_TRANSFER_RESTORE];
    }
    pthread_mutex_unlock(&svc->registry_mutex);
}

/* --- by hours ---------------------------------------------------------------------------------------------------- */

static KV_RC fill_window(struct kv_call *call, const struct kv_id *tenant, uint64_t seconds,
                         struct kv_tenant_window *ret_window)
{
    struct kv_store_moved moved;
    uint64_t since_us = 0, now_us = call->svc->env->realtime_us(call->svc->env->ctx);
    uint64_t from_us = now_us - seconds * 1000000;
    from_us -= from_us % HOUR_US;
    KV_TRY(kv_store_usage_since(call->pg, &call->info, &since_us));
    KV_TRY(kv_store_usage_sum(call->pg, tenant, from_us, &call->info, &moved));
    *ret_window = (struct kv_tenant_window){.from_us = from_us > since_us ? from_us : since_us,
                                            .until_us = now_us,
                                            .offloaded_blocks = moved.offloaded_blocks,
                                            .offloaded_bytes = moved.offloaded_bytes,
                                            .restored_blocks = moved.restored_blocks,
                                            .restored_bytes = moved.restored_bytes};
    return KV_OK;
}

struct expire_tx {
    uint64_t before_us, count;
};

static KV_RC expire_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct expire_tx *tx = ctx;
    return kv_store_usage_expire(pg, tx->before_us, EXPIRE_MAX, info, &tx->count);
}

KV_RC svc_usage_expire(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    const uint64_t kept_us = ((uint64_t)KV_MAX_USAGE_DAYS * 24 + 1) * HOUR_US; /* a window may begin within an hour */
    struct expire_tx tx = {.before_us = svc->env->realtime_us(svc->env->ctx) - kept_us};
    KV_TRY(kv_pg_tx(pg, KV_TX_USAGE_EXPIRE, expire_tx, &tx, info, NULL));
    *ret_more = tx.count == EXPIRE_MAX;
    return KV_OK;
}

/* --- blocks ------------------------------------------------------------------------------------------------------ */

static void add(struct kv_scope_usage *sum, const struct kv_scope_usage *more)
{
    sum->blocks += more->blocks;
    sum->dram_blocks += more->dram_blocks;
    sum->nvme_blocks += more->nvme_blocks;
    sum->dram_bytes += more->dram_bytes;
    sum->nvme_bytes += more->nvme_bytes;
    sum->plaintext_bytes += more->plaintext_bytes;
}

static KV_RC fill_blocks(struct kv_call *call, const struct kv_id *tenant, struct kv_scope_usage *ret_sum)
{
    struct kv_id *ids KV_CLEANUP(kv_freep) = kv_alloc_array(KV_ENGINE_SCOPES_ASKED, sizeof *ids);
    if (ids == NULL) {
        return KV_E_NO_MEMORY;
    }
    struct kv_id after = {0};
    size_t count = KV_ENGINE_SCOPES_ASKED;
    while (count == KV_ENGINE_SCOPES_ASKED) { /* a tenant has at most KV_MAX_TENANT_SLOTS sessions */
        struct kv_scope_usage some;
        KV_TRY(kv_store_session_ids(call->pg, tenant, &after, KV_ENGINE_SCOPES_ASKED, &call->info, ids, &count));
        KV_TRY(kv_engine_scopes_usage(call->svc->engine, ids, (uint32_t)count, &some));
        add(ret_sum, &some);
        after = count > 0 ? ids[count - 1] : after;
    }
    return KV_OK;
}

KV_RC kv_svc_tenant_usage(struct kv_call *call, const struct kv_id *tenant, uint64_t window_seconds,
                          struct kv_tenant_usage *ret_usage)
{
    struct kv_tenant_view view;
    uint64_t counts[KV_SESSION_UNKNOWN];
    KV_TRY(kv_svc_tenant_get(call, tenant, &view));
    KV_TRY(kv_store_session_count(call->pg, tenant, &call->info, counts));
    struct kv_tenant_usage usage = {.sessions_active = counts[KV_SESSION_ACTIVE],
                                    .sessions_erasing = counts[KV_SESSION_ERASING],
                                    .sessions_erased = counts[KV_SESSION_ERASED],
                                    .sessions_lost = counts[KV_SESSION_LOST],
                                    .since_us = call->svc->started_us};
    KV_TRY(fill_blocks(call, tenant, &usage.blocks));
    fill_moved(call->svc, tenant, &usage);
    if (window_seconds > 0) {
        KV_TRY(fill_window(call, tenant, window_seconds, &usage.window));
    }
    *ret_usage = usage;
    return KV_OK;
}

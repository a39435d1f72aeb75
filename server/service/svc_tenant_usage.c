/*
 * What a tenant uses: sessions from the database, blocks and bytes from the data plane's counters, transfers from
 * counters of this process. Must never make the lane stand still for long: it asks about a bounded number of sessions
 * at a time.
 */
#include "server/service/svc_tenant.h"

#include "dataplane/base/mem.h"
#include "server/service/svc_int.h"

#define TENANTS_COUNTED_MAX 4096

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

KV_RC kv_svc_tenant_usage(struct kv_call *call, const struct kv_id *tenant, struct kv_tenant_usage *ret_usage)
{
    struct kv_tenant_view view;
    uint64_t counts[KV_SESSION_UNKNOWN];
    KV_TRY(kv_svc_tenant_get(call, tenant, &view));
    KV_TRY(kv_store_session_count(call->pg, tenant, &call->info, counts));
    struct kv_tenant_usage usage = {.sessions_active = counts[KV_SESSION_ACTIVE],
                                    .sessions_erasing = counts[KV_SESSION_ERASING],
                                    .sessions_erased = counts[KV_SESSION_ERASED],
                                    .since_us = call->svc->started_us};
    KV_TRY(fill_blocks(call, tenant, &usage.blocks));
    fill_moved(call->svc, tenant, &usage);
    *ret_usage = usage;
    return KV_OK;
}

/*
 * What certified erasures left in this instance's tiers: dropped, looked for again, and only then said to be gone.
 * Every instance does it, for erasures of all of them, and after a start for those that it missed. It gives way to
 * erasures that are on their way. Must never say of anything that it is gone while a start could find it again: a drop
 * counts once its record is durable.
 */
#include "server/service/erase_int.h"
#include "server/service/erase_request.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/store_upgrade.h"

#define AT_ONCE 256u
#define GIVE_WAY_NS (10 * KV_S_NS)       /* then some are looked after all the same */
#define DROPPED_NS (5 * KV_S_NS)         /* for the records of drops */
#define LOOK_BACK_US UINT64_C(600000000) /* how far apart commits and clocks may be */

static struct kv_store_cleaner self(struct kv_svc *svc)
{
    struct kv_engine_stats stats;
    kv_engine_stats(svc->engine, &stats);
    return (struct kv_store_cleaner){
        .instance = svc->instance, .folder = stats.nvme.place, .incarnation = atomic_load(&svc->token.incarnation)};
}

static KV_RC use_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    return kv_store_folder_use(pg, ctx, info);
}

KV_RC svc_clean_start(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    const struct kv_store_cleaner cleaner = self(svc);
    struct kv_store_folder_use use = {
        .instance = cleaner.instance, .folder = cleaner.folder, .alone = !svc->roe->ops->shared};
    return kv_pg_tx(pg, KV_TX_FOLDER_USE, use_tx, &use, info, NULL);
}

/* How much there is of it here. */
static KV_RC count_left(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                        struct kv_errinfo *info, uint64_t *ret_blocks)
{
    if (kv_id_is_zero(&what->session)) {
        return erase_tenant_left(svc, pg, what, info, ret_blocks);
    }
    struct kv_scope_usage usage;
    KV_TRY(kv_engine_scope_usage(svc->engine, &what->session, &usage));
    *ret_blocks = usage.blocks;
    return KV_OK;
}

static KV_RC drop(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what, struct kv_errinfo *info)
{
    uint64_t left = 0, blocks = 0;
    KV_TRY(count_left(svc, pg, what, info, &left));
    if (left == 0) {
        return KV_OK;
    }
    bool tenant = kv_id_is_zero(&what->session);
    KV_TRY(tenant ? erase_tenant_clean(svc, pg, what, &blocks)
                  : kv_engine_drop_scope(svc->engine, &what->session, &blocks));
    kv_log(KV_LOG_INFO, "janitor", "cleaned", KV_FID("erasure", "era", &what->erasure), KV_FU("blocks", blocks));
    return KV_OK;
}

struct cleaned_tx {
    struct kv_store_cleaner cleaner;
    struct kv_store_ids erasures;
    uint64_t at_us;
};

static KV_RC cleaned_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct cleaned_tx *tx = ctx;
    return kv_store_cleaned(pg, &tx->cleaner, &tx->erasures, tx->at_us, info);
}

/* Those of which nothing is left, in their order; says what it left out. */
static KV_RC pick_gone(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_cleaning *list, size_t count,
                       struct kv_errinfo *info, struct kv_id *ret_gone, size_t *ret_count)
{
    *ret_count = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t left = 0;
        KV_TRY(count_left(svc, pg, &list[i].what, info, &left));
        if (left == 0) {
            ret_gone[(*ret_count)++] = list[i].what.erasure;
        } else {
            kv_log(KV_LOG_WARN, "janitor", "not-cleaned", KV_FID("erasure", "era", &list[i].what.erasure),
                   KV_FU("blocks", left));
        }
    }
    return KV_OK;
}

static KV_RC clean_some(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_cleaner *cleaner,
                        const struct kv_store_cleaning *list, size_t count, struct kv_errinfo *info, size_t *ret_gone)
{
    struct kv_id *gone KV_CLEANUP(kv_freep) = kv_alloc_array(count + 1, sizeof *gone);
    struct cleaned_tx tx = {.cleaner = *cleaner, .erasures = {.ids = gone}};
    if (gone == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        KV_TRY(drop(svc, pg, &list[i].what, info));
    }
    enum kv_err rc = kv_engine_dropped(svc->engine, kv_now_ns(svc->env) + DROPPED_NS);
    if (rc != KV_OK) {
        return kv_fail(info, rc, "what was dropped on nvme is not durably so; nothing is said to be gone");
    }
    KV_TRY(pick_gone(svc, pg, list, count, info, gone, &tx.erasures.count));
    *ret_gone = tx.erasures.count;
    if (tx.erasures.count == 0) {
        return KV_OK;
    }
    ERASE_STEP_FAULT("erase/cleaned");
    tx.at_us = svc->env->realtime_us(svc->env->ctx);
    KV_TRY(kv_pg_tx(pg, KV_TX_CLEANED, cleaned_tx, &tx, info, NULL));
    /* The next look begins before these: one of them that is not gone, or came late, is found again. */
    svc->clean_since_us = list[0].certified_us > LOOK_BACK_US ? list[0].certified_us - LOOK_BACK_US : 0;
    return KV_OK;
}

/* Erasures on their way come first, for a while. */
static bool gives_way(struct kv_svc *svc)
{
    uint64_t now = kv_now_ns(svc->env);
    if (atomic_load(&svc->erasures_open) == 0) {
        svc->clean_waits_ns = 0;
        return false;
    }
    if (svc->clean_waits_ns == 0 || now - svc->clean_waits_ns >= GIVE_WAY_NS) {
        bool first = svc->clean_waits_ns == 0;
        svc->clean_waits_ns = now;
        return first;
    }
    return true;
}

KV_RC svc_clean_step(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    const struct kv_store_cleaner cleaner = self(svc);
    size_t count = 0, gone = 0;
    if (gives_way(svc)) {
        return KV_OK;
    }
    struct kv_store_cleaning *list KV_CLEANUP(kv_freep) = kv_alloc_array(AT_ONCE, sizeof *list);
    if (list == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_cleanings_due(pg, &cleaner, svc->clean_since_us, AT_ONCE, info, list, &count));
    KV_TRY(count == 0 ? KV_OK : clean_some(svc, pg, &cleaner, list, count, info, &gone));
    *ret_more = gone == AT_ONCE;
    return KV_OK;
}

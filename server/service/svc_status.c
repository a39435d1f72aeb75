/* See svc_status.h. Must never wait for the database where it only reads: this is what is looked at when it is gone. */
#include "server/service/svc_status.h"

#include "dataplane/base/id.h"
#include "server/service/svc_int.h"
#include "server/store/migrate.h"

#include <stdlib.h>
#include <string.h>

static void count_registry(struct kv_svc *svc, struct kv_status_view *view)
{
    pthread_mutex_lock(&svc->registry_mutex);
    view->engines = svc->engines.count;
    view->pools = svc->pools.count;
    view->sessions_known = svc->sessions.count;
    pthread_mutex_unlock(&svc->registry_mutex);
}

static void add_instance(struct kv_status_view *view, const struct kv_instance_item *item)
{
    size_t at = view->instance_count++;
    for (; at > 0 && memcmp(view->instances[at - 1].id.b, item->id.b, sizeof item->id.b) > 0; at--) {
        view->instances[at] = view->instances[at - 1];
    }
    view->instances[at] = *item;
}

static void list_instances(struct kv_svc *svc, struct kv_status_view *view)
{
    add_instance(view, &(struct kv_instance_item){.id = svc->instance,
                                                  .state = view->lease_valid ? "live" : "expired",
                                                  .self = true,
                                                  .started_us = svc->started_us});
    pthread_mutex_lock(&svc->peers_mutex);
    for (size_t i = 0; i < svc->peer_count; i++) {
        const struct svc_peer *peer = &svc->peers[i];
        add_instance(view, &(struct kv_instance_item){.id = peer->row.id,
                                                      .state = svc_peer_is_over(svc, peer) ? "expired" : "live",
                                                      .started_us = peer->row.started_us});
    }
    pthread_mutex_unlock(&svc->peers_mutex);
}

void kv_svc_status(struct kv_call *call, struct kv_status_view *ret_status)
{
    struct kv_svc *svc = call->svc;
    struct kv_journal_stats journal;
    struct kv_status_view view = {.incarnation = svc->incarnation,
                                  .started_us = svc->started_us,
                                  .lease_valid = kv_keyring_lease_valid(svc->keyring),
                                  .db_ok = atomic_load(&svc->db_ok),
                                  .db_pooled = kv_pg_pooled(call->pg),
                                  .retiring = atomic_load(&svc->retiring) || atomic_load(&svc->stopping),
                                  .quarantine = atomic_load(&svc->quarantine),
                                  .lease_seconds = (uint32_t)(svc->conf.lease_ns / KV_S_NS),
                                  .schema_version = kv_schema_version(),
                                  .erasures_open = atomic_load(&svc->erasures_open)};
    uint64_t now_us = svc->env->realtime_us(svc->env->ctx);
    view.uptime_seconds = now_us > svc->started_us ? (now_us - svc->started_us) / 1000000 : 0;
    view.ready = kv_svc_ready(svc, view.checks);
    kv_svc_about(svc, &view.about);
    kv_engine_stats(svc->engine, &view.engine);
    kv_journal_stats(svc->journal, &journal);
    view.audit_ok = journal.ok;
    view.audit_pending_bytes = journal.pending_bytes;
    view.audit_lag_us =
        journal.oldest_pending_us != 0 && now_us > journal.oldest_pending_us ? now_us - journal.oldest_pending_us : 0;
    count_registry(svc, &view);
    list_instances(svc, &view);
    *ret_status = view;
}

/* --- engines ----------------------------------------------------------------------------------------------------- */

static bool may_see(const struct kv_call *call, const struct svc_engine *engine)
{
    bool live = engine->lease_until_ns > call->svc->env->boottime_ns(call->svc->env->ctx);
    return live && (kv_id_is_zero(&call->who.tenant) || kv_id_equal(&engine->tenant, &call->who.tenant));
}

/* Under registry_mutex. */
static unsigned pools_of(struct kv_svc *svc, const struct kv_id *engine)
{
    unsigned count = 0;
    size_t position = 0;
    for (struct svc_pool *pool = kv_idmap_next(&svc->pools, &position); pool != NULL;
         pool = kv_idmap_next(&svc->pools, &position)) {
        count += kv_id_equal(&pool->engine, engine) ? 1 : 0;
    }
    return count;
}

/* Under registry_mutex. */
static void fill_item(struct kv_svc *svc, const struct svc_engine *engine, struct kv_engine_item *item)
{
    *item = (struct kv_engine_item){.id = engine->id,
                                    .tenant = engine->tenant,
                                    .facts = engine->facts,
                                    .registered_us = engine->registered_us,
                                    .lease_expires_us = engine->lease_until_us,
                                    .pools = pools_of(svc, &engine->id)};
}

static int by_age(const void *a, const void *b)
{
    const struct kv_engine_item *x = a, *y = b;
    return svc_page_order(x->registered_us, &x->id, y->registered_us, &y->id);
}

static int by_youth(const void *a, const void *b)
{
    return by_age(b, a);
}

static bool behind(const struct kv_page *page, const struct svc_engine *engine)
{
    int side = svc_page_order(engine->registered_us, &engine->id, page->after_us, &page->after);
    return !page->has_after || (page->ascending ? side > 0 : side < 0);
}

KV_RC kv_svc_engine_list(struct kv_call *call, struct kv_page *page, struct kv_engine_item *ret_items,
                         size_t *ret_count)
{
    struct kv_svc *svc = call->svc;
    size_t count = 0, position = 0;
    pthread_mutex_lock(&svc->registry_mutex);
    for (struct svc_engine *engine = kv_idmap_next(&svc->engines, &position);
         engine != NULL && count < (size_t)KV_MAX_ENGINES; engine = kv_idmap_next(&svc->engines, &position)) {
        if (may_see(call, engine) && behind(page, engine)) {
            fill_item(svc, engine, &ret_items[count++]);
        }
    }
    pthread_mutex_unlock(&svc->registry_mutex);
    qsort(ret_items, count, sizeof ret_items[0], page->ascending ? by_age : by_youth);
    page->more = count > page->limit;
    *ret_count = page->more ? page->limit : count;
    return KV_OK;
}

KV_RC kv_svc_engine_get(struct kv_call *call, const struct kv_id *id, struct kv_engine_item *ret_item)
{
    pthread_mutex_lock(&call->svc->registry_mutex);
    const struct svc_engine *engine = kv_idmap_get(&call->svc->engines, id);
    bool found = engine != NULL && may_see(call, engine);
    if (found) {
        fill_item(call->svc, engine, ret_item);
    }
    pthread_mutex_unlock(&call->svc->registry_mutex);
    return found ? KV_OK : kv_fail(&call->info, KV_E_NOT_FOUND, "no such engine here; one whose lease ran out is gone");
}

/* --- tiers ------------------------------------------------------------------------------------------------------- */

bool kv_svc_tier(struct kv_svc *svc, enum kv_tier_id id, struct kv_tier_view *ret_tier)
{
    struct kv_engine_stats stats;
    kv_engine_stats(svc->engine, &stats);
    bool dram = id == KV_TIER_DRAM;
    if (!dram && (id != KV_TIER_NVME || (!stats.nvme.up && stats.nvme.capacity_bytes == 0))) {
        return false;
    }
    *ret_tier = (struct kv_tier_view){.name = dram ? "dram" : "nvme",
                                      .id = id,
                                      .stats = dram ? stats.dram : stats.nvme,
                                      .draining = (atomic_load(&svc->tiers_draining) & 1u << id) != 0,
                                      .rev = atomic_load(&svc->tier_revs[id]) + 1};
    return true;
}

struct tier_tx {
    struct kv_call *call;
    bool draining;
    struct kv_tier_view *view;
};

static KV_RC tier_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct tier_tx *tx = ctx;
    struct kv_call *call = tx->call;
    if (!kv_svc_tier(call->svc, tx->view->id, tx->view)) {
        return kv_fail(info, KV_E_NOT_FOUND, "no such tier here; GET /v1/tiers names those that are");
    }
    KV_TRY(svc_match(call, tx->view->rev, info));
    tx->view->rev++;
    tx->view->draining = tx->draining;
    struct kv_audit_event event = {.op = KV_AUDIT_TIER_UPDATE,
                                   .actor = call->who.key,
                                   .actor_role = svc_role_name(call->who.roles),
                                   .subject = call->svc->instance,
                                   .subject_prefix = "ins",
                                   .tier = tx->view->name};
    return svc_audit(call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC set_draining(struct kv_svc *svc, const struct kv_tier_view *tier, bool draining)
{
    if (tier->id == KV_TIER_NVME) {
        KV_TRY(kv_engine_close_nvme(svc->engine, draining));
    }
    if (draining) {
        atomic_fetch_or(&svc->tiers_draining, 1u << tier->id);
    } else {
        atomic_fetch_and(&svc->tiers_draining, ~(1u << tier->id));
    }
    atomic_fetch_add(&svc->tier_revs[tier->id], 1);
    svc_publish(svc, &(struct kv_event){.type = KV_EVENT_TIER_STATE,
                                        .name = tier->name,
                                        .state = draining         ? "draining"
                                                 : tier->stats.up ? "up"
                                                                  : "down"});
    return KV_OK;
}

KV_RC svc_tier_set_draining(struct kv_svc *svc, enum kv_tier_id id, bool draining)
{
    struct kv_tier_view tier;
    if (!kv_svc_tier(svc, id, &tier)) {
        return KV_E_NOT_FOUND;
    }
    return tier.draining == draining ? KV_OK : set_draining(svc, &tier, draining);
}

KV_RC kv_svc_tier_update(struct kv_call *call, enum kv_tier_id id, bool draining, struct kv_tier_view *ret_tier)
{
    struct kv_svc *svc = call->svc;
    struct tier_tx tx = {.call = call, .draining = draining, .view = ret_tier};
    ret_tier->id = id;
    KV_TRY(svc_may_work(svc, &call->info));
    KV_TRY(svc_tx(call, KV_TX_TIER_UPDATE, tier_tx, &tx));
    if (call->dry_run) {
        return KV_OK;
    }
    KV_TRY(set_draining(svc, ret_tier, draining));
    return KV_OK;
}

/* --- the log ----------------------------------------------------------------------------------------------------- */

static KV_RC level_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct kv_call *call = ctx;
    struct kv_audit_event event = {.op = KV_AUDIT_CONFIG_LOGLEVEL,
                                   .actor = call->who.key,
                                   .actor_role = svc_role_name(call->who.roles),
                                   .subject = call->svc->instance,
                                   .subject_prefix = "ins"};
    return svc_audit(call->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

KV_RC kv_svc_log_level(struct kv_call *call, const char *module, enum kv_log_level level, uint32_t seconds)
{
    struct kv_log_override running[KV_LOG_OVERRIDES];
    size_t count = kv_log_overrides(running);
    bool known = seconds == 0;
    for (size_t i = 0; i < count; i++) {
        known = known || strcmp(running[i].module, module) == 0;
    }
    if (!known && count == KV_LOG_OVERRIDES) {
        return kv_fail(&call->info, KV_E_LIMIT, "%d levels are changed already; wait for one to end, or end it",
                       KV_LOG_OVERRIDES);
    }
    KV_TRY(svc_may_work(call->svc, &call->info));
    KV_TRY(svc_tx(call, KV_TX_LOG_LEVEL, level_tx, call));
    KV_IGNORE(kv_log_override(module, level, seconds), "there was room a moment ago; if not, the level just stays");
    svc_publish(
        call->svc,
        &(struct kv_event){.type = KV_EVENT_CONFIG_CHANGED, .name = "log.level", .state = kv_log_level_name(level)});
    return KV_OK;
}

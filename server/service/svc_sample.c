/*
 * Counts for the metrics what only the database and the engine know: how many tenants, sessions, open erasures; what
 * each tenant has stored. A step of the janitor. Must never cost more than a fiftieth of the time: where counting takes
 * long it is done less often.
 */
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "dataplane/base/metric_top.h"
#include "server/service/svc_metrics.h"
#include "server/store/store_census.h"

#include <stdlib.h>
#include <string.h>

#define SAMPLE_NS (15 * KV_S_NS)
#define REST_FACTOR 50 /* times what the last count took */
#define TENANTS_MAX 10000
#define SCOPES_MAX (size_t) KV_MAX_SESSIONS_OPEN
#define OWNERS_AT_ONCE 1000
#define DAY_US (UINT64_C(86400) * 1000000)
#define SOON_US (7 * DAY_US)

struct sample {
    struct kv_svc *svc;
    struct kv_pg *pg;
    struct kv_errinfo *info;
    struct kv_id *scopes; /* all owned */
    struct kv_scope_usage *usages;
    size_t scope_count;
    struct kv_store_census_owner *owners;
    struct kv_store_census_tenant *rows;
    struct kv_top_tenant *tenants; /* ordered by id until they are handed over */
    size_t tenant_count;
    uint64_t backlog_dram, backlog_nvme;
};

static void sample_done(struct sample *sample)
{
    kv_free(sample->scopes);
    kv_free(sample->usages);
    kv_free(sample->owners);
    kv_free(sample->rows);
    kv_free(sample->tenants);
}

static KV_RC allocate(struct sample *sample)
{
    sample->scopes = kv_alloc_array(SCOPES_MAX, sizeof sample->scopes[0]);
    sample->usages = kv_alloc_array(SCOPES_MAX, sizeof sample->usages[0]);
    sample->owners = kv_alloc_array(OWNERS_AT_ONCE, sizeof sample->owners[0]);
    sample->rows = kv_alloc_array(TENANTS_MAX, sizeof sample->rows[0]);
    sample->tenants = kv_alloc_array(TENANTS_MAX, sizeof sample->tenants[0]);
    bool all = sample->scopes != NULL && sample->usages != NULL && sample->owners != NULL && sample->rows != NULL &&
               sample->tenants != NULL;
    return all ? KV_OK : KV_E_NO_MEMORY;
}

static int by_id(const void *a, const void *b)
{
    const struct kv_top_tenant *left = a, *right = b;
    return memcmp(&left->id, &right->id, sizeof left->id);
}

static int by_session(const void *a, const void *b)
{
    const struct kv_store_census_owner *left = a, *right = b;
    return memcmp(&left->session, &right->session, sizeof left->session);
}

static KV_RC list_tenants(struct sample *sample)
{
    KV_TRY(kv_store_census_tenants(sample->pg, TENANTS_MAX, sample->info, sample->rows, &sample->tenant_count));
    for (size_t i = 0; i < sample->tenant_count; i++) {
        const struct kv_store_census_tenant *row = &sample->rows[i];
        struct kv_top_tenant *tenant = &sample->tenants[i];
        tenant->id = row->id;
        memcpy(tenant->name, row->name, sizeof tenant->name);
        tenant->leaving = !row->active;
        tenant->gauges[SVC_TENANT_SESSIONS] = (double)row->sessions;
    }
    qsort(sample->tenants, sample->tenant_count, sizeof sample->tenants[0], by_id);
    return KV_OK;
}

/* Bytes of a scope go to its session's tenant; those of a session that is no longer active are on their way out. */
static void account(struct sample *sample, const struct kv_store_census_owner *owner,
                    const struct kv_scope_usage *usage)
{
    struct kv_top_tenant key = {.id = owner->tenant};
    struct kv_top_tenant *tenant =
        bsearch(&key, sample->tenants, sample->tenant_count, sizeof sample->tenants[0], by_id);
    if (!owner->active) {
        sample->backlog_dram += usage->dram_bytes;
        sample->backlog_nvme += usage->nvme_bytes;
    }
    if (tenant != NULL) {
        tenant->gauges[SVC_TENANT_DRAM_BYTES] += (double)usage->dram_bytes;
        tenant->gauges[SVC_TENANT_NVME_BYTES] += (double)usage->nvme_bytes;
        tenant->weight += usage->dram_bytes + usage->nvme_bytes;
    }
}

static KV_RC account_some(struct sample *sample, size_t first, size_t count)
{
    size_t found = 0;
    KV_TRY(kv_store_census_owners(sample->pg, sample->scopes + first, count, sample->info, sample->owners, &found));
    qsort(sample->owners, found, sizeof sample->owners[0], by_session);
    for (size_t i = first; i < first + count; i++) {
        struct kv_store_census_owner key = {.session = sample->scopes[i]};
        const struct kv_store_census_owner *owner =
            bsearch(&key, sample->owners, found, sizeof sample->owners[0], by_session);
        if (owner != NULL) {
            account(sample, owner, &sample->usages[i]);
        }
    }
    return KV_OK;
}

/* Once a day, in the last week: whoever is late needs the data folder (kvrun keys recover). */
static void warn_of_operators_end(struct kv_svc *svc, uint64_t end_us, uint64_t now_us)
{
    char when[28];
    bool said = svc->operators_said_us != 0 && now_us - svc->operators_said_us < DAY_US;
    if (end_us == 0 || end_us > now_us + SOON_US || said) {
        return;
    }
    svc->operators_said_us = now_us;
    kv_time_text(end_us, when);
    kv_log(KV_LOG_WARN, "janitor", "operator-keys-end", KV_FT("at", when),
           KV_FT("text", "make another one before: kvrun keys create NAME --role operator"));
}

static KV_RC take(struct sample *sample)
{
    struct kv_svc *svc = sample->svc;
    struct kv_store_census census;
    uint64_t now_us = svc->env->realtime_us(svc->env->ctx);
    KV_TRY(kv_store_census(sample->pg, now_us, now_us + SOON_US, sample->info, &census));
    KV_TRY(list_tenants(sample));
    KV_TRY(kv_engine_usages(svc->engine, sample->scopes, sample->usages, SCOPES_MAX, &sample->scope_count));
    for (size_t first = 0; first < sample->scope_count; first += OWNERS_AT_ONCE) {
        size_t rest = sample->scope_count - first;
        KV_TRY(account_some(sample, first, rest < OWNERS_AT_ONCE ? rest : OWNERS_AT_ONCE));
    }
    svc_metrics_census(&census, now_us);
    warn_of_operators_end(svc, census.operators_end_us, now_us);
    svc_metrics_backlog(sample->backlog_dram, sample->backlog_nvme);
    kv_top_update(svc->top, sample->tenants, sample->tenant_count, kv_now_ns(svc->env));
    return KV_OK;
}

enum kv_err svc_sample(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    uint64_t begun = kv_now_ns(svc->env);
    (void)ret_more;
    if (begun < svc->sample_due_ns) {
        return KV_OK; /* the janitor was signalled for something else */
    }
    struct sample sample = {.svc = svc, .pg = pg, .info = info};
    enum kv_err rc = allocate(&sample);
    if (rc == KV_OK) {
        rc = take(&sample);
    }
    sample_done(&sample);
    uint64_t rest = (kv_now_ns(svc->env) - begun) * REST_FACTOR;
    svc->sample_due_ns = kv_now_ns(svc->env) + (rest > SAMPLE_NS ? rest : SAMPLE_NS);
    return rc;
}

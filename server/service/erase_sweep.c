/*
 * A change of the root that was called off: what was staged for it is discarded, in whichever provider that was. Done
 * by the eraser, under kroot's fence and between two batches: nobody else knows whether a staged root is about to be
 * used.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"

void svc_root_call_off(struct kv_svc *svc, const char *provider)
{
    pthread_mutex_lock(&svc->wake_mutex);
    svc->root_unwanted = (struct kv_id){0};
    svc->root_sweep = provider;
    pthread_mutex_unlock(&svc->wake_mutex);
    svc_eraser_signal(svc);
}

bool svc_root_is_swept(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->wake_mutex);
    bool swept = svc->root_sweep == NULL;
    pthread_mutex_unlock(&svc->wake_mutex);
    return swept;
}

static const char *wanted(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->wake_mutex);
    const char *provider = svc->root_sweep;
    pthread_mutex_unlock(&svc->wake_mutex);
    return provider;
}

static KV_RC discard_staged(struct erase_round *round, const char *provider)
{
    struct kv_svc *svc = round->svc;
    struct kv_roe *roe = NULL;
    struct kv_id active, staged = {0};
    KV_TRY(svc_provider(svc, provider, &round->info, &roe));
    KV_TRY(roe->ops->list(roe, &active, &staged));
    if (kv_id_is_zero(&staged)) {
        return KV_OK;
    }
    KV_TRY(erase_confirm(round));
    KV_TRY(roe->ops->discard(roe, &staged));
    kv_log(KV_LOG_INFO, "eraser", "called-off", KV_FID("root", "rot", &staged), KV_FT("provider", provider));
    return KV_OK;
}

/* A provider that cannot be asked holds nobody up: whoever called it off asks again, for a while. */
KV_RC erase_sweep(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    const char *provider = wanted(svc);
    if (provider == NULL || !kv_id_is_zero(&round->batch.id)) {
        return KV_OK;
    }
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = discard_staged(round, provider);
    pthread_mutex_unlock(&svc->roe_mutex);
    if (rc == KV_E_STALE || rc == KV_E_DB_UNAVAILABLE) {
        return rc;
    }
    if (rc != KV_OK) {
        kv_log(KV_LOG_WARN, "eraser", "not-called-off", KV_FT("provider", provider), KV_FRC(rc));
        return KV_OK;
    }
    pthread_mutex_lock(&svc->wake_mutex);
    svc->root_sweep = NULL;
    pthread_mutex_unlock(&svc->wake_mutex);
    return KV_OK;
}

KV_RC erase_called_off(struct erase_round *round)
{
    bool alone = round->replaces_root && !round->rotating && erase_pick(round, KV_ERASURE_STAGED).count == 0;
    return alone && wanted(round->svc) != NULL
               ? kv_fail(&round->info, KV_E_STALE, "the change of the root was called off")
               : KV_OK;
}

bool erase_sweeps(const struct erase_round *round)
{
    return wanted(round->svc) != NULL;
}

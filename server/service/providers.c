/*
 * The root of erasure's providers that are open: the one that kroot names, and while a root moves, the one that it
 * comes from or goes to. A root is never copied between them. Under roe_mutex.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/log.h"

#include <string.h>

const char *svc_provider_name(const char *text)
{
    const char *const names[] = {kv_roe_file.name, kv_roe_pkcs11.name, kv_roe_transit.name, kv_roe_memory.name};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], text) == 0) {
            return names[i];
        }
    }
    return NULL;
}

KV_RC svc_provider(struct kv_svc *svc, const char *name, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
    struct kv_roe_conf conf = {.provider = name,
                               .path = svc->conf.root_path,
                               .pkcs11 = svc->conf.root_pkcs11,
                               .transit = svc->conf.root_transit,
                               .env = svc->env};
    struct kv_roe *roe = NULL;
    for (size_t i = 0; i < svc->roe_count; i++) {
        if (strcmp(svc->roes[i]->ops->name, name) == 0) {
            *ret_roe = svc->roes[i];
            return KV_OK;
        }
    }
    if (svc->roe_count == SVC_PROVIDERS_MAX) {
        return kv_fail(info, KV_E_LIMIT, "no more providers can be open");
    }
    KV_TRY(kv_roe_open(&conf, info, &roe));
    roe->fence = svc->roe_count == 0 ? 0 : svc->roes[0]->fence;
    svc->roes[svc->roe_count++] = roe;
    *ret_roe = roe;
    return KV_OK;
}

KV_RC svc_provider_follow(struct kv_svc *svc, const char *name, struct kv_errinfo *info)
{
    struct kv_roe *roe = svc->roe;
    if (roe == NULL || strcmp(roe->ops->name, name) != 0) {
        KV_TRY(svc_provider(svc, name, info, &roe));
        svc->roe = roe;
    }
    return KV_OK;
}

void svc_providers_fence(struct kv_svc *svc, uint64_t fence)
{
    for (size_t i = 0; i < svc->roe_count; i++) {
        svc->roes[i]->fence = fence;
    }
}

void svc_providers_close(struct kv_svc *svc)
{
    for (size_t i = 0; i < svc->roe_count; i++) {
        svc->roes[i]->ops->close(svc->roes[i]);
    }
    svc->roe_count = 0;
}

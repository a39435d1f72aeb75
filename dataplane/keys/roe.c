/*
 * The registry of root-of-erasure providers. It knows their names and nothing of how they keep a key.
 */
#include "dataplane/keys/roe.h"

#include <string.h>

static const struct kv_roe_ops *const providers[] = {&kv_roe_file, &kv_roe_memory};

KV_RC kv_roe_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
    for (size_t i = 0; i < sizeof(providers) / sizeof(providers[0]); i++) {
        if (conf->provider != NULL && strcmp(conf->provider, providers[i]->name) == 0) {
            return providers[i]->open(conf, info, ret_roe);
        }
    }
    return kv_fail(info, KV_E_CONFIG, "unknown root of erasure provider; set it to \"file\" or \"memory\"");
}

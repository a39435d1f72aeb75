/*
 * The registry of root-of-erasure providers. It knows their names and nothing of how they keep a key.
 */
#include "dataplane/keys/roe.h"

#include "dataplane/base/fault.h"
#include "dataplane/keys/roe_file_int.h"

#include <string.h>

static const struct kv_roe_ops *const providers[] = {&kv_roe_file, &kv_roe_memory, &kv_roe_pkcs11, &kv_roe_transit};

KV_RC kv_roe_open(const struct kv_roe_conf *conf, struct kv_errinfo *info, struct kv_roe **ret_roe)
{
#ifdef KV_FAULTS
    if (conf->provider != NULL && strcmp(conf->provider, kv_roe_file.name) == 0 && KV_FAULT("roe/file/shared")) {
        return kv_roe_file_shared.open(conf, info, ret_roe);
    }
#endif
    for (size_t i = 0; i < sizeof(providers) / sizeof(providers[0]); i++) {
        if (conf->provider != NULL && strcmp(conf->provider, providers[i]->name) == 0) {
            return providers[i]->open(conf, info, ret_roe);
        }
    }
    return kv_fail(info, KV_E_CONFIG,
                   "unknown root of erasure provider; set it to \"file\", \"memory\", \"pkcs11\" or \"transit\"");
}

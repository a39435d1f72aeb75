/*
 * `kvrun keys recover`: a new operator key for whoever owns the data folder, whether the server runs or not. It speaks
 * to the database alone, the private one where there is no db.url.
 */
#include "server/serve_offline.h"

#include "dataplane/base/env.h"
#include "dataplane/base/log.h"
#include "server/cli/exit_code.h"
#include "server/service/svc_key.h"

#include <stdio.h>
#include <sys/stat.h>

static KV_RC keep(void *ctx, const char *secret, struct kv_errinfo *info)
{
    return serve_keep_key(ctx, secret, info);
}

int kv_serve_recover(const struct kv_conf *conf)
{
    struct offline offline = {.conf = conf};
    kv_log_set_level(KV_LOG_WARN);
    umask(0077);
    enum kv_err rc = serve_offline_open(&offline, "kvrun/recover", 0);
    if (rc == KV_OK) {
        rc = kv_svc_key_recover(offline.pg, &kv_env_system, keep, offline.state, &offline.info);
    }
    serve_offline_close(&offline);
    if (rc != KV_OK) {
        return serve_offline_failed(&offline, rc);
    }
    printf("A new operator key is in %s/operator.key. It works for 90 days, in a running server from now on.\n"
           "Revoke the one that was lost: kvrun keys ls, kvrun keys revoke <key>\n",
           offline.state);
    return CLI_OK;
}

/* See request_ids.h. Must never hand out a byte twice. */
#include "server/http/request_ids.h"

#include "dataplane/base/check.h"

#include <string.h>

/* Under the mutex, from kv_id_new. */
static enum kv_err take(void *ctx, void *target, size_t len)
{
    struct kv_request_ids *ids = ctx;
    KV_ASSERT(len <= sizeof ids->bytes);
    if (ids->left < len) {
        KV_TRY(kv_env_system.random(kv_env_system.ctx, ids->bytes, sizeof ids->bytes));
        ids->left = sizeof ids->bytes;
    }
    memcpy(target, ids->bytes + sizeof ids->bytes - ids->left, len);
    ids->left -= len;
    return KV_OK;
}

void kv_request_ids_init(struct kv_request_ids *ids)
{
    *ids = (struct kv_request_ids){.env = kv_env_system};
    ids->env.ctx = ids; /* the system's clocks do not look at it */
    ids->env.random = take;
    pthread_mutex_init(&ids->mutex, NULL);
}

void kv_request_ids_done(struct kv_request_ids *ids)
{
    pthread_mutex_destroy(&ids->mutex);
}

KV_RC kv_request_ids_next(struct kv_request_ids *ids, struct kv_id *ret_id)
{
    pthread_mutex_lock(&ids->mutex);
    enum kv_err rc = kv_id_new(&ids->env, ret_id);
    pthread_mutex_unlock(&ids->mutex);
    return rc;
}

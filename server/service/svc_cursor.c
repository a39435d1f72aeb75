/* The key that cursors are signed with: made once a cluster, at a start, and never shown; and the order of lists. */
#include "server/service/svc_cursor.h"

#include "dataplane/base/id.h"
#include "dataplane/crypto/hash.h"
#include "server/service/svc_int.h"
#include "server/store/store_cluster.h"

#include <string.h>

KV_RC svc_cursor_key(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    uint8_t key[32];
    KV_TRY(svc->env->random(svc->env->ctx, key, sizeof key));
    KV_TRY(kv_store_cursor_key_ensure(pg, key, info, key));
    kv_secret_free(svc->cursor_key);
    svc->cursor_key = NULL;
    enum kv_err rc = kv_secret_copy(key, sizeof key, &svc->cursor_key);
    kv_wipe(key, sizeof key);
    return rc;
}

KV_RC kv_svc_cursor_mac(struct kv_svc *svc, struct kv_bytes data, uint8_t ret_mac[KV_CURSOR_MAC_BYTES])
{
    uint8_t mac[32];
    KV_TRY(kv_hmac_sha256(svc->cursor_key, &data, 1, mac));
    memcpy(ret_mac, mac, KV_CURSOR_MAC_BYTES);
    return KV_OK;
}

int svc_page_order(uint64_t a_us, const struct kv_id *a, uint64_t b_us, const struct kv_id *b)
{
    return a_us != b_us ? (a_us < b_us ? -1 : 1) : kv_id_compare(a, b);
}

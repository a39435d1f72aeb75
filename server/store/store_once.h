/*
 * Idempotency keys: the answer of a request beside its effect, written in the same transaction. Nothing here knows what
 * the answer means.
 */
#ifndef KV_STORE_ONCE_H
#define KV_STORE_ONCE_H

#include "server/store/pg.h"

/* Who used which key where. */
struct kv_store_once_key {
    struct kv_id principal;
    uint8_t scope[32]; /* of method and path template */
    char key[256];
};

struct kv_store_once {
    struct kv_store_once_key key;
    uint8_t fingerprint[32]; /* of path, query and body */
    int status;
    char location[513], etag[129], content_type[129], request_id[65];
    bool has_body;                   /* false: it held a secret */
    uint64_t created_us, expires_us; /* expires 0: never */
};

/* Takes the key for the rest of the transaction. KV_E_IDEMPOTENCY_MISMATCH: another request with this key runs now;
 * KV_E_IDEMPOTENCY_IN_PROGRESS: this very one does. Waits for neither. Write. */
KV_RC kv_store_once_lock(struct kv_pg *pg, const struct kv_store_once_key *key, const uint8_t fingerprint[32],
                         struct kv_errinfo *info);
/* KV_E_NOT_FOUND: not used, or no longer kept at `now_us`. */
KV_RC kv_store_once_get(struct kv_pg *pg, const struct kv_store_once_key *key, uint64_t now_us, struct kv_errinfo *info,
                        struct kv_store_once *ret_once, struct kv_buf *ret_body);
/* Replaces one that is no longer kept. Write. */
KV_RC kv_store_once_insert(struct kv_pg *pg, const struct kv_store_once *once, struct kv_bytes body,
                           struct kv_errinfo *info);
/* Deletes what is no longer kept, at most `max`. Write. */
KV_RC kv_store_once_expire(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info, uint64_t *ret_count);

#endif

/*
 * What the database forgets when its root of erasure is gone for good. Thread: the connection's.
 */
#ifndef KV_STORE_LOSS_H
#define KV_STORE_LOSS_H

#include "server/store/store_cluster.h"

/* Sessions that are lost with the root: those that live or are being erased. */
KV_RC kv_store_loss_count(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_sessions);
/* `root` is the root from now on, whatever was there, and nobody is the eraser. Locks kroot to the end of the
 * transaction. Write. */
KV_RC kv_store_kroot_replace(struct kv_pg *pg, const struct kv_store_root_set *root, struct kv_errinfo *info,
                             int64_t *ret_fence);
/* Those sessions are lost, their erasures quarantined, batches over, and the key tree is empty. Write. */
KV_RC kv_store_lose_everything(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, uint64_t *ret_sessions);

#endif

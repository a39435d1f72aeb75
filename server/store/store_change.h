/*
 * Changes that instances hold in memory: policies, tenants, API keys. Each counts one number up in its own transaction,
 * and tells whoever listens. The number is the truth, the notification only makes it quick: an instance that compares
 * the number at each renewal of its lease needs no listener. See server/service/change.h for who reads it.
 */
#ifndef KV_STORE_CHANGE_H
#define KV_STORE_CHANGE_H

#include "server/store/pg.h"

/* Holds the head's row to the end of the transaction, so the numbers come in the order of the commits. Last thing in a
 * transaction, for that reason. Write. */
KV_RC kv_store_change(struct kv_pg *pg, struct kv_errinfo *info);
KV_RC kv_store_change_seq(struct kv_pg *pg, struct kv_errinfo *info, int64_t *ret_seq);

#endif

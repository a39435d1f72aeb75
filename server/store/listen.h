/*
 * Being told of changes: a connection of its own that LISTENs to the channel of store_change.h. A notification only
 * makes a change quick; whoever uses this compares the number as well, because a connection can die without a word.
 * Thread: the connection's.
 */
#ifndef KV_STORE_LISTEN_H
#define KV_STORE_LISTEN_H

#include "server/store/pg.h"

/* Connects if need be and listens. KV_E_DB_UNAVAILABLE: try again (kv_pg_ping says about the pace). KV_E_UNSUPPORTED:
 * a pooler stands in between and nobody can listen through it. */
KV_RC kv_pg_listen(struct kv_pg *pg, struct kv_errinfo *info);
/* Waits until somebody told something, `wake_fd` can be read, or the time is over; *ret_told says whether the first.
 * KV_E_DB_UNAVAILABLE: the connection is gone and with it the listening. */
KV_RC kv_pg_listen_wait(struct kv_pg *pg, int wake_fd, uint32_t timeout_ms, struct kv_errinfo *info, bool *ret_told);

#endif

/*
 * Rows for tests of the store: made the way the service makes them, with ids that can be told apart.
 */
#ifndef KV_TESTS_STORE_ROWS_H
#define KV_TESTS_STORE_ROWS_H

#include "server/store/store_erasure.h"

#define T0 UINT64_C(1796059096000001)

struct kv_id store_id(unsigned number); /* never zero, ascending */
/* Each in a transaction of its own; abort when refused. */
void store_cluster(struct kv_pg *pg);
struct kv_id store_tenant(struct kv_pg *pg, unsigned number); /* named t-<number> */
struct kv_id store_session(struct kv_pg *pg, struct kv_id tenant, unsigned number);
struct kv_store_erasure store_erasure_request(struct kv_pg *pg, struct kv_id tenant, struct kv_id session,
                                              unsigned number);
struct kv_id store_batch(struct kv_pg *pg, unsigned number); /* roots are number + 1 and number + 2 */

#endif

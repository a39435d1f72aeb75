/* What the database server says of itself. */
#ifndef KV_STORE_FACTS_H
#define KV_STORE_FACTS_H

#include "server/store/pg.h"

struct kv_store_facts {
    uint32_t version;            /* 150004: 15.4 */
    char synchronous_commit[24]; /* the server's own default for this user and database */
    char fsync[8];
    char data_directory[1024]; /* "" where this user may not see it */
    int64_t max_connections, connections;
    bool standby;
};

KV_RC kv_store_facts(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_facts *ret_facts);

#endif

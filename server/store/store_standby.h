/* How far the standbys of the database are. Source: PostgreSQL's documentation, pg_stat_replication. */
#ifndef KV_STORE_STANDBY_H
#define KV_STORE_STANDBY_H

#include "server/store/pg.h"

/* Physical standbys that are attached; receivers of write-ahead log that nobody can promote are not meant. */
struct kv_store_standbys {
    int64_t position; /* bytes of write-ahead log; 0 asks for what is flushed here now, and it is put here */
    uint64_t attached;
    uint64_t behind; /* of them: have not flushed up to `position` */
    uint64_t unseen; /* of them: this user may not see how far they are (role pg_monitor lets it) */
};
KV_RC kv_store_standbys(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_standbys *standbys);

#endif

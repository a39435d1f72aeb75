/*
 * Brings the schema `kvrun` to this binary's version. Files of migrations/ are part of the binary, forward only, each
 * applied once. All of it happens in one transaction under an advisory transaction lock, so any number of processes may
 * try at once and a connection pooler does not matter. Thread: the connection's.
 */
#ifndef KV_STORE_MIGRATE_H
#define KV_STORE_MIGRATE_H

#include "server/store/pg.h"

enum kv_migrate_mode {
    KV_MIGRATE_CHECK, /* changes nothing */
    KV_MIGRATE_AUTO,  /* applies what is pending */
};

struct kv_migration {
    uint32_t version; /* 1, 2, 3, … */
    const char *name; /* the file's */
    const char *sql;
};

uint32_t kv_schema_version(void); /* of this binary */

/* *ret_applied (may be NULL): how many were applied now. KV_E_SCHEMA_NEWER: the database is ahead of this binary.
 * KV_E_INVALID_STATE: in CHECK mode something is pending (the text says what to run), or a file that was applied is not
 * the one in this binary. */
KV_RC kv_migrate(struct kv_pg *pg, enum kv_migrate_mode mode, struct kv_errinfo *info, uint32_t *ret_applied);
/* The same with another list; for tests. */
KV_RC kv_migrate_list(struct kv_pg *pg, enum kv_migrate_mode mode, const struct kv_migration *list, size_t count,
                      struct kv_errinfo *info, uint32_t *ret_applied);

#endif

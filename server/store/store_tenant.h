/*
 * Tenants and API keys. Of a key the SHA-256 of its secret is stored and nothing else.
 * Thread: the connection's.
 */
#ifndef KV_STORE_TENANT_H
#define KV_STORE_TENANT_H

#include "server/store/pg.h"

#define KV_TENANT_NAME_SIZE 64 /* KV_MAX_TENANT_NAME_BYTES and NUL */
#define KV_STORE_TEXT_SIZE 513 /* KV_MAX_TEXT_BYTES and NUL */
#define KV_SHA256_HEX_SIZE 65

enum kv_tenant_state { KV_TENANT_ACTIVE = 0, KV_TENANT_SUSPENDED, KV_TENANT_ERASING, KV_TENANT_ERASED };
const char *kv_tenant_state_name(enum kv_tenant_state state);

struct kv_store_tenant {
    struct kv_id id;
    char name[KV_TENANT_NAME_SIZE];        /* [a-z0-9-] */
    char display_name[KV_STORE_TEXT_SIZE]; /* may be empty */
    enum kv_tenant_state state;
    uint32_t directory_slot; /* never used again by another tenant */
    uint32_t next_slot;      /* key slots given out so far */
    uint64_t created_us;
};

/* `tenant->directory_slot`, `next_slot` and `state` are not read: the tenant starts active with the next free directory
 * slot. KV_E_TENANT_EXISTS; KV_E_LIMIT past KV_MAX_TENANTS; KV_E_INVALID_STATE without a cluster row. Write. */
KV_RC kv_store_tenant_insert(struct kv_pg *pg, const struct kv_store_tenant *tenant, struct kv_errinfo *info,
                             uint32_t *ret_directory_slot);
KV_RC kv_store_tenant_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                          struct kv_store_tenant *ret_tenant); /* KV_E_NOT_FOUND */
KV_RC kv_store_tenant_get_by_name(struct kv_pg *pg, const char *name, struct kv_errinfo *info,
                                  struct kv_store_tenant *ret_tenant); /* KV_E_NOT_FOUND */
/* By id, those after `after` (zero: from the first), at most `max`. */
KV_RC kv_store_tenant_list(struct kv_pg *pg, const struct kv_id *after, size_t max, struct kv_errinfo *info,
                           struct kv_store_tenant *ret_list, size_t *ret_count);

/* Certificates of a tenant form a chain, so issuing one holds the tenant's row: the hash of the latest ("" when none),
 * locked to the end of the transaction. kv_store_erasure_set_certificate moves it on. Write. */
KV_RC kv_store_tenant_certificate_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                                       char ret_previous_sha256[KV_SHA256_HEX_SIZE]);

#define KV_API_KID_SIZE 9 /* 8 characters of base62 and NUL */

struct kv_store_api_key {
    struct kv_id id;
    struct kv_id tenant; /* zero: a key of the operator */
    char kid[KV_API_KID_SIZE];
    char name[KV_STORE_TEXT_SIZE];
    uint32_t roles; /* enum kv_role */
    uint8_t secret_sha256[32];
    uint64_t created_us, expires_us, revoked_us; /* revoked 0: not */
};

/* KV_E_STALE: the kid is taken, draw another. KV_E_NOT_FOUND: no such tenant. Write. */
KV_RC kv_store_api_key_insert(struct kv_pg *pg, const struct kv_store_api_key *key, struct kv_errinfo *info);
/* Also revoked and expired ones: judging is the caller's. KV_E_NOT_FOUND. */
KV_RC kv_store_api_key_get_by_kid(struct kv_pg *pg, const char *kid, struct kv_errinfo *info,
                                  struct kv_store_api_key *ret_key);
KV_RC kv_store_api_key_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_api_key *ret_key);
/* Of one tenant (zero: the operator's), by id, after `after`. */
KV_RC kv_store_api_key_list(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *after, size_t max,
                            struct kv_errinfo *info, struct kv_store_api_key *ret_list, size_t *ret_count);
/* Revoking twice keeps the first time. KV_E_NOT_FOUND unless the key is this tenant's (zero: the operator's). Write. */
KV_RC kv_store_api_key_revoke(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *id, uint64_t at_us,
                              struct kv_errinfo *info);
/* Operator keys that are neither revoked nor expired at `now_us`. */
KV_RC kv_store_api_key_count_operator(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, uint64_t *ret_count);

#endif

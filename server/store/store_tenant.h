/*
 * Tenants and API keys. Of a key the SHA-256 of its secret is stored and nothing else.
 * Thread: the connection's.
 */
#ifndef KV_STORE_TENANT_H
#define KV_STORE_TENANT_H

#include "server/store/labels.h"
#include "server/store/page.h"
#include "server/store/pg.h"
#include "server/store/use.h"

#define KV_TENANT_NAME_SIZE 64 /* KV_MAX_TENANT_NAME_BYTES and NUL */
#define KV_STORE_TEXT_SIZE 513 /* KV_MAX_TEXT_BYTES and NUL */
#define KV_SHA256_HEX_SIZE 65

#define KV_REGION_SIZE 64

/*  ACTIVE ◄── suspend, resume ──► SUSPENDED        both ◄── delete, restore ──► DELETING ── the grace time is over ──►
 *  ERASING ── all of its sessions are ──► ERASED. One that was suspended before it was to be deleted is so again when
 *  it is restored: suspended_us says which. */
enum kv_tenant_state {
    KV_TENANT_ACTIVE = 0,
    KV_TENANT_SUSPENDED,
    KV_TENANT_DELETING,
    KV_TENANT_ERASING,
    KV_TENANT_ERASED
};
const char *kv_tenant_state_name(enum kv_tenant_state state);
bool kv_tenant_state_parse(const char *name, enum kv_tenant_state *ret_state);

struct kv_store_tenant {
    struct kv_id id;
    char name[KV_TENANT_NAME_SIZE];        /* [a-z0-9-] */
    char display_name[KV_STORE_TEXT_SIZE]; /* may be empty */
    enum kv_tenant_state state;
    uint32_t directory_slot; /* never used again by another tenant */
    uint32_t next_slot;      /* key slots given out so far */
    int32_t system_slot;     /* its secret makes the lookup key of external ids; -1: none yet */
    struct kv_id tree;       /* of its keys: its id, or a fresh one after an erasure of all it had */
    uint32_t first_slot;     /* sessions of slots before it went with earlier trees */
    uint32_t key_version;    /* of its key, see store_tenant_key.h: what sessions are made in */
    char region[KV_REGION_SIZE];
    struct kv_labels labels;
    uint64_t rev;
    uint64_t created_us, updated_us;
    uint64_t suspended_us; /* 0: not suspended, or not before it was to be deleted */
    char suspend_reason_sha256[KV_SHA256_HEX_SIZE];
    uint64_t delete_us; /* DELETING: when the grace time ends */
    struct kv_id deleted_by;
};

/* Of `tenant` id, names, region, labels and created_us are read: it starts active with the next free directory slot and
 * at revision 1. KV_E_TENANT_EXISTS; KV_E_LIMIT past KV_MAX_TENANTS; KV_E_INVALID_STATE without a cluster row. Write.
 */
KV_RC kv_store_tenant_insert(struct kv_pg *pg, const struct kv_store_tenant *tenant, struct kv_errinfo *info,
                             uint32_t *ret_directory_slot);
KV_RC kv_store_tenant_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                          struct kv_store_tenant *ret_tenant); /* KV_E_NOT_FOUND */
KV_RC kv_store_tenant_get_by_name(struct kv_pg *pg, const char *name, struct kv_errinfo *info,
                                  struct kv_store_tenant *ret_tenant); /* KV_E_NOT_FOUND */
/* The same, and nobody else changes it until the end of the transaction. Write. */
KV_RC kv_store_tenant_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_tenant *ret_tenant);
struct kv_store_tenant_filter {
    const char *state;            /* NULL: any */
    const struct kv_label *label; /* NULL: any */
};
/* One page; `ret_list` has room for page->limit + 1. */
KV_RC kv_store_tenant_list(struct kv_pg *pg, const struct kv_store_tenant_filter *filter, struct kv_page *page,
                           struct kv_errinfo *info, struct kv_store_tenant *ret_list, size_t *ret_count);
/* Writes display name, region, labels, state, suspension, deletion and updated_us of a row that was locked at `rev`,
 * and counts rev up, in the struct as well. KV_E_STALE. Write. */
KV_RC kv_store_tenant_update(struct kv_pg *pg, struct kv_store_tenant *tenant, struct kv_errinfo *info);
/* Takes the next key slot as the tenant's system slot, unless it has one; the struct is a locked row. KV_E_TENANT_FULL.
 * Write. */
KV_RC kv_store_tenant_system_slot(struct kv_pg *pg, struct kv_store_tenant *tenant, struct kv_errinfo *info);
/* All sessions that there are by now go with the tree they have: those to come get a fresh one, `tree`, at the next
 * free place in the directory, and the lookup key a fresh slot. One that is ERASING gets no sessions, and no tree. The
 * struct is a locked row. KV_E_LIMIT: no place is left. Write. */
KV_RC kv_store_tenant_renew_tree(struct kv_pg *pg, const struct kv_store_tenant *tenant, const struct kv_id *tree,
                                 struct kv_errinfo *info);
/* ERASING to ERASED; does nothing to another. Write. */
KV_RC kv_store_tenant_set_erased(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info);
/* Those whose grace time was over at `now_us`, at most `max`. */
KV_RC kv_store_tenant_list_due(struct kv_pg *pg, uint64_t now_us, size_t max, struct kv_errinfo *info,
                               struct kv_id *ret_ids, size_t *ret_count);

/* Certificates of a tenant form a chain, so issuing one holds the tenant's row: the hash of the latest ("" when none),
 * locked to the end of the transaction. kv_store_tenant_certificate_move moves it on. Write. */
KV_RC kv_store_tenant_certificate_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                                       char ret_previous_sha256[KV_SHA256_HEX_SIZE]);
/* KV_E_STALE when the latest is not `previous_sha256` ("": none yet). Write. */
KV_RC kv_store_tenant_certificate_move(struct kv_pg *pg, const struct kv_id *tenant, const char *previous_sha256,
                                       const char *latest_sha256, struct kv_errinfo *info);

#define KV_API_KID_SIZE 9 /* 8 characters of base62 and NUL */

#define KV_CIDRS_MAX 16 /* KV_MAX_CIDRS */
#define KV_CIDR_SIZE 50 /* the longest IPv6 address, '/', three digits and NUL */

struct kv_store_api_key {
    struct kv_id id;
    struct kv_id tenant; /* zero: a key of the operator */
    char kid[KV_API_KID_SIZE];
    char name[KV_STORE_TEXT_SIZE];
    uint32_t roles; /* enum kv_role */
    uint8_t secret_sha256[32];
    uint64_t created_us, expires_us, revoked_us; /* revoked 0: not */
    uint64_t rev;
    unsigned cidr_count; /* 0: from anywhere */
    char cidrs[KV_CIDRS_MAX][KV_CIDR_SIZE];
    uint64_t last_used_us, rotated_us; /* last used: to the minute */
    uint8_t old_secret_sha256[32];     /* valid until old_until_us; 0: there is none */
    uint64_t old_until_us;
};

/* KV_E_STALE: the kid is taken, draw another. KV_E_INVALID_STATE: no such tenant. Write. */
KV_RC kv_store_api_key_insert(struct kv_pg *pg, const struct kv_store_api_key *key, struct kv_errinfo *info);
/* Also revoked and expired ones: judging is the caller's. KV_E_NOT_FOUND. */
KV_RC kv_store_api_key_get_by_kid(struct kv_pg *pg, const char *kid, struct kv_errinfo *info,
                                  struct kv_store_api_key *ret_key);
KV_RC kv_store_api_key_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                           struct kv_store_api_key *ret_key);
/* The same, and nobody else changes it until the end of the transaction. KV_E_NOT_FOUND unless the key is this tenant's
 * (zero: the operator's). Write. */
KV_RC kv_store_api_key_lock(struct kv_pg *pg, const struct kv_id *tenant, const struct kv_id *id,
                            struct kv_errinfo *info, struct kv_store_api_key *ret_key);
/* One page of a tenant's (zero: the operator's); `ret_list` has room for page->limit + 1. */
KV_RC kv_store_api_key_list(struct kv_pg *pg, const struct kv_id *tenant, struct kv_page *page, struct kv_errinfo *info,
                            struct kv_store_api_key *ret_list, size_t *ret_count);
/* Writes name, cidrs, secrets, expiry, revocation and rotation of a row that was locked at `rev`, and counts rev up, in
 * the struct as well. KV_E_STALE. Write. */
KV_RC kv_store_api_key_update(struct kv_pg *pg, struct kv_store_api_key *key, struct kv_errinfo *info);
/* When keys were used last, to the minute; never moved back. At most KV_STORE_USES_MAX. Write. */
KV_RC kv_store_api_key_used(struct kv_pg *pg, const struct kv_store_use *uses, size_t count, struct kv_errinfo *info);
/* Holds the row that makings of a tenant's (zero: the operator's) keys meet at, and counts those that are neither
 * revoked nor expired at `now_us`. KV_E_NOT_FOUND: no such tenant. Write. */
KV_RC kv_store_api_key_count_lock(struct kv_pg *pg, const struct kv_id *tenant, uint64_t now_us,
                                  struct kv_errinfo *info, uint64_t *ret_count);
/* Operator keys that are neither revoked nor expired at `now_us`; `ret_list` has room for KV_MAX_API_KEYS_PER_TENANT.
 */
KV_RC kv_store_api_key_operators(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info,
                                 struct kv_store_api_key *ret_list, size_t *ret_count);
/* Operator keys that are neither revoked nor expired at `now_us`. */
KV_RC kv_store_api_key_count_operator(struct kv_pg *pg, uint64_t now_us, struct kv_errinfo *info, uint64_t *ret_count);

#endif

/*
 * Versions of a tenant's key: what a rotation makes and ends. A row says when and by what, and never holds a key.
 * Thread: the connection's.
 *
 *   PRE_ACTIVATION ─ first session, or a rotation's re-key ─► ACTIVE ─ the next one's re-key, or the request to erase
 *   all of the tenant ─► DEACTIVATED ─ the root that it hung under is destroyed ─► DESTROYED
 */
#ifndef KV_STORE_TENANT_KEY_H
#define KV_STORE_TENANT_KEY_H

#include "server/store/page.h"
#include "server/store/pg.h"

#define KV_KEY_FINGERPRINT_BYTES 16
#define KV_KEY_FAILED_SIZE 65

enum kv_tenant_key_state {
    KV_TENANT_KEY_PRE_ACTIVATION = 0,
    KV_TENANT_KEY_ACTIVE,
    KV_TENANT_KEY_DEACTIVATED,
    KV_TENANT_KEY_DESTROYED
};
const char *kv_tenant_key_state_name(enum kv_tenant_key_state state); /* "pre_activation" */

struct kv_store_tenant_key {
    struct kv_id id, tenant;
    uint32_t version; /* from 1 */
    enum kv_tenant_key_state state;
    bool has_fingerprint; /* not before it is active, nor when it is older than fingerprints */
    uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES];
    uint64_t created_us, activated_us, destroyed_us, compromised_us; /* 0: not */
    struct kv_id operation;          /* the rotation that made it; zero: the first one */
    struct kv_id ended_by;           /* the rotation that took its place; zero: none yet */
    char failed[KV_KEY_FAILED_SIZE]; /* the error that this rotation ended with; "": none */
    struct kv_id batch;              /* the change of the root that ended it; zero: none */
    uint64_t sessions;               /* whose keys were made in it, and that are not erased */
};

/* The first version, with the tenant's row. Write. */
KV_RC kv_store_tenant_key_first(struct kv_pg *pg, const struct kv_id *tenant, uint64_t created_us,
                                struct kv_errinfo *info);
/* A version goes into use by a session: a tenant's first one, or the one that follows an erasure of all it had.
 * KV_E_STALE: it is in use already. Write. */
struct kv_store_key_use {
    struct kv_id tenant;
    uint32_t version;
    uint64_t at_us;
    uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES];
};
KV_RC kv_store_tenant_key_activate(struct kv_pg *pg, const struct kv_store_key_use *use, struct kv_errinfo *info);
/* All of the tenant is erased in one step: the active version ends with the root that this erasure destroys, and with
 * `goes_on` another one waits for the first session that comes after it. A rotation that is under way fails. Does
 * nothing when no version was in use. The tenant's row is locked, the erasure's is there. Write. */
struct kv_store_key_end {
    struct kv_id tenant, erasure;
    uint64_t at_us;
    bool goes_on;
};
KV_RC kv_store_tenant_key_end(struct kv_pg *pg, const struct kv_store_key_end *end, struct kv_errinfo *info);
/* The batch destroyed the root that the versions ended by its erasures hung under. Write. */
KV_RC kv_store_tenant_keys_erased(struct kv_pg *pg, const struct kv_id *batch, uint64_t at_us, struct kv_errinfo *info);
/* One page; `ret_list` has room for page->limit + 1. */
KV_RC kv_store_tenant_key_page(struct kv_pg *pg, const struct kv_id *tenant, struct kv_page *page,
                               struct kv_errinfo *info, struct kv_store_tenant_key *ret_list, size_t *ret_count);
/* The one that the rotation `operation` made. KV_E_NOT_FOUND. */
KV_RC kv_store_tenant_key_of(struct kv_pg *pg, const struct kv_id *operation, struct kv_errinfo *info,
                             struct kv_store_tenant_key *ret_key);

/* ---- rotation ---- */

/* Begins one: a version after the active one, in PRE_ACTIVATION; that of a rotation that was given up, if there is one.
 * Reads id, tenant, created_us and operation. The tenant's row is locked. KV_E_INVALID_STATE: no version is active yet,
 * or another rotation is under way. Write. */
KV_RC kv_store_tenant_key_next(struct kv_pg *pg, const struct kv_store_tenant_key *key, struct kv_errinfo *info);
/* Somebody else may know the active version. A second time keeps the first one's time. Write. */
KV_RC kv_store_tenant_key_compromised(struct kv_pg *pg, const struct kv_id *tenant, uint64_t at_us,
                                      struct kv_errinfo *info);
/* The oldest rotation that waits for its re-key, and what that needs; its operation can neither end nor be cancelled
 * before the end of a transaction. KV_E_MISSING: there is none. */
struct kv_store_rotation {
    struct kv_id tenant, tree, operation;
    uint32_t version, directory_slot, slots_used;
};
KV_RC kv_store_rotation_due(struct kv_pg *pg, struct kv_errinfo *info, struct kv_store_rotation *ret_rotation);
/* In the transaction of its re-key: the version is ACTIVE, and the one before DEACTIVATED by `batch`. KV_E_STALE.
 * Write.
 */
struct kv_store_rotated {
    struct kv_id tenant, batch;
    uint32_t version;
    uint64_t at_us;
    uint8_t fingerprint[KV_KEY_FINGERPRINT_BYTES];
};
KV_RC kv_store_rotation_rekeyed(struct kv_pg *pg, const struct kv_store_rotated *rotated, struct kv_errinfo *info);
/* The root that `batch` replaced is gone, and with it every version that it deactivated: at most one, whose tenant is
 * `ret_key`'s. KV_E_MISSING: none. Write. */
KV_RC kv_store_rotation_destroyed(struct kv_pg *pg, const struct kv_id *batch, uint64_t at_us, struct kv_errinfo *info,
                                  struct kv_store_tenant_key *ret_key);
/* The version before that of the rotation `operation` is destroyed, and no instance holds anything of it. */
KV_RC kv_store_rotation_ended(struct kv_pg *pg, const struct kv_id *operation, struct kv_errinfo *info,
                              bool *ret_ended);
/* It cannot be done; `error` says why. Write. */
KV_RC kv_store_rotation_failed(struct kv_pg *pg, const struct kv_id *operation, const char *error,
                               struct kv_errinfo *info);

#endif

/*
 * Open scopes: the keys of sessions that may be used right now, under the instance's lease.
 * From a scope's secret S the keyring derives K_block and K_id; S itself is not kept.
 * A key is used between kv_keyring_borrow and kv_keyring_return. Dropping a scope makes every later borrow fail and
 * wipes the keys when the last borrower has returned (kv_keyring_drop waits for it). Thread: any (one mutex, never held
 * across a call).
 */
#ifndef KV_KEYS_KEYRING_H
#define KV_KEYS_KEYRING_H

#include "dataplane/base/env.h"
#include "dataplane/crypto/secret.h"

struct kv_keyring;

struct kv_scope_keys {
    const struct kv_secret *block; /* K_block, borrowed until kv_keyring_return */
    const struct kv_secret *ids;   /* K_id */
    struct kv_id tenant, scope;
    void *entry; /* private */
};

KV_RC kv_keyring_new(const struct kv_env *env, size_t scopes_max, struct kv_keyring **ret_ring);
void kv_keyring_free(struct kv_keyring *ring);

/* Keys may be used until then (CLOCK_BOOTTIME). UINT64_MAX: no lease (tests). Starts at 0: nothing can be borrowed. */
void kv_keyring_set_lease(struct kv_keyring *ring, uint64_t deadline_boottime_ns);
bool kv_keyring_lease_valid(const struct kv_keyring *ring);

/* `secret` S is taken only for the call. Opening an open scope is KV_OK. KV_E_SESSION_ERASED when it was dropped for
 * good. KV_E_BUSY: the ring is full, or the scope was dropped and a borrower still has its keys. */
KV_RC kv_keyring_open(struct kv_keyring *ring, const struct kv_id *tenant, const struct kv_id *scope,
                      const struct kv_secret *secret);
bool kv_keyring_is_open(struct kv_keyring *ring, const struct kv_id *scope);
/* KV_E_MISSING: not open. KV_E_LEASE_EXPIRED. KV_E_SESSION_ERASED: dropped for good. */
KV_RC kv_keyring_borrow(struct kv_keyring *ring, const struct kv_id *scope, struct kv_scope_keys *ret_keys);
void kv_keyring_return(struct kv_keyring *ring, struct kv_scope_keys *keys);
/* `for_good`: a later open is refused, too, until the process ends. Waits up to the deadline for borrowers
 * (KV_E_TIMEOUT: the scope is closed to new borrowers, but a key is still in use), and never longer than twice the
 * longest transfer. */
KV_RC kv_keyring_drop(struct kv_keyring *ring, const struct kv_id *scope, bool for_good, uint64_t deadline_ns);
/* Wipes all idle keys (lease lost, purge); busy ones are wiped when they are returned. */
void kv_keyring_wipe(struct kv_keyring *ring);
/* Makes room: closes one scope that nobody borrows, one that was not used lately first. False: all are in use. */
bool kv_keyring_evict(struct kv_keyring *ring);
size_t kv_keyring_count(struct kv_keyring *ring);

/* S of a scope, from its slot secret. The tenant's outer share is absent here: 32 zero bytes and flag 0. */
KV_RC kv_scope_secret(const struct kv_secret *slot, const struct kv_id *tenant, const struct kv_id *scope,
                      struct kv_secret **ret_secret);
KV_RC kv_scope_key_block(const struct kv_secret *scope_secret, struct kv_secret **ret_key);
KV_RC kv_scope_key_ids(const struct kv_secret *scope_secret, struct kv_secret **ret_key);
KV_RC kv_scope_key_meta(const struct kv_secret *scope_secret, struct kv_secret **ret_key);
/* A public name of S: one way, and no other key is derived like it. */
#define KV_SCOPE_FINGERPRINT_BYTES 16
KV_RC kv_scope_fingerprint(const struct kv_secret *scope_secret, uint8_t ret_fingerprint[KV_SCOPE_FINGERPRINT_BYTES]);
/* The key under which a tenant's external ids are looked up, from the secret of its system slot. */
KV_RC kv_tenant_key_lookup(const struct kv_secret *slot, const struct kv_id *tenant, struct kv_secret **ret_key);

#endif

/*
 * Key material. One process-wide arena: locked, guarded by inaccessible pages, left out of core dumps, wiped in a
 * forked child. A secret never leaves it except through the functions of dataplane/crypto. No log field, no text form.
 * memfd_secret(2) where the kernel has it, else mmap and mlock; where locking is refused the arena still works and
 * kv_secret_arena_locked() says so.
 * Rule zero: the arena is process state, not passed in; so is OpenSSL's heap beside it (heap.h), whose hooks take no
 * context.
 */
#ifndef KV_CRYPTO_SECRET_H
#define KV_CRYPTO_SECRET_H

#include "dataplane/base/env.h"

struct kv_secret; /* at most KV_MAX_SECRET_BYTES */

/* Once, before threads start. `bytes` is rounded up to pages; a second call is KV_E_INVALID_STATE. */
KV_RC kv_secret_arena_init(size_t bytes);
void kv_secret_arena_done(void); /* wipes everything */
bool kv_secret_arena_locked(void);
size_t kv_secret_arena_capacity(void); /* secrets that fit; makes the arena when there is none yet; 0: it cannot */
size_t kv_secret_arena_used(void);     /* secrets alive; a test's leak check */
size_t kv_secret_slot_bytes(void);     /* what one takes of it */

/* Owned by the caller. KV_E_NO_MEMORY when the arena is full. Thread: any. */
KV_RC kv_secret_new(size_t len, struct kv_secret **ret_secret); /* zeroed */
KV_RC kv_secret_random(const struct kv_env *env, size_t len, struct kv_secret **ret_secret);
KV_RC kv_secret_copy(const void *bytes, size_t len, struct kv_secret **ret_secret);
void kv_secret_free(struct kv_secret *secret);   /* wipes; NULL is fine */
void kv_secret_freep(struct kv_secret **secret); /* for KV_CLEANUP */

/* Borrowed until the secret is freed. Only dataplane/crypto, dataplane/keys and tests/attack may look. */
const uint8_t *kv_secret_data(const struct kv_secret *secret);
uint8_t *kv_secret_data_mutable(struct kv_secret *secret);
size_t kv_secret_len(const struct kv_secret *secret);

/* Memory for plaintext on its way and for key schedules of ours: whole pages between guard pages, locked where
 * possible, not dumped, wiped when freed. KV_E_NO_MEMORY past KV_MAX_PLAINTEXT_BYTES of them. */
KV_RC kv_locked_alloc(size_t bytes, void **ret_memory);
void kv_locked_free(void *memory, size_t bytes);
size_t kv_locked_used(void); /* bytes */

void kv_wipe(void *memory, size_t len); /* not removed by the optimiser */
/* Wipes what finished calls left of keys and blocks on this thread's stack and in its vector registers; under half a
 * microsecond. Whoever frees a secret or locked memory has done so, and each call of this folder that computes with a
 * key. */
void kv_forget(void);
bool kv_equal_constant_time(const void *a, const void *b, size_t len);

#endif

/*
 * Key material. One process-wide arena: locked, guarded by inaccessible pages, left out of core dumps, wiped in a
 * forked child. A secret never leaves it except through the functions of dataplane/crypto. No log field, no text form.
 * memfd_secret(2) where the kernel has it, else mmap and mlock; where locking is refused the arena still works and
 * kv_secret_arena_locked() says so.
 * Rule zero: the arena is process state, not passed in, because OpenSSL's allocator hooks will need it too.
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

/* Memory for plaintext on its way (staging): whole pages, locked where possible, not dumped, wiped when freed. */
KV_RC kv_locked_alloc(size_t bytes, void **ret_memory);
void kv_locked_free(void *memory, size_t bytes);

void kv_wipe(void *memory, size_t len); /* not removed by the optimiser */
bool kv_equal_constant_time(const void *a, const void *b, size_t len);

#endif

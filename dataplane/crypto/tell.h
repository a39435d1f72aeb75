/*
 * Keys told to a test, which then looks for them where they must not be (tests/attack). In test builds (KV_FAULTS) with
 * KVRUN_TELL_KEYS in the environment each key that comes to be is a line "what owner key" in hex in that file. In any
 * other build there is no such code.
 */
#ifndef KV_CRYPTO_TELL_H
#define KV_CRYPTO_TELL_H

#include "dataplane/base/bytes.h"

#ifdef KV_FAULTS
/* Thread: any. */
void kv_tell_key(const char *what, struct kv_bytes owner, struct kv_bytes key);
#define KV_TELL_KEY(what, owner, key) kv_tell_key((what), (owner), (key))
#else
#define KV_TELL_KEY(what, owner, key) ((void)0)
#endif

#endif

/*
 * OpenSSL's heap. OpenSSL keeps the schedule of a cipher, the states of HMAC and HKDF and the numbers of a signing key
 * in memory of its own; here that memory is left out of core dumps, zero in a forked child, locked while RLIMIT_MEMLOCK
 * lasts, guarded, and wiped when it is freed, whoever in the process freed it.
 */
#ifndef KV_CRYPTO_HEAP_H
#define KV_CRYPTO_HEAP_H

#include "dataplane/base/err.h"

/* The first thing in main: KV_E_INVALID_STATE when OpenSSL has allocated something already, or the second time. From
 * then on everything of OpenSSL in this process lives there, also what libpq and libcurl do with it, up to
 * KV_MAX_CRYPTO_HEAP_BYTES. When that is used up OpenSSL's calls fail, and ours return KV_E_NO_MEMORY. */
KV_RC kv_crypto_heap_init(void);

struct kv_crypto_heap_stats {
    size_t used_bytes;   /* given out, by the size of their places */
    size_t filled_bytes; /* memory taken from the system; it is not given back */
    size_t locked_bytes; /* of that */
    uint64_t refusals;
};

/* All zero without the heap. Thread: any. */
void kv_crypto_heap_stats(struct kv_crypto_heap_stats *ret_stats);

#endif

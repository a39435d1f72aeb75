/*
 * Known answers at start: every primitive and both cipher backends are held to embedded vectors before a key is opened.
 * A failure keeps the server from starting.
 */
#ifndef KV_CRYPTO_SELFTEST_H
#define KV_CRYPTO_SELFTEST_H

#include "dataplane/base/err.h"

KV_RC kv_crypto_selftest(struct kv_errinfo *info);

/* The library that computes, as its version ("3.0.15", OpenSSL): certificates say it. Static text. */
const char *kv_crypto_version(void);

#endif

/*
 * Until when a certificate holds: for checks before a start, not for trust. Thread: any.
 */
#ifndef KV_CRYPTO_X509_H
#define KV_CRYPTO_X509_H

#include "dataplane/base/err.h"

/* The end of the first certificate of a PEM file, in seconds since 1970 UTC. KV_E_IO: cannot be read, KV_E_CORRUPT: no
 * certificate in it. */
KV_RC kv_x509_not_after(const char *path, int64_t *ret_seconds);

#endif

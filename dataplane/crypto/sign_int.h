/* What the key file (sign_file.c) needs of the key itself. */
#ifndef KV_CRYPTO_SIGN_INT_H
#define KV_CRYPTO_SIGN_INT_H

#include "dataplane/crypto/sign.h"

#define KV_SIGN_SEED_BYTES 32u

/* `seed` is taken, also on failure. */
KV_RC kv_sign_key_of(struct kv_secret *seed, struct kv_sign_key **ret_key);

#endif

/*
 * A PKCS #11 token of a test's own: SoftHSM with its objects below the test's folder. Debian: softhsm2.
 */
#ifndef KV_TESTS_SOFT_TOKEN_H
#define KV_TESTS_SOFT_TOKEN_H

#include "dataplane/keys/roe.h"
#include "tests/lib/temp_folder.h"

struct kvt_token {
    char module[KVT_PATH_BYTES];    /* SoftHSM's library */
    char pin_file[KVT_PATH_BYTES];  /* with the user's PIN */
    struct kv_roe_pkcs11_conf conf; /* borrows from here */
};

/* Initialises a token "kvrun-test" in `folder` and points SOFTHSM2_CONF there. False: SoftHSM is not installed. */
bool kvt_token_make(const char *folder, struct kvt_token *ret_token);
/* From now on the token is used through the library of tests/lib/token_shim, which does what KVT_SHIM says. */
void kvt_token_shim(struct kvt_token *token);

#endif

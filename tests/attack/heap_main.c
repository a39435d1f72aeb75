/*
 * OpenSSL at work in its heap: a program of its own, because Criterion's library uses OpenSSL before main. Exit status
 * 0: all of it holds; otherwise the first thing that does not is named.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataplane/base/fault.h"
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/heap_int.h"
#include "dataplane/crypto/kdf.h"
#include "dataplane/crypto/selftest.h"

#define MUST(condition)                                                     \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

static size_t used(void)
{
    struct kv_crypto_heap_stats stats;
    kv_crypto_heap_stats(&stats);
    return stats.used_bytes;
}

/* Contexts of a call are gone with it. */
static void keeps_nothing_of_a_call(void)
{
    struct kv_errinfo info = {0};
    MUST(kv_crypto_selftest(&info) == KV_OK);
    size_t before = used();
    MUST(before > 0);
    MUST(kv_crypto_selftest(&info) == KV_OK);
    MUST(used() == before);
}

#ifdef KV_FAULTS
/* Each allocation of a derivation fails once: an error, no crash, no key left, and the next call works. */
static void survives_a_failed_allocation(void)
{
    struct kv_secret *key = NULL, *derived = NULL;
    uint8_t mac[32];
    unsigned failed = 0;
    MUST(kv_secret_copy("sixteen byte key", 16, &key) == KV_OK);
    for (unsigned nth = 1; nth < 60; nth++) {
        char spec[64];
        snprintf(spec, sizeof spec, "crypto/heap=fail@%uonce", nth);
        kv_fault_set(spec);
        enum kv_err rc = kv_kdf_derive(key, "test", NULL, 0, 32, &derived);
        kv_fault_set(NULL);
        MUST(rc == KV_OK || rc == KV_E_NO_MEMORY);
        failed += rc != KV_OK ? 1 : 0;
        kv_secret_freep(&derived);
        MUST(kv_hmac_sha256(key, NULL, 0, mac) == KV_OK);
    }
    MUST(failed > 3);
    kv_secret_free(key);
    MUST(kv_secret_arena_used() == 0);
}
#else
static void survives_a_failed_allocation(void)
{
}
#endif

int main(int argc, char **argv)
{
    uint8_t hash[32];
    if (argc == 2 && strcmp(argv[1], "late") == 0) {
        MUST(kv_sha256(KV_BYTES("x", 1), hash) == KV_OK);
        MUST(kv_crypto_heap_init() == KV_E_INVALID_STATE);
        return 0;
    }
    MUST(used() == 0);
    MUST(kv_crypto_heap_init() == KV_OK);
    MUST(kv_crypto_heap_init() == KV_E_INVALID_STATE);
    keeps_nothing_of_a_call();
    survives_a_failed_allocation();
    return 0;
}

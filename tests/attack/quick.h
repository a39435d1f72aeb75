/*
 * Trying one secret on one envelope in about a microsecond: whether the beginning of the commitment comes out. Who gets
 * a yes opens the envelope in earnest. Derivations are those of dataplane/crypto and dataplane/keys/scope.c, written
 * anew.
 */
#ifndef KV_ATTACK_QUICK_H
#define KV_ATTACK_QUICK_H

#include "dataplane/base/bytes.h"
#include "dataplane/crypto/sealed.h"

#define QUICK_CONTEXT_BYTES 117

struct quick_key { /* an HMAC-SHA512 key, as the states after its two pads */
    uint64_t inner[8], outer[8];
};

struct quick_target { /* what is hashed for one envelope, and what has to come out */
    uint8_t blocks[256], commitment[20];
};

void quick_key_of(const uint8_t *key, size_t len, struct quick_key *ret_key); /* at most 128 bytes */
/* The context as the header itself has it. */
void quick_context_of(const uint8_t header[KV_SEALED_FIXED_BYTES], uint8_t ret_context[QUICK_CONTEXT_BYTES]);
void quick_target_of(const uint8_t header[KV_SEALED_FIXED_BYTES], const uint8_t context[QUICK_CONTEXT_BYTES],
                     struct quick_target *ret_target);
bool quick_opens(const struct quick_key *key, const struct quick_target *target);

/* From a slot's secret to a scope's block key, in steps: the first is the same for all scopes. */
void quick_slot_of(const uint8_t secret[32], struct quick_key *ret_prk);
void quick_scope_secret(const struct quick_key *slot_prk, const struct kv_id *tenant, const struct kv_id *scope,
                        uint8_t ret_secret[32]);
void quick_block_key(const uint8_t scope_secret[32], uint8_t ret_key[32]);

#endif

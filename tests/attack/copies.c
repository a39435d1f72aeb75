/*
 * Opening copies. "Opened" means that every byte of the plaintext was there; a header that matches is not enough.
 */
#include "tests/attack/copies.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/keyring.h"

#include <stdlib.h>
#include <string.h>

KV_RC opener_init(struct opener *opener, const struct loot *loot, const struct reach *reach)
{
    *opener = (struct opener){.loot = loot, .reach = reach};
    return kv_sealer_new(KV_CIPHER_OPENSSL, &opener->sealer);
}

void opener_done(struct opener *opener)
{
    for (size_t i = 0; i < opener->scope_count; i++) {
        kv_wipe(opener->scopes[i].candidates, opener->reach->count * sizeof(*opener->scopes[i].candidates));
        kv_free(opener->scopes[i].candidates);
    }
    kv_free(opener->scopes);
    kv_sealer_free(opener->sealer);
    *opener = (struct opener){0};
}

static KV_RC derive_block_key(const uint8_t slot[32], const struct scope_keys *scope, uint8_t ret_key[32])
{
    struct kv_secret *secret KV_CLEANUP(kv_secret_freep) = NULL;
    struct kv_secret *scope_secret KV_CLEANUP(kv_secret_freep) = NULL;
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_secret_copy(slot, 32, &secret));
    KV_TRY(kv_scope_secret(secret, &scope->tenant, &scope->scope, &scope_secret));
    KV_TRY(kv_scope_key_block(scope_secret, &key));
    memcpy(ret_key, kv_secret_data(key), 32);
    return KV_OK;
}

static struct scope_keys *add_scope(struct opener *opener, const struct kv_id *tenant, const struct kv_id *id)
{
    struct scope_keys scope = {.tenant = *tenant, .scope = *id};
    scope.candidates = kv_alloc_array(opener->reach->count + 1, sizeof(*scope.candidates));
    struct scope_keys *grown = kv_realloc_array(opener->scopes, opener->scope_count + 1, sizeof(*opener->scopes));
    if (scope.candidates == NULL || grown == NULL) {
        abort();
    }
    opener->scopes = grown;
    opener->scopes[opener->scope_count] = scope;
    return &opener->scopes[opener->scope_count++];
}

static struct scope_keys *keys_of(struct opener *opener, const struct kv_id *tenant, const struct kv_id *scope)
{
    for (size_t i = 0; i < opener->scope_count; i++) {
        if (kv_id_equal(&opener->scopes[i].scope, scope) && kv_id_equal(&opener->scopes[i].tenant, tenant)) {
            return &opener->scopes[i];
        }
    }
    return add_scope(opener, tenant, scope);
}

static bool open_whole(struct opener *opener, const uint8_t key_bytes[32], const struct kv_sealed_context *context,
                       struct kv_bytes sealed)
{
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    if (kv_secret_copy(key_bytes, 32, &key) != KV_OK) {
        abort();
    }
    if (kv_sealed_check(key, context, sealed) != KV_OK || context->plaintext_length > (uint64_t)KV_MAX_BLOCK_BYTES) {
        return false;
    }
    size_t len = context->plaintext_length > 0 ? (size_t)context->plaintext_length : 1;
    void *staging = NULL;
    uint8_t *plain = kv_alloc(len);
    bool opened = false;
    if (plain != NULL && kv_locked_alloc(len, &staging) == KV_OK) {
        const struct kv_segment target = {.data = plain, .len = (size_t)context->plaintext_length};
        opened =
            kv_sealed_open(opener->sealer, key, context, sealed.data, sealed.len, staging, len, &target, 1) == KV_OK;
    }
    kv_locked_free(staging, len);
    kv_free(plain);
    return opened;
}

static bool try_candidate(struct opener *opener, struct scope_keys *scope, size_t index,
                          const struct kv_sealed_context *context, struct kv_bytes sealed)
{
    struct candidate *candidate = &scope->candidates[index];
    if (!candidate->derived && derive_block_key(opener->reach->secrets[index].bytes, scope, candidate->key) != KV_OK) {
        abort();
    }
    candidate->derived = true;
    if (!open_whole(opener, candidate->key, context, sealed)) {
        return false;
    }
    scope->good = index;
    return true;
}

/* The tenant's own slots first, then every other secret that was reached. */
static bool try_scope(struct opener *opener, struct scope_keys *scope, const struct kv_sealed_context *context,
                      struct kv_bytes sealed)
{
    const struct reach *reach = opener->reach;
    if (scope->good < reach->count && try_candidate(opener, scope, scope->good, context, sealed)) {
        return true;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < reach->count; i++) {
            bool own = reach->secrets[i].of.level == 0 && kv_id_equal(&reach->secrets[i].of.tree, &scope->tenant);
            if (own == (pass == 0) && try_candidate(opener, scope, i, context, sealed)) {
                return true;
            }
        }
    }
    return false;
}

bool opener_try(struct opener *opener, const struct kv_id *scope, struct kv_bytes sealed)
{
    struct kv_sealed_context context;
    if (kv_sealed_peek(sealed, &context) != KV_OK) {
        return false;
    }
    if (try_scope(opener, keys_of(opener, &context.tenant, &context.scope), &context, sealed)) {
        return true;
    }
    /* The header and the index, or the session's row, may disagree: then the other spelling is tried, too. */
    const struct loot_session *session = loot_session_find(opener->loot, scope);
    const struct kv_id *tenant = session != NULL ? &session->tenant : &context.tenant;
    if (kv_id_equal(scope, &context.scope) && kv_id_equal(tenant, &context.tenant)) {
        return false;
    }
    return try_scope(opener, keys_of(opener, tenant, scope), &context, sealed);
}

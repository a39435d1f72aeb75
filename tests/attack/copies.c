/*
 * Opening copies. "Opened" means that every byte of the plaintext was there; a header that matches is not enough.
 */
#include "tests/attack/copies.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <stdlib.h>
#include <string.h>

KV_RC opener_init(struct opener *opener, const struct loot *loot, const struct reach *reach)
{
    *opener = (struct opener){.loot = loot, .reach = reach, .loosely = true};
    opener->keys.derived = kv_alloc_array(reach->count + 1, sizeof(*opener->keys.derived));
    opener->keys.block_key = kv_alloc_array(reach->count + 1, sizeof(*opener->keys.block_key));
    opener->slot_prk = kv_alloc_array(reach->count + 1, sizeof(*opener->slot_prk));
    if (opener->keys.derived == NULL || opener->keys.block_key == NULL || opener->slot_prk == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < reach->count; i++) {
        quick_slot_of(reach->secrets[i].bytes, &opener->slot_prk[i]);
    }
    return kv_sealer_new(KV_CIPHER_OPENSSL, &opener->sealer);
}

static void free_keys(struct quick_key *keys, size_t count)
{
    if (keys != NULL) {
        kv_wipe(keys, count * sizeof(*keys));
    }
    kv_free(keys);
}

void opener_done(struct opener *opener)
{
    size_t count = opener->reach != NULL ? opener->reach->count : 0;
    free_keys(opener->keys.block_key, count);
    free_keys(opener->slot_prk, count);
    kv_free(opener->keys.derived);
    kv_sealer_free(opener->sealer);
    *opener = (struct opener){0};
}

static void turn_to(struct opener *opener, const struct kv_id *tenant, const struct kv_id *scope)
{
    struct scope_keys *keys = &opener->keys;
    if (!kv_id_equal(&keys->scope, scope) || !kv_id_equal(&keys->tenant, tenant)) {
        keys->tenant = *tenant;
        keys->scope = *scope;
        keys->good = opener->reach->count;
        memset(keys->derived, 0, opener->reach->count * sizeof(*keys->derived));
    }
}

/* --- one key --------------------------------------------------------------------------------------------------------
 */

struct
try {
    struct opener *opener;
    struct kv_sealed_context context;
    struct kv_bytes sealed;
    struct quick_target target;
};

static bool open_whole(const struct try *try, const uint8_t key_bytes[32])
{
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    const struct kv_sealed_context *context = &try->context;
    if (kv_secret_copy(key_bytes, 32, &key) != KV_OK) {
        abort();
    }
    if (kv_sealed_check(key, context, try->sealed) != KV_OK ||
        context->plaintext_length > (uint64_t)KV_MAX_BLOCK_BYTES) {
        return false;
    }
    size_t len = context->plaintext_length > 0 ? (size_t)context->plaintext_length : 1;
    void *staging = NULL;
    uint8_t *plain = kv_alloc(len);
    bool opened = false;
    if (plain != NULL && kv_locked_alloc(len, &staging) == KV_OK) {
        const struct kv_segment target = {.data = plain, .len = (size_t)context->plaintext_length};
        opened = kv_sealed_open(try->opener->sealer, key, context, try->sealed.data, try->sealed.len, staging, len,
                                &target, 1) == KV_OK;
    }
    kv_locked_free(staging, len);
    kv_free(plain);
    return opened;
}

static bool try_key(const struct try *try, const struct quick_key *key, const uint8_t bytes[32])
{
    try->opener->tries++;
    return quick_opens(key, &try->target) && open_whole(try, bytes);
}

static void block_key_of(const struct opener *opener, size_t index, uint8_t ret_key[32])
{
    uint8_t scope_secret[32];
    quick_scope_secret(&opener->slot_prk[index], &opener->keys.tenant, &opener->keys.scope, scope_secret);
    quick_block_key(scope_secret, ret_key);
}

/* The secret as that of the slot. */
static bool try_slot(const struct try *try, size_t index)
{
    struct opener *opener = try->opener;
    uint8_t key[32];
    if (!opener->keys.derived[index]) {
        block_key_of(opener, index, key);
        quick_key_of(key, sizeof(key), &opener->keys.block_key[index]);
        opener->keys.derived[index] = true;
    }
    opener->tries++;
    if (!quick_opens(&opener->keys.block_key[index], &try->target)) {
        return false;
    }
    block_key_of(opener, index, key);
    return open_whole(try, key);
}

/* The secret as the block key itself, and as the scope's. */
static bool try_below(const struct try *try, size_t index)
{
    const struct reached_secret *secret = &try->opener->reach->secrets[index];
    struct quick_key key;
    uint8_t bytes[32];
    if (try_key(try, &secret->key, secret->bytes)) {
        return true;
    }
    quick_block_key(secret->bytes, bytes);
    quick_key_of(bytes, sizeof(bytes), &key);
    return try_key(try, &key, bytes);
}

/* --- all of them ----------------------------------------------------------------------------------------------------
 */

/* How likely a secret is the scope's: its very slot, a slot of its tenant, anything in the tree, anything in memory. */
enum pass { SAME_SLOT, SAME_TENANT, ANY_PLACE, LOOSE, PASSES };

static enum pass pass_of(const struct scope_keys *keys, const struct loot_session *session,
                         const struct reached_secret *secret)
{
    if (secret->of.level == REACH_LOOSE_LEVEL) {
        return LOOSE;
    }
    if (secret->of.level != 0 || !kv_id_equal(&secret->of.tree, &keys->tenant)) {
        return ANY_PLACE;
    }
    return session != NULL && session->slot == (int64_t)secret->of.idx * KV_TREE_FANOUT + secret->child ? SAME_SLOT
                                                                                                        : SAME_TENANT;
}

static bool try_secret(const struct try *try, enum pass pass, size_t index)
{
    return try_slot(try, index) || (pass == LOOSE && try_below(try, index));
}

static bool try_scope(const struct try *try, const struct kv_id *tenant, const struct kv_id *scope)
{
    struct opener *opener = try->opener;
    turn_to(opener, tenant, scope);
    const struct loot_session *session = loot_session_find(opener->loot, scope);
    size_t count = opener->reach->count;
    if (opener->keys.good < count && try_secret(try, LOOSE, opener->keys.good)) {
        return true;
    }
    for (enum pass pass = SAME_SLOT; pass < PASSES; pass++) {
        for (size_t i = 0; i < count && (pass != LOOSE || opener->loosely); i++) {
            if (pass_of(&opener->keys, session, &opener->reach->secrets[i]) == pass && try_secret(try, pass, i)) {
                opener->keys.good = i;
                return true;
            }
        }
    }
    return false;
}

bool opener_try(struct opener *opener, const struct kv_id *scope, struct kv_bytes sealed)
{
    struct try try = {.opener = opener, .sealed = sealed};
    uint8_t context[QUICK_CONTEXT_BYTES];
    if (kv_sealed_peek(sealed, &try.context) != KV_OK) {
        return false;
    }
    quick_context_of(sealed.data, context);
    quick_target_of(sealed.data, context, &try.target);
    if (try_scope(&try, &try.context.tenant, &try.context.scope)) {
        return true;
    }
    /* The header and the index, or the session's row, may disagree: then the other spelling is tried, too. */
    const struct loot_session *session = loot_session_find(opener->loot, scope);
    const struct kv_id *tenant = session != NULL ? &session->tenant : &try.context.tenant;
    if (kv_id_equal(scope, &try.context.scope) && kv_id_equal(tenant, &try.context.tenant)) {
        return false;
    }
    return try_scope(&try, tenant, scope);
}

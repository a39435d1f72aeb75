/*
 * The attack's own derivations against the product's: whoever tries keys with others tries nothing.
 */
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"
#include "dataplane/keys/keyring.h"
#include "tests/attack/quick.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

TestSuite(attack_quick);

static void random_bytes(void *bytes, size_t len)
{
    cr_assert(eq(int, kv_env_system.random(NULL, bytes, len), KV_OK));
}

static struct kv_sealed_context random_context(uint64_t length)
{
    struct kv_sealed_context context;
    random_bytes(&context, sizeof(context));
    context.kind = KV_SEALED_BLOCK;
    context.plaintext_length = length;
    return context;
}

/* Seals `length` bytes, and looks at the header with the right key and with one that is off by a bit. */
static void compare(uint64_t length)
{
    const struct kv_sealed_context context = random_context(length);
    struct kv_sealer *sealer = NULL;
    struct kv_secret *key = NULL;
    struct kv_buf sealed;
    struct quick_key quick;
    struct quick_target target;
    uint8_t bytes[32], context_bytes[QUICK_CONTEXT_BYTES];
    void *plain = kv_alloc((size_t)length + 1);
    cr_assert(plain != NULL);
    random_bytes(bytes, sizeof(bytes));
    cr_assert(eq(int, kv_secret_copy(bytes, sizeof(bytes), &key), KV_OK));
    cr_assert(eq(int, kv_sealer_new(KV_CIPHER_OPENSSL, &sealer), KV_OK));
    kv_buf_init(&sealed, kv_sealed_compact_bytes(length));
    cr_assert(eq(int, kv_sealed_seal_flat(sealer, &kv_env_system, key, &context, plain, &sealed), KV_OK));
    quick_context_of(sealed.data, context_bytes);
    quick_target_of(sealed.data, context_bytes, &target);
    quick_key_of(bytes, sizeof(bytes), &quick);
    cr_assert(quick_opens(&quick, &target));
    bytes[31] ^= 1;
    quick_key_of(bytes, sizeof(bytes), &quick);
    cr_assert_not(quick_opens(&quick, &target));
    bytes[31] ^= 1;
    sealed.data[152 + 19] ^= 1; /* the last byte of the commitment that is looked at */
    quick_key_of(bytes, sizeof(bytes), &quick);
    quick_target_of(sealed.data, context_bytes, &target);
    cr_assert_not(quick_opens(&quick, &target));
    kv_buf_done(&sealed);
    kv_sealer_free(sealer);
    kv_secret_free(key);
    kv_free(plain);
}

Test(attack_quick, opens_what_the_product_sealed_and_nothing_else)
{
    compare(0);
    compare(1);
    compare(20000);
}

Test(attack_quick, derives_the_block_key_that_the_product_derives)
{
    struct kv_id tenant, scope;
    struct kv_secret *slot = NULL, *secret = NULL, *key = NULL;
    struct quick_key prk;
    uint8_t bytes[32], scope_secret[32], block_key[32];
    random_bytes(bytes, sizeof(bytes));
    random_bytes(&tenant, sizeof(tenant));
    random_bytes(&scope, sizeof(scope));
    cr_assert(eq(int, kv_secret_copy(bytes, sizeof(bytes), &slot), KV_OK));
    cr_assert(eq(int, kv_scope_secret(slot, &tenant, &scope, &secret), KV_OK));
    cr_assert(eq(int, kv_scope_key_block(secret, &key), KV_OK));
    quick_slot_of(bytes, &prk);
    quick_scope_secret(&prk, &tenant, &scope, scope_secret);
    quick_block_key(scope_secret, block_key);
    cr_assert(memcmp(scope_secret, kv_secret_data(secret), 32) == 0);
    cr_assert(memcmp(block_key, kv_secret_data(key), 32) == 0);
    kv_secret_free(slot);
    kv_secret_free(secret);
    kv_secret_free(key);
}

/* HKDF-Expand with what was computed from the key kept, against OpenSSL's own, and what it keeps. */
#include "dataplane/crypto/kdf_int.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <string.h>

#include "dataplane/base/fault.h"

#define PAGE 4096u

static struct kv_expander *new_expander(void)
{
    struct kv_expander *expander = NULL;
    cr_assert(eq(int, kv_expander_new(&expander), KV_OK));
    return expander;
}

static void compare(struct kv_expander *expander, struct kv_bytes prk, struct kv_bytes info, size_t len)
{
    static uint8_t kept[255 * 64 + 1], plain[255 * 64 + 1];
    memset(kept, 0xa5, sizeof kept);
    cr_assert(eq(int, kv_expander_expand(expander, prk, info, kept, len), KV_OK));
    cr_assert(eq(int, kv_hkdf_expand_sha512(prk, info, plain, len), KV_OK));
    cr_assert(memcmp(kept, plain, len) == 0, "key of %zu, info of %zu, %zu bytes", prk.len, info.len, len);
    cr_assert(eq(int, kept[len], 0xa5));
}

Test(expand, agrees_with_the_library_whatever_key_was_before)
{
    static const size_t lens[] = {1, 63, 64, 65, 76, 128, 129, 255 * 64}, infos[] = {0, 1, 189, 1024};
    struct kv_expander *expander = new_expander();
    uint8_t keys[3][64], info[1024];
    memset(info, 0x5c, sizeof info);
    for (unsigned i = 0; i < 3; i++) {
        memset(keys[i], (int)i + 1, sizeof keys[i]);
    }
    for (unsigned i = 0; i < 8; i++) {
        for (unsigned k = 0; k < 4; k++) {
            compare(expander, KV_BYTES(keys[0], 32), KV_BYTES(info, infos[k]), lens[i]);
            compare(expander, KV_BYTES(keys[0], 32), KV_BYTES(info, infos[k]), lens[i]); /* kept */
            compare(expander, KV_BYTES(keys[1], 32), KV_BYTES(info, infos[k]), lens[i]); /* another key */
            compare(expander, KV_BYTES(keys[1], 31), KV_BYTES(info, infos[k]), lens[i]); /* its beginning */
            compare(expander, KV_BYTES(keys[2], 64), KV_BYTES(info, infos[k]), lens[i]);
        }
        kv_expander_forget(expander);
    }
    kv_expander_free(expander);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
}

Test(expand, keeps_one_key_until_it_is_forgotten)
{
    struct kv_expander *expander = new_expander();
    uint8_t a[32] = {1}, b[32] = {2}, out[76];
    struct kv_bytes info = KV_BYTES("x", 1);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
    kv_expander_forget(expander);
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(a, 32), info, out, sizeof out), KV_OK));
    cr_assert(eq(sz, kv_secret_arena_used(), 1));
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(b, 32), info, out, sizeof out), KV_OK));
    cr_assert(eq(sz, kv_secret_arena_used(), 1));
    kv_expander_forget(expander);
    cr_assert(eq(sz, kv_secret_arena_used(), 0));
    kv_expander_free(expander);
    kv_expander_free(NULL);
}

Test(expand, sizes_are_bounded)
{
    static uint8_t key[65], out[255 * 64 + 1];
    struct kv_expander *expander = new_expander();
    struct kv_bytes info = KV_BYTES("x", 1);
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(key, 32), info, out, 0), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(key, 0), info, out, 1), KV_E_INVALID_REQUEST));
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(key, 64), info, out, 255 * 64), KV_OK));
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(key, 65), info, out, 1), KV_E_LIMIT));
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(key, 64), info, out, 255 * 64 + 1), KV_E_LIMIT));
    kv_expander_free(expander);
}

/* The arena is full: the key is not taken, and what was kept before is gone, too. */
Test(expand, no_room_for_the_key_is_an_error_and_passes)
{
    struct kv_expander *expander = NULL;
    static struct kv_secret *all[PAGE];
    uint8_t key[32] = {1}, out[64];
    struct kv_bytes info = KV_BYTES("x", 1);
    size_t count = 0;
    kv_fault_set("base/mem=fail@1");
    cr_assert(eq(int, kv_expander_new(&expander), KV_E_NO_MEMORY));
    kv_fault_set(NULL);
    cr_assert(eq(int, kv_secret_arena_init(PAGE), KV_OK));
    expander = new_expander();
    while (kv_secret_new(32, &all[count]) == KV_OK) {
        count++;
    }
    cr_assert(ge(sz, count, 1));
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(key, 32), info, out, sizeof out), KV_E_NO_MEMORY));
    kv_secret_free(all[0]);
    cr_assert(eq(int, kv_expander_expand(expander, KV_BYTES(key, 32), info, out, sizeof out), KV_OK));
    kv_expander_free(expander);
}

/* The text of API keys, see key_text.h. Must never leave a secret in memory but in what the caller gets. */
#include "server/service/key_text.h"

#include "dataplane/crypto/hash.h"

#include <stdio.h>
#include <string.h>

#define KEY_PREFIX "kvrun_live_"
#define KID_LEN (KV_API_KID_SIZE - 1)
#define SECRET_LEN 43
#define CRC_LEN 6
#define KEY_LEN (sizeof KEY_PREFIX - 1 + KID_LEN + 1 + SECRET_LEN + 1 + CRC_LEN)

static const char base62[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

static void check_characters(const char *text, size_t len, char crc[CRC_LEN + 1])
{
    uint32_t value = kv_crc32(text, len);
    for (int i = CRC_LEN - 1; i >= 0; i--) {
        crc[i] = base62[value % 62];
        value /= 62;
    }
    crc[CRC_LEN] = '\0';
}

static KV_RC random_base62(const struct kv_env *env, char *text, size_t len)
{
    size_t have = 0;
    while (have < len) {
        uint8_t bytes[64];
        KV_TRY(env->random(env->ctx, bytes, sizeof bytes));
        for (size_t i = 0; i < sizeof bytes && have < len; i++) {
            if (bytes[i] < 248) { /* 4 * 62: no bias */
                text[have++] = base62[bytes[i] % 62];
            }
        }
        kv_wipe(bytes, sizeof bytes);
    }
    text[len] = '\0';
    return KV_OK;
}

KV_RC svc_key_parse(const char *text, struct svc_key_parts *ret_parts)
{
    size_t prefix = sizeof KEY_PREFIX - 1;
    if (strnlen(text, KEY_LEN + 1) != KEY_LEN || memcmp(text, KEY_PREFIX, prefix) != 0) {
        return KV_E_UNAUTHENTICATED;
    }
    const char *kid = text + prefix, *secret = kid + KID_LEN + 1, *crc = secret + SECRET_LEN + 1;
    char expected[CRC_LEN + 1];
    check_characters(text, KEY_LEN - CRC_LEN - 1, expected);
    if (kid[KID_LEN] != '_' || secret[SECRET_LEN] != '_' || memcmp(crc, expected, CRC_LEN) != 0 ||
        strspn(kid, base62) != KID_LEN || strspn(secret, base62) != SECRET_LEN) {
        return KV_E_UNAUTHENTICATED;
    }
    memcpy(ret_parts->kid, kid, KID_LEN);
    ret_parts->kid[KID_LEN] = '\0';
    return kv_sha256(KV_BYTES(secret, SECRET_LEN), ret_parts->secret_sha256);
}

KV_RC svc_key_draw_kid(const struct kv_env *env, char ret_kid[KV_API_KID_SIZE])
{
    return random_base62(env, ret_kid, KID_LEN);
}

KV_RC svc_key_draw_secret(const struct kv_env *env, const char *kid, uint8_t ret_sha256[32],
                          char ret_text[SVC_KEY_TEXT_SIZE])
{
    char secret[SECRET_LEN + 1], crc[CRC_LEN + 1];
    KV_TRY(random_base62(env, secret, SECRET_LEN));
    enum kv_err rc = kv_sha256(KV_BYTES(secret, SECRET_LEN), ret_sha256);
    int len = snprintf(ret_text, SVC_KEY_TEXT_SIZE, "%s%s_%s", KEY_PREFIX, kid, secret);
    kv_wipe(secret, sizeof secret);
    check_characters(ret_text, (size_t)len, crc);
    snprintf(ret_text + len, SVC_KEY_TEXT_SIZE - (size_t)len, "_%s", crc);
    return rc;
}

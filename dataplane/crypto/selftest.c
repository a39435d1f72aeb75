/*
 * Known answers. They are few and short on purpose: the point is to notice, before a key is opened, a library that is
 * broken, wrongly linked, or chosen for a processor that it does not fit. The large sets are in the tests.
 */
#include "dataplane/crypto/selftest.h"
#include "dataplane/crypto/hash.h"
#include "dataplane/crypto/kdf.h"
#include "dataplane/crypto/sealed.h"
#include "dataplane/crypto/sign.h"

#include <string.h>

/* `text` is lower-case hex of exactly `len` bytes. */
static bool matches_hex(const void *data, size_t len, const char *text)
{
    uint8_t expected[128];
    return len <= sizeof expected && kv_hex_decode(text, expected, len) == KV_OK && memcmp(data, expected, len) == 0;
}

/* FIPS 180-4, "abc". */
static KV_RC test_sha256(void)
{
    uint8_t hash[32];
    KV_TRY(kv_sha256(KV_BYTES("abc", 3), hash));
    return matches_hex(hash, sizeof hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
               ? KV_OK
               : KV_E_CRYPTO;
}

/* RFC 4231, test case 2. */
static KV_RC test_hmac(void)
{
    uint8_t mac[32];
    const struct kv_bytes parts[] = {KV_BYTES("what do ya want ", 16), KV_BYTES("for nothing?", 12)};
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_secret_copy("Jefe", 4, &key));
    KV_TRY(kv_hmac_sha256(key, parts, 2, mac));
    return matches_hex(mac, sizeof mac, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843")
               ? KV_OK
               : KV_E_CRYPTO;
}

/* Wycheproof, hkdf_sha512, case 11. */
static KV_RC test_hkdf(void)
{
    uint8_t ikm[16], salt[16], info[20], okm[42];
    KV_TRY(kv_hex_decode("0cbd136d66d15a4ffefde1303b430821", ikm, sizeof ikm));
    KV_TRY(kv_hex_decode("2614d80275b08a1cf90bae0eb607d4d5", salt, sizeof salt));
    KV_TRY(kv_hex_decode("ee991de21aeb6baa6a5f683dbb755e6f80db1c1d", info, sizeof info));
    KV_TRY(kv_hkdf_sha512(KV_BYTES(salt, sizeof salt), KV_BYTES(ikm, sizeof ikm), KV_BYTES(info, sizeof info), okm,
                          sizeof okm));
    return matches_hex(okm, sizeof okm,
                       "e51c3bfe5f4e9b4fb0d3c3a67bb33a20c288800e03707621cf143e8581d422dfec3fe658ba8fa2e35c2c")
               ? KV_OK
               : KV_E_CRYPTO;
}

static KV_RC check_signature(const struct kv_sign_key *key)
{
    uint8_t public_key[32], signature[64];
    struct kv_bytes empty = KV_BYTES(NULL, 0);
    kv_sign_public(key, public_key);
    KV_TRY(kv_sign(key, empty, signature));
    KV_TRY(kv_verify(public_key, empty, KV_BYTES(signature, sizeof signature)));
    bool same =
        matches_hex(public_key, 32, "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a") &&
        matches_hex(signature, 64,
                    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
                    "b46bd25bf5f0595bbe24655141438e7a100b");
    signature[0] ^= 1;
    bool refused = kv_verify(public_key, empty, KV_BYTES(signature, sizeof signature)) == KV_E_TAMPERED;
    return same && refused ? KV_OK : KV_E_CRYPTO;
}

/* RFC 8032, section 7.1, test 1. */
static KV_RC test_ed25519(void)
{
    uint8_t seed[32];
    struct kv_sign_key *key = NULL;
    KV_TRY(kv_hex_decode("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", seed, sizeof seed));
    KV_TRY(kv_sign_key_from_seed(seed, &key));
    enum kv_err rc = check_signature(key);
    kv_sign_key_free(key);
    return rc;
}

/* Wycheproof, chunked encryption with AES-256-GCM, case 9. */
static const char stream_key[] = "59454c4c4f57205355424d4152494e452059454c4c4f57205355424d4152494e";
static const char stream_bytes[] = "dbedaefc1c35dc6c0f22b743b03e488747166a51f33479e7ceb8b7e11cc0d2710f624a127501bc4a"
                                   "ea7d0af6f83cfe359b9e69415aa537f36adf86eb35b070475baa039bb7791432adbca49578bbd3";

enum { STREAM_LEN = 79, STREAM_TEXT_AT = 56 };

static KV_RC open_stream(struct kv_sealer *sealer, const uint8_t stream[STREAM_LEN], struct kv_buf *ret_plaintext)
{
    uint8_t key[32];
    KV_TRY(kv_hex_decode(stream_key, key, sizeof key));
    return kv_chunked_open(sealer, KV_BYTES(key, sizeof key), KV_BYTES("test context", 12),
                           KV_BYTES(stream, STREAM_LEN), ret_plaintext);
}

static KV_RC check_stream(struct kv_sealer *sealer, struct kv_buf *plaintext)
{
    uint8_t stream[STREAM_LEN], hash[32];
    KV_TRY(kv_hex_decode(stream_bytes, stream, sizeof stream));
    KV_TRY(open_stream(sealer, stream, plaintext));
    KV_TRY(kv_sha256(kv_buf_bytes(plaintext), hash));
    if (!matches_hex(hash, sizeof hash, "59fdd34a0b323f6044e147b843d8ca246a9414d2c7a06c8e95a7e04c3cdaf395")) {
        return KV_E_CRYPTO;
    }
    stream[STREAM_TEXT_AT] ^= 1;
    if (open_stream(sealer, stream, plaintext) != KV_E_TAMPERED) {
        return KV_E_CRYPTO;
    }
    stream[STREAM_TEXT_AT] ^= 1;
    stream[STREAM_TEXT_AT - 1] ^= 1; /* the commitment's last byte */
    return open_stream(sealer, stream, plaintext) == KV_E_WRONG_KEY ? KV_OK : KV_E_CRYPTO;
}

/* Seals with the backend, so that the other direction is exercised, too. */
static KV_RC check_round_trip(struct kv_sealer *sealer, struct kv_buf *sealed)
{
    static const uint8_t plaintext[40] = "forty bytes that are of no consequence";
    static const struct kv_sealed_context context = {.kind = KV_SEALED_META, .plaintext_length = sizeof plaintext};
    uint8_t opened[sizeof plaintext] = {0};
    struct kv_secret *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_secret_new(32, &key));
    KV_TRY(kv_sealed_seal_flat(sealer, &kv_env_system, key, &context, plaintext, sealed));
    KV_TRY(kv_sealed_open_flat(sealer, key, &context, kv_buf_bytes(sealed), opened, sizeof opened));
    return memcmp(opened, plaintext, sizeof opened) == 0 ? KV_OK : KV_E_CRYPTO;
}

static KV_RC test_backend(enum kv_cipher_backend backend)
{
    struct kv_sealer *sealer = NULL;
    struct kv_buf buf;
    enum kv_err rc = kv_sealer_new(backend, &sealer);
    if (rc != KV_OK) {
        return rc;
    }
    kv_buf_init(&buf, 4096);
    rc = check_stream(sealer, &buf);
    if (rc == KV_OK) {
        kv_buf_reset(&buf);
        rc = check_round_trip(sealer, &buf);
    }
    kv_buf_done(&buf);
    kv_sealer_free(sealer);
    return rc;
}

static KV_RC test_openssl(void)
{
    return test_backend(KV_CIPHER_OPENSSL);
}

static KV_RC test_ipsec_mb(void)
{
    enum kv_err rc = test_backend(KV_CIPHER_IPSEC_MB);
    return rc == KV_E_UNSUPPORTED ? KV_OK : rc;
}

KV_RC kv_crypto_selftest(struct kv_errinfo *info)
{
    static const struct {
        const char *name;
        KV_RC (*run)(void);
    } tests[] = {
        {"SHA-256", test_sha256},
        {"HMAC-SHA-256", test_hmac},
        {"HKDF-SHA-512", test_hkdf},
        {"Ed25519", test_ed25519},
        {"AES-256-GCM (OpenSSL)", test_openssl},
        {"AES-256-GCM (ipsec-mb)", test_ipsec_mb},
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        enum kv_err rc = tests[i].run();
        if (rc == KV_E_NO_MEMORY) {
            return kv_fail(info, rc, "no memory for the self-test of %s", tests[i].name);
        }
        if (rc != KV_OK) {
            return kv_fail(info, KV_E_CRYPTO, "self-test of %s failed: do not run on this machine or library",
                           tests[i].name);
        }
    }
    return KV_OK;
}

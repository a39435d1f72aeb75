/*
 * The proof of the demo: fetches the certificate and lets openssl and kv-verify judge it, in files that stay for the
 * reader.
 */
#include "server/demo_int.h"

#include <stdio.h>
#include <string.h>

/* --- the certificate ------------------------------------------------------------------------------------------ */

static KV_RC fetch(struct demo *demo, const char *path, const char *key, const char *accept, const char *name)
{
    char target[PATH_SIZE];
    KV_TRY(demo_call(demo, &(struct kv_client_call){.method = "GET", .path = path, .key = key, .accept = accept}));
    snprintf(target, sizeof target, "%.4000s/%s", demo->certificate, name);
    return kv_child_write_file(target, kv_buf_bytes(&demo->out), &demo->info);
}

/* A raw Ed25519 key as PEM: the fixed DER prefix of RFC 8410, then base64. */
static KV_RC write_pem(struct demo *demo, const char *jwks, const char *name)
{
    static const uint8_t prefix[] = {0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00};
    const char *x = strstr(jwks, "\"x\":\"");
    uint8_t der[sizeof prefix + 32];
    char base64[64], pem[160], path[PATH_SIZE];
    size_t len = 0;
    memcpy(der, prefix, sizeof prefix);
    if (x == NULL || kv_base64url_decode(x + 5, strcspn(x + 5, "\""), der + sizeof prefix, 32, &len) != KV_OK ||
        len != 32) {
        return demo_lie(demo, "the server's key set has no Ed25519 key");
    }
    kv_base64_encode(der, sizeof der, base64);
    int n = snprintf(pem, sizeof pem, "-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n", base64);
    snprintf(path, sizeof path, "%.4000s/%s", demo->certificate, name);
    return kv_child_write_file(path, KV_BYTES(pem, (size_t)n), &demo->info);
}

/* What was signed and the signature, as two files. */
static KV_RC split_jws(struct demo *demo)
{
    char path[PATH_SIZE];
    uint8_t signature[64];
    size_t len = 0;
    const char *text = (const char *)demo->out.data, *dot = strrchr(text, '.');
    if (dot == NULL || kv_base64url_decode(dot + 1, strlen(dot + 1), signature, sizeof signature, &len) != KV_OK ||
        len != 64) {
        return demo_lie(demo, "the certificate is not a compact JWS");
    }
    snprintf(path, sizeof path, "%.4000s/signed.txt", demo->certificate);
    KV_TRY(kv_child_write_file(path, KV_BYTES(text, (size_t)(dot - text)), &demo->info));
    snprintf(path, sizeof path, "%.4000s/signature.bin", demo->certificate);
    return kv_child_write_file(path, KV_BYTES(signature, sizeof signature), &demo->info);
}

static KV_RC run_openssl(struct demo *demo)
{
    char command[] =
        "cd -- \"$1\" && exec openssl pkeyutl -verify -pubin -inkey certificate-key.pem -rawin -in signed.txt "
        "-sigfile signature.bin";
    printf("   $ cd %s\n   $ openssl pkeyutl -verify -pubin -inkey certificate-key.pem -rawin -in signed.txt -sigfile "
           "signature.bin\n",
           demo->certificate);
    char *const argv[] = {(char[]){"sh"}, (char[]){"-c"}, command, (char[]){"sh"}, demo->certificate, NULL};
    KV_TRY(demo_program_run(demo, argv, 30, true));
    return strstr((const char *)demo->out.data, "Signature Verified Successfully") != NULL
               ? KV_OK
               : demo_lie(demo, "openssl does not accept the signature");
}

KV_RC demo_check_certificate(struct demo *demo)
{
    char path[160], exe[PATH_SIZE], bundle[PATH_SIZE];
    snprintf(path, sizeof path, "/v1/erasures/%s/certificate", demo->erasure);
    KV_TRY(fetch(demo, path, demo->admin_key, "text/plain", "certificate.txt"));
    KV_TRY(fetch(demo, "/.well-known/kvrun/log.vkey", NULL, "text/plain", "log.vkey"));
    KV_TRY(fetch(demo, "/.well-known/kvrun/jwks.json", NULL, NULL, "jwks.json"));
    KV_TRY(write_pem(demo, (const char *)demo->out.data, "certificate-key.pem"));
    KV_TRY(fetch(demo, path, demo->admin_key, "application/jose", "certificate.jws"));
    KV_TRY(split_jws(demo));
    KV_TRY(run_openssl(demo));
    snprintf(bundle, sizeof bundle, "%.4000s/certificate.txt", demo->certificate);
    printf("   $ kv-verify certificate.txt\n");
    char *const argv[] = {(char *)(uintptr_t)demo_program(demo, "kv-verify", exe), bundle, NULL};
    return demo_program_run(demo, argv, 30, true);
}

/*
 * The end of a certificate. Must never be asked whether a certificate is to be trusted.
 */
#include "dataplane/crypto/x509.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <time.h>

KV_RC kv_x509_not_after(const char *path, int64_t *ret_seconds)
{
    struct tm tm = {0};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return KV_E_IO;
    }
    X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
    fclose(file);
    if (certificate == NULL) {
        return KV_E_CORRUPT;
    }
    bool known = ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &tm) == 1;
    X509_free(certificate);
    if (!known) {
        return KV_E_CORRUPT;
    }
    *ret_seconds = (int64_t)timegm(&tm);
    return KV_OK;
}

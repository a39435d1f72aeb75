/*
 * Tampered bundles for programs that verify: one or more for each check, and good ones as controls. Those that change
 * the certificate itself are signed and logged anew, as an insider could, so that only the check they are made for can
 * find them.
 */
#ifndef KV_TESTS_CERT_TAMPER_H
#define KV_TESTS_CERT_TAMPER_H

#include "tests/lib/cert_cases.h"

/* `check` is the name of the check that has to fail, NULL for a bundle that is valid. */
typedef void cert_tamper_fn(const char *what, const char *check, const struct kv_buf *bundle, void *ctx);

unsigned cert_tamper_each(const struct cert_cases *cases, cert_tamper_fn *fn, void *ctx); /* how many */

#endif

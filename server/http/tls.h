/*
 * TLS of the API's TCP listener: libmicrohttpd does it with GnuTLS, and this file is all that knows. Certificate, key
 * and client authorities are read again while the server runs: new connections get the new ones, old ones live on. A
 * file that cannot be used leaves what was in force.
 */
#ifndef KV_HTTP_TLS_H
#define KV_HTTP_TLS_H

#include "dataplane/base/env.h"

struct kv_tls_conf {
    const char *cert_file, *key_file; /* PEM */
    const char *client_ca_file;       /* NULL or "": clients need no certificate */
    bool only_1_3;
    uint64_t reload_ms; /* how often the files are looked at */
};

struct kv_tls;

/* KV_E_CONFIG with what to do. At most one in a process: GnuTLS asks for the certificate without any context. The texts
 * of `conf` are borrowed until kv_tls_free. */
KV_RC kv_tls_new(const struct kv_tls_conf *conf, const struct kv_env *env, struct kv_errinfo *info,
                 struct kv_tls **ret_tls);
void kv_tls_free(struct kv_tls *tls); /* after the listener stopped */
/* Reads the files again: always with `now`, else when the interval is over and one of them changed. Thread: main. */
void kv_tls_look(struct kv_tls *tls, bool now);

/* For the library. */
const char *kv_tls_priorities(const struct kv_tls *tls);
const char *kv_tls_client_ca(const struct kv_tls *tls); /* PEM as it was at the start; NULL: do not ask */
void *kv_tls_retrieve(void);                            /* a gnutls_certificate_retrieve_function3 */

/* Did the client of this session (gnutls_session_t) show a certificate, good for a client, of an authority in
 * client_ca_file? The library does not check that. True when nobody has to. Thread: any. */
bool kv_tls_client_ok(struct kv_tls *tls, void *session);

#endif

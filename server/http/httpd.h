/*
 * The listeners: API on TCP, API on a UNIX socket for engines, admin on TCP. One epoll thread each hands requests over
 * a bounded queue to service threads, each with its own database connection; a full queue answers 503 at once. The
 * library's limits are built in: a request is suspended only from the access handler, has a deadline of its own, and is
 * resumed before the listener stops.
 */
#ifndef KV_HTTP_HTTPD_H
#define KV_HTTP_HTTPD_H

#include "server/service/svc.h"

struct kv_httpd_conf {
    const char *listen, *admin_listen; /* "127.0.0.1:7433"; loopback only. Port 0: chosen */
    const char *socket;                /* UNIX socket; NULL: none */
    unsigned connections, threads;
    uint64_t header_timeout_ms, idle_timeout_ms;
    const struct kv_env *env;
};

struct kv_httpd;

/* Opens the listeners: probes answer (livez 200, startupz and readyz 503) from here on, everything else 503 until
 * kv_httpd_serve. */
KV_RC kv_httpd_start(const struct kv_httpd_conf *conf, struct kv_errinfo *info, struct kv_httpd **ret_httpd);
/* The service is up. Starts the service threads. `svc` is borrowed until kv_httpd_stop. */
KV_RC kv_httpd_serve(struct kv_httpd *httpd, struct kv_svc *svc, struct kv_errinfo *info);
/* No new connections; what is queued and running is answered within the grace, the rest is cut (KV_E_TIMEOUT). */
KV_RC kv_httpd_quiesce(struct kv_httpd *httpd, uint64_t grace_ns);
void kv_httpd_stop(struct kv_httpd *httpd); /* after kv_httpd_quiesce; frees */
unsigned kv_httpd_port(const struct kv_httpd *httpd);
unsigned kv_httpd_admin_port(const struct kv_httpd *httpd);

#endif

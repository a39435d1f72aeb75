/*
 * The listeners: API on TCP, API on a UNIX socket for engines, admin on TCP. One epoll thread each hands requests over
 * a bounded queue to service threads, each with its own database connection; a full queue answers 503 at once. The
 * library's limits are built in: a request is suspended only from the access handler, has a deadline of its own, and is
 * resumed before the listener stops.
 */
#ifndef KV_HTTP_HTTPD_H
#define KV_HTTP_HTTPD_H

#include "server/http/facts.h"
#include "server/http/tls.h"
#include "server/service/svc.h"

/* Which changes need If-Match, where the route takes it. */
enum kv_match_rule { KV_MATCH_NONE, KV_MATCH_POLICY, KV_MATCH_ALL };

struct kv_httpd_rates {
    unsigned usual, erase, peer, stranger; /* requests a second of one API key, or address; 0: as many as come */
};

struct kv_httpd_conf {
    const char *listen, *admin_listen; /* "127.0.0.1:7433", "[::1]:7433". Port 0: chosen */
    const char *socket;                /* UNIX socket; NULL: none */
    unsigned connections, threads;
    unsigned per_ip;               /* connections of one address; 0: no limit */
    bool insecure_listen;          /* `listen` may be beyond loopback without TLS */
    struct kv_tls_conf tls;        /* without cert_file: none */
    unsigned socket_mode;          /* 0: 0660 */
    const char *socket_allow_uids; /* "0,1000"; NULL or "": whoever the mode lets */
    uint64_t header_timeout_ms, idle_timeout_ms;
    const char *cors_origins; /* comma-separated; NULL or "": none */
    bool require_idempotency_key;
    enum kv_match_rule require_if_match;
    struct kv_httpd_rates rates;
    const struct kv_http_facts *facts; /* borrowed until kv_httpd_stop; NULL: none are known */
    uint64_t heartbeat_ms;             /* of event streams */
    bool metrics_auth, metrics_no_openmetrics, metrics_no_exemplars;
    const struct kv_env *env;
};

struct kv_httpd;

/* Opens the listeners: probes answer (livez 200, startupz and readyz 503) from here on, everything else 503 until
 * kv_httpd_serve. */
KV_RC kv_httpd_start(const struct kv_httpd_conf *conf, struct kv_errinfo *info, struct kv_httpd **ret_httpd);
/* The service is up. Starts the service threads. `svc` is borrowed until kv_httpd_stop. */
KV_RC kv_httpd_serve(struct kv_httpd *httpd, struct kv_svc *svc, struct kv_errinfo *info);
/* No new connections; what is queued and running is answered within the grace, the rest is cut (KV_E_TIMEOUT),
 * and the log names it. */
KV_RC kv_httpd_quiesce(struct kv_httpd *httpd, uint64_t grace_ns);
void kv_httpd_stop(struct kv_httpd *httpd);                                          /* after kv_httpd_quiesce; frees */
void kv_httpd_set_rates(struct kv_httpd *httpd, const struct kv_httpd_rates *rates); /* thread: any, any time */
/* Certificates that changed are taken for new connections; `now`: without waiting for the interval. Thread: main. */
void kv_httpd_look_at_tls(struct kv_httpd *httpd, bool now);
unsigned kv_httpd_port(const struct kv_httpd *httpd);
unsigned kv_httpd_admin_port(const struct kv_httpd *httpd);
/* The version of the library below, "0.9.75". */
const char *kv_httpd_library(void);

#endif

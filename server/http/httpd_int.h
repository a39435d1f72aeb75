/* What httpd.c shares with the handlers that answer without a service thread. */
#ifndef KV_HTTP_HTTPD_INT_H
#define KV_HTTP_HTTPD_INT_H

#include "server/http/httpd.h"
#include "server/http/router.h"

struct kv_svc *kv_httpd_svc(struct kv_httpd *httpd); /* NULL until the service is up */
const struct kv_env *kv_httpd_env(const struct kv_httpd *httpd);

/* The gauges that probes share with the metrics; between start and stop of the listeners. */
void kv_probes_init(struct kv_httpd *httpd);
void kv_probes_done(struct kv_httpd *httpd);

#endif

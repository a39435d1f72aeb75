/* The listeners' object, as httpd.c (life), access.c (requests) and the handlers that answer without a service thread
 * share it. */
#ifndef KV_HTTP_HTTPD_INT_H
#define KV_HTTP_HTTPD_INT_H

#include "server/http/httpd.h"
#include "server/http/listen.h"
#include "server/http/rate.h"
#include "server/http/request_ids.h"
#include "server/http/router.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#define KV_HTTPD_THREADS_MAX 64

struct MHD_Daemon;
struct kv_reaper;
struct kv_secret_answers;
struct kv_line;
struct kv_tls;
struct kv_parking;

struct kv_listener {
    struct kv_httpd *httpd;
    struct MHD_Daemon *daemon;
    unsigned kind; /* KV_ROUTE_API or KV_ROUTE_ADMIN */
    int fd;
    unsigned port;
    bool quiesced; /* the socket is ours to close, after the library's thread ended */
};

/* What a service thread works on; on its stack while it does. */
struct kv_work {
    const struct kv_req *req;
    LIST_ENTRY(kv_work) link;
};

enum { LISTEN_API, LISTEN_ADMIN, LISTEN_SOCKET, LISTENERS };

struct kv_httpd {
    struct kv_httpd_conf conf;
    struct kv_listener listeners[LISTENERS];
    struct kv_line *line;       /* of requests that wait for a service thread */
    struct kv_parking *parking; /* of those that wait for an event, and of streams */
    struct kv_reaper *reaper;
    struct kv_tls *tls; /* of the API's TCP listener; NULL: none */
    struct kv_listen_uids socket_uids;
    struct kv_rate *rate;
    struct kv_request_ids request_ids;
    struct kv_secret_answers *secret_answers;
    _Atomic(struct kv_svc *) svc;                /* NULL until the service is up */
    pthread_t threads[KV_HTTPD_THREADS_MAX + 1]; /* the first serves urgent requests only */
    unsigned thread_count;
    atomic_ullong body_bytes; /* of all requests at once */
    atomic_uint log_turn;     /* which of what comes often is logged */
    atomic_uint running;      /* requests between the queue's push and their resume */
    atomic_uint connected;    /* connections that are open */
    atomic_ullong last_ns;    /* when a connection was opened or a request answered last */
    atomic_bool closing;      /* every answer is its connection's last */
    pthread_mutex_t work_mutex;
    LIST_HEAD(, kv_work) work; /* under work_mutex; a request in it is its service thread's */
};

struct kv_svc *kv_httpd_svc(struct kv_httpd *httpd); /* NULL until the service is up */
const struct kv_env *kv_httpd_env(const struct kv_httpd *httpd);

unsigned kv_httpd_connections(struct kv_httpd *httpd, unsigned listener); /* open now */

/* The gauges that probes share with the metrics; between start and stop of the listeners. */
void kv_probes_init(struct kv_httpd *httpd);
void kv_probes_done(struct kv_httpd *httpd);

#endif

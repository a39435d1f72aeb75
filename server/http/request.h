/*
 * One HTTP request as handlers see it: checked target, headers that matter, body, and the answer in the making.
 * The guard in front of libmicrohttpd runs here, before a byte of the body is read (request.c): what this library lets
 * through and what could be read in two ways is refused. Thread: the listener's until the request is queued, a service
 * thread's until it is answered, the listener's again.
 */
#ifndef KV_HTTP_REQUEST_H
#define KV_HTTP_REQUEST_H

#include "dataplane/base/buf.h"
#include "server/service/event.h"
#include "server/service/svc.h"

#include <sys/queue.h>

#define KV_REQUEST_ID_SIZE 65
#define KV_PATH_SIZE 513
#define KV_CAPTURES 2
#define KV_CAPTURE_SIZE 65
#define KV_PARAMS_MAX 24
#define KV_TRACE_ID_SIZE 33
#define KV_SPAN_ID_SIZE 17

struct MHD_Connection;
struct kv_route;
struct kv_httpd;
struct kv_stream;
struct kv_req;

enum kv_req_state {
    KV_REQ_NEW,      /* headers not seen yet */
    KV_REQ_BODY,     /* collecting the body */
    KV_REQ_QUEUED,   /* with a service thread; the connection is suspended */
    KV_REQ_PARKED,   /* waits for an event (parking.h); the connection is suspended */
    KV_REQ_ANSWERED, /* the answer below is ready */
    KV_REQ_DONE,     /* the answer was handed to the library */
};

/* A parameter of the query, decoded once; texts are borrowed from the request. */
struct kv_param {
    const char *name, *value;
};

enum kv_body_type { KV_BODY_OTHER, KV_BODY_JSON, KV_BODY_MERGE_PATCH, KV_BODY_TEXT, KV_BODY_JOSE };

/* Headers as they came: borrowed from the library until the answer is sent, NULL when absent. */
struct kv_given {
    const char *accept, *if_match, *if_none_match, *once_key, *origin, *last_event_id;
};

/* traceparent (W3C Trace Context): the caller's trace, and this request's own place in it. */
struct kv_trace {
    bool present;
    char id[KV_TRACE_ID_SIZE], parent[KV_SPAN_ID_SIZE], span[KV_SPAN_ID_SIZE];
    unsigned flags;
};

struct kv_rate_state {
    bool present;
    unsigned limit, remaining, reset_seconds;
};

struct kv_response {
    int status;
    const char *content_type;  /* static */
    const char *cache_control; /* static; NULL: no-store */
    struct kv_buf body;
    char location[128], allow[64];
    char etag[48];                /* made from etag_rev where a handler did not */
    uint64_t etag_rev;            /* revision of the one resource in the answer; 0: no ETag */
    struct kv_buf link;           /* value of Link */
    unsigned retry_after_seconds; /* 0: none */
    bool close;
    bool secret;               /* the body is wiped when the request ends */
    bool waited;               /* Preference-Applied */
    bool replayed;             /* the answer of an earlier request with this Idempotency-Key */
    char original_request[65]; /* and that request's id */
    struct kv_rate_state rate;
};

/* What a request waits for, see parking.h. */
struct kv_park {
    struct kv_event_filter filter;
    uint64_t after; /* position of the last event that is too old to matter */
    unsigned seconds;
    bool looks_again; /* once a second, too: another instance may be the one that changes it, and tells nobody here */
    KV_RC (*resume)(struct kv_call *call, struct kv_req *req);
};

struct kv_req {
    enum kv_req_state state;
    struct kv_httpd *httpd;
    struct MHD_Connection *connection;
    const struct kv_route *route;
    char request_id[KV_REQUEST_ID_SIZE];
    char *target; /* raw request target, owned */
    char path[KV_PATH_SIZE], method[16];
    char captures[KV_CAPTURES][KV_CAPTURE_SIZE]; /* of the route's pattern */
    char bearer[128];                            /* wiped when the request ends */
    bool has_bearer, accepts_json, accepts_text, accepts_jose, accepts_html, accepts_events, head;
    enum kv_body_type body_type;
    const char *content_length; /* as it came; borrowed like `given` */
    bool uploads;               /* a body follows; an early answer leaves it unread, so the connection must close */
    unsigned wait_seconds;      /* Prefer: wait */
    struct kv_given given;
    struct kv_trace trace;
    bool has_peer;
    uint8_t peer[16]; /* as in struct kv_call */
    char *query;      /* decoded, owned; what params point into */
    struct kv_param params[KV_PARAMS_MAX];
    unsigned param_count;
    struct kv_id key;    /* the caller's API key, once it is known */
    struct kv_id tenant; /* the caller's, once it is known: a cursor is good for one caller's list */
    struct kv_buf body;
    uint64_t counted; /* of the body, in the budget of all bodies */
    uint64_t drained;
    bool starved; /* there was no room in that budget */
    uint64_t begun_ns, queued_ns;
    uint64_t queue_ns, auth_ns, db_ns, engine_ns; /* for Server-Timing */
    bool rated;                                   /* it was counted in its bucket */
    bool timed;                                   /* those are there */
    STAILQ_ENTRY(kv_req) line_link;               /* of line.c */
    LIST_ENTRY(kv_req) park_link;                 /* of parking.c, like the next six */
    struct kv_park park;
    uint64_t park_until_ns;   /* 0: it has not waited yet */
    uint64_t park_look_ns;    /* when the continuation runs without an event; at the latest park_until_ns */
    bool parks, resumed;      /* its handler asked to wait; what runs now is the continuation */
    int fd;                   /* of the connection; to look at only */
    bool tls;                 /* it came encrypted */
    struct kv_stream *stream; /* owned: the answer is a stream of events */
    struct kv_response response;
};

/* From the library's callback with the raw target; NULL when there is no memory. */
struct kv_req *kv_req_new(struct kv_httpd *httpd, const char *target);
void kv_req_free(struct kv_req *req);
/* Nothing answered yet, again. */
void kv_response_reset(struct kv_response *response);

/* The guard: method, version, target, headers. KV_OK, or the answer is made. */
KV_RC kv_req_guard(struct kv_req *req, struct MHD_Connection *connection, const char *method, const char *version,
                   struct kv_errinfo *info);

#endif

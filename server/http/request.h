/*
 * One HTTP request as handlers see it: checked target, headers that matter, body, and the answer in the making.
 * The guard in front of libmicrohttpd runs here, before a byte of the body is read (request.c): what this library lets
 * through and what could be read in two ways is refused. Thread: the listener's until the request is queued, a service
 * thread's until it is answered, the listener's again.
 */
#ifndef KV_HTTP_REQUEST_H
#define KV_HTTP_REQUEST_H

#include "dataplane/base/buf.h"
#include "server/service/svc.h"

#define KV_REQUEST_ID_SIZE 65
#define KV_PATH_SIZE 513
#define KV_CAPTURES 2
#define KV_CAPTURE_SIZE 65

struct MHD_Connection;
struct kv_route;
struct kv_httpd;

enum kv_req_state {
    KV_REQ_NEW,      /* headers not seen yet */
    KV_REQ_BODY,     /* collecting the body */
    KV_REQ_QUEUED,   /* with a service thread; the connection is suspended */
    KV_REQ_ANSWERED, /* the answer below is ready */
    KV_REQ_DONE,     /* the answer was handed to the library */
};

struct kv_response {
    int status;
    const char *content_type; /* static */
    struct kv_buf body;
    char location[128], allow[64];
    unsigned retry_after_seconds; /* 0: none */
    bool close;
    bool secret; /* the body is wiped when the request ends */
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
    bool has_bearer, accepts_json, accepts_text, accepts_jose, json_body, head;
    unsigned wait_seconds; /* Prefer: wait */
    struct kv_buf body;
    uint64_t counted; /* of the body, in the budget of all bodies */
    uint64_t drained;
    bool starved; /* there was no room in that budget */
    uint64_t begun_ns;
    struct kv_response response;
};

/* From the library's callback with the raw target; NULL when there is no memory. */
struct kv_req *kv_req_new(struct kv_httpd *httpd, const char *target);
void kv_req_free(struct kv_req *req);

/* The guard: method, version, target, headers. KV_OK, or the answer is made. */
KV_RC kv_req_guard(struct kv_req *req, struct MHD_Connection *connection, const char *method, const char *version,
                   struct kv_errinfo *info);

#endif

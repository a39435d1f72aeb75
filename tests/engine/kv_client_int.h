/* What the files of the client share. Not for its users. */
#ifndef KV_CLIENT_INT_H
#define KV_CLIENT_INT_H

#include "tests/engine/kv_client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>

/* One connection; a thread has its own. */
struct kv_client_http {
    CURL *easy;
    char *answer; /* owned; NUL-terminated */
    size_t answer_len;
    bool answer_too_long;
};

struct kv_client {
    char *socket_path, *fd_socket_path;
    char *authorization; /* the header line; wiped when freed */
    unsigned timeout_ms;
    struct kv_client_http http;
    char engine_id[KV_CLIENT_ID_SIZE];
    unsigned lease_seconds;

    struct kv_client_http heartbeat_http;
    struct kv_client_heartbeat_conf heartbeat_conf;
    pthread_t heartbeat_thread;
    bool heartbeat_running; /* the thread exists */
    bool heartbeat_stop;    /* under the lock */
    uint64_t heartbeat_seq; /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

struct kv_client_request {
    const char *method, *path;
    json_t *body;       /* taken, also on failure; NULL: none */
    bool needs_body;    /* a body that could not be built is a failure, not a request without one */
    const char *prefer; /* value of that header, or NULL */
};

KV_CLIENT_CALL kv_client_http_open(struct kv_client_http *http, struct kv_client_error *error);
void kv_client_http_close(struct kv_client_http *http);
/* `*ret_body` is owned by the caller; NULL for an answer without a body. */
KV_CLIENT_CALL kv_client_http_call(const struct kv_client *client, struct kv_client_http *http,
                                   const struct kv_client_request *request, json_t **ret_body,
                                   struct kv_client_error *error);

/* A POST with a body, on the client's own connection. */
KV_CLIENT_CALL kv_client_post(struct kv_client *client, const char *path, json_t *body, json_t **ret_answer,
                              struct kv_client_error *error);

/* Always false, so that a failure is one statement. */
bool kv_client_fail(struct kv_client_error *error, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Copies a string member; false with "protocol" when it is absent or does not fit. */
KV_CLIENT_CALL kv_client_member_text(const json_t *body, const char *name, char *target, size_t size,
                                     struct kv_client_error *error);
/* Ids go into paths: nothing but letters, digits and '_' may be in them. */
KV_CLIENT_CALL kv_client_check_id(const char *id, const char *prefix, struct kv_client_error *error);

#endif

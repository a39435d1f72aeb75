/* What the files of libkvrun share. Not for its users, and not in what the shared library exports. */
#ifndef KVRUN_INT_H
#define KVRUN_INT_H

#include "api/clients/c/kvrun.h"

#include <curl/curl.h>
#include <jansson.h>
#include <pthread.h>

#define KVRUN_MUST __attribute__((warn_unused_result)) bool
#define KVRUN_TOKEN_SIZE 48

/* One connection, and the answer that came last on it. */
struct kvrun_http {
    CURL *easy;
    char *answer; /* owned; NUL-terminated */
    size_t answer_len;
    bool answer_too_long;
    bool sent; /* of the last request a byte went out: the server may have got it */
    struct kvrun_http *next;
};

/*
 * A pool: what it takes to register it again, and where it stands. Written under both locks, but for in_doubt,
 * lost and running, which are under `lock`.
 *
 * epoch counts its registrations. What was sent in one can touch the memory no more once it has ended clean: the server
 * said that the pool is closed, or it is another process now.
 */
struct kvrun_pool_entry {
    bool used;
    int fd;         /* owned */
    json_t *layout; /* owned */
    uint64_t size_bytes;
    char server_id[KVRUN_ID_SIZE]; /* empty: the server does not know it */
    uint64_t epoch, clean_epoch;   /* all before clean_epoch have ended clean */
    bool unclean;                  /* an earlier one has not, or not yet */
    bool held;                     /* for good, as far as the server's process lives: a call of it went unanswered */
    bool in_doubt;                 /* an answer of this one did not come */
    bool lost;                     /* the server said that it does not know it */
    unsigned running;              /* calls that use it at the moment */
};

struct kvrun_client {
    char *socket_path, *fd_socket_path; /* owned */
    char *authorization;                /* owned; the header line, wiped when freed */
    unsigned timeout_ms, control_timeout_ms, deadline_ms;

    /* Held while the engine and its pools are registered, beaten for, removed; never by lookups and transfers. Taken
     * before `lock`. */
    pthread_mutex_t link_lock;
    json_t *registration;       /* owned; what the engine registers with. Under link_lock, as the next four */
    struct kvrun_engine engine; /* what is called back; its texts are gone */
    unsigned lease_seconds;
    uint64_t seq;
    char engine_id[KVRUN_ID_SIZE], incarnation[64]; /* empty: not registered */

    pthread_mutex_t lock; /* short: nothing is asked while it is held */
    pthread_cond_t wake;
    struct kvrun_http *idle; /* connections that nobody uses */
    unsigned idle_count;
    struct kvrun_pool_entry pools[KVRUN_POOLS_MAX];
    struct kvrun_stats stats;
    struct kvrun_error why_down;
    uint64_t generation; /* counts how often the server came */
    bool registered;     /* kvrun_register was called */
    bool suspected;      /* since the last renewal began, a call found the server away */
    bool stop;

    pthread_t heartbeat_thread;
    bool heartbeat_running;
};

/* --- memory: kvrun_memory.c */
void *kvrun_memory_new(size_t count, size_t size); /* zeroed; NULL: none */
void *kvrun_memory_resize(void *memory, size_t size);
char *kvrun_memory_text(const char *text);
void kvrun_memory_free(void *memory);

/* --- transport: kvrun_http.c */
struct kvrun_exchange {
    const char *method, *path;
    json_t *body;    /* taken, also on failure; NULL: none */
    bool needs_body; /* a body that could not be built is a failure, not a request without one */
    unsigned wait_seconds;
    unsigned timeout_ms;
    bool *ret_sent; /* may be NULL: the server may have got it */
};
/* `*ret_answer` is owned by the caller; NULL for an answer without a body. */
KVRUN_MUST kvrun_http_call(struct kvrun_client *client, const struct kvrun_exchange *exchange, json_t **ret_answer,
                           struct kvrun_error *error);
KVRUN_MUST kvrun_http_post(struct kvrun_client *client, const char *path, json_t *body, json_t **ret_answer,
                           struct kvrun_error *error); /* within the control time-out */
void kvrun_http_close_all(struct kvrun_client *client);

/* --- errors and answers: kvrun_answer.c */
bool kvrun_fail(struct kvrun_error *error, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4))); /* always false, so that a failure is one statement */
/* A problem document (RFC 9457) as far as it is one. */
bool kvrun_fail_with_problem(const json_t *problem, long status, struct kvrun_error *error);
bool kvrun_error_is(const struct kvrun_error *error, const char *code);
/* It says nothing about the caller's arguments: the server is away or not well. */
bool kvrun_error_is_outage(const struct kvrun_error *error);
/* Copies a string member; false with "protocol" when it is absent or does not fit. */
KVRUN_MUST kvrun_member_text(const json_t *body, const char *name, char *target, size_t size,
                             struct kvrun_error *error);
/* Ids go into paths: nothing but letters, digits and '_' may be in them. */
KVRUN_MUST kvrun_check_id(const char *id, const char *prefix, struct kvrun_error *error);
json_t *kvrun_model_json(const struct kvrun_model *model);

/* --- blocks: kvrun_columns.c */
enum kvrun_kind { KVRUN_LOOKUP, KVRUN_OFFLOAD, KVRUN_RESTORE };
json_t *kvrun_blocks_json(enum kvrun_kind kind, const struct kvrun_blocks *in, const char *pool_id,
                          unsigned deadline_ms); /* NULL: it cannot be built */
KVRUN_MUST kvrun_read_blocks(enum kvrun_kind kind, const json_t *answer, uint32_t count, struct kvrun_block *ret_blocks,
                             struct kvrun_error *error);
KVRUN_MUST kvrun_read_moved(const json_t *answer, uint32_t count, struct kvrun_moved *ret_moved,
                            struct kvrun_error *error);
uint64_t kvrun_member_number(const json_t *answer, const char *name); /* 0 where there is none */

/* --- the link to the server: kvrun_link.c, kvrun_heartbeat.c */
/* Beats; registers the engine and the pools that the server does not know. True: calls may ask the server; never when
 * it is not `trusted`. Under link_lock. */
KVRUN_MUST kvrun_link_renew(struct kvrun_client *client, bool trusted, struct kvrun_error *error);
/* A call of that generation found the server away: no other one asks until a renewal went well. */
void kvrun_link_suspect(struct kvrun_client *client, uint64_t generation, const struct kvrun_error *why);
KVRUN_MUST kvrun_heartbeat_start(struct kvrun_client *client, struct kvrun_error *error);
void kvrun_heartbeat_stop(struct kvrun_client *client); /* without link_lock */

/* --- pools: kvrun_pool.c, kvrun_fd.c */
/* One call's use of a pool. */
struct kvrun_pool_use {
    char pool_id[KVRUN_ID_SIZE];
    uint64_t epoch, generation;
};
/* False with "invalid_argument", or with "down" when the server does not have it at the moment. */
KVRUN_MUST kvrun_pool_begin(struct kvrun_client *client, uint32_t pool, struct kvrun_pool_use *ret_use,
                            struct kvrun_error *error);
enum kvrun_use_end {
    KVRUN_USE_ANSWERED,
    KVRUN_USE_IN_DOUBT, /* the server may have got the call, and did not answer */
    KVRUN_USE_LOST,     /* the server does not know the pool */
};
/* The hold on its pages; 0: none. */
uint64_t kvrun_pool_end(struct kvrun_client *client, uint32_t pool, const struct kvrun_pool_use *use,
                        enum kvrun_use_end how);
/* Closes those in doubt and registers what is not registered. Under link_lock. */
KVRUN_MUST kvrun_pools_renew(struct kvrun_client *client, struct kvrun_error *error);
/* The server knows none of them. `restarted`: it is another process, that never had them. Under link_lock. */
void kvrun_pools_forgotten(struct kvrun_client *client, bool restarted);
void kvrun_pools_drop(struct kvrun_client *client); /* under link_lock, or when nobody else is there */
KVRUN_MUST kvrun_hand_over(const struct kvrun_client *client, int fd, char ret_token[KVRUN_TOKEN_SIZE],
                           struct kvrun_error *error);

#endif

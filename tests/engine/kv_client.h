/*
 * A client of the server's HTTP interface for inference engines, over its UNIX socket: register, stay alive, hand over
 * the KV pool by descriptor, move blocks, erase. It depends on libcurl and jansson and on nothing of the server.
 *
 * Functions return true on success. On failure `error` (never NULL) says why and results are untouched. Strings in
 * requests are borrowed for the call. A call is one request: the client repeats nothing behind the caller's back.
 * Thread: a client is used by one thread; the heartbeat has a thread and a connection of its own.
 */
#ifndef KV_CLIENT_H
#define KV_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_CLIENT_CALL __attribute__((warn_unused_result)) bool
#define KV_CLIENT_ID_SIZE 32
#define KV_CLIENT_HASH_SIZE 65

struct kv_client_error {
    int status;     /* of HTTP; 0: no answer came */
    bool retryable; /* the same call may succeed later */
    /* The server's code ("session_erased"), or of the client: "transport" (no connection, no answer), "protocol" (an
     * answer that is not what the interface promises), "invalid_argument", "memory", "system". */
    char code[48];
    char detail[256];
};

struct kv_client_conf {
    const char *socket_path;    /* engine.sock */
    const char *fd_socket_path; /* engine-fd.sock; NULL when no pool is registered */
    const char *token;          /* API key */
    unsigned timeout_ms;        /* of one call; 0: 60 s */
};

struct kv_client;

KV_CLIENT_CALL kv_client_new(const struct kv_client_conf *conf, struct kv_client **ret_client,
                             struct kv_client_error *error);
void kv_client_free(struct kv_client *client); /* stops the heartbeat, wipes the key; NULL is fine */

/* --- the engine -------------------------------------------------------------------------------------------------- */

struct kv_client_model {
    const char *id, *revision;
    const char *fingerprint; /* 64 hex digits, or NULL */
};

struct kv_client_engine {
    const char *name, *kind, *engine_version;
    struct kv_client_model model;
    unsigned lease_seconds; /* 2 to 60; 0: the server's choice */
};

struct kv_client_lease {
    char engine_id[KV_CLIENT_ID_SIZE];
    char server_incarnation[64];
    unsigned lease_seconds;
};

/* Remembers the engine's id for the calls below. Calling it again in this process gives the same id. */
KV_CLIENT_CALL kv_client_register(struct kv_client *client, const struct kv_client_engine *engine,
                                  struct kv_client_lease *ret_lease, struct kv_client_error *error);
KV_CLIENT_CALL kv_client_unregister(struct kv_client *client, struct kv_client_error *error);

struct kv_client_heartbeat_conf {
    /* Runs on the heartbeat's thread; the engine forgets what it holds of that session. May be NULL. */
    void (*revoked)(void *ctx, const char *session_id);
    /* The server does not know the engine any more: register again, and the pools. Runs once, then the thread ends. May
     * be NULL. */
    void (*lost)(void *ctx, const struct kv_client_error *error);
    void *ctx;
};

/* One heartbeat now, from the caller's thread. */
KV_CLIENT_CALL kv_client_heartbeat(struct kv_client *client, const struct kv_client_heartbeat_conf *conf,
                                   struct kv_client_error *error);
/* One every third of the lease until stop or free. */
KV_CLIENT_CALL kv_client_heartbeat_start(struct kv_client *client, const struct kv_client_heartbeat_conf *conf,
                                         struct kv_client_error *error);
void kv_client_heartbeat_stop(struct kv_client *client);

/* --- the pool ---------------------------------------------------------------------------------------------------- */

struct kv_client_region {
    uint64_t offset_bytes, stride_bytes, run_bytes;
};

struct kv_client_pool {
    int fd; /* a memfd sealed with F_SEAL_SHRINK; stays the caller's */
    uint64_t size_bytes;
    const char *format, *engine_version;
    uint32_t tokens_per_block, slots;
    uint64_t block_bytes;
    const struct kv_client_region *regions; /* NULL: opaque pages of block_bytes, one after the other */
    size_t region_count;
};

KV_CLIENT_CALL kv_client_pool_register(struct kv_client *client, const struct kv_client_pool *pool,
                                       char ret_pool_id[KV_CLIENT_ID_SIZE], struct kv_client_error *error);
KV_CLIENT_CALL kv_client_pool_remove(struct kv_client *client, const char *pool_id, struct kv_client_error *error);
/* The descriptor goes to the server, a token that names it comes back: one use, 30 s. pool_register does this itself.
 */
KV_CLIENT_CALL kv_client_hand_over(struct kv_client *client, int fd, char ret_token[48], struct kv_client_error *error);

/* --- sessions and blocks ------------------------------------------------------------------------------------------ */

KV_CLIENT_CALL kv_client_session_create(struct kv_client *client, const struct kv_client_model *model,
                                        char ret_session_id[KV_CLIENT_ID_SIZE], struct kv_client_error *error);

/* Text as the server gives it: "stored", "restored", "missing" …; "dram", "nvme", "dram+nvme", "none". */
struct kv_client_block {
    char result[16];
    char tier[24];
};
bool kv_client_block_is(const struct kv_client_block *block, const char *result);

struct kv_client_blocks {
    const char *session_id, *pool_id;
    uint32_t count;
    char (*hashes)[KV_CLIENT_HASH_SIZE]; /* only read */
    const uint32_t *slots;               /* lookup: not used */
    bool durable;                        /* offload: answer when the blocks are on storage that survives */
    unsigned deadline_ms;                /* 0: the server's */
};

struct kv_client_moved {
    char operation_id[KV_CLIENT_ID_SIZE];
    uint32_t stored, present;   /* offload */
    uint32_t contiguous_blocks; /* restore: usable from the first on */
    uint64_t bytes, duration_us;
};

/* `ret_blocks` has room for `count` and is undefined after a failure. A block that did not move is no failure of the
 * call: look at its result. */
KV_CLIENT_CALL kv_client_lookup(struct kv_client *client, const struct kv_client_blocks *in,
                                struct kv_client_block *ret_blocks, uint32_t *ret_prefix_blocks,
                                struct kv_client_error *error);
KV_CLIENT_CALL kv_client_offload(struct kv_client *client, const struct kv_client_blocks *in,
                                 struct kv_client_block *ret_blocks, struct kv_client_moved *ret_moved,
                                 struct kv_client_error *error);
KV_CLIENT_CALL kv_client_restore(struct kv_client *client, const struct kv_client_blocks *in,
                                 struct kv_client_block *ret_blocks, struct kv_client_moved *ret_moved,
                                 struct kv_client_error *error);

/* --- erasure and operation ---------------------------------------------------------------------------------------- */

struct kv_client_erasure {
    char id[KV_CLIENT_ID_SIZE];
    char state[32]; /* "certified" when the certificate is there */
};
/* `basis` and `reason` may be NULL. Waits up to `wait_seconds` for the certificate. */
KV_CLIENT_CALL kv_client_erase(struct kv_client *client, const char *session_id, const char *basis, const char *reason,
                               unsigned wait_seconds, struct kv_client_erasure *ret_erasure,
                               struct kv_client_error *error);

/* Needs an operator's key: give it to a client of its own. */
KV_CLIENT_CALL kv_client_drain_dram(struct kv_client *client, uint64_t *ret_blocks, struct kv_client_error *error);

#endif

/*
 * libkvrun: a client of kvrun for inference engines, over the server's UNIX sockets. It registers the engine, keeps its
 * lease, hands over the KV pool by descriptor, finds, stores and restores blocks, and erases sessions.
 *
 * A cache that fails is a miss. Lookups and transfers return true whatever becomes of the server: when it is gone,
 * hangs, answers nonsense or with an error of its own, every block is a miss, `cause` says why, and kvrun_stats counts
 * it. After such a failure calls answer at once, without a system call, until the heartbeat has found the server again
 * and has registered the engine and its pools anew. What the caller did wrong (an argument, a session that was erased,
 * a key that is not valid) is an error: false, and `error` says what.
 *
 * Ownership: pointers in arguments are borrowed for the call. Results are untouched after false. `error` is never NULL.
 * Thread: any function from any thread, but kvrun_client_free, which comes last. Callbacks run on the heartbeat's
 * thread. Units stand in names. Set the members of a struct that you do not use to zero: they are the defaults.
 */
#ifndef KVRUN_H
#define KVRUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVRUN_VERSION "0.1.0"
#define KVRUN_API __attribute__((visibility("default")))
#define KVRUN_CALL KVRUN_API __attribute__((warn_unused_result)) bool
#define KVRUN_ID_SIZE 32
#define KVRUN_CODE_SIZE 48
#define KVRUN_POOLS_MAX 8
#define KVRUN_BLOCKS_PER_CALL_MAX 4096

struct kvrun_error {
    int status;     /* of HTTP; 0: no answer came */
    bool retryable; /* the same call may succeed later */
    /* The server's code ("session_erased"), or the library's: "transport" (no connection, no answer in time),
     * "protocol" (an answer that is not what the interface promises), "down" (not asked, because the server did not
     * answer before), "invalid_argument", "memory", "system". */
    char code[KVRUN_CODE_SIZE];
    char detail[256];
};

struct kvrun_conf {
    const char *socket_path;    /* engine.sock; GET /version of the server names both */
    const char *fd_socket_path; /* engine-fd.sock; NULL when no pool is registered */
    const char *token;          /* API key, of one line */
    /* The longest wait for a lookup and a heartbeat, and for a transfer beyond its deadline; 0: 1,000. */
    unsigned timeout_ms;
    /* The longest wait for what is not on an engine's path: registration, pools, sessions, erasure; 0: 10,000. */
    unsigned control_timeout_ms;
    unsigned deadline_ms; /* of a transfer that has none of its own; at most 30,000; 0: 5,000 */
};

struct kvrun_client;

KVRUN_API const char *kvrun_version(void); /* of the library that runs; KVRUN_VERSION is that of this header */
KVRUN_CALL kvrun_client_new(const struct kvrun_conf *conf, struct kvrun_client **ret_client, struct kvrun_error *error);
/* Stops the heartbeat and wipes the key. The engine's lease runs out by itself; kvrun_unregister ends it at once. NULL
 * is fine. */
KVRUN_API void kvrun_client_free(struct kvrun_client *client);

/* --- the engine -------------------------------------------------------------------------------------------------- */

struct kvrun_model {
    const char *id, *revision;
    const char *fingerprint; /* 64 hex digits, or NULL */
};

struct kvrun_engine {
    const char *name;           /* one process may be several engines, with a client and a name each */
    const char *kind;           /* "vllm", "sglang", "llamacpp", "sim", "other" */
    const char *engine_version; /* part of what a block fits: another version's blocks are misses */
    struct kvrun_model model;
    unsigned lease_seconds; /* 2 to 60; 0: the server's choice */
    int64_t pid; /* 0: getpid(). As the server sees it: another one in a container with processes of its own */

    /* Somebody erases this session: drop what you hold of it. May be NULL. */
    void (*revoked)(void *ctx, const char *session_id);
    /* The server came (`why` is NULL) or went; for a log. May be NULL. */
    void (*link_changed)(void *ctx, bool up, const struct kvrun_error *why);
    void *ctx; /* of both. They may call kvrun_stats, and nothing else of this library. */
};

/* Registers, and keeps the lease from now on, by a thread of its own. True also when the server is away: it is looked
 * for until it is there. Once a client. */
KVRUN_CALL kvrun_register(struct kvrun_client *client, const struct kvrun_engine *engine, struct kvrun_error *error);
/* The server knows the engine and all of its pools; otherwise false, with what went wrong last. Asks nobody. */
KVRUN_CALL kvrun_ready(struct kvrun_client *client, struct kvrun_error *error);
/* Stops the heartbeat, forgets the pools, and ends the lease; false when the server could not be told, whose lease then
 * runs out by itself. Memory that calls may still be at work on is let go of by kvrun_pool_remove first. */
KVRUN_CALL kvrun_unregister(struct kvrun_client *client, struct kvrun_error *error);

/* --- the pool ---------------------------------------------------------------------------------------------------- */

struct kvrun_region {
    uint64_t offset_bytes, stride_bytes, run_bytes;
};

struct kvrun_pool {
    int fd; /* a memfd sealed with F_SEAL_SHRINK; stays the caller's, the library keeps a duplicate */
    uint64_t size_bytes;
    const char *format, *engine_version; /* what a page looks like: another one's blocks are misses */
    uint32_t tokens_per_block, slots;
    uint64_t block_bytes;
    const struct kvrun_region *regions; /* a page is a run in each; NULL: pages of block_bytes, one after the other */
    size_t region_count;
};

/* `*ret_pool` is a number of the client's own, which stays the same however often the server restarts. True also when
 * the server is away: it gets the pool when it is back. */
KVRUN_CALL kvrun_pool_register(struct kvrun_client *client, const struct kvrun_pool *pool, uint32_t *ret_pool,
                               struct kvrun_error *error);
/* When it is true, nothing touches the memory any more. */
KVRUN_CALL kvrun_pool_remove(struct kvrun_client *client, uint32_t pool, struct kvrun_error *error);

/* --- sessions ----------------------------------------------------------------------------------------------------- */

struct kvrun_label {
    const char *name, *value;
};

struct kvrun_session {
    struct kvrun_model model;
    const char *external_id;          /* your own name for it, or NULL. The session that has it already is the answer */
    const struct kvrun_label *labels; /* at most 16; no personal data: they are kept in plain text */
    size_t label_count;
    uint64_t ttl_seconds, idle_ttl_seconds; /* 0: what the policy says */
    const char *sharing_scope; /* your own name of what it shares with other sessions of the model; NULL: nothing */
};

KVRUN_CALL kvrun_session_open(struct kvrun_client *client, const struct kvrun_session *session,
                              char ret_session_id[KVRUN_ID_SIZE], struct kvrun_error *error);

struct kvrun_erasure {
    char id[KVRUN_ID_SIZE];
    char state[KVRUN_ID_SIZE]; /* "certified" when the certificate is there */
};

/* `basis` and `reason` may be NULL. Waits up to `wait_seconds`, 60 at most, for the certificate. */
KVRUN_CALL kvrun_erase(struct kvrun_client *client, const char *session_id, const char *basis, const char *reason,
                       unsigned wait_seconds, struct kvrun_erasure *ret_erasure, struct kvrun_error *error);

/* --- blocks ------------------------------------------------------------------------------------------------------- */

/* The engine's own chained hash of a block's tokens and all before them. */
struct kvrun_hash {
    uint8_t bytes[32];
};

enum kvrun_result {
    KVRUN_FAILED,   /* also what this library does not know by name */
    KVRUN_STORED,   /* offload: it is there now */
    KVRUN_PRESENT,  /* offload: it was there already */
    KVRUN_RESTORED, /* restore: the page holds it. With every other result the page is as it was */
    KVRUN_MISSING,
    KVRUN_RECOMPUTE,
    KVRUN_QUARANTINED, /* a copy did not verify */
    KVRUN_ERASED,
    KVRUN_DENIED, /* by policy */
    KVRUN_STALE_PAGE,
    KVRUN_BUSY,
    KVRUN_TIMEOUT,
};

enum kvrun_tier { KVRUN_DRAM = 1, KVRUN_NVME = 2, KVRUN_OBJECT = 4 };

struct kvrun_block {
    enum kvrun_result result; /* of a transfer */
    unsigned tiers;           /* enum kvrun_tier, added up; 0: none */
};

KVRUN_API const char *kvrun_result_name(enum kvrun_result result); /* "stored" …, as the server spells it */
KVRUN_API const char *kvrun_tiers_name(unsigned tiers);            /* "none", "dram", "dram+nvme" … */

struct kvrun_blocks {
    const char *session_id;
    uint32_t pool;
    uint32_t count; /* 1 to 4,096 */
    const struct kvrun_hash *hashes;
    const uint32_t *slots;       /* the page of each block; lookup: not used */
    const uint64_t *generations; /* of each page, counted up when it is given to another request; NULL: none */
    bool durable;                /* offload: answer when the blocks are on storage that survives the server */
    unsigned deadline_ms;        /* blocks that are not begun by then are KVRUN_TIMEOUT; 0: the client's */
    uint32_t shared_blocks;      /* so many of the first belong to what the session shares */
};

struct kvrun_found {
    uint32_t prefix_blocks;      /* that are here, from the first on without a gap */
    char cause[KVRUN_CODE_SIZE]; /* empty; otherwise why all of the call was a miss */
};

struct kvrun_moved {
    char operation_id[KVRUN_ID_SIZE]; /* empty when the server did not answer */
    uint32_t stored, present;         /* offload */
    uint32_t contiguous_blocks;       /* restore: usable, from the first on */
    uint64_t bytes, duration_us;
    /* 0: the pages are the engine's again. Otherwise the answer did not come and the server may still read or write
     * them: neither free nor use them before kvrun_hold_is_over. */
    uint64_t hold;
    char cause[KVRUN_CODE_SIZE]; /* empty; otherwise why all of the call was a miss */
};

/* `ret_blocks` has room for `count`. */
KVRUN_CALL kvrun_lookup(struct kvrun_client *client, const struct kvrun_blocks *in, struct kvrun_block *ret_blocks,
                        struct kvrun_found *ret_found, struct kvrun_error *error);
KVRUN_CALL kvrun_offload(struct kvrun_client *client, const struct kvrun_blocks *in, struct kvrun_block *ret_blocks,
                         struct kvrun_moved *ret_moved, struct kvrun_error *error);
KVRUN_CALL kvrun_restore(struct kvrun_client *client, const struct kvrun_blocks *in, struct kvrun_block *ret_blocks,
                         struct kvrun_moved *ret_moved, struct kvrun_error *error);
/* The heartbeat closes such a pool and registers it again; that, or the server's restart, is the end of the hold. */
KVRUN_CALL kvrun_hold_is_over(struct kvrun_client *client, uint32_t pool, uint64_t hold);

/* --- counted ------------------------------------------------------------------------------------------------------ */

/* Since kvrun_client_new. A call of a lookup or transfer is in exactly one of answered, missed and refused. */
struct kvrun_stats {
    uint64_t lookups, offloads, restores; /* calls */
    uint64_t calls_answered;              /* by the server, with a result for each block */
    uint64_t calls_missed;                /* all blocks are misses, for one of the reasons below */
    uint64_t calls_refused;               /* returned false */

    uint64_t missed_down;      /* answered at once, as the server was known to be away */
    uint64_t missed_transport; /* no connection, or no answer in time */
    uint64_t missed_protocol;  /* an answer that is none */
    uint64_t missed_server;    /* an answer that says no: errors of the server's own, busy, refused by policy */

    uint64_t blocks_offered, blocks_stored, blocks_present, blocks_not_stored; /* offered is the sum of the others */
    uint64_t blocks_asked, blocks_restored, blocks_not_restored;               /* asked is the sum of the others */

    uint64_t heartbeats, heartbeats_failed;
    uint64_t registrations; /* of the engine: one, and one for each time that the server had forgotten it */
    uint64_t holds;         /* transfers that left their pages held */
    uint64_t revocations;
    bool up; /* as kvrun_ready */
};

KVRUN_API void kvrun_stats(struct kvrun_client *client, struct kvrun_stats *ret_stats);

/* --- the rest of the interface ------------------------------------------------------------------------------------ */

struct kvrun_request {
    const char *method, *path; /* "POST", "/v1/tiers/dram:drain" */
    const char *body;          /* JSON, or NULL */
    unsigned wait_seconds;     /* as Prefer: wait; 0: none */
};

/* `*ret_body` is owned by the caller, for kvrun_text_free; NULL when the answer has none. */
KVRUN_CALL kvrun_ask(struct kvrun_client *client, const struct kvrun_request *request, char **ret_body,
                     struct kvrun_error *error);
KVRUN_API void kvrun_text_free(char *text); /* NULL is fine */

#ifdef __cplusplus
}
#endif

#endif

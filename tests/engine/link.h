/*
 * A bench connected to the server: engine registered, heart beating, pool handed over. Failures are printed to stderr
 * where they happen, with the server's code; the functions then return false. Thread: one at a time.
 */
#ifndef KV_TESTS_ENGINE_LINK_H
#define KV_TESTS_ENGINE_LINK_H

#include "tests/engine/bench.h"
#include "tests/engine/kv_client.h"
#include "tests/engine/options.h"

struct kv_link {
    struct kv_client *client;
    struct kv_client_model model;
    char pool_id[KV_CLIENT_ID_SIZE];
    char session_id[KV_CLIENT_ID_SIZE];
    uint32_t *slots;                /* owned; slot i holds block i */
    struct kv_client_block *blocks; /* owned; results of the last transfer */
    uint32_t count;
};

/* Borrows the bench until kv_link_done. */
KV_CLIENT_CALL kv_link_open(const struct kv_options *options, struct kv_bench *bench, struct kv_link *ret_link);
void kv_link_done(struct kv_link *link); /* unregisters the engine */
/* A client with the key in `token_file`, owned by the caller. */
KV_CLIENT_CALL kv_link_client(const struct kv_options *options, const char *token_file, struct kv_client **ret_client);

/* The session of the options, or a new one. */
KV_CLIENT_CALL kv_link_session(struct kv_link *link, const char *session_id);
/* Durable; every block must be stored or there already. */
KV_CLIENT_CALL kv_link_offload(struct kv_link *link, struct kv_bench *bench, struct kv_client_moved *ret_moved);
/* `error` is filled and printed by the caller, to whom a refusal may be what was wanted. */
KV_CLIENT_CALL kv_link_restore(struct kv_link *link, struct kv_bench *bench, struct kv_client_moved *ret_moved,
                               struct kv_client_error *error);
uint32_t kv_link_from_tier(const struct kv_link *link, const char *tier); /* blocks of the last restore */
void kv_link_print_error(const char *what, const struct kv_client_error *error);

#endif

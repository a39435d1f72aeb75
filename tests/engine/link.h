/*
 * A bench connected to the server: engine registered, heart beating, pool handed over. Failures are printed to stderr
 * where they happen, with the server's code; the functions then return false. Thread: one at a time.
 */
#ifndef KV_TESTS_ENGINE_LINK_H
#define KV_TESTS_ENGINE_LINK_H

#include "api/clients/c/kvrun.h"
#include "tests/engine/bench.h"
#include "tests/engine/options.h"

#define KV_LINK_CALL __attribute__((warn_unused_result)) bool

struct kv_link {
    struct kvrun_client *client;
    struct kvrun_model model;
    uint32_t pool;
    char session_id[KVRUN_ID_SIZE];
    struct kvrun_hash *hashes;  /* owned */
    uint32_t *slots;            /* owned; slot i holds block i */
    struct kvrun_block *blocks; /* owned; results of the last transfer */
    uint32_t count;
};

/* Borrows the bench until kv_link_done. */
KV_LINK_CALL kv_link_open(const struct kv_options *options, struct kv_bench *bench, struct kv_link *ret_link);
void kv_link_done(struct kv_link *link); /* unregisters the engine */
/* A client with the key in `token_file`, owned by the caller. */
KV_LINK_CALL kv_link_client(const struct kv_options *options, const char *token_file, struct kvrun_client **ret_client);

/* The session of the options, or a new one. */
KV_LINK_CALL kv_link_session(struct kv_link *link, const char *session_id);
/* Durable; every block must be stored or there already. */
KV_LINK_CALL kv_link_offload(struct kv_link *link, struct kvrun_moved *ret_moved);
/* `error` is filled and printed by the caller, to whom a refusal may be what was wanted. To an engine a server that is
 * away is a miss; to this one, which shows what the server does, it is a failure. */
KV_LINK_CALL kv_link_restore(struct kv_link *link, struct kvrun_moved *ret_moved, struct kvrun_error *error);
uint32_t kv_link_from_tier(const struct kv_link *link, enum kvrun_tier tier); /* blocks of the last restore */
/* Empties the dram tier to nvme; an operator's client. */
KV_LINK_CALL kv_link_drain_dram(struct kvrun_client *operator_client, struct kvrun_error *error);
void kv_link_print_error(const char *what, const struct kvrun_error *error);

#endif

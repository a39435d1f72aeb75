/*
 * Proofs of one audit log at one size, made one after the other. Thread: one owner.
 */
#ifndef KV_SVC_PROOF_H
#define KV_SVC_PROOF_H

#include "server/service/svc_int.h"

#define SVC_PROOF_TILES 8

struct svc_proof_tile {
    bool there;
    unsigned level; /* 0: of leaves */
    uint64_t number;
    size_t len;
    uint8_t hashes[KV_TILE_BYTES_MAX];
};
struct svc_proofs {
    struct kv_pg *pg;
    struct kv_id log;
    uint64_t size;
    struct kv_errinfo *info; /* borrowed, as the connection is */
    struct svc_proof_tile tiles[SVC_PROOF_TILES];
};
KV_RC svc_proofs_new(struct kv_pg *pg, const struct kv_id *log, uint64_t size, struct kv_errinfo *info,
                     struct svc_proofs **ret_proofs);
void svc_proofs_freep(struct svc_proofs **proofs); /* for KV_CLEANUP */
/* `ret_proof` has KV_MERKLE_DEPTH_MAX places. */
KV_RC svc_proofs_inclusion(struct svc_proofs *proofs, uint64_t index, struct kv_hash *ret_proof, size_t *ret_count);

#endif

/*
 * Proofs from what is stored of the audit logs: hashes of leaves, and tiles of 256 hashes above them. What was read
 * stays for the next proof of the same log, because those that are made together are neighbours.
 */
#include "server/service/svc_proof.h"

#include "dataplane/base/mem.h"

#include <string.h>

#define TILE_HASHES 256

/* Hashes neighbours together until one is left; `count` is a power of two. */
static KV_RC fold(uint8_t *hashes, size_t count, struct kv_hash *ret_hash)
{
    struct kv_hash left, right;
    for (; count > 1; count /= 2) {
        for (size_t i = 0; i < count / 2; i++) {
            memcpy(left.b, hashes + 2 * i * sizeof left.b, sizeof left.b);
            memcpy(right.b, hashes + (2 * i + 1) * sizeof left.b, sizeof right.b);
            struct kv_hash parent;
            KV_TRY(kv_merkle_node(&left, &right, &parent));
            memcpy(hashes + i * sizeof left.b, parent.b, sizeof parent.b);
        }
    }
    memcpy(ret_hash->b, hashes, sizeof ret_hash->b);
    return KV_OK;
}

/* The tile `number` of `level`; at the lowest it is made of the leaves' own hashes. */
static KV_RC read_tile(struct svc_proofs *proofs, unsigned level, uint64_t number, struct svc_proof_tile *tile)
{
    tile->len = 0;
    if (level > 0) {
        return kv_store_tile_get(proofs->pg, &proofs->log, level, number, proofs->info, tile->hashes, &tile->len);
    }
    uint64_t first = number * TILE_HASHES, left = proofs->size > first ? proofs->size - first : 0;
    size_t count = left < TILE_HASHES ? (size_t)left : TILE_HASHES;
    KV_TRY(count == 0 ? KV_E_MISSING
                      : kv_store_leaf_hashes(proofs->pg, &proofs->log, first, count, proofs->info, tile->hashes));
    tile->len = count * sizeof(struct kv_hash);
    return KV_OK;
}

static KV_RC tile_of(struct svc_proofs *proofs, unsigned level, uint64_t number, const struct svc_proof_tile **ret_tile)
{
    struct svc_proof_tile *tile = &proofs->tiles[(number + level) % SVC_PROOF_TILES];
    if (!tile->there || tile->level != level || tile->number != number) {
        tile->there = false;
        KV_TRY(read_tile(proofs, level, number, tile));
        tile->there = true;
        tile->level = level;
        tile->number = number;
    }
    *ret_tile = tile;
    return KV_OK;
}

static KV_RC fetch_subtree(void *ctx, unsigned level, uint64_t index, struct kv_hash *ret_hash)
{
    struct svc_proofs *proofs = ctx;
    const struct svc_proof_tile *tile = NULL;
    uint8_t hashes[KV_TILE_BYTES_MAX];
    size_t count = (size_t)1 << level % 8;
    uint64_t first = index << level % 8;
    size_t offset = (size_t)(first % TILE_HASHES) * sizeof ret_hash->b;
    KV_TRY(tile_of(proofs, level / 8, first / TILE_HASHES, &tile));
    if (offset + count * sizeof ret_hash->b > tile->len) {
        return kv_fail(proofs->info, KV_E_CORRUPT, "a tile of the audit log is shorter than the tree says");
    }
    memcpy(hashes, tile->hashes + offset, count * sizeof ret_hash->b);
    return fold(hashes, count, ret_hash);
}

KV_RC svc_proofs_new(struct kv_pg *pg, const struct kv_id *log, uint64_t size, struct kv_errinfo *info,
                     struct svc_proofs **ret_proofs)
{
    struct svc_proofs *proofs = kv_alloc(sizeof *proofs);
    if (proofs == NULL) {
        return KV_E_NO_MEMORY;
    }
    proofs->pg = pg;
    proofs->log = *log;
    proofs->size = size;
    proofs->info = info;
    *ret_proofs = proofs;
    return KV_OK;
}

void svc_proofs_freep(struct svc_proofs **proofs)
{
    kv_free(*proofs);
}

KV_RC svc_proofs_inclusion(struct svc_proofs *proofs, uint64_t index, struct kv_hash *ret_proof, size_t *ret_count)
{
    return kv_merkle_inclusion(fetch_subtree, proofs, index, proofs->size, ret_proof, ret_count);
}

KV_RC svc_inclusion_proof(struct kv_pg *pg, const struct kv_id *log, uint64_t index, uint64_t size,
                          struct kv_errinfo *info, struct kv_hash *ret_proof, size_t *ret_count)
{
    struct svc_proofs *proofs KV_CLEANUP(svc_proofs_freep) = NULL;
    KV_TRY(svc_proofs_new(pg, log, size, info, &proofs));
    return svc_proofs_inclusion(proofs, index, ret_proof, ret_count);
}

KV_RC svc_consistency_proof(struct kv_pg *pg, const struct kv_id *log, uint64_t from, uint64_t to,
                            struct kv_errinfo *info, struct kv_hash *ret_proof, size_t *ret_count)
{
    struct svc_proofs *proofs KV_CLEANUP(svc_proofs_freep) = NULL;
    KV_TRY(svc_proofs_new(pg, log, to, info, &proofs));
    return kv_merkle_consistency(fetch_subtree, proofs, from, to, ret_proof, ret_count);
}

KV_RC svc_log_frontier(struct kv_pg *pg, const struct kv_id *log, uint64_t size, struct kv_errinfo *info,
                       struct kv_frontier *ret_frontier)
{
    struct svc_proofs *proofs KV_CLEANUP(svc_proofs_freep) = NULL;
    KV_TRY(svc_proofs_new(pg, log, size, info, &proofs));
    struct kv_frontier frontier = {0};
    unsigned count = 0;
    for (unsigned level = KV_MERKLE_DEPTH_MAX; level-- > 0;) {
        if ((size >> level & 1) != 0) {
            KV_TRY(fetch_subtree(proofs, level, frontier.size >> level, &frontier.hashes[count++]));
            frontier.size += UINT64_C(1) << level;
        }
    }
    *ret_frontier = frontier;
    return KV_OK;
}

/*
 * Reads which blocks an nvme tier's folder holds and where, offline and read-only. Takes no lock and needs no key: it
 * sees what a thief of the drive sees. Thread: any.
 */
#ifndef KV_NVME_READ_H
#define KV_NVME_READ_H

#include "dataplane/tier/tier.h"

/* `offset` is in the file `arena` of the folder. */
typedef void kv_nvme_walk_fn(void *ctx, const struct kv_tier_key *key, uint64_t offset, uint64_t bytes, bool promised);

/* Each block once, in no order. KV_E_MISSING: no arena there; KV_E_FOREIGN_FILE, KV_E_UNSUPPORTED, KV_E_CORRUPT,
 * KV_E_IO, KV_E_NO_MEMORY. */
KV_RC kv_nvme_walk(const char *folder, kv_nvme_walk_fn *fn, void *ctx);

#endif

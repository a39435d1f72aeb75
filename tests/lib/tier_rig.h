/*
 * An nvme tier on a folder with its io ring and memory, and helpers that put, get and drop one block at a time. What a
 * block holds is made from its number, so any block that is found can be checked.
 */
#ifndef KV_TESTS_TIER_RIG_H
#define KV_TESTS_TIER_RIG_H

#include "dataplane/io/io.h"
#include "dataplane/tier/tier.h"

#define KVT_RIG_BLOCK_BYTES (256 * 1024)

struct kvt_rig {
    struct kv_tier_conf conf;
    struct kv_io *io;
    struct kv_tier *tier;
    struct kv_errinfo info; /* of the last open */
    uint8_t *buffer;        /* of kvt_put and kvt_get */
};

/* `number` names the block and makes its bytes. */
void kvt_block_key(uint64_t number, struct kv_tier_key *ret_key);
uint64_t kvt_block_number(const struct kv_tier_key *key); /* UINT64_MAX when the key is none of kvt_block_key */
void kvt_block_fill(uint64_t number, uint8_t *data, uint64_t bytes);
bool kvt_block_holds(uint64_t number, const uint8_t *data, uint64_t bytes);

/* Opens ring and tier. `bytes` is the cap, `slab_bytes` may be 0. The ring stays when the tier refuses. */
enum kv_err kvt_rig_open(struct kvt_rig *rig, const char *folder, uint64_t bytes, uint64_t slab_bytes,
                         enum kv_io_kind kind);
/* The tier alone, on the ring and with the settings that are there. */
enum kv_err kvt_rig_open_tier(struct kvt_rig *rig);
enum kv_err kvt_rig_close_tier(struct kvt_rig *rig);
void kvt_rig_close(struct kvt_rig *rig);
/* Reaps, polls and waits until `*flag` or, without a flag, until nothing is due and nothing runs. */
void kvt_rig_run(struct kvt_rig *rig, const bool *flag);

enum kv_err kvt_put(struct kvt_rig *rig, uint64_t number, uint64_t bytes, uint64_t *ret_where);
/* `count` blocks from `first` on, all at once: they share flushes. The first error, or KV_OK. `ret_where` may be NULL.
 */
enum kv_err kvt_put_many(struct kvt_rig *rig, uint64_t first, unsigned count, uint64_t bytes, uint64_t *ret_where);
/* KV_E_TAMPERED when the bytes are not the block's. */
enum kv_err kvt_get(struct kvt_rig *rig, uint64_t number, uint64_t bytes, uint64_t where);
enum kv_err kvt_drop(struct kvt_rig *rig, uint64_t number, uint64_t where);
struct kv_tier_stats kvt_stats(struct kvt_rig *rig);

/* What the scan after open tells. */
struct kvt_found {
    unsigned count;
    uint64_t bytes;
    uint64_t number[4096], where[4096], size[4096];
    bool promised[4096];
};
void kvt_scan(struct kvt_rig *rig, struct kvt_found *ret_found);
/* Index of a block in `found`, or -1. */
int kvt_find(const struct kvt_found *found, uint64_t number);
/* Every block found is read back and is what its number says. */
bool kvt_all_verify(struct kvt_rig *rig, const struct kvt_found *found);

#endif

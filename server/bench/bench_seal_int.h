/*
 * Inside of `kvrun bench seal` and `kvrun bench pipeline`: what a thread of them has, and the arms that are compared.
 * All arms move the same pages of one pool, in the same order, to slots of one arena. Thread: a lane belongs to one
 * thread at a time.
 */
#ifndef KV_BENCH_SEAL_INT_H
#define KV_BENCH_SEAL_INT_H

#include "dataplane/base/env.h"
#include "dataplane/crypto/sealed.h"
#include "dataplane/device/pool.h"

#define SEAL_REGIONS_MAX 64u
#define SEAL_CONTEXTS 8u
#define SEAL_SLOTS_MAX 256u

/* As layers of a model lie in an engine's pool: each region has a run of every page. */
struct seal_shape {
    uint32_t regions, slots; /* slots: of each lane, a power of two */
    uint64_t run_bytes;
    unsigned blocks; /* that an arm moves in a round; slots are used again where there are fewer */
};

enum seal_arm {
    SEAL_COPY,    /* memcpy of the page's runs into the slot */
    SEAL_SEAL,    /* ours */
    SEAL_EVP,     /* OpenSSL alone: one message a page, the same runs, one key for all; one context of eight */
    SEAL_SCATTER, /* memcpy of the slot into the page's runs */
    SEAL_OPEN,    /* ours */
};

struct seal_evp;

struct seal_lane {
    struct kv_pool *pool; /* borrowed */
    const struct seal_shape *shape;
    uint32_t first_slot; /* of the pool: each lane has pages of its own */
    struct kv_sealer *sealer;
    struct kv_secret *key;
    struct kv_dram *dram;
    uint8_t *slots[SEAL_SLOTS_MAX], *copies[SEAL_SLOTS_MAX];
    void *staging;
    struct seal_evp *evp;
    struct kv_segment segments[SEAL_REGIONS_MAX];
    unsigned context; /* of evp: which one is used */
    double cpu_s;     /* of the arm that ran last */
    enum kv_err rc;
};

KV_RC seal_lane_open(struct seal_lane *lane, struct kv_pool *pool, const struct seal_shape *shape, uint32_t first_slot);
void seal_lane_close(struct seal_lane *lane);
/* Runs an arm over the blocks from the `first` on, of those of a round; time and outcome into the lane. */
void seal_lane_run(struct seal_lane *lane, enum seal_arm arm, unsigned first, unsigned blocks);
/* One block of an arm, untimed. */
KV_RC seal_lane_block(struct seal_lane *lane, enum seal_arm arm, uint32_t page, uint8_t *slot);
/* The page of a block. Neighbours in time are no neighbours in memory: a session's pages lie where the engine had room.
 */
uint32_t seal_lane_page(const struct seal_lane *lane, unsigned block);

/* bench_seal_pool.c: pages for so many lanes, with bytes that differ. */
KV_RC seal_pool_new(const struct seal_shape *shape, unsigned lanes, struct kv_errinfo *info, struct kv_pool **ret_pool);

/* bench_seal_evp.c */
KV_RC seal_evp_new(struct seal_evp **ret_evp);
void seal_evp_free(struct seal_evp *evp);
KV_RC seal_evp_seal(struct seal_evp *evp, unsigned context, const struct kv_segment *source, size_t count,
                    uint8_t *target);

#endif

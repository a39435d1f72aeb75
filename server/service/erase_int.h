/*
 * One round of the eraser: a batch of erasures on its way through the protocol. Shared by eraser.c (which order),
 * erase_fence.c, erase_steps.c, erase_verify.c (the steps) and certify.c (the certificate).
 *
 *   REQUESTED ─ fence ─► FENCED ─ stage ─► STAGED ─ re-key ─► REKEYED ─ destroy ─► DESTROYED ─ purge ─► PURGED ─ verify
 * ─► VERIFIED ─ certify ─► CERTIFIED            any step whose check fails ─► QUARANTINED
 *
 * Each step is durable before the next begins, and is repeated whole when the process died in it.
 */
#ifndef KV_ERASE_INT_H
#define KV_ERASE_INT_H

#include "server/service/svc_int.h"

#define ERASE_FENCE_WAIT_NS (5 * KV_S_NS)

/* A fault point that stands for "the process ended here, or the step failed". */
#define ERASE_STEP_FAULT(name)    \
    do {                          \
        if (KV_FAULT(name)) {     \
            return KV_E_INTERNAL; \
        }                         \
    } while (0)

#define ERASE_SAMPLES_MAX 8
#define ERASE_SAMPLE_BYTES_MAX (1024 * 1024)

struct erase_round {
    struct kv_svc *svc;
    struct kv_pg *pg;
    struct kv_errinfo info;
    int64_t fence;
    struct kv_id root_id; /* kroot's when the round began */
    struct kv_store_batch batch;
    struct kv_store_erasure *jobs; /* KV_ERASE_BATCH of them, owned by the eraser thread */
    size_t job_count;
    struct kv_secret *fresh; /* E' between stage and re-key */
    struct kv_buf blob;      /* E', wrapped */
    enum kv_err put_off;     /* the first job that is left for the next round; the others went on */
    struct kv_errinfo put_off_info;
};

/* One job failed and waits for the next round, which says so at its end; the others are not held up. */
void erase_put_off(struct erase_round *round, enum kv_err rc);

uint64_t erase_now_us(const struct erase_round *round);

/* The commit that moved a job is done: memory follows, and those who watch learn it. */
void erase_moved(const struct erase_round *round, struct kv_store_erasure *job, enum kv_erasure_state state);
void erase_all_moved(struct erase_round *round, enum kv_erasure_state from, enum kv_erasure_state to);

/* Every step works on the jobs that are in its state and leaves the others alone. */
KV_RC erase_fence(struct erase_round *round);
KV_RC erase_stage(struct erase_round *round);
KV_RC erase_rekey(struct erase_round *round);
KV_RC erase_destroy(struct erase_round *round);
KV_RC erase_purge(struct erase_round *round);
KV_RC erase_verify(struct erase_round *round);
KV_RC erase_certify(struct erase_round *round, struct kv_store_erasure *job);

/* Samples as stored: u32 length and header, one after the other. */
struct erase_samples {
    struct kv_buf bytes;
    struct kv_bytes headers[ERASE_SAMPLES_MAX];
    size_t count;
};
KV_RC erase_samples_load(struct erase_round *round, const struct kv_id *erasure, struct erase_samples *ret_samples);
void erase_samples_done(struct erase_samples *samples);
/* How many of the samples open under K_block of this slot secret. */
KV_RC erase_samples_try(const struct erase_samples *samples, const struct kv_secret *slot,
                        const struct kv_store_erasure *job, uint32_t *ret_opened);

#endif

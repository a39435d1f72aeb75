/*
 * One round of the eraser: a batch of erasures on its way through the protocol. Shared by eraser.c (which order),
 * erase_fence.c, erase_steps.c, erase_verify.c (the steps), certify.c (the certificate) and erase_rotate.c (a batch
 * without erasures, that rotates a tenant's key).
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
#define ERASE_LOOKS 8 /* at other instances in one round */
#define ERASE_LOOK_NS (30 * KV_MS_NS)

/* A fault point that stands for "the process ended here, or the step failed". */
#define ERASE_STEP_FAULT(name)    \
    do {                          \
        if (KV_FAULT(name)) {     \
            return KV_E_INTERNAL; \
        }                         \
    } while (0)

#define ERASE_SAMPLES_MAX 8
#define ERASE_PROVE_MAX 64u /* KV_MAX_PROVE_SAMPLES, as the size of an array */
#define ERASE_SAMPLE_BYTES_MAX (1024 * 1024)
#define ERASE_HELD_BYTES_MAX ((size_t)64 << 20) /* of samples in memory at once, and one more */

/* Samples of a job as they are stored: kept here so that they are read once. */
struct erase_held {
    bool there;
    struct kv_buf framed;
};

/* Some of a round's jobs, by their place in it. */
struct erase_some {
    const size_t *places;
    size_t count;
};

struct erase_round {
    struct kv_svc *svc;
    struct kv_pg *pg;
    struct kv_errinfo info;
    int64_t fence;        /* that this eraser took last; 0: released */
    bool elsewhere;       /* another instance erases */
    struct kv_id root_id; /* kroot's when the round began */
    struct kv_store_batch batch;
    struct kv_store_erasure *jobs; /* KV_ERASE_BATCH of them, owned by the eraser thread, as all arrays here are */
    struct erase_held *held;       /* of the job at the same place */
    size_t held_bytes, job_count;
    size_t *places;                    /* what erase_pick picked */
    struct kv_id *ids, *more_ids;      /* for statements */
    struct kv_store_found *found;      /* the same */
    struct kv_store_revocation *dirty; /* erased, with ciphertext that is still here; 2 * KV_ERASE_BATCH */
    size_t dirty_count;
    struct kv_secret *fresh;  /* E' between stage and re-key */
    struct kv_buf blob;       /* E', wrapped */
    bool replaces_root;       /* somebody asked for that, also without an erasure */
    const char *target;       /* the provider of the fresh root; NULL: the same as before */
    struct kv_roe *fresh_roe; /* the same, open: between stage and re-key */
    bool waiting;             /* for other instances: the next round comes soon */
    uint64_t window_ns;       /* until the batch begins that is being gathered; 0: none is */
    bool rotation_due;        /* a tenant's key waits to be rotated */
    bool rotating;            /* the batch that is being made does that, and erases nothing */
    struct kv_id rotation;    /* its operation, from the re-key on */
    bool rotated_last;        /* the one before did; kept from round to round */
    enum kv_err put_off;      /* the first job that is left for the next round; the others went on */
    struct kv_errinfo put_off_info;
};

/* One job failed and waits for the next round, which says so at its end; the others are not held up. */
void erase_put_off(struct erase_round *round, enum kv_err rc);

uint64_t erase_now_us(const struct erase_round *round);

/* kv_pg_tx of the eraser: nothing in it happens when somebody has taken over, and nobody does before it ends. */
KV_RC erase_tx(struct erase_round *round, enum kv_tx what, kv_pg_tx_fn fn, void *ctx, bool *ret_in_doubt);
/* Before the provider is told to do anything: KV_E_STALE when somebody has taken over. */
KV_RC erase_confirm(struct erase_round *round);

/* The commit that moved a job is done: memory follows, and those who watch learn it. */
void erase_moved(const struct erase_round *round, struct kv_store_erasure *job, enum kv_erasure_state state);
void erase_all_moved(struct erase_round *round, enum kv_erasure_state from, enum kv_erasure_state to);

/* The jobs in a state; good until the next call. */
struct erase_some erase_pick(struct erase_round *round, enum kv_erasure_state state);
/* Their ids, in round->ids; good until the next call. */
struct kv_store_ids erase_ids(struct erase_round *round, const struct erase_some *some);
/* What was found for them, in round->found, without samples. */
const struct kv_store_found *erase_found(struct erase_round *round, const struct erase_some *some);
/* In a transaction: all jobs in `from` go on. */
KV_RC erase_advance(struct kv_pg *pg, struct erase_round *round, const struct kv_store_move *move,
                    struct kv_errinfo *info);

/* `fn` for all of them at once; when that fails for what may be one job's own reason, for each alone, and those that
 * fail then are put off. An error is one that ends the round. */
typedef KV_RC (*erase_some_fn)(struct erase_round *round, const struct erase_some *some, void *ctx);
KV_RC erase_together(struct erase_round *round, const struct erase_some *some, erase_some_fn fn, void *ctx);

/* What is here of a session, or of all of a tenant's, that nobody uses any more: counts, and headers of some blocks,
 * each framed with its length, appended to `framed`. */
KV_RC erase_collect(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                    struct kv_errinfo *info, struct kv_store_facts *ret_facts, struct kv_buf *framed);
KV_RC erase_collect_session(struct kv_svc *svc, const struct kv_id *session, uint32_t samples_max,
                            struct kv_store_facts *ret_facts, struct kv_buf *framed);
/* The session, or the tenant when all of it is erased. */
const struct kv_id *erase_subject(const struct kv_store_erasure *job);

/* Samples as stored: u32 length and header, one after the other. */
struct erase_samples {
    struct kv_buf bytes;                      /* empty when the round holds them */
    struct kv_bytes headers[ERASE_PROVE_MAX]; /* ERASE_SAMPLES_MAX of an erasure */
    size_t count;
};

/* --- erase_instances.c: the other instances */
struct erase_others {
    struct svc_peer peers[SVC_INSTANCES_MAX];
    size_t count;
};
/* Looks at them once, and ends those whose lease ran out. */
KV_RC erase_others_look(struct erase_round *round, struct erase_others *ret_others);
/* All of them use the session of `job` no more, and their records of it are in the log; what they had is added to its
 * facts and samples. */
KV_RC erase_others_fenced(struct erase_round *round, const struct erase_others *others, struct kv_store_erasure *job,
                          struct kv_buf *framed, bool *ret_fenced);
/* All of them hold nothing from before `root`. */
bool erase_others_purged(const struct erase_others *others, const struct kv_id *root);
/* In the transaction that says so: who they were, and this instance. */
KV_RC erase_record_fenced(struct kv_pg *pg, struct erase_round *round, const struct erase_others *others,
                          const struct erase_some *some, struct kv_errinfo *info);
KV_RC erase_record_purged(struct kv_pg *pg, struct erase_round *round, const struct erase_others *others,
                          struct kv_errinfo *info);
/* A little time for others to get further. */
void erase_pause(struct erase_round *round);

/* --- erase_tenant.c: what is otherwise when all of a tenant is erased */
KV_RC erase_tenant_collect(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                           struct kv_errinfo *info, struct kv_store_facts *ret_facts, struct kv_buf *framed);
/* How many sessions are meant, and the root over their ids, into the job. */
KV_RC erase_tenant_count(struct erase_round *round, struct kv_store_erasure *job);
/* How many of the samples open under what the tree leads to now. */
KV_RC erase_tenant_try(struct erase_round *round, const struct kv_ktree_store *rows,
                       const struct erase_samples *samples, const struct kv_store_erasure *job, uint32_t *ret_opened);
/* The tenant's place in the directory is empty, and no secret beside it opens the top of the tree that hung there. */
KV_RC erase_tenant_absent(struct erase_round *round, const struct kv_ktree_store *rows,
                          const struct kv_store_erasure *job, struct kv_errinfo *info, bool *ret_absent);
/* How many blocks are here; added. */
KV_RC erase_tenant_left(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                        struct kv_errinfo *info, uint64_t *ret_blocks);
/* Drops the blocks that are here. */
KV_RC erase_tenant_clean(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                         uint64_t *ret_blocks);

/* Every step works on the jobs that are in its state and leaves the others alone. */
KV_RC erase_fence(struct erase_round *round);
KV_RC erase_stage(struct erase_round *round);
KV_RC erase_rekey(struct erase_round *round);
KV_RC erase_standbys(struct erase_round *round);
KV_RC erase_destroy(struct erase_round *round);
KV_RC erase_purge(struct erase_round *round);
KV_RC erase_verify(struct erase_round *round);
KV_RC erase_certify(struct erase_round *round);

/* --- erase_sweep.c: a change of the root that was called off */
bool erase_sweeps(const struct erase_round *round); /* one was */
KV_RC erase_sweep(struct erase_round *round);
/* Between stage and re-key. KV_E_STALE: this batch has no other reason. */
KV_RC erase_called_off(struct erase_round *round);

/* --- erase_rotate.c: the batch of a rotation goes the same way, from STAGED on */
KV_RC erase_rotation_look(struct erase_round *round); /* is one due? */
/* Whose turn it is: with sessions to be erased, every other batch is theirs. */
void erase_rotation_turn(struct erase_round *round, bool fenced);
/* In the transaction of the re-key: in the place of kv_ktree_rekey. KV_E_STALE: none is due any more. */
KV_RC erase_rotate(struct kv_pg *pg, struct erase_round *round, const struct kv_ktree_store *rows,
                   struct kv_errinfo *info);
/* After it: what cannot be re-keyed is not tried again. */
KV_RC erase_rotate_failed(struct erase_round *round, enum kv_err rc);
/* In the transaction that says that the old root is gone. */
KV_RC erase_rotated(struct kv_pg *pg, struct erase_round *round, uint64_t at_us, struct kv_errinfo *info);

/* Takes the bytes. What is not held is read again when it is needed. */
void erase_samples_drop(struct erase_round *round); /* all that is held */
void erase_samples_hold(struct erase_round *round, const struct kv_store_erasure *job, struct kv_buf *framed);
KV_RC erase_samples_load(struct erase_round *round, const struct kv_store_erasure *job,
                         struct erase_samples *ret_samples);
void erase_samples_done(struct erase_samples *samples);
/* The sample is of this session and opens under K_block of this slot secret. */
KV_RC erase_sample_opens(struct kv_bytes header, const struct kv_secret *slot, const struct kv_id *tenant,
                         const struct kv_id *session, bool *ret_opens);
/* How many of the samples do. */
KV_RC erase_samples_try(const struct erase_samples *samples, const struct kv_secret *slot,
                        const struct kv_store_erasure *job, uint32_t *ret_opened);

/* A leaf of the key tree, opened; jobs of one batch are neighbours most often. Ended by erase_leaf_done. */
struct erase_leaf {
    bool open;
    struct kv_id tree;
    uint32_t directory_slot, first;
    struct kv_secret *secrets[KV_TREE_FANOUT];
};
/* What it shows is what was read: hold kroot FOR SHARE where that must not change. Of a tree that is gone all are. */
KV_RC erase_leaf_open(struct erase_leaf *leaf, struct kv_svc *svc, const struct kv_ktree_store *rows,
                      const struct kv_store_erasure *job);
void erase_leaf_done(struct erase_leaf *leaf);

/* Every key of the slot's leaf, the slot's own among them when it is there. */
struct erase_tried {
    uint32_t keys, opened; /* keys that were tried; samples that opened under one of them */
    bool absent;           /* the slot itself */
};
KV_RC erase_try_leaf(const struct erase_leaf *leaf, const struct kv_store_erasure *job,
                     const struct erase_samples *samples, struct erase_tried *ret_tried);

#endif

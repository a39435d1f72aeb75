/*
 * The steps of an erasure from REQUESTED to VERIFIED. Each works on the jobs of its state, does one thing, and makes it
 * durable in one transaction. Destroying the old root is the moment of erasure; everything before it can be given up,
 * everything after it only goes on.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/store_ktree.h"

#include <stdio.h>
#include <string.h>

#define FENCE_WAIT_NS (5 * KV_S_NS)

/* A fault point that stands for "the process ended here, or the step failed". */
#define STEP_FAULT(name)          \
    do {                          \
        if (KV_FAULT(name)) {     \
            return KV_E_INTERNAL; \
        }                         \
    } while (0)

/* --- FENCED: nobody uses the session any more -------------------------------------------------------------------- */

static KV_RC collect_facts(struct erase_round *round, struct kv_store_erasure *job)
{
    struct kv_scope_usage usage;
    struct kv_buf ids;
    struct kv_hash root;
    KV_TRY(kv_engine_scope_usage(round->svc->engine, &job->session, &usage));
    kv_buf_init(&ids, usage.blocks * sizeof(struct kv_block_id)); /* fenced: there will be no more */
    enum kv_err rc = kv_engine_scope_blocks(round->svc->engine, &job->session, &ids);
    if (rc == KV_OK) {
        rc = kv_merkle_root_of(ids.data, 32, ids.len / 32, &root);
    }
    kv_buf_done(&ids);
    KV_TRY(rc);
    job->facts = (struct kv_store_facts){.blocks = usage.blocks,
                                         .bytes = usage.plaintext_bytes,
                                         .dram_blocks = usage.dram_blocks,
                                         .dram_bytes = usage.dram_bytes,
                                         .nvme_blocks = usage.nvme_blocks,
                                         .nvme_bytes = usage.nvme_bytes};
    memcpy(job->facts.block_root, root.b, sizeof root.b);
    return KV_OK;
}

/* Headers of some blocks, framed with their lengths. */
static KV_RC collect_samples(struct erase_round *round, struct kv_store_erasure *job, struct kv_buf *framed)
{
    struct kv_buf headers;
    uint32_t lens[ERASE_SAMPLES_MAX], count = 0;
    kv_buf_init(&headers, ERASE_SAMPLE_BYTES_MAX);
    enum kv_err rc = kv_engine_sample(round->svc->engine, &job->session, ERASE_SAMPLES_MAX, &headers, lens, &count);
    size_t at = 0;
    for (uint32_t i = 0; i < count && rc == KV_OK; i++) {
        uint8_t len[4];
        struct kv_writer writer = kv_writer_of(len, sizeof len);
        kv_write_u32(&writer, lens[i]);
        kv_buf_append(framed, len, sizeof len);
        kv_buf_append(framed, headers.data + at, lens[i]);
        at += lens[i];
    }
    kv_buf_done(&headers);
    job->facts.samples = count;
    return rc == KV_OK ? kv_buf_check(framed) : rc;
}

struct job_tx {
    struct erase_round *round;
    struct kv_store_erasure *job;
    struct kv_bytes samples;
    enum kv_erasure_state to;
};

static KV_RC fenced_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct job_tx *tx = ctx;
    KV_TRY(kv_store_erasure_set_facts(pg, &tx->job->id, &tx->job->facts, info));
    KV_TRY(kv_store_erasure_set_samples(pg, &tx->job->id, tx->samples, info));
    return kv_store_erasure_advance(pg, &tx->job->id, KV_ERASURE_REQUESTED, KV_ERASURE_FENCED, erase_now_us(tx->round),
                                    info);
}

/* Nobody uses the session any more and its records are in the log: what there is of it can be written down. */
static KV_RC fence_job(struct erase_round *round, struct kv_store_erasure *job)
{
    KV_TRY(collect_facts(round, job));
    struct kv_buf framed;
    kv_buf_init(&framed, ERASE_SAMPLE_BYTES_MAX);
    enum kv_err rc = collect_samples(round, job, &framed);
    if (rc == KV_OK) {
        struct job_tx tx = {.round = round, .job = job, .samples = kv_buf_bytes(&framed)};
        rc = kv_pg_tx(round->pg, "erase-fenced", fenced_tx, &tx, &round->info, NULL);
    }
    kv_buf_done(&framed);
    return rc;
}

/* Returns how many are revoked here, marked in `revoked`. One that still runs is put off; all share one deadline, so
 * that many that run do not add up. */
static size_t revoke_requested(struct erase_round *round, bool revoked[KV_ERASE_BATCH])
{
    uint64_t deadline = kv_now_ns(round->svc->env) + FENCE_WAIT_NS;
    size_t count = 0;
    for (size_t i = 0; i < round->job_count; i++) {
        const struct kv_store_erasure *job = &round->jobs[i];
        if (job->state == KV_ERASURE_REQUESTED) {
            enum kv_err rc = svc_session_revoke(round->svc, &job->tenant, &job->session, &job->id, deadline);
            erase_put_off(round, rc);
            revoked[i] = rc == KV_OK;
            count += revoked[i];
        }
    }
    return count;
}

KV_RC erase_fence(struct erase_round *round)
{
    bool revoked[KV_ERASE_BATCH] = {false};
    if (revoke_requested(round, revoked) == 0) {
        return KV_OK;
    }
    /* Their records come before the erasures' in the log. */
    enum kv_err rc = kv_journal_drain(round->svc->journal, kv_now_ns(round->svc->env) + FENCE_WAIT_NS);
    if (rc != KV_OK) {
        rc = kv_fail(&round->info, rc, "transfer records do not get into the database; new erasures wait for them");
        erase_put_off(round, rc);
        return KV_OK;
    }
    for (size_t i = 0; i < round->job_count; i++) {
        if (revoked[i]) {
            rc = fence_job(round, &round->jobs[i]);
            round->jobs[i].state = rc == KV_OK ? KV_ERASURE_FENCED : round->jobs[i].state;
            erase_put_off(round, rc);
        }
        if (rc == KV_E_DB_UNAVAILABLE) {
            return rc;
        }
    }
    STEP_FAULT("erase/fenced");
    return KV_OK;
}

/* --- STAGED: a fresh root exists beside the old one -------------------------------------------------------------- */

static KV_RC staged_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct erase_round *round = ctx;
    KV_TRY(kv_store_batch_insert(pg, &round->batch, KV_BYTES(NULL, 0), info));
    for (size_t i = 0; i < round->job_count; i++) {
        const struct kv_store_erasure *job = &round->jobs[i];
        if (job->state == KV_ERASURE_FENCED) {
            KV_TRY(kv_store_erasure_set_batch(pg, &job->id, &round->batch.id, info));
            KV_TRY(kv_store_erasure_advance(pg, &job->id, KV_ERASURE_FENCED, KV_ERASURE_STAGED, erase_now_us(round),
                                            info));
        }
    }
    return KV_OK;
}

static KV_RC stage_root(struct erase_round *round)
{
    struct kv_roe *roe = round->svc->roe;
    struct kv_id active, staged;
    KV_TRY(roe->ops->list(roe, &active, &staged));
    if (!kv_id_is_zero(&staged)) { /* a leftover of an attempt whose batch was never written */
        KV_TRY(roe->ops->discard(roe, &staged));
    }
    KV_TRY(roe->ops->create(roe, &round->batch.new_root));
    return roe->ops->wrap(roe, &round->batch.new_root, round->fresh, &round->blob);
}

KV_RC erase_stage(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    round->batch =
        (struct kv_store_batch){.old_root = round->root_id, .fence = round->fence, .created_us = erase_now_us(round)};
    snprintf(round->batch.provider, sizeof round->batch.provider, "%s", svc->roe->ops->name);
    snprintf(round->batch.provider_detail, sizeof round->batch.provider_detail, "%.128s",
             svc->roe->ops->describe(svc->roe));
    KV_TRY(kv_id_new(svc->env, &round->batch.id));
    KV_TRY(svc->env->random(svc->env->ctx, round->batch.new_root.b, sizeof round->batch.new_root.b));
    KV_TRY(kv_secret_random(svc->env, 32, &round->fresh));
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = stage_root(round);
    pthread_mutex_unlock(&svc->roe_mutex);
    KV_TRY(rc);
    KV_TRY(kv_pg_tx(round->pg, "erase-staged", staged_tx, round, &round->info, NULL));
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == KV_ERASURE_FENCED) {
            round->jobs[i].state = KV_ERASURE_STAGED;
            round->jobs[i].batch = round->batch.id;
        }
    }
    STEP_FAULT("erase/staged");
    return KV_OK;
}

/* --- REKEYED: the tree hangs under the fresh root, without the erased slots -------------------------------------- */

/* The control: the samples open under the key that is about to go. Without it, "they do not open" afterwards would say
 * nothing. */
static KV_RC control(struct erase_round *round, const struct kv_ktree_store *rows, struct kv_store_erasure *job)
{
    struct kv_secret *slot = NULL;
    struct erase_samples samples;
    KV_TRY(erase_samples_load(round, &job->id, &samples));
    enum kv_err rc = kv_ktree_slot(round->svc->tree, rows, &job->tenant, job->directory_slot, job->slot, false, &slot);
    if (rc == KV_OK) {
        rc = erase_samples_try(&samples, slot, job, &job->facts.control_opened);
    }
    kv_secret_free(slot);
    erase_samples_done(&samples);
    return rc;
}

/* The directory's top row as it was: later it must not open under the fresh root. */
static KV_RC keep_old_top(struct kv_pg *pg, struct erase_round *round, struct kv_errinfo *info)
{
    struct kv_store_node_key top = {.level = KV_TREE_LEVELS - 1, .idx = 0};
    struct kv_store_node row;
    KV_TRY(kv_store_node_load(pg, &top, info, &row));
    enum kv_err rc = kv_store_batch_set_old_top(pg, &round->batch.id, KV_BYTES(row.sealed, row.sealed_len), info);
    kv_free(row.sealed);
    return rc;
}

static KV_RC rekey_jobs(struct kv_pg *pg, struct erase_round *round, const struct kv_ktree_store *rows,
                        struct kv_errinfo *info)
{
    struct kv_ktree_target targets[KV_ERASE_BATCH];
    size_t count = 0;
    for (size_t i = 0; i < round->job_count; i++) {
        struct kv_store_erasure *job = &round->jobs[i];
        if (job->state != KV_ERASURE_STAGED) {
            continue;
        }
        KV_TRY(control(round, rows, job));
        targets[count++] =
            (struct kv_ktree_target){.tenant = job->tenant, .directory_slot = job->directory_slot, .slot = job->slot};
        KV_TRY(kv_store_erasure_set_facts(pg, &job->id, &job->facts, info));
        KV_TRY(
            kv_store_erasure_advance(pg, &job->id, KV_ERASURE_STAGED, KV_ERASURE_REKEYED, erase_now_us(round), info));
    }
    return kv_ktree_rekey(round->svc->tree, rows, targets, count, &round->batch.new_root, round->fresh);
}

static KV_RC rekey_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct erase_round *round = ctx;
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_lock(pg, round->fence, info, &kroot));
    bool same = kv_id_equal(&kroot.root_id, &round->batch.old_root);
    enum kv_err rc = same ? svc_root_use(round->svc, &kroot, info)
                          : kv_fail(info, KV_E_STALE, "the root changed while a batch was staged");
    kv_store_kroot_done(&kroot);
    KV_TRY(rc);
    KV_TRY(keep_old_top(pg, round, info));
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    KV_TRY(rekey_jobs(pg, round, &rows, info));
    struct kv_store_root_set fresh = {
        .root_id = round->batch.new_root, .provider = round->svc->roe->ops->name, .blob = kv_buf_bytes(&round->blob)};
    KV_TRY(kv_store_kroot_set(pg, &round->batch.old_root, round->fence, &fresh, info));
    return kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_STAGED, KV_BATCH_REKEYED, erase_now_us(round), NULL,
                                  info);
}

KV_RC erase_rekey(struct erase_round *round)
{
    KV_TRY(kv_pg_tx(round->pg, "erase-rekey", rekey_tx, round, &round->info, NULL));
    round->batch.state = KV_BATCH_REKEYED;
    for (size_t i = 0; i < round->job_count; i++) {
        round->jobs[i].state = round->jobs[i].state == KV_ERASURE_STAGED ? KV_ERASURE_REKEYED : round->jobs[i].state;
    }
    STEP_FAULT("erase/rekeyed");
    return KV_OK;
}

/* --- DESTROYED: the moment of erasure ---------------------------------------------------------------------------- */

struct destroy_tx {
    struct erase_round *round;
    struct kv_roe_receipt receipt;
};

static KV_RC record_destroyed(struct kv_pg *pg, struct erase_round *round, const struct kv_store_erasure *job,
                              struct kv_errinfo *info)
{
    uint8_t ref[SVC_REF_BYTES];
    svc_ref(SVC_REF_DESTROY, &job->id, ref);
    struct kv_audit_event event = {.op = KV_AUDIT_ERASE_DESTROY,
                                   .tenant = job->tenant,
                                   .session = job->session,
                                   .actor_role = "system",
                                   .subject = job->id,
                                   .subject_prefix = "era"};
    return svc_audit(round->svc, pg, &event, KV_BYTES(ref, sizeof ref), info);
}

static KV_RC destroyed_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct destroy_tx *tx = ctx;
    struct erase_round *round = tx->round;
    uint64_t at = tx->receipt.realtime_us;
    KV_TRY(
        kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_REKEYED, KV_BATCH_DESTROYED, at, tx->receipt.hash, info));
    for (size_t i = 0; i < round->job_count; i++) {
        const struct kv_store_erasure *job = &round->jobs[i];
        if (job->state == KV_ERASURE_REKEYED) {
            KV_TRY(kv_store_erasure_advance(pg, &job->id, KV_ERASURE_REKEYED, KV_ERASURE_DESTROYED, at, info));
            KV_TRY(record_destroyed(pg, round, job, info));
        }
    }
    struct kv_audit_event event = {
        .op = KV_AUDIT_ROOT_CHANGE, .actor_role = "system", .subject = round->batch.new_root, .subject_prefix = "rot"};
    return svc_audit(round->svc, pg, &event, KV_BYTES(NULL, 0), info);
}

KV_RC erase_destroy(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    if (kv_id_is_zero(&round->batch.id) || round->batch.state != KV_BATCH_REKEYED) {
        return KV_OK;
    }
    STEP_FAULT("erase/destroy");
    struct destroy_tx tx = {.round = round};
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = svc->roe->ops->commit(svc->roe, &round->batch.new_root, &round->batch.old_root, &tx.receipt);
    pthread_mutex_unlock(&svc->roe_mutex);
    KV_TRY(rc);
    STEP_FAULT("erase/destroyed");
    KV_TRY(kv_pg_tx(round->pg, "erase-destroyed", destroyed_tx, &tx, &round->info, NULL));
    round->batch.state = KV_BATCH_DESTROYED;
    round->batch.has_receipt = true;
    round->batch.destroyed_us = tx.receipt.realtime_us;
    memcpy(round->batch.receipt_sha256, tx.receipt.hash, sizeof tx.receipt.hash);
    for (size_t i = 0; i < round->job_count; i++) {
        round->jobs[i].state = round->jobs[i].state == KV_ERASURE_REKEYED ? KV_ERASURE_DESTROYED : round->jobs[i].state;
    }
    return KV_OK;
}

/* --- PURGED: memory holds nothing that was opened before --------------------------------------------------------- */

static KV_RC purged_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct erase_round *round = ctx;
    uint64_t at = erase_now_us(round);
    KV_TRY(kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_DESTROYED, KV_BATCH_PURGED, at, NULL, info));
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == KV_ERASURE_DESTROYED) {
            KV_TRY(kv_store_erasure_advance(pg, &round->jobs[i].id, KV_ERASURE_DESTROYED, KV_ERASURE_PURGED, at, info));
        }
    }
    return KV_OK;
}

/* This process is the only instance, so its own purge is everybody's. Sessions that live keep their block keys: those
 * do not depend on the root's epoch. */
KV_RC erase_purge(struct erase_round *round)
{
    struct kv_store_kroot kroot = {0};
    if (kv_id_is_zero(&round->batch.id) || round->batch.state != KV_BATCH_DESTROYED) {
        return KV_OK;
    }
    KV_TRY(kv_store_kroot_get(round->pg, &round->info, &kroot));
    enum kv_err rc =
        kv_id_equal(&kroot.root_id, &round->batch.new_root)
            ? svc_root_purge(round->svc, &kroot, &round->info)
            : kv_fail(&round->info, KV_E_ROLLBACK_DETECTED, "the database shows another root than the batch made");
    kv_store_kroot_done(&kroot);
    KV_TRY(rc);
    for (size_t i = 0; i < round->job_count; i++) {
        const struct kv_store_erasure *job = &round->jobs[i];
        KV_TRY(svc_session_revoke(round->svc, &job->tenant, &job->session, &job->id,
                                  kv_now_ns(round->svc->env) + FENCE_WAIT_NS));
    }
    KV_TRY(kv_pg_tx(round->pg, "erase-purged", purged_tx, round, &round->info, NULL));
    round->batch.state = KV_BATCH_PURGED;
    for (size_t i = 0; i < round->job_count; i++) {
        round->jobs[i].state = round->jobs[i].state == KV_ERASURE_DESTROYED ? KV_ERASURE_PURGED : round->jobs[i].state;
    }
    STEP_FAULT("erase/purged");
    return KV_OK;
}

/*
 * FENCED: nobody uses the session any more, its records are in the log, and what there is of it is written down. A
 * session that is still in use waits for the next round and holds nobody else up. Must never call a session fenced
 * whose key somebody may still use.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/mem.h"

#include <string.h>

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
        rc = kv_pg_tx(round->pg, KV_TX_ERASE_FENCED, fenced_tx, &tx, &round->info, NULL);
    }
    kv_buf_done(&framed);
    return rc;
}

/* Returns how many are revoked here, marked in `revoked`. One that still runs is put off; all share one deadline, so
 * that many that run do not add up. */
static size_t revoke_requested(struct erase_round *round, bool revoked[KV_ERASE_BATCH])
{
    uint64_t deadline = kv_now_ns(round->svc->env) + ERASE_FENCE_WAIT_NS;
    size_t count = 0;
    for (size_t i = 0; i < round->job_count; i++) {
        const struct kv_store_erasure *job = &round->jobs[i];
        if (job->state == KV_ERASURE_REQUESTED) {
            enum kv_err rc = svc_session_revoke(round->svc, &job->tenant, &job->session, &job->id, deadline);
            if (rc != KV_OK) {
                rc = kv_fail(&round->info, rc, "%s", svc_revoke_text(rc));
                erase_put_off(round, rc);
            }
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
    enum kv_err rc = kv_journal_drain(round->svc->journal, kv_now_ns(round->svc->env) + ERASE_FENCE_WAIT_NS);
    if (rc != KV_OK) {
        rc = kv_fail(&round->info, rc, "transfer records do not get into the database; new erasures wait for them");
        erase_put_off(round, rc);
        return KV_OK;
    }
    for (size_t i = 0; i < round->job_count; i++) {
        if (revoked[i]) {
            rc = fence_job(round, &round->jobs[i]);
            if (rc == KV_OK) {
                erase_moved(round, &round->jobs[i], KV_ERASURE_FENCED);
            }
            erase_put_off(round, rc);
        }
        if (rc == KV_E_DB_UNAVAILABLE) {
            return rc;
        }
    }
    ERASE_STEP_FAULT("erase/fenced");
    return KV_OK;
}

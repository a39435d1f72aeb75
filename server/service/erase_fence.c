/*
 * FENCED: nobody uses the session any more, its records are in the log, and what there is of it is written down. A
 * session that is still in use waits for the next round and holds nobody else up. Must never call a session fenced
 * whose key somebody may still use.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <string.h>

static KV_RC collect_facts(struct kv_svc *svc, const struct kv_id *session, struct kv_store_facts *facts)
{
    struct kv_scope_usage usage;
    struct kv_buf ids;
    struct kv_hash root;
    KV_TRY(kv_engine_scope_usage(svc->engine, session, &usage));
    kv_buf_init(&ids, usage.blocks * sizeof(struct kv_block_id)); /* fenced: there will be no more */
    enum kv_err rc = kv_engine_scope_blocks(svc->engine, session, &ids);
    if (rc == KV_OK) {
        rc = kv_merkle_root_of(ids.data, 32, ids.len / 32, &root);
    }
    kv_buf_done(&ids);
    KV_TRY(rc);
    *facts = (struct kv_store_facts){.blocks = usage.blocks,
                                     .bytes = usage.plaintext_bytes,
                                     .dram_blocks = usage.dram_blocks,
                                     .dram_bytes = usage.dram_bytes,
                                     .nvme_blocks = usage.nvme_blocks,
                                     .nvme_bytes = usage.nvme_bytes};
    memcpy(facts->block_root, root.b, sizeof root.b);
    return KV_OK;
}

/* Headers of some blocks, framed with their lengths. */
static KV_RC collect_samples(struct kv_svc *svc, const struct kv_id *session, uint32_t max,
                             struct kv_store_facts *facts, struct kv_buf *framed)
{
    struct kv_buf headers;
    uint32_t lens[ERASE_SAMPLES_MAX], count = 0;
    kv_buf_init(&headers, ERASE_SAMPLE_BYTES_MAX);
    enum kv_err rc = kv_engine_sample(svc->engine, session, KV_TIER_NONE, max, &headers, lens, &count);
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
    facts->samples = count;
    return rc == KV_OK ? kv_buf_check(framed) : rc;
}

KV_RC erase_collect_session(struct kv_svc *svc, const struct kv_id *session, uint32_t samples_max,
                            struct kv_store_facts *ret_facts, struct kv_buf *framed)
{
    KV_TRY(collect_facts(svc, session, ret_facts));
    return samples_max > 0 ? collect_samples(svc, session, samples_max, ret_facts, framed) : KV_OK;
}

KV_RC erase_collect(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *what,
                    struct kv_errinfo *info, struct kv_store_facts *ret_facts, struct kv_buf *framed)
{
    return kv_id_is_zero(&what->session)
               ? erase_tenant_collect(svc, pg, what, info, ret_facts, framed)
               : erase_collect_session(svc, &what->session, ERASE_SAMPLES_MAX, ret_facts, framed);
}

const struct kv_id *erase_subject(const struct kv_store_erasure *job)
{
    return job->whole_tenant ? &job->tenant : &job->session;
}

struct fence {
    struct erase_round *round;
    const struct erase_others *others;
    const struct erase_some *some;
};

static KV_RC fenced_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct fence *fence = ctx;
    struct erase_round *round = fence->round;
    const struct kv_store_move move = {
        .from = KV_ERASURE_REQUESTED, .to = KV_ERASURE_FENCED, .at_us = erase_now_us(round)};
    struct kv_store_ids ids = erase_ids(round, fence->some);
    erase_found(round, fence->some);
    for (size_t i = 0; i < ids.count; i++) {
        const struct kv_store_erasure *job = &round->jobs[fence->some->places[i]];
        round->found[i].samples = kv_buf_bytes(&round->held[fence->some->places[i]].framed);
        KV_TRY(job->whole_tenant ? kv_store_erasure_set_sessions(pg, job, info) : KV_OK);
    }
    KV_TRY(kv_store_erasures_set_facts(pg, round->found, ids.count, info));
    KV_TRY(kv_store_erasures_set_samples(pg, round->found, ids.count, info));
    KV_TRY(erase_record_fenced(pg, round, fence->others, fence->some, info));
    return kv_store_erasures_advance(pg, &ids, &move, info);
}

static KV_RC fence_some(struct erase_round *round, const struct erase_some *some, void *ctx)
{
    struct fence fence = {.round = round, .others = ctx, .some = some};
    KV_TRY(erase_tx(round, KV_TX_ERASE_FENCED, fenced_tx, &fence, NULL));
    for (size_t i = 0; i < some->count; i++) {
        erase_moved(round, &round->jobs[some->places[i]], KV_ERASURE_FENCED);
    }
    return KV_OK;
}

/* Nobody uses the session any more and its records are in the log: what there is of it can be written down. */
static KV_RC collect_job(struct erase_round *round, const struct erase_others *others, struct kv_store_erasure *job,
                         bool *ret_fenced)
{
    struct kv_buf framed;
    kv_buf_init(&framed, ERASE_SAMPLE_BYTES_MAX);
    const struct kv_store_revocation what = svc_revocation_of(job);
    enum kv_err rc = erase_collect(round->svc, round->pg, &what, &round->info, &job->facts, &framed);
    if (rc == KV_OK && job->whole_tenant) {
        rc = erase_tenant_count(round, job);
    }
    if (rc == KV_OK) {
        rc = erase_others_fenced(round, others, job, &framed, ret_fenced);
    }
    if (rc == KV_OK && *ret_fenced) {
        erase_samples_hold(round, job, &framed);
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
            const struct kv_store_revocation what = svc_revocation_of(job);
            enum kv_err rc = svc_revoke(round->svc, round->pg, &what, deadline, &round->info);
            erase_put_off(round, rc);
            revoked[i] = rc == KV_OK;
            count += revoked[i];
        }
    }
    return count;
}

/* Those that nobody uses any more, here or elsewhere; *ret_left: how many somebody still may use. */
static KV_RC fence_revoked(struct erase_round *round, const bool revoked[KV_ERASE_BATCH], size_t *ret_left)
{
    struct erase_others *others KV_CLEANUP(kv_freep) = kv_alloc(sizeof *others);
    struct erase_some ready = {.places = round->places};
    if (others == NULL) {
        return KV_E_NO_MEMORY;
    }
    *ret_left = 0;
    KV_TRY(erase_others_look(round, others));
    for (size_t i = 0; i < round->job_count; i++) {
        if (!revoked[i] || round->jobs[i].state != KV_ERASURE_REQUESTED) {
            continue;
        }
        bool fenced = false;
        enum kv_err rc = collect_job(round, others, &round->jobs[i], &fenced);
        if (rc == KV_OK && fenced) {
            round->places[ready.count++] = i;
        }
        *ret_left += rc == KV_OK && !fenced;
        erase_put_off(round, rc);
        if (rc == KV_E_DB_UNAVAILABLE || rc == KV_E_STALE) {
            return rc;
        }
        if (round->held_bytes > ERASE_HELD_BYTES_MAX) {
            KV_TRY(erase_together(round, &ready, fence_some, others));
            erase_samples_drop(round);
            ready.count = 0;
        }
    }
    return erase_together(round, &ready, fence_some, others);
}

/* While others are waited for and nothing else is to be done, a few times here: a round of its own costs more. */
static KV_RC fence_patiently(struct erase_round *round, const bool revoked[KV_ERASE_BATCH], size_t count)
{
    size_t left = count, before = 0;
    for (int tries = 0; left > 0 && tries < ERASE_LOOKS; tries++) {
        before = left;
        KV_TRY(fence_revoked(round, revoked, &left));
        round->waiting = left > 0;
        if (left == 0 || left < before || round->put_off != KV_OK || atomic_load(&round->svc->stopping)) {
            break;
        }
        erase_pause(round);
    }
    return KV_OK;
}

KV_RC erase_fence(struct erase_round *round)
{
    bool revoked[KV_ERASE_BATCH] = {false};
    size_t count = revoke_requested(round, revoked);
    if (count == 0) {
        return KV_OK;
    }
    /* Their records come before the erasures' in the log. */
    enum kv_err rc = kv_journal_drain(round->svc->journal, kv_now_ns(round->svc->env) + ERASE_FENCE_WAIT_NS);
    if (rc != KV_OK) {
        rc = kv_fail(&round->info, rc, "transfer records do not get into the database; new erasures wait for them");
        erase_put_off(round, rc);
        return KV_OK;
    }
    KV_TRY(fence_patiently(round, revoked, count));
    ERASE_STEP_FAULT("erase/fenced");
    return KV_OK;
}

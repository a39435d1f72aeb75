/*
 * The other instances on the way of an erasure: each has said that it uses the session no more, or its lease is over.
 * Must never take one for fenced that may still use a key: a lease is over only when this process saw its counter stand
 * still for longer than it lasts, and then the database is told first, so that it cannot be renewed any more.
 */
#include "server/service/erase_int.h"
#include "server/service/erase_request.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <string.h>
#include <time.h>

struct held {
    int64_t fence;
    kv_pg_tx_fn fn;
    void *ctx;
};

static KV_RC held_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct held *held = ctx;
    KV_TRY(kv_store_kroot_hold(pg, held->fence, info));
    return held->fn(pg, held->ctx, info);
}

KV_RC erase_tx(struct erase_round *round, enum kv_tx what, kv_pg_tx_fn fn, void *ctx, bool *ret_in_doubt)
{
    struct held held = {.fence = round->fence, .fn = fn, .ctx = ctx};
    return kv_pg_tx(round->pg, what, held_tx, &held, &round->info, ret_in_doubt);
}

KV_RC erase_confirm(struct erase_round *round)
{
    return svc_root_still(round->pg, round->fence, &round->info);
}

void erase_pause(struct erase_round *round)
{
    svc_sleep(round->svc, ERASE_LOOK_NS);
}

/* --- what an instance says of itself ----------------------------------------------------------------------------- */

static KV_RC report_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    return kv_store_erasure_report(pg, ctx, info);
}

KV_RC svc_erase_report(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_revocation *revocation,
                       struct kv_errinfo *info)
{
    if (!svc->roe->ops->shared) {
        return KV_OK; /* there is nobody else to tell */
    }
    struct kv_journal_stats journal;
    struct kv_buf framed;
    struct kv_store_report report = {.erasure = revocation->erasure,
                                     .instance = svc->instance,
                                     .incarnation = svc->lease_row.incarnation,
                                     .at_us = svc->env->realtime_us(svc->env->ctx)};
    kv_buf_init(&framed, ERASE_SAMPLE_BYTES_MAX);
    enum kv_err rc = erase_collect(svc, pg, revocation, info, &report.facts, &framed);
    kv_journal_stats(svc->journal, &journal); /* after the fence: there will be no record of it past this one */
    report.journal_seq = journal.last_seq;
    report.samples = kv_buf_bytes(&framed);
    if (rc == KV_OK) {
        rc = kv_pg_tx(pg, KV_TX_ERASE_REPORT, report_tx, &report, info, NULL);
    }
    kv_buf_done(&framed);
    return rc;
}

/* --- looking at them --------------------------------------------------------------------------------------------- */

static KV_RC expire_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    return kv_store_instance_expire(pg, ctx, info);
}

/* Its renewals hit no row from now on. One that came in between is found at the next look. */
static KV_RC expire(struct erase_round *round, struct svc_peer *peer)
{
    enum kv_err rc = erase_tx(round, KV_TX_ERASE_EXPIRE, expire_tx, &peer->row, NULL);
    if (rc == KV_E_STALE) {
        return erase_confirm(round);
    }
    KV_TRY(rc);
    peer->row.expired_us = erase_now_us(round);
    kv_log(KV_LOG_WARN, "eraser", "lease-over", KV_FID("instance", "ins", &peer->row.id));
    return KV_OK;
}

KV_RC erase_others_look(struct erase_round *round, struct erase_others *ret_others)
{
    ret_others->count = 0;
    if (!round->svc->roe->ops->shared) {
        return KV_OK;
    }
    KV_TRY(svc_peers_look(round->svc, round->pg, &round->info));
    ret_others->count = svc_peers(round->svc, ret_others->peers);
    for (size_t i = 0; i < ret_others->count; i++) {
        struct svc_peer *peer = &ret_others->peers[i];
        if (peer->row.expired_us == 0 && svc_peer_is_over(round->svc, peer)) {
            KV_TRY(expire(round, peer));
        }
    }
    return KV_OK;
}

/* --- fenced ------------------------------------------------------------------------------------------------------ */

static const struct kv_store_erasure_instance *report_of(const struct kv_store_erasure_instance *reports, size_t count,
                                                         const struct kv_id *instance)
{
    for (size_t i = 0; i < count; i++) {
        if (kv_id_equal(&reports[i].instance, instance)) {
            return &reports[i];
        }
    }
    return NULL;
}

/* One that acknowledged has its records of the session in the log; of one whose lease is over some may come late. */
static KV_RC is_fenced(struct erase_round *round, const struct svc_peer *peer, const struct kv_store_erasure *job,
                       const struct kv_store_erasure_instance *report, bool *ret_fenced)
{
    uint64_t shipped = 0;
    *ret_fenced = peer->row.expired_us != 0;
    if (*ret_fenced || (peer->row.acked_seq < job->revocation_seq && !KV_FAULT("erase/unfenced"))) {
        return KV_OK;
    }
    if (report != NULL) {
        KV_TRY(kv_store_journal_seq(round->pg, &peer->row.id, &round->info, &shipped));
    }
    *ret_fenced = report == NULL || shipped >= report->journal_seq;
    return KV_OK;
}

/* The root over what one instance had is its own; over what several had it is the root over theirs, in the order of
 * their ids. */
struct roots {
    uint8_t roots[SVC_INSTANCES_MAX + 1][32];
    size_t count;
};

static void add_facts(struct kv_store_facts *sum, const struct kv_store_facts *more)
{
    sum->blocks += more->blocks;
    sum->bytes += more->bytes;
    sum->dram_blocks += more->dram_blocks;
    sum->dram_bytes += more->dram_bytes;
    sum->nvme_blocks += more->nvme_blocks;
    sum->nvme_bytes += more->nvme_bytes;
}

static void add_root(struct roots *roots, const struct kv_store_facts *facts)
{
    if (facts->blocks > 0) {
        memcpy(roots->roots[roots->count++], facts->block_root, 32);
    }
}

static KV_RC add_samples(struct erase_round *round, const struct kv_store_erasure_instance *report,
                         struct kv_store_erasure *job, struct kv_buf *framed)
{
    if (report->facts.samples == 0 || job->facts.samples + report->facts.samples > ERASE_SAMPLES_MAX) {
        return KV_OK; /* some are enough */
    }
    enum kv_err rc = kv_store_erasure_instance_samples(round->pg, &job->id, &report->instance, &round->info, framed);
    job->facts.samples += rc == KV_OK ? report->facts.samples : 0;
    return rc == KV_E_MISSING ? KV_OK : rc;
}

static KV_RC add_report(struct erase_round *round, const struct kv_store_erasure_instance *report,
                        struct kv_store_erasure *job, struct kv_buf *framed)
{
    if (report == NULL || kv_id_equal(&report->instance, &round->svc->instance)) {
        return KV_OK; /* what is here was looked at just now */
    }
    add_facts(&job->facts, &report->facts);
    return add_samples(round, report, job, framed);
}

static KV_RC add_reports(struct erase_round *round, const struct kv_store_erasure_instance *reports, size_t count,
                         struct kv_store_erasure *job, struct kv_buf *framed)
{
    struct roots *roots KV_CLEANUP(kv_freep) = kv_alloc(sizeof *roots);
    struct kv_store_facts own = job->facts;
    struct kv_hash root;
    bool own_added = false;
    if (roots == NULL) {
        return KV_E_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        int order = memcmp(reports[i].instance.b, round->svc->instance.b, sizeof reports[i].instance.b);
        if (order >= 0 && !own_added) {
            add_root(roots, &own);
            own_added = true;
        }
        if (order != 0) {
            add_root(roots, &reports[i].facts);
        }
        KV_TRY(add_report(round, &reports[i], job, framed));
    }
    if (!own_added) {
        add_root(roots, &own);
    }
    if (roots->count == 1) {
        memcpy(job->facts.block_root, roots->roots[0], sizeof roots->roots[0]);
    } else if (roots->count > 1) {
        KV_TRY(kv_merkle_root_of(roots->roots[0], 32, roots->count, &root));
        memcpy(job->facts.block_root, root.b, sizeof root.b);
    }
    return KV_OK;
}

KV_RC erase_others_fenced(struct erase_round *round, const struct erase_others *others, struct kv_store_erasure *job,
                          struct kv_buf *framed, bool *ret_fenced)
{
    struct kv_store_erasure_instance *reports KV_CLEANUP(kv_freep) = kv_alloc_array(SVC_INSTANCES_MAX, sizeof *reports);
    size_t count = 0;
    *ret_fenced = true;
    if (reports == NULL) {
        return KV_E_NO_MEMORY;
    }
    if (!round->svc->roe->ops->shared) {
        return KV_OK;
    }
    KV_TRY(kv_store_erasure_instances(round->pg, &job->id, 1, SVC_INSTANCES_MAX, &round->info, reports, &count));
    for (size_t i = 0; i < others->count && *ret_fenced; i++) {
        const struct kv_store_erasure_instance *report = report_of(reports, count, &others->peers[i].row.id);
        KV_TRY(is_fenced(round, &others->peers[i], job, report, ret_fenced));
    }
    return *ret_fenced ? add_reports(round, reports, count, job, framed) : KV_OK;
}

static struct kv_store_fenced fenced_of(const struct erase_round *round, const struct svc_peer *peer)
{
    return (struct kv_store_fenced){.instance = peer->row.id,
                                    .incarnation = peer->row.incarnation,
                                    .how = peer->row.expired_us != 0 ? KV_FENCED_EXPIRED : KV_FENCED_ACKED,
                                    .at_us = erase_now_us(round)};
}

static struct kv_store_fenced self(const struct erase_round *round)
{
    return (struct kv_store_fenced){.instance = round->svc->instance,
                                    .incarnation = atomic_load(&round->svc->token.incarnation),
                                    .how = KV_FENCED_SELF,
                                    .at_us = erase_now_us(round)};
}

/* One whose lease ran out is named for the sessions whose keys it may still have. */
static KV_RC record_lingering(struct kv_pg *pg, struct erase_round *round, const struct kv_store_fenced *fenced,
                              const struct erase_some *some, struct kv_errinfo *info)
{
    for (size_t i = 0; i < some->count; i++) {
        const struct kv_store_erasure *job = &round->jobs[some->places[i]];
        bool lingers = true;
        KV_TRY(kv_store_instance_lingers(pg, &fenced->instance, erase_subject(job), info, &lingers));
        KV_TRY(lingers ? kv_store_erasure_fenced_by(pg, &job->id, fenced, info) : KV_OK);
    }
    return KV_OK;
}

KV_RC erase_record_fenced(struct kv_pg *pg, struct erase_round *round, const struct erase_others *others,
                          const struct erase_some *some, struct kv_errinfo *info)
{
    struct kv_store_fenced fenced = self(round);
    struct kv_store_ids ids = erase_ids(round, some);
    KV_TRY(kv_store_erasures_fenced_by(pg, &ids, &fenced, info));
    for (size_t i = 0; i < others->count; i++) {
        fenced = fenced_of(round, &others->peers[i]);
        KV_TRY(fenced.how == KV_FENCED_EXPIRED ? record_lingering(pg, round, &fenced, some, info)
                                               : kv_store_erasures_fenced_by(pg, &ids, &fenced, info));
    }
    return KV_OK;
}

/* --- purged ------------------------------------------------------------------------------------------------------ */

bool erase_others_purged(const struct erase_others *others, const struct kv_id *root)
{
    bool purged = true;
    for (size_t i = 0; i < others->count; i++) {
        const struct kv_store_instance *row = &others->peers[i].row;
        purged = purged && (row->expired_us != 0 || kv_id_equal(&row->acked_root, root));
    }
    return purged || KV_FAULT("erase/unpurged");
}

static KV_RC record_expired(struct kv_pg *pg, struct erase_round *round, const struct kv_store_fenced *purged,
                            struct kv_errinfo *info)
{
    bool lingers = false;
    for (size_t i = 0; i < round->job_count && !lingers; i++) {
        KV_TRY(kv_store_instance_lingers(pg, &purged->instance, erase_subject(&round->jobs[i]), info, &lingers));
    }
    return lingers ? kv_store_erasure_purged_by(pg, &round->batch.id, purged, info) : KV_OK;
}

KV_RC erase_record_purged(struct kv_pg *pg, struct erase_round *round, const struct erase_others *others,
                          struct kv_errinfo *info)
{
    struct kv_store_fenced purged = self(round);
    KV_TRY(kv_store_erasure_purged_by(pg, &round->batch.id, &purged, info));
    for (size_t i = 0; i < others->count; i++) {
        purged = fenced_of(round, &others->peers[i]);
        KV_TRY(purged.how == KV_FENCED_EXPIRED ? record_expired(pg, round, &purged, info)
                                               : kv_store_erasure_purged_by(pg, &round->batch.id, &purged, info));
    }
    return kv_store_erasure_purged_rest(pg, &round->batch.id, erase_now_us(round), info);
}

/*
 * VERIFIED: a check against our own faults, and called that. The old root is gone from the provider's medium, the row
 * it sealed does not open, the slots are absent, and the samples that opened before open under nothing that is left. A
 * failed check never leads to a certificate.
 */
#include "server/service/erase_int.h"
#include "server/service/svc_metrics.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <string.h>

/* --- samples ----------------------------------------------------------------------------------------------------- */

static KV_RC unframe(struct kv_bytes framed, struct erase_samples *samples)
{
    struct kv_reader reader = kv_reader_of(framed);
    while (!kv_reader_done(&reader) && !reader.failed && samples->count < ERASE_SAMPLES_MAX) {
        uint32_t len = kv_read_u32(&reader);
        const uint8_t *header = kv_read_borrow(&reader, len);
        if (header != NULL) {
            samples->headers[samples->count++] = KV_BYTES(header, len);
        }
    }
    return kv_reader_done(&reader) ? KV_OK : KV_E_CORRUPT;
}

void erase_samples_drop(struct erase_round *round)
{
    for (size_t i = 0; i < KV_ERASE_BATCH; i++) {
        kv_buf_done(&round->held[i].framed);
        round->held[i].there = false;
    }
    round->held_bytes = 0;
}

void erase_samples_hold(struct erase_round *round, const struct kv_store_erasure *job, struct kv_buf *framed)
{
    struct erase_held *held = &round->held[job - round->jobs];
    round->held_bytes -= held->framed.len;
    kv_buf_done(&held->framed);
    *held = (struct erase_held){.there = true, .framed = *framed};
    round->held_bytes += framed->len;
    kv_buf_init(framed, ERASE_SAMPLE_BYTES_MAX); /* the caller's is empty now */
}

static KV_RC load(struct erase_round *round, const struct kv_id *erasure, struct erase_samples *samples)
{
    kv_buf_init(&samples->bytes, ERASE_SAMPLE_BYTES_MAX);
    enum kv_err rc = kv_store_erasure_samples(round->pg, erasure, &round->info, &samples->bytes);
    return rc == KV_E_MISSING ? KV_OK : rc; /* a session without blocks has none, and the certificate says so */
}

KV_RC erase_samples_load(struct erase_round *round, const struct kv_store_erasure *job,
                         struct erase_samples *ret_samples)
{
    const struct erase_held *held = &round->held[job - round->jobs];
    struct erase_samples samples = {.count = 0};
    enum kv_err rc = held->there ? KV_OK : load(round, &job->id, &samples);
    if (rc == KV_OK) {
        rc = unframe(held->there ? kv_buf_bytes(&held->framed) : kv_buf_bytes(&samples.bytes), &samples);
    }
    if (rc != KV_OK) {
        kv_buf_done(&samples.bytes);
        return rc;
    }
    *ret_samples = samples;
    return KV_OK;
}

void erase_samples_done(struct erase_samples *samples)
{
    kv_buf_done(&samples->bytes);
}

static bool opens(const struct kv_secret *key, const struct kv_id *tenant, const struct kv_id *session,
                  struct kv_bytes header)
{
    struct kv_sealed_context context;
    return kv_sealed_peek(header, &context) == KV_OK && kv_id_equal(&context.tenant, tenant) &&
           kv_id_equal(&context.scope, session) && kv_sealed_check(key, &context, header) == KV_OK;
}

static KV_RC count_opened(const struct kv_bytes *headers, size_t count, const struct kv_secret *slot,
                          const struct kv_id *tenant, const struct kv_id *session, uint32_t *ret_opened)
{
    struct kv_secret *scope KV_CLEANUP(kv_secret_freep) = NULL, *key KV_CLEANUP(kv_secret_freep) = NULL;
    KV_TRY(kv_scope_secret(slot, tenant, session, &scope));
    KV_TRY(kv_scope_key_block(scope, &key));
    uint32_t opened = 0;
    for (size_t i = 0; i < count; i++) {
        opened += opens(key, tenant, session, headers[i]);
    }
    *ret_opened = opened;
    return KV_OK;
}

KV_RC erase_sample_opens(struct kv_bytes header, const struct kv_secret *slot, const struct kv_id *tenant,
                         const struct kv_id *session, bool *ret_opens)
{
    uint32_t opened = 0;
    KV_TRY(count_opened(&header, 1, slot, tenant, session, &opened));
    *ret_opens = opened > 0;
    return KV_OK;
}

KV_RC erase_samples_try(const struct erase_samples *samples, const struct kv_secret *slot,
                        const struct kv_store_erasure *job, uint32_t *ret_opened)
{
    return count_opened(samples->headers, samples->count, slot, &job->tenant, &job->session, ret_opened);
}

/* --- checks ------------------------------------------------------------------------------------------------------ */

/* The provider, asked afresh, has the new root and nothing of the old one; the one that the root left has none. */
static KV_RC check_root_gone(struct erase_round *round, bool *ret_gone)
{
    struct kv_svc *svc = round->svc;
    struct kv_id active = {0}, staged = {0}, other = {0};
    struct kv_roe *was = NULL;
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = svc->roe->ops->list(svc->roe, &active, &staged);
    bool gone = kv_id_equal(&active, &round->batch.new_root) && !kv_id_equal(&staged, &round->batch.old_root);
    rc = rc == KV_OK ? svc_provider(svc, round->batch.provider, &round->info, &was) : rc;
    if (rc == KV_OK && was != svc->roe) {
        rc = was->ops->list(was, &other, &staged);
        gone = gone && kv_id_is_zero(&other) && kv_id_is_zero(&staged);
    }
    pthread_mutex_unlock(&svc->roe_mutex);
    KV_TRY(rc);
    *ret_gone = gone;
    return KV_OK;
}

static bool row_opens(struct erase_round *round, const struct kv_id *root, const struct kv_secret *secret,
                      struct kv_bytes row)
{
    struct kv_node_key top = {.level = KV_TREE_LEVELS - 1};
    struct kv_secret *children[KV_TREE_FANOUT] = {0};
    bool opened = kv_node_open(&round->svc->cluster, &top, root, secret, row, children) == KV_OK;
    for (size_t i = 0; opened && i < KV_TREE_FANOUT; i++) {
        kv_secret_free(children[i]);
    }
    return opened;
}

/* The top row from before the re-key opens under the fresh root neither by the old id nor by the new one. */
static KV_RC check_old_row(struct erase_round *round, bool *ret_refused)
{
    struct kv_svc *svc = round->svc;
    struct kv_store_kroot kroot = {0};
    struct kv_secret *secret = NULL;
    struct kv_buf row;
    kv_buf_init(&row, 65536);
    enum kv_err rc = kv_store_batch_old_top(round->pg, &round->batch.id, &round->info, &row);
    if (rc == KV_OK) {
        rc = kv_store_kroot_get(round->pg, &round->info, &kroot);
    }
    if (rc == KV_OK) {
        pthread_mutex_lock(&svc->roe_mutex);
        rc = svc->roe->ops->unwrap(svc->roe, &kroot.root_id, kv_buf_bytes(&kroot.blob), &secret);
        pthread_mutex_unlock(&svc->roe_mutex);
    }
    if (rc == KV_OK) {
        *ret_refused = !row_opens(round, &round->batch.old_root, secret, kv_buf_bytes(&row)) &&
                       !row_opens(round, &round->batch.new_root, secret, kv_buf_bytes(&row));
    }
    kv_secret_free(secret);
    kv_store_kroot_done(&kroot);
    kv_buf_done(&row);
    return rc;
}

KV_RC erase_try_leaf(const struct erase_leaf *leaf, const struct kv_store_erasure *job,
                     const struct erase_samples *samples, struct erase_tried *ret_tried)
{
    struct erase_tried tried = {.absent = leaf->secrets[job->slot - leaf->first] == NULL};
    for (unsigned i = 0; i < KV_TREE_FANOUT && samples->count > 0; i++) {
        uint32_t here = 0;
        if (leaf->secrets[i] != NULL) {
            KV_TRY(erase_samples_try(samples, leaf->secrets[i], job, &here));
            tried.opened += here;
            tried.keys++;
        }
    }
    *ret_tried = tried;
    return KV_OK;
}

struct verify {
    struct erase_round *round;
    const struct erase_some *some;
    uint32_t root_checks;    /* what holds for the whole batch */
    struct kv_errinfo *info; /* of the transaction */
};

/* One session: its slot is gone, and none of the live slots of its leaf opens a sample. A whole tenant: as its file
 * says.
 */
static KV_RC try_samples(struct verify *verify, const struct kv_ktree_store *rows, struct erase_leaf *leaf,
                         const struct erase_samples *samples, const struct kv_store_erasure *job,
                         struct erase_tried *ret_tried)
{
    struct erase_round *round = verify->round;
    if (job->whole_tenant) {
        KV_TRY(erase_tenant_absent(round, rows, job, verify->info, &ret_tried->absent));
        return erase_tenant_try(round, rows, samples, job, &ret_tried->opened);
    }
    KV_TRY(erase_leaf_open(leaf, round->svc, rows, job));
    return erase_try_leaf(leaf, job, samples, ret_tried);
}

static bool passed(const struct kv_store_facts *facts)
{
    uint32_t all = KV_ERASED_ROOT_GONE | KV_ERASED_ROW_REFUSED | KV_ERASED_SLOTS_ABSENT;
    /* A sample that did not open before proves nothing either way (its replica may be damaged), but one at least must
     * have. */
    bool control = facts->samples == 0 || facts->control_opened > 0;
    return facts->checks == all && facts->opened_after == 0 && control;
}

static KV_RC check_job(struct verify *verify, const struct kv_ktree_store *rows, struct erase_leaf *leaf,
                       struct kv_store_erasure *job)
{
    struct erase_samples samples;
    struct erase_tried tried = {0};
    KV_TRY(erase_samples_load(verify->round, job, &samples));
    enum kv_err rc = try_samples(verify, rows, leaf, &samples, job, &tried);
    erase_samples_done(&samples);
    KV_TRY(rc);
    job->facts.opened_after = KV_FAULT("erase/verify-fails") ? 1 : tried.opened;
    job->facts.checks = verify->root_checks | (tried.absent ? (uint32_t)KV_ERASED_SLOTS_ABSENT : 0);
    return KV_OK;
}

/* The slots, under the root in force: a lost lease purges it at any time. */
static KV_RC check_slots(struct kv_pg *pg, struct verify *verify, struct kv_errinfo *info)
{
    struct erase_leaf leaf = {.open = false};
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_share(pg, info, &kroot));
    enum kv_err rc = svc_root_use(verify->round->svc, &kroot, info);
    kv_store_kroot_done(&kroot);
    for (size_t i = 0; i < verify->some->count && rc == KV_OK; i++) {
        rc = check_job(verify, &rows, &leaf, &verify->round->jobs[verify->some->places[i]]);
    }
    erase_leaf_done(&leaf);
    return rc;
}

/* Of them, those whose checks held, or not. */
static struct kv_store_ids judged(struct verify *verify, bool good)
{
    struct erase_round *round = verify->round;
    struct kv_store_ids ids = {.ids = round->ids};
    for (size_t i = 0; i < verify->some->count; i++) {
        const struct kv_store_erasure *job = &round->jobs[verify->some->places[i]];
        if (passed(&job->facts) == good) {
            round->ids[ids.count++] = job->id;
        }
    }
    return ids;
}

static KV_RC record_failed(struct kv_pg *pg, struct verify *verify, struct kv_errinfo *info)
{
    for (size_t i = 0; i < verify->some->count; i++) {
        const struct kv_store_erasure *job = &verify->round->jobs[verify->some->places[i]];
        struct kv_audit_event event = {.op = KV_AUDIT_ERASE_QUARANTINE,
                                       .tenant = job->tenant,
                                       .session = job->session,
                                       .actor_role = "system",
                                       .subject = job->id,
                                       .subject_prefix = "era"};
        KV_TRY(passed(&job->facts) ? KV_OK : svc_audit(verify->round->svc, pg, &event, KV_BYTES(NULL, 0), info));
    }
    return KV_OK;
}

/* No job of the batch is left behind by this. */
static bool ends_batch(const struct verify *verify)
{
    size_t left = 0;
    for (size_t i = 0; i < verify->round->job_count; i++) {
        left += verify->round->jobs[i].state == KV_ERASURE_PURGED;
    }
    return left == verify->some->count;
}

static KV_RC verified_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct verify *verify = ctx;
    struct erase_round *round = verify->round;
    uint64_t at = erase_now_us(round);
    const struct kv_store_move good = {.from = KV_ERASURE_PURGED, .to = KV_ERASURE_VERIFIED, .at_us = at};
    const struct kv_store_move bad = {.from = KV_ERASURE_PURGED, .to = KV_ERASURE_QUARANTINED, .at_us = at};
    verify->info = info;
    KV_TRY(check_slots(pg, verify, info));
    KV_TRY(kv_store_erasures_set_facts(pg, erase_found(round, verify->some), verify->some->count, info));
    struct kv_store_ids ids = judged(verify, true);
    KV_TRY(kv_store_erasures_advance(pg, &ids, &good, info));
    ids = judged(verify, false);
    KV_TRY(kv_store_erasures_advance(pg, &ids, &bad, info));
    KV_TRY(record_failed(pg, verify, info));
    return ends_batch(verify)
               ? kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_PURGED, KV_BATCH_DONE, at, NULL, info)
               : KV_OK;
}

static void tell_quarantined(const struct kv_store_erasure *job)
{
    svc_metrics_quarantined(job);
    kv_log(KV_LOG_ERROR, "eraser", "erasure-quarantined", KV_FID("erasure", "era", &job->id),
           KV_FU("checks", job->facts.checks), KV_FU("samples", job->facts.samples),
           KV_FU("control", job->facts.control_opened), KV_FU("opened", job->facts.opened_after));
}

static KV_RC verify_some(struct erase_round *round, const struct erase_some *some, void *ctx)
{
    struct verify verify = {.round = round, .some = some, .root_checks = *(uint32_t *)ctx};
    KV_TRY(erase_tx(round, KV_TX_ERASE_VERIFIED, verified_tx, &verify, NULL));
    for (size_t i = 0; i < some->count; i++) {
        struct kv_store_erasure *job = &round->jobs[some->places[i]];
        erase_moved(round, job, passed(&job->facts) ? KV_ERASURE_VERIFIED : KV_ERASURE_QUARANTINED);
        if (job->state == KV_ERASURE_QUARANTINED) {
            tell_quarantined(job);
        }
    }
    return KV_OK;
}

/* The checks that are not about a session. Of a root that went with no erasure they have to hold; of others the
 * certificates say whether they do. */
static KV_RC check_root(struct erase_round *round, bool alone, uint32_t *ret_checks)
{
    bool gone = false, refused = false;
    KV_TRY(check_root_gone(round, &gone));
    enum kv_err rc = check_old_row(round, &refused);
    bool none = alone && rc == KV_E_MISSING; /* of a loss that was accepted: no row of before was kept */
    KV_TRY(none ? KV_OK : rc);
    *ret_checks = (gone ? (uint32_t)KV_ERASED_ROOT_GONE : 0) | (refused ? (uint32_t)KV_ERASED_ROW_REFUSED : 0);
    return !alone || (gone && (refused || none))
               ? KV_OK
               : kv_fail(&round->info, KV_E_INTERNAL, "the root that was replaced can still be used");
}

KV_RC erase_verify(struct erase_round *round)
{
    uint32_t checks = 0;
    if (kv_id_is_zero(&round->batch.id) || round->batch.state != KV_BATCH_PURGED) {
        return KV_OK;
    }
    struct erase_some some = erase_pick(round, KV_ERASURE_PURGED);
    KV_TRY(check_root(round, some.count == 0, &checks));
    KV_TRY(some.count > 0 ? erase_together(round, &some, verify_some, &checks) : verify_some(round, &some, &checks));
    ERASE_STEP_FAULT("erase/verified");
    return KV_OK;
}

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

static KV_RC unframe(struct erase_samples *samples)
{
    struct kv_reader reader = kv_reader_of(kv_buf_bytes(&samples->bytes));
    while (!kv_reader_done(&reader) && !reader.failed && samples->count < ERASE_SAMPLES_MAX) {
        uint32_t len = kv_read_u32(&reader);
        const uint8_t *header = kv_read_borrow(&reader, len);
        if (header != NULL) {
            samples->headers[samples->count++] = KV_BYTES(header, len);
        }
    }
    return kv_reader_done(&reader) ? KV_OK : KV_E_CORRUPT;
}

KV_RC erase_samples_load(struct erase_round *round, const struct kv_id *erasure, struct erase_samples *ret_samples)
{
    struct erase_samples samples = {0};
    kv_buf_init(&samples.bytes, ERASE_SAMPLE_BYTES_MAX);
    enum kv_err rc = kv_store_erasure_samples(round->pg, erasure, &round->info, &samples.bytes);
    if (rc == KV_OK) {
        rc = unframe(&samples);
    }
    if (rc != KV_OK && rc != KV_E_MISSING) { /* a session without blocks has no samples, and the certificate says so */
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

KV_RC erase_sample_opens(struct kv_bytes header, const struct kv_secret *slot, const struct kv_id *tenant,
                         const struct kv_id *session, bool *ret_opens)
{
    struct kv_sealed_context context;
    struct kv_secret *scope = NULL, *key = NULL;
    KV_TRY(kv_scope_secret(slot, tenant, session, &scope));
    enum kv_err rc = kv_scope_key_block(scope, &key);
    if (rc == KV_OK) {
        *ret_opens = kv_sealed_peek(header, &context) == KV_OK && kv_id_equal(&context.tenant, tenant) &&
                     kv_id_equal(&context.scope, session) && kv_sealed_check(key, &context, header) == KV_OK;
    }
    kv_secret_free(key);
    kv_secret_free(scope);
    return rc;
}

KV_RC erase_samples_try(const struct erase_samples *samples, const struct kv_secret *slot,
                        const struct kv_store_erasure *job, uint32_t *ret_opened)
{
    uint32_t opened = 0;
    for (size_t i = 0; i < samples->count; i++) {
        bool opens = false;
        KV_TRY(erase_sample_opens(samples->headers[i], slot, &job->tenant, &job->session, &opens));
        opened += opens;
    }
    *ret_opened = opened;
    return KV_OK;
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

struct verify_tx {
    struct erase_round *round;
    struct kv_store_erasure *job;
    bool absent;
};

KV_RC erase_try_leaf(struct kv_svc *svc, const struct kv_ktree_store *rows, const struct kv_store_erasure *job,
                     const struct erase_samples *samples, struct erase_tried *ret_tried)
{
    uint32_t first = job->slot / KV_TREE_FANOUT * KV_TREE_FANOUT;
    struct erase_tried tried = {0};
    for (uint32_t slot = first; slot < first + KV_TREE_FANOUT; slot++) {
        struct kv_secret *secret = NULL;
        if (slot != job->slot && samples->count == 0) {
            continue;
        }
        enum kv_err rc = kv_ktree_slot(svc->tree, rows, &job->tree, job->directory_slot, slot, false, &secret);
        if (rc == KV_E_SESSION_ERASED) {
            tried.absent = tried.absent || slot == job->slot;
            continue;
        }
        KV_TRY(rc);
        uint32_t here = 0;
        rc = erase_samples_try(samples, secret, job, &here);
        kv_secret_free(secret);
        KV_TRY(rc);
        tried.opened += here;
        tried.keys++;
    }
    *ret_tried = tried;
    return KV_OK;
}

static KV_RC try_tenant(struct verify_tx *tx, const struct kv_ktree_store *rows, const struct erase_samples *samples,
                        struct kv_errinfo *info, struct erase_tried *ret_tried)
{
    KV_TRY(erase_tenant_absent(tx->round, rows, tx->job, info, &ret_tried->absent));
    return erase_tenant_try(tx->round, rows, samples, tx->job, &ret_tried->opened);
}

static KV_RC slots_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct verify_tx *tx = ctx;
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_share(pg, info, &kroot));
    enum kv_err used = svc_root_use(tx->round->svc, &kroot, info); /* a lost lease purges it at any time */
    kv_store_kroot_done(&kroot);
    KV_TRY(used);
    struct svc_tree_store store = {.pg = pg, .info = info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    struct erase_samples samples;
    struct erase_tried tried = {0};
    KV_TRY(erase_samples_load(tx->round, &tx->job->id, &samples));
    enum kv_err rc = tx->job->whole_tenant ? try_tenant(tx, &rows, &samples, info, &tried)
                                           : erase_try_leaf(tx->round->svc, &rows, tx->job, &samples, &tried);
    erase_samples_done(&samples);
    tx->absent = tried.absent;
    tx->job->facts.opened_after = tried.opened;
    return rc;
}

static bool passed(const struct kv_store_facts *facts)
{
    uint32_t all = KV_ERASED_ROOT_GONE | KV_ERASED_ROW_REFUSED | KV_ERASED_SLOTS_ABSENT;
    /* A sample that did not open before proves nothing either way (its replica may be damaged), but one at least must
     * have. */
    bool control = facts->samples == 0 || facts->control_opened > 0;
    return facts->checks == all && facts->opened_after == 0 && control;
}

static KV_RC verified_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct verify_tx *tx = ctx;
    struct kv_store_erasure *job = tx->job;
    bool good = passed(&job->facts);
    KV_TRY(kv_store_erasure_set_facts(pg, &job->id, &job->facts, info));
    if (good) {
        KV_TRY(kv_store_erasure_set_samples(pg, &job->id, KV_BYTES(NULL, 0), info));
    } else {
        struct kv_audit_event event = {.op = KV_AUDIT_ERASE_QUARANTINE,
                                       .tenant = job->tenant,
                                       .session = job->session,
                                       .actor_role = "system",
                                       .subject = job->id,
                                       .subject_prefix = "era"};
        KV_TRY(svc_audit(tx->round->svc, pg, &event, KV_BYTES(NULL, 0), info));
    }
    return kv_store_erasure_advance(pg, &job->id, KV_ERASURE_PURGED,
                                    good ? KV_ERASURE_VERIFIED : KV_ERASURE_QUARANTINED, erase_now_us(tx->round), info);
}

static KV_RC verify_job(struct erase_round *round, struct kv_store_erasure *job)
{
    bool gone = false, refused = false;
    struct verify_tx tx = {.round = round, .job = job};
    KV_TRY(check_root_gone(round, &gone));
    KV_TRY(check_old_row(round, &refused));
    KV_TRY(erase_tx(round, KV_TX_ERASE_CHECK_SLOTS, slots_tx, &tx, NULL));
    job->facts.checks = (gone ? (uint32_t)KV_ERASED_ROOT_GONE : 0) | (refused ? (uint32_t)KV_ERASED_ROW_REFUSED : 0) |
                        (tx.absent ? (uint32_t)KV_ERASED_SLOTS_ABSENT : 0);
    if (KV_FAULT("erase/verify-fails")) {
        job->facts.opened_after = 1;
    }
    KV_TRY(erase_tx(round, KV_TX_ERASE_VERIFIED, verified_tx, &tx, NULL));
    erase_moved(round, job, passed(&job->facts) ? KV_ERASURE_VERIFIED : KV_ERASURE_QUARANTINED);
    if (job->state == KV_ERASURE_QUARANTINED) {
        svc_metrics_quarantined(job);
        kv_log(KV_LOG_ERROR, "eraser", "erasure-quarantined", KV_FID("erasure", "era", &job->id),
               KV_FU("checks", job->facts.checks), KV_FU("samples", job->facts.samples),
               KV_FU("control", job->facts.control_opened), KV_FU("opened", job->facts.opened_after));
    }
    return KV_OK;
}

/* A batch of no erasures: the checks that are not about a session. It is not done before they hold. */
static KV_RC verify_root(struct erase_round *round)
{
    bool gone = false, refused = false;
    KV_TRY(check_root_gone(round, &gone));
    enum kv_err rc = check_old_row(round, &refused);
    KV_TRY(rc == KV_E_MISSING ? KV_OK : rc); /* of a loss that was accepted: no row of before was kept */
    return gone && (refused || rc == KV_E_MISSING)
               ? KV_OK
               : kv_fail(&round->info, KV_E_INTERNAL, "the root that was replaced can still be used");
}

static KV_RC done_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct erase_round *round = ctx;
    return kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_PURGED, KV_BATCH_DONE, erase_now_us(round), NULL,
                                  info);
}

KV_RC erase_verify(struct erase_round *round)
{
    if (kv_id_is_zero(&round->batch.id) || round->batch.state != KV_BATCH_PURGED) {
        return KV_OK;
    }
    KV_TRY(round->job_count == 0 ? verify_root(round) : KV_OK);
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == KV_ERASURE_PURGED) {
            KV_TRY(verify_job(round, &round->jobs[i]));
        }
    }
    KV_TRY(erase_tx(round, KV_TX_ERASE_BATCH_DONE, done_tx, round, NULL));
    if (KV_FAULT("erase/verified")) {
        return KV_E_INTERNAL;
    }
    return KV_OK;
}

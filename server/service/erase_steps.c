/*
 * The steps of an erasure from FENCED to PURGED. Each works on the jobs of its state, does one thing, and makes it
 * durable in one transaction. Destroying the old root is the moment of erasure; everything before it can be given up,
 * everything after it only goes on.
 */
#include "server/service/erase_int.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/service/janitor.h"
#include "server/service/svc_entries.h"
#include "server/store/store_ktree.h"
#include "server/store/store_shared.h"

#include <stdio.h>
#include <string.h>

/* --- leaves ---------------------------------------------------------------------------------------------------------
 */

static bool leaf_has(const struct erase_leaf *leaf, const struct kv_store_erasure *job, uint32_t first)
{
    return leaf->open && leaf->first == first && leaf->directory_slot == job->directory_slot &&
           kv_id_equal(&leaf->tree, &job->tree);
}

KV_RC erase_leaf_open(struct erase_leaf *leaf, struct kv_svc *svc, const struct kv_ktree_store *rows,
                      const struct kv_store_erasure *job)
{
    uint32_t first = job->slot / KV_TREE_FANOUT * KV_TREE_FANOUT;
    if (leaf_has(leaf, job, first)) {
        return KV_OK;
    }
    erase_leaf_done(leaf);
    enum kv_err rc = kv_ktree_leaf(svc->tree, rows, &job->tree, job->directory_slot, job->slot, leaf->secrets);
    KV_TRY(rc == KV_E_SESSION_ERASED ? KV_OK : rc);
    leaf->open = true;
    leaf->tree = job->tree;
    leaf->directory_slot = job->directory_slot;
    leaf->first = first;
    return KV_OK;
}

void erase_leaf_done(struct erase_leaf *leaf)
{
    for (size_t i = 0; leaf->open && i < KV_TREE_FANOUT; i++) {
        kv_secret_free(leaf->secrets[i]);
    }
    *leaf = (struct erase_leaf){.open = false};
}

/* --- STAGED: a fresh root exists beside the old one -------------------------------------------------------------- */

/* The control: the samples open under the key that is about to go. Without it, "they do not open" afterwards would say
 * nothing. */
static KV_RC try_key(struct erase_round *round, const struct kv_ktree_store *rows, struct erase_leaf *leaf,
                     const struct erase_samples *samples, struct kv_store_erasure *job)
{
    if (job->whole_tenant) {
        return erase_tenant_try(round, rows, samples, job, &job->facts.control_opened);
    }
    const struct kv_secret *slot = leaf->secrets[job->slot - leaf->first];
    if (slot == NULL) {
        /* All of its tenant went before it. Nothing leads to its key, and no sample can show anything any more. */
        job->facts.samples = job->facts.control_opened = 0;
        return KV_OK;
    }
    return erase_samples_try(samples, slot, job, &job->facts.control_opened);
}

static KV_RC control(struct erase_round *round, const struct kv_ktree_store *rows, struct erase_leaf *leaf,
                     struct kv_store_erasure *job)
{
    struct erase_samples samples;
    KV_TRY(job->whole_tenant ? KV_OK : erase_leaf_open(leaf, round->svc, rows, job));
    KV_TRY(erase_samples_load(round, job, &samples));
    enum kv_err rc = try_key(round, rows, leaf, &samples, job);
    erase_samples_done(&samples);
    return rc;
}

/* Those that this batch takes with it. */
static struct erase_some joining(struct erase_round *round)
{
    return round->rotating ? (struct erase_some){.count = 0} : erase_pick(round, KV_ERASURE_FENCED);
}

static KV_RC staged_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct erase_round *round = ctx;
    struct erase_some some = joining(round);
    struct kv_store_ids ids = erase_ids(round, &some);
    const struct kv_store_move move = {
        .from = KV_ERASURE_FENCED, .to = KV_ERASURE_STAGED, .at_us = erase_now_us(round)};
    KV_TRY(kv_store_batch_insert(pg, &round->batch, KV_BYTES(NULL, 0), info));
    KV_TRY(kv_store_erasures_set_batch(pg, &ids, &round->batch.id, info));
    return kv_store_erasures_advance(pg, &ids, &move, info);
}

static KV_RC make_root(struct erase_round *round, const struct kv_id *leftover)
{
    struct kv_roe *roe = round->fresh_roe;
    if (!kv_id_is_zero(leftover)) { /* of an attempt whose batch was never written */
        KV_TRY(roe->ops->discard(roe, leftover));
    }
    KV_TRY(roe->ops->create(roe, &round->batch.new_root));
    return roe->ops->wrap(roe, &round->batch.new_root, round->fresh, &round->blob);
}

/* Where the fresh root is made. A provider that the root moves to has none of its own. */
static KV_RC find_target(struct erase_round *round, struct kv_id *ret_active, struct kv_id *ret_staged)
{
    struct kv_svc *svc = round->svc;
    round->fresh_roe = svc->roe;
    if (round->target != NULL) {
        KV_TRY(svc_provider(svc, round->target, &round->info, &round->fresh_roe));
    }
    KV_TRY(round->fresh_roe->ops->list(round->fresh_roe, ret_active, ret_staged));
    bool own = round->fresh_roe == svc->roe || kv_id_is_zero(ret_active);
    return own ? KV_OK : kv_fail(&round->info, KV_E_INVALID_STATE, "the new provider holds another root already");
}

/* What is discarded was there before the fence was looked at once more. So it is nothing that another eraser made after
 * this one lost the fence, even if this process is stopped right here and goes on an hour later. */
static KV_RC stage_root(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    struct kv_id active, staged;
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = find_target(round, &active, &staged);
    pthread_mutex_unlock(&svc->roe_mutex);
    KV_TRY(rc);
    ERASE_STEP_FAULT("erase/stage-listed");
    KV_TRY(erase_confirm(round));
    ERASE_STEP_FAULT("erase/stage-create");
    pthread_mutex_lock(&svc->roe_mutex);
    rc = svc_root_said(svc, make_root(round, &staged), &round->info, "no fresh root of erasure could be made");
    pthread_mutex_unlock(&svc->roe_mutex);
    return rc;
}

static KV_RC use_root(struct erase_round *round)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_get(round->pg, &round->info, &kroot));
    enum kv_err rc = svc_root_use(round->svc, &kroot, &round->info);
    kv_store_kroot_done(&kroot);
    return rc;
}

static KV_RC check_path(struct erase_round *round, const struct kv_ktree_store *rows, struct erase_leaf *leaf,
                        struct kv_store_erasure *job)
{
    enum kv_err rc = control(round, rows, leaf, job);
    bool told = rc == KV_OK || round->info.code == rc;
    return told ? rc : kv_fail(&round->info, rc, "the way to a session's key in the key tree does not open");
}

/* Whether a job takes part in this round. A fenced one only when its way through the tree is whole, for it would fail
 * the re-key of all, with a root made and discarded each time; and while the batch is not full: what is left waits. */
static KV_RC may_stay(struct erase_round *round, const struct kv_ktree_store *rows, struct erase_leaf *leaf,
                      struct kv_store_erasure *job, size_t *fit, bool *ret_stays)
{
    enum kv_err rc = KV_OK;
    *ret_stays = true;
    if (job->state == KV_ERASURE_FENCED && *fit < round->svc->conf.erase_batch_max) {
        rc = check_path(round, rows, leaf, job);
        *ret_stays = rc == KV_OK;
        *fit += *ret_stays;
    } else if (job->state == KV_ERASURE_FENCED) {
        *ret_stays = false;
    }
    erase_put_off(round, rc);
    return rc == KV_E_DB_UNAVAILABLE ? rc : KV_OK;
}

/* No transaction: what is read here is read again under kroot by the re-key. */
static KV_RC choose(struct erase_round *round, struct erase_leaf *leaf, size_t *ret_fit)
{
    struct svc_tree_store store = {.pg = round->pg, .info = &round->info};
    struct kv_ktree_store rows = svc_tree_store(&store);
    size_t fit = 0, kept = 0;
    for (size_t i = 0; i < round->job_count; i++) {
        bool stays = false;
        KV_TRY(may_stay(round, &rows, leaf, &round->jobs[i], &fit, &stays));
        if (stays) { /* those behind move up; what is held moves with its job */
            struct erase_held held = round->held[kept];
            round->jobs[kept] = round->jobs[i];
            round->held[kept] = round->held[i];
            round->held[i] = i == kept ? round->held[i] : held;
            kept++;
        }
    }
    round->job_count = kept;
    *ret_fit = fit;
    return KV_OK;
}

static KV_RC find_fit(struct erase_round *round, size_t *ret_fit)
{
    struct erase_leaf leaf = {.open = false};
    *ret_fit = 0;
    if (erase_pick(round, KV_ERASURE_FENCED).count == 0) {
        return KV_OK;
    }
    KV_TRY(use_root(round));
    enum kv_err rc = choose(round, &leaf, ret_fit);
    erase_leaf_done(&leaf);
    return rc;
}

KV_RC erase_stage(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    size_t fit = 0;
    KV_TRY(round->rotating ? KV_OK : find_fit(round, &fit));
    if (fit == 0 && !round->rotating && !round->replaces_root) {
        return KV_OK;
    }
    round->batch =
        (struct kv_store_batch){.old_root = round->root_id, .fence = round->fence, .created_us = erase_now_us(round)};
    snprintf(round->batch.provider, sizeof round->batch.provider, "%s", svc->roe->ops->name);
    snprintf(round->batch.provider_detail, sizeof round->batch.provider_detail, "%.128s",
             svc->roe->ops->describe(svc->roe));
    KV_TRY(kv_id_new(svc->env, &round->batch.id));
    KV_TRY(svc->env->random(svc->env->ctx, round->batch.new_root.b, sizeof round->batch.new_root.b));
    KV_TRY(kv_secret_random(svc->env, 32, &round->fresh));
    KV_TRY(stage_root(round));
    KV_TRY(erase_tx(round, KV_TX_ERASE_STAGED, staged_tx, round, NULL));
    struct erase_some some = joining(round);
    for (size_t i = 0; i < some.count; i++) {
        round->jobs[some.places[i]].batch = round->batch.id;
        erase_moved(round, &round->jobs[some.places[i]], KV_ERASURE_STAGED);
    }
    ERASE_STEP_FAULT("erase/staged");
    return KV_OK;
}

/* --- REKEYED: the tree hangs under the fresh root, without the erased slots -------------------------------------- */

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

static KV_RC control_all(struct erase_round *round, const struct kv_ktree_store *rows, const struct erase_some *some,
                         struct kv_ktree_target *ret_targets)
{
    struct erase_leaf leaf = {.open = false};
    enum kv_err rc = KV_OK;
    for (size_t i = 0; i < some->count && rc == KV_OK; i++) {
        struct kv_store_erasure *job = &round->jobs[some->places[i]];
        rc = control(round, rows, &leaf, job);
        ret_targets[i] = (struct kv_ktree_target){
            .tenant = job->tree, .directory_slot = job->directory_slot, .slot = job->slot, .whole = job->whole_tenant};
    }
    erase_leaf_done(&leaf);
    return rc;
}

/* A scope that became due since its sessions were asked to be erased goes before they do, or with them: the round ends,
 * and the janitor begins its erasure. */
static KV_RC none_left_behind(struct kv_pg *pg, struct erase_round *round, struct kv_errinfo *info)
{
    uint64_t scopes = 0;
    KV_TRY(kv_store_scopes_left_behind(pg, &round->batch.id, info, &scopes));
    if (scopes == 0) {
        return KV_OK;
    }
    svc_janitor_signal(round->svc);
    return kv_fail(info, KV_E_STALE, "a session's shared scope is to be erased first");
}

static KV_RC rekey_jobs(struct kv_pg *pg, struct erase_round *round, const struct kv_ktree_store *rows,
                        struct kv_errinfo *info)
{
    struct erase_some some = erase_pick(round, KV_ERASURE_STAGED);
    struct kv_ktree_target *targets KV_CLEANUP(kv_freep) = kv_alloc_array(some.count + 1, sizeof *targets);
    const struct kv_store_move move = {
        .from = KV_ERASURE_STAGED, .to = KV_ERASURE_REKEYED, .at_us = erase_now_us(round)};
    if (targets == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(control_all(round, rows, &some, targets));
    KV_TRY(none_left_behind(pg, round, info));
    KV_TRY(kv_store_erasures_set_facts(pg, erase_found(round, &some), some.count, info));
    KV_TRY(erase_advance(pg, round, &move, info));
    return round->rotating
               ? erase_rotate(pg, round, rows, info)
               : kv_ktree_rekey(round->svc->tree, rows, targets, some.count, &round->batch.new_root, round->fresh);
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
        .root_id = round->batch.new_root, .provider = round->fresh_roe->ops->name, .blob = kv_buf_bytes(&round->blob)};
    KV_TRY(kv_store_kroot_set(pg, &round->batch.old_root, round->fence, &fresh, info));
    return kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_STAGED, KV_BATCH_REKEYED, erase_now_us(round), NULL,
                                  info);
}

KV_RC erase_rekey(struct erase_round *round)
{
    if (kv_id_is_zero(&round->batch.id)) {
        return KV_OK; /* nothing was staged */
    }
    enum kv_err rc = kv_pg_tx(round->pg, KV_TX_ERASE_REKEY, rekey_tx, round, &round->info, NULL);
    KV_TRY(round->rotating ? erase_rotate_failed(round, rc) : rc);
    pthread_mutex_lock(&round->svc->roe_mutex);
    rc = svc_provider_follow(round->svc, round->fresh_roe->ops->name, &round->info);
    pthread_mutex_unlock(&round->svc->roe_mutex);
    KV_TRY(rc);
    round->batch.state = KV_BATCH_REKEYED;
    erase_all_moved(round, KV_ERASURE_STAGED, KV_ERASURE_REKEYED);
    ERASE_STEP_FAULT("erase/rekeyed");
    return KV_OK;
}

/* --- DESTROYED: the moment of erasure ---------------------------------------------------------------------------- */

struct destroy_tx {
    struct erase_round *round;
    struct kv_roe_receipt receipt;
};

static KV_RC gather_destroyed(struct erase_round *round, struct svc_entries *entries)
{
    for (size_t i = 0; i < round->job_count; i++) {
        const struct kv_store_erasure *job = &round->jobs[i];
        uint8_t ref[SVC_REF_BYTES];
        struct kv_audit_event event = {.op = KV_AUDIT_ERASE_DESTROY,
                                       .tenant = job->tenant,
                                       .session = job->session,
                                       .actor_role = "system",
                                       .subject = job->id,
                                       .subject_prefix = "era"};
        if (job->state == KV_ERASURE_REKEYED) {
            svc_ref(SVC_REF_DESTROY, &job->id, ref);
            KV_TRY(svc_entries_event(entries, &event, ref));
        }
    }
    struct kv_audit_event event = {
        .op = KV_AUDIT_ROOT_CHANGE, .actor_role = "system", .subject = round->batch.new_root, .subject_prefix = "rot"};
    return svc_entries_event(entries, &event, NULL);
}

static KV_RC record_destroyed(struct kv_pg *pg, struct erase_round *round, struct kv_errinfo *info)
{
    struct svc_entries entries;
    enum kv_err rc = svc_entries_init(&entries, round->svc->env, round->job_count + 1);
    rc = rc == KV_OK ? gather_destroyed(round, &entries) : rc;
    rc = rc == KV_OK ? svc_entries_insert(&entries, pg, info) : rc;
    svc_entries_done(&entries);
    return rc;
}

static KV_RC destroyed_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct destroy_tx *tx = ctx;
    struct erase_round *round = tx->round;
    const struct kv_store_move move = {
        .from = KV_ERASURE_REKEYED, .to = KV_ERASURE_DESTROYED, .at_us = tx->receipt.realtime_us};
    KV_TRY(kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_REKEYED, KV_BATCH_DESTROYED, move.at_us,
                                  tx->receipt.hash, info));
    KV_TRY(erase_advance(pg, round, &move, info));
    KV_TRY(erase_rotated(pg, round, move.at_us, info));
    return record_destroyed(pg, round, info);
}

/* The old root is another provider's: the fresh one is made active first, so that there is never none. */
static KV_RC retire_root(struct erase_round *round, struct kv_roe *was, struct kv_roe_receipt *ret_receipt)
{
    struct kv_roe *now = round->svc->roe;
    const struct kv_store_batch *batch = &round->batch;
    struct kv_id none = {0}, active, staged;
    KV_TRY(now->ops->commit(now, &batch->new_root, &none, ret_receipt));
    ERASE_STEP_FAULT("erase/moved");
    KV_TRY(was->ops->list(was, &active, &staged));
    KV_TRY(kv_id_is_zero(&staged) ? KV_OK : was->ops->discard(was, &staged)); /* of an attempt that was cut off */
    return was->ops->retire(was, &batch->old_root, &batch->new_root, ret_receipt);
}

static KV_RC destroy_root(struct erase_round *round, struct kv_roe_receipt *ret_receipt)
{
    struct kv_roe *now = round->svc->roe, *was = NULL;
    const struct kv_store_batch *batch = &round->batch;
    KV_TRY(svc_provider(round->svc, batch->provider, &round->info, &was));
    return was == now ? now->ops->commit(now, &batch->new_root, &batch->old_root, ret_receipt)
                      : retire_root(round, was, ret_receipt);
}

KV_RC erase_destroy(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    if (kv_id_is_zero(&round->batch.id) || round->batch.state != KV_BATCH_REKEYED) {
        return KV_OK;
    }
    KV_TRY(erase_standbys(round));
    KV_TRY(erase_confirm(round));
    ERASE_STEP_FAULT("erase/destroy");
    struct destroy_tx tx = {.round = round};
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = destroy_root(round, &tx.receipt);
    rc = rc == KV_OK || round->info.code == rc
             ? rc
             : svc_root_said(svc, rc, &round->info, "the old root of erasure could not be destroyed");
    pthread_mutex_unlock(&svc->roe_mutex);
    KV_TRY(rc);
    ERASE_STEP_FAULT("erase/destroyed");
    KV_TRY(erase_tx(round, KV_TX_ERASE_DESTROYED, destroyed_tx, &tx, NULL));
    round->batch.state = KV_BATCH_DESTROYED;
    round->batch.has_receipt = true;
    round->batch.destroyed_us = tx.receipt.realtime_us;
    memcpy(round->batch.receipt_sha256, tx.receipt.hash, sizeof tx.receipt.hash);
    erase_all_moved(round, KV_ERASURE_REKEYED, KV_ERASURE_DESTROYED);
    return KV_OK;
}

/* --- PURGED: memory holds nothing that was opened before --------------------------------------------------------- */

struct purged_tx {
    struct erase_round *round;
    const struct erase_others *others;
};

static KV_RC purged_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct purged_tx *tx = ctx;
    struct erase_round *round = tx->round;
    const struct kv_store_move move = {
        .from = KV_ERASURE_DESTROYED, .to = KV_ERASURE_PURGED, .at_us = erase_now_us(round)};
    KV_TRY(erase_record_purged(pg, round, tx->others, info));
    KV_TRY(kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_DESTROYED, KV_BATCH_PURGED, move.at_us, NULL, info));
    return erase_advance(pg, round, &move, info);
}

/* Sessions that live keep their block keys: those do not depend on the root's epoch. */
static KV_RC purge_self(struct erase_round *round)
{
    struct kv_store_kroot kroot = {0};
    KV_TRY(kv_store_kroot_get(round->pg, &round->info, &kroot));
    enum kv_err rc =
        kv_id_equal(&kroot.root_id, &round->batch.new_root)
            ? svc_root_purge(round->svc, &kroot, &round->info)
            : kv_fail(&round->info, KV_E_ROLLBACK_DETECTED, "the database shows another root than the batch made");
    kv_store_kroot_done(&kroot);
    KV_TRY(rc);
    KV_TRY(svc_session_settle(round->svc, kv_now_ns(round->svc->env) + ERASE_FENCE_WAIT_NS, &round->info));
    for (size_t i = 0; i < round->job_count; i++) {
        const struct kv_store_revocation what = svc_revocation_of(&round->jobs[i]);
        KV_TRY(
            svc_revoke(round->svc, round->pg, &what, kv_now_ns(round->svc->env) + ERASE_FENCE_WAIT_NS, &round->info));
    }
    return KV_OK;
}

/* All others have left the old root, or their leases are over. */
static KV_RC await_others(struct erase_round *round, struct erase_others *others)
{
    bool purged = false;
    for (int tries = 0; !purged && tries < ERASE_LOOKS && !atomic_load(&round->svc->stopping); tries++) {
        if (tries > 0) {
            erase_pause(round);
        }
        KV_TRY(erase_others_look(round, others));
        purged = erase_others_purged(others, &round->batch.new_root);
    }
    round->waiting = !purged;
    return KV_OK;
}

KV_RC erase_purge(struct erase_round *round)
{
    struct erase_others *others KV_CLEANUP(kv_freep) = kv_alloc(sizeof *others);
    if (kv_id_is_zero(&round->batch.id) || round->batch.state != KV_BATCH_DESTROYED) {
        return KV_OK;
    }
    if (others == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(purge_self(round));
    KV_TRY(await_others(round, others));
    if (round->waiting) {
        return KV_OK;
    }
    struct purged_tx tx = {.round = round, .others = others};
    KV_TRY(erase_tx(round, KV_TX_ERASE_PURGED, purged_tx, &tx, NULL));
    round->batch.state = KV_BATCH_PURGED;
    erase_all_moved(round, KV_ERASURE_DESTROYED, KV_ERASURE_PURGED);
    ERASE_STEP_FAULT("erase/purged");
    return KV_OK;
}

/*
 * The eraser's thread: takes kroot's fence, finds the batch that is on its way or makes one, and takes it through the
 * protocol's steps. After a crash the same code goes on: the states in the database and in the root's provider say
 * where. Must never go on after a step that failed: the round ends and the next one begins at what is durable.
 */
#include "server/service/erase_int.h"
#include "server/service/janitor.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define IDLE_NS (1 * KV_S_NS)
#define RETRY_NS (300 * KV_MS_NS)
#define OPEN_MAX KV_ERASE_BATCH

uint64_t erase_now_us(const struct erase_round *round)
{
    return round->svc->env->realtime_us(round->svc->env->ctx);
}

void erase_put_off(struct erase_round *round, enum kv_err rc)
{
    if (rc != KV_OK && round->put_off == KV_OK) {
        round->put_off = rc;
        round->put_off_info = round->info;
    }
}

void erase_moved(const struct erase_round *round, struct kv_store_erasure *job, enum kv_erasure_state state)
{
    job->state = state;
    svc_erasure_publish(round->svc, job);
}

void erase_all_moved(struct erase_round *round, enum kv_erasure_state from, enum kv_erasure_state to)
{
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == from) {
            erase_moved(round, &round->jobs[i], to);
        }
    }
}

void svc_erasure_publish(struct kv_svc *svc, const struct kv_store_erasure *row)
{
    struct kv_event event = {.type = KV_EVENT_ERASURE_STATE,
                             .tenant = row->tenant,
                             .session = row->session,
                             .subject = row->id,
                             .subject_prefix = "era",
                             .state = kv_erasure_state_name(row->state)};
    svc_publish(svc, &event);
}

void svc_eraser_signal(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->wake_mutex);
    svc->eraser_work++;
    pthread_cond_signal(&svc->eraser_wake);
    pthread_mutex_unlock(&svc->wake_mutex);
}

/* --- a change of the root that somebody asked for ---------------------------------------------------------------- */

void svc_root_replace(struct kv_svc *svc, const struct kv_id *root, const char *target)
{
    pthread_mutex_lock(&svc->wake_mutex);
    svc->root_unwanted = *root;
    svc->root_target = target;
    pthread_mutex_unlock(&svc->wake_mutex);
    svc_eraser_signal(svc);
}

/* Whether a root is unwanted; once `root` is another one, no more. */
static bool root_is_unwanted(struct kv_svc *svc, const struct kv_id *root, const char **ret_target)
{
    pthread_mutex_lock(&svc->wake_mutex);
    if (root != NULL && !kv_id_equal(&svc->root_unwanted, root)) {
        svc->root_unwanted = (struct kv_id){0};
    }
    bool unwanted = !kv_id_is_zero(&svc->root_unwanted);
    *ret_target = unwanted ? svc->root_target : NULL;
    pthread_mutex_unlock(&svc->wake_mutex);
    return unwanted;
}

/* --- ownership --------------------------------------------------------------------------------------------------- */

/* KV_E_STALE: another instance erases, and its lease runs. */
static KV_RC take_fence(struct erase_round *round)
{
    struct kv_store_kroot kroot = {0};
    if (!kv_id_is_zero(&round->root_id) && KV_FAULT("erase/unwaited")) {
        return KV_OK;
    }
    KV_TRY(svc_root_take(round->svc, round->pg, KV_TX_ERASE_TAKE, &round->info, &kroot));
    round->fence = kroot.fence;
    round->root_id = kroot.root_id;
    kv_store_kroot_done(&kroot);
    return svc_root_check(round->svc, round->pg, &round->info);
}

static KV_RC release_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct erase_round *round = ctx;
    return kv_store_kroot_release(pg, round->fence, info);
}

/* Nothing is left to do: whichever instance is asked next begins at once. */
static KV_RC release_fence(struct erase_round *round)
{
    if (round->fence != 0) {
        enum kv_err rc = kv_pg_tx(round->pg, KV_TX_ERASE_RELEASE, release_tx, round, &round->info, NULL);
        KV_TRY(rc == KV_E_STALE ? KV_OK : rc);
        round->fence = 0;
    }
    return KV_OK;
}

/* --- finding the batch ------------------------------------------------------------------------------------------- */

struct abandon_tx {
    struct erase_round *round;
};

static KV_RC abandon_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct erase_round *round = ((struct abandon_tx *)ctx)->round;
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == KV_ERASURE_STAGED) {
            KV_TRY(kv_store_erasure_advance(pg, &round->jobs[i].id, KV_ERASURE_STAGED, KV_ERASURE_FENCED,
                                            erase_now_us(round), info));
            struct kv_id none = {0};
            KV_TRY(kv_store_erasure_set_batch(pg, &round->jobs[i].id, &none, info));
        }
    }
    return kv_store_batch_advance(pg, &round->batch.id, KV_BATCH_STAGED, KV_BATCH_ABANDONED, erase_now_us(round), NULL,
                                  info);
}

/* A staged root is never adopted after a crash: nobody knows who saw its secret. It is discarded and the jobs are
 * staged afresh. */
static KV_RC abandon(struct erase_round *round)
{
    struct kv_svc *svc = round->svc;
    KV_TRY(erase_confirm(round));
    pthread_mutex_lock(&svc->roe_mutex);
    enum kv_err rc = svc->roe->ops->discard(svc->roe, &round->batch.new_root);
    for (size_t i = 0; rc == KV_OK && i < svc->roe_count; i++) { /* it was for one of these, perhaps */
        if (svc->roes[i] != svc->roe) {
            KV_IGNORE(svc->roes[i]->ops->discard(svc->roes[i], &round->batch.new_root),
                      "discarded when it is staged there next");
        }
    }
    pthread_mutex_unlock(&svc->roe_mutex);
    KV_TRY(rc);
    struct abandon_tx tx = {.round = round};
    KV_TRY(erase_tx(round, KV_TX_ERASE_ABANDON, abandon_tx, &tx, NULL));
    round->batch = (struct kv_store_batch){0};
    return KV_OK;
}

static KV_RC load_jobs(struct erase_round *round)
{
    if (!kv_id_is_zero(&round->batch.id)) {
        return kv_store_erasure_list_batch(round->pg, &round->batch.id, KV_ERASE_BATCH, &round->info, round->jobs,
                                           &round->job_count);
    }
    /* What waits for the anchor to be written must not keep others from being destroyed. */
    bool certify = atomic_load(&round->svc->anchor_ok);
    return kv_store_erasure_list_open(round->pg, certify, OPEN_MAX, &round->info, round->jobs, &round->job_count);
}

static KV_RC find_batch(struct erase_round *round)
{
    size_t count = 0;
    KV_TRY(kv_store_batch_list_open(round->pg, 1, &round->info, &round->batch, &count));
    if (count == 0) {
        round->batch = (struct kv_store_batch){0};
    }
    KV_TRY(load_jobs(round));
    if (count == 1 && (round->batch.state == KV_BATCH_STAGED || KV_FAULT("erase/undoubted"))) {
        KV_TRY(abandon(round));
        return load_jobs(round);
    }
    return KV_OK;
}

/* --- the round --------------------------------------------------------------------------------------------------- */

static bool any_in(const struct erase_round *round, enum kv_erasure_state state)
{
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == state) {
            return true;
        }
    }
    return false;
}

/* A quarantine may begin in the middle: nothing more is destroyed or claimed then. */
static KV_RC may_go_on(struct erase_round *round)
{
    const char *reason = atomic_load(&round->svc->quarantine);
    return reason == NULL ? KV_OK : kv_fail(&round->info, KV_E_QUARANTINED, "%s", reason);
}

static KV_RC steps(struct erase_round *round)
{
    KV_TRY(erase_fence(round));
    erase_rotation_turn(round, any_in(round, KV_ERASURE_FENCED));
    if (kv_id_is_zero(&round->batch.id) &&
        (round->rotating || round->replaces_root || any_in(round, KV_ERASURE_FENCED))) {
        KV_TRY(may_go_on(round));
        KV_TRY(erase_stage(round));
        KV_TRY(erase_rekey(round));
    }
    KV_TRY(may_go_on(round));
    KV_TRY(erase_destroy(round));
    KV_TRY(erase_purge(round));
    KV_TRY(may_go_on(round));
    return erase_verify(round);
}

/* After the anchor shows the root that came after theirs: what is certified is found again in whatever is put back. */
static KV_RC certify_all(struct erase_round *round)
{
    KV_TRY(svc_anchor_follow(round->svc, round->pg, &round->info));
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == KV_ERASURE_VERIFIED) {
            KV_TRY(may_go_on(round));
            enum kv_err rc = erase_certify(round, &round->jobs[i]);
            if (rc == KV_E_DB_UNAVAILABLE) {
                return rc;
            }
            erase_put_off(round, rc); /* another one's log may be whole */
        }
    }
    return KV_OK;
}

static KV_RC run_round(struct erase_round *round, size_t *ret_jobs)
{
    *ret_jobs = 0;
    if (atomic_load(&round->svc->quarantine) != NULL) {
        return KV_OK;
    }
    uint64_t open = 0;
    size_t batches = 0;
    KV_TRY(kv_store_erasure_count_open(round->pg, &round->info, &open));
    KV_TRY(kv_store_batch_list_open(round->pg, 1, &round->info, &round->batch, &batches));
    atomic_store(&round->svc->erasures_open, open);
    KV_TRY(erase_rotation_look(round));
    bool idle = open == 0 && batches == 0 && !round->rotation_due;
    if (idle && !root_is_unwanted(round->svc, NULL, &round->target)) {
        KV_TRY(release_fence(round));
        KV_TRY(svc_root_check(round->svc, round->pg, &round->info)); /* nobody else looks while nothing is erased */
        return svc_anchor_follow(round->svc, round->pg, &round->info);
    }
    enum kv_err taken = take_fence(round);
    round->elsewhere = taken == KV_E_STALE;
    KV_TRY(round->elsewhere ? KV_OK : taken);
    if (round->elsewhere) { /* each instance keeps its own anchor up to date */
        enum kv_err rc = svc_anchor_follow(round->svc, round->pg, &round->info);
        return rc == KV_E_BUSY ? KV_OK : rc;
    }
    round->replaces_root = root_is_unwanted(round->svc, &round->root_id, &round->target);
    KV_TRY(find_batch(round));
    *ret_jobs = round->job_count;
    KV_TRY(steps(round));
    KV_TRY(certify_all(round));
    if (atomic_load(&round->svc->groups_open)) {
        svc_janitor_signal(round->svc); /* one of them may have ended with this */
    }
    if (round->put_off != KV_OK) {
        round->info = round->put_off_info;
    }
    return round->put_off;
}

static void round_done(struct erase_round *round)
{
    kv_secret_free(round->fresh);
    kv_buf_done(&round->blob);
    round->fresh = NULL;
    round->job_count = 0;
    round->batch = (struct kv_store_batch){0};
    round->info = round->put_off_info = (struct kv_errinfo){0};
    round->put_off = KV_OK;
    round->waiting = round->replaces_root = round->rotating = false;
    round->target = NULL;
    round->fresh_roe = NULL;
}

/* Until there is work, for at most `ns`. */
static void await_work(struct kv_svc *svc, unsigned *seen, uint64_t ns)
{
    struct timespec until = kv_timespec_of(kv_now_ns(svc->env) + ns);
    pthread_mutex_lock(&svc->wake_mutex);
    while (svc->eraser_work == *seen && !atomic_load(&svc->stopping) &&
           pthread_cond_timedwait(&svc->eraser_wake, &svc->wake_mutex, &until) != ETIMEDOUT) {
    }
    *seen = svc->eraser_work;
    pthread_mutex_unlock(&svc->wake_mutex);
}

void *svc_eraser_main(void *arg)
{
    struct kv_svc *svc = arg;
    struct erase_round round = {.svc = svc,
                                .pg = svc->eraser.pg,
                                .fence = svc->start_fence,
                                .jobs = kv_alloc_array(KV_ERASE_BATCH, sizeof *round.jobs)};
    unsigned seen = 0;
    enum kv_err last = KV_OK;
    while (round.jobs != NULL && !atomic_load(&svc->stopping)) {
        size_t jobs = 0;
        kv_buf_init(&round.blob, 65536);
        enum kv_err rc = run_round(&round, &jobs);
        if (rc != KV_OK && rc != last) {
            kv_log(KV_LOG_WARN, "eraser", "round-failed", KV_FRC(rc), KV_FT("text", round.info.text),
                   KV_FU("jobs", jobs));
        }
        last = rc;
        round_done(&round);
        if (rc != KV_OK) {
            svc_sleep(svc, RETRY_NS);
        } else if (jobs == 0) {
            await_work(svc, &seen, round.elsewhere ? RETRY_NS : IDLE_NS);
        }
    }
    kv_free(round.jobs);
    return NULL;
}

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

/* --- some of the jobs ----------------------------------------------------------------------------------------------
 */

struct erase_some erase_pick(struct erase_round *round, enum kv_erasure_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < round->job_count; i++) {
        if (round->jobs[i].state == state) {
            round->places[count++] = i;
        }
    }
    return (struct erase_some){.places = round->places, .count = count};
}

struct kv_store_ids erase_ids(struct erase_round *round, const struct erase_some *some)
{
    for (size_t i = 0; i < some->count; i++) {
        round->ids[i] = round->jobs[some->places[i]].id;
    }
    return (struct kv_store_ids){.ids = round->ids, .count = some->count};
}

const struct kv_store_found *erase_found(struct erase_round *round, const struct erase_some *some)
{
    for (size_t i = 0; i < some->count; i++) {
        const struct kv_store_erasure *job = &round->jobs[some->places[i]];
        round->found[i] = (struct kv_store_found){.id = job->id, .facts = job->facts};
    }
    return round->found;
}

KV_RC erase_advance(struct kv_pg *pg, struct erase_round *round, const struct kv_store_move *move,
                    struct kv_errinfo *info)
{
    struct erase_some some = erase_pick(round, move->from);
    struct kv_store_ids ids = erase_ids(round, &some);
    return kv_store_erasures_advance(pg, &ids, move, info);
}

/* No job's own: another eraser took over, or there is no database to say anything to. */
static bool ends_round(enum kv_err rc)
{
    return rc == KV_E_STALE || rc == KV_E_DB_UNAVAILABLE || rc == KV_E_LEASE_EXPIRED;
}

KV_RC erase_together(struct erase_round *round, const struct erase_some *some, erase_some_fn fn, void *ctx)
{
    enum kv_err rc = some->count == 0 ? KV_OK : fn(round, some, ctx);
    if (rc == KV_OK || ends_round(rc)) {
        return rc;
    }
    for (size_t i = 0; i < some->count; i++) {
        const struct erase_some one = {.places = &some->places[i], .count = 1};
        rc = some->count == 1 ? rc : fn(round, &one, ctx);
        if (ends_round(rc)) {
            return rc;
        }
        erase_put_off(round, rc);
    }
    return KV_OK;
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

static KV_RC abandon_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct erase_round *round = ctx;
    struct erase_some some = erase_pick(round, KV_ERASURE_STAGED);
    struct kv_store_ids ids = erase_ids(round, &some);
    const struct kv_store_move back = {
        .from = KV_ERASURE_STAGED, .to = KV_ERASURE_FENCED, .at_us = erase_now_us(round)};
    const struct kv_id none = {0};
    KV_TRY(kv_store_erasures_advance(pg, &ids, &back, info));
    KV_TRY(kv_store_erasures_set_batch(pg, &ids, &none, info));
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
    KV_TRY(erase_tx(round, KV_TX_ERASE_ABANDON, abandon_tx, round, NULL));
    round->batch = (struct kv_store_batch){0};
    return KV_OK;
}

static KV_RC load_jobs(struct erase_round *round)
{
    if (!kv_id_is_zero(&round->batch.id)) {
        return kv_store_erasure_list_batch(round->pg, &round->batch.id, KV_ERASE_BATCH, &round->info, round->jobs,
                                           &round->job_count);
    }
    /* What waits for the anchor to be written must not keep others from being destroyed; nor must what is stuck, which
     * is why more are looked at than a batch may have. */
    bool certify = atomic_load(&round->svc->anchor_ok);
    return kv_store_erasure_list_open(round->pg, certify, KV_ERASE_BATCH, &round->info, round->jobs, &round->job_count);
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
        KV_TRY(erase_called_off(round));
        KV_TRY(erase_rekey(round));
    }
    KV_TRY(may_go_on(round));
    KV_TRY(erase_destroy(round));
    KV_TRY(erase_purge(round));
    KV_TRY(may_go_on(round));
    return erase_verify(round);
}

/* A batch begins when its oldest erasure has waited for the window, or when it is full. */
static bool gathers(struct erase_round *round, uint64_t open, uint64_t oldest_us)
{
    uint64_t window_us = round->svc->conf.erase_batch_window_us, now_us = erase_now_us(round);
    uint64_t waited_us = now_us > oldest_us ? now_us - oldest_us : 0;
    bool more = open < round->svc->conf.erase_batch_max && waited_us < window_us && !atomic_load(&round->svc->stopping);
    round->window_ns = more ? (window_us - waited_us) * 1000 : 0;
    return more;
}

static KV_RC run_round(struct erase_round *round, size_t *ret_jobs)
{
    *ret_jobs = 0;
    if (atomic_load(&round->svc->quarantine) != NULL) {
        return KV_OK;
    }
    uint64_t open = 0, oldest_us = 0;
    size_t batches = 0;
    KV_TRY(kv_store_erasure_count_open(round->pg, &round->info, &open, &oldest_us));
    KV_TRY(kv_store_batch_list_open(round->pg, 1, &round->info, &round->batch, &batches));
    atomic_store(&round->svc->erasures_open, open);
    KV_TRY(erase_rotation_look(round));
    bool asked = root_is_unwanted(round->svc, NULL, &round->target) || round->rotation_due || erase_sweeps(round);
    if (open == 0 && batches == 0 && !asked) {
        KV_TRY(release_fence(round));
        KV_TRY(svc_root_check(round->svc, round->pg, &round->info)); /* nobody else looks while nothing is erased */
        return svc_anchor_follow(round->svc, round->pg, &round->info);
    }
    if (batches == 0 && !asked && gathers(round, open, oldest_us)) {
        return KV_OK;
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
    KV_TRY(erase_sweep(round));
    *ret_jobs = round->job_count;
    KV_TRY(steps(round));
    /* After the anchor shows the root that came after theirs: what is certified is found again in what is put back. */
    KV_TRY(svc_anchor_follow(round->svc, round->pg, &round->info));
    KV_TRY(may_go_on(round));
    KV_TRY(erase_certify(round));
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
    erase_samples_drop(round);
    round->job_count = 0;
    round->batch = (struct kv_store_batch){0};
    round->info = round->put_off_info = (struct kv_errinfo){0};
    round->put_off = KV_OK;
    round->waiting = round->replaces_root = round->rotating = false;
    round->target = NULL;
    round->fresh_roe = NULL;
    round->window_ns = 0;
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

/* Hygiene, after the certificates and while nobody waits for one: the claim does not rest on it, and a session with
 * much of it would hold up the next. What a stop leaves is dropped at the next start. */
static void clean(struct erase_round *round, const unsigned *seen)
{
    struct kv_svc *svc = round->svc;
    while (round->dirty_count > 0 && !atomic_load(&svc->stopping)) {
        pthread_mutex_lock(&svc->wake_mutex);
        bool idle = svc->eraser_work == *seen;
        pthread_mutex_unlock(&svc->wake_mutex);
        if (!idle && round->dirty_count <= KV_ERASE_BATCH) {
            return;
        }
        uint64_t blocks = 0;
        const struct kv_store_revocation *what = &round->dirty[--round->dirty_count];
        bool tenant = kv_id_is_zero(&what->session);
        enum kv_err rc = tenant ? erase_tenant_clean(svc, round->pg, what, &blocks)
                                : kv_engine_drop_scope(svc->engine, &what->session, &blocks);
        kv_log(rc == KV_OK ? KV_LOG_INFO : KV_LOG_WARN, "eraser", rc == KV_OK ? "cleaned" : "not-cleaned",
               KV_FID(tenant ? "tenant" : "session", tenant ? "ten" : "ses", tenant ? &what->tenant : &what->session),
               KV_FU("blocks", blocks));
    }
}

static bool allocate(struct erase_round *round)
{
    round->jobs = kv_alloc_array(KV_ERASE_BATCH, sizeof *round->jobs);
    round->held = kv_alloc_array(KV_ERASE_BATCH, sizeof *round->held);
    round->places = kv_alloc_array(KV_ERASE_BATCH, sizeof *round->places);
    round->ids = kv_alloc_array(KV_ERASE_BATCH, sizeof *round->ids);
    round->more_ids = kv_alloc_array(KV_ERASE_BATCH, sizeof *round->more_ids);
    round->found = kv_alloc_array(KV_ERASE_BATCH, sizeof *round->found);
    round->dirty = kv_alloc_array((size_t)2 * KV_ERASE_BATCH, sizeof *round->dirty);
    return round->jobs != NULL && round->held != NULL && round->places != NULL && round->ids != NULL &&
           round->more_ids != NULL && round->found != NULL && round->dirty != NULL;
}

static void free_all(struct erase_round *round)
{
    kv_free(round->jobs);
    kv_free(round->held);
    kv_free(round->places);
    kv_free(round->ids);
    kv_free(round->more_ids);
    kv_free(round->found);
    kv_free(round->dirty);
}

/* One round; returns how long nothing need be looked at, 0 for at once. */
static uint64_t turn(struct erase_round *round, enum kv_err *last, const unsigned *seen)
{
    size_t jobs = 0;
    kv_buf_init(&round->blob, 65536);
    enum kv_err rc = run_round(round, &jobs);
    if (rc != KV_OK && rc != *last) {
        kv_log(KV_LOG_WARN, "eraser", "round-failed", KV_FRC(rc), KV_FT("text", round->info.text), KV_FU("jobs", jobs));
    }
    *last = rc;
    uint64_t pause = jobs > 0 ? 0 : round->window_ns > 0 ? round->window_ns : round->elsewhere ? RETRY_NS : IDLE_NS;
    round_done(round);
    clean(round, seen);
    return rc != KV_OK ? UINT64_MAX : pause;
}

void *svc_eraser_main(void *arg)
{
    struct kv_svc *svc = arg;
    struct erase_round round = {.svc = svc, .pg = svc->eraser.pg, .fence = svc->start_fence};
    unsigned seen = 0;
    enum kv_err last = KV_OK;
    bool able = allocate(&round);
    while (able && !atomic_load(&svc->stopping)) {
        uint64_t pause = turn(&round, &last, &seen);
        if (pause == UINT64_MAX) {
            svc_sleep(svc, RETRY_NS);
        } else if (pause > 0) {
            await_work(svc, &seen, pause);
        }
    }
    free_all(&round);
    return NULL;
}

/*
 * The janitor's thread and its table of steps. What a step does is in the file of its noun; here is only when. Must
 * never let one step's failure or backlog keep the others from running.
 */
#include "server/service/janitor.h"

#include "dataplane/base/log.h"
#include "server/service/erase_request.h"
#include "server/service/operation_run.h"
#include "server/service/svc_hold.h"
#include "server/service/svc_metrics.h"
#include "server/store/store_once.h"

#include <errno.h>
#include <time.h>

#define RETRY_NS (1 * KV_S_NS)
#define ONCE_EXPIRE_MAX 1000
#define LAST_ROUNDS_MAX 256 /* of KV_STORE_USES_MAX each: all sessions that can be open */

/* --- idempotency keys past their time ---------------------------------------------------------------------------- */

struct once_tx {
    uint64_t now_us, count;
};

static KV_RC once_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct once_tx *tx = ctx;
    return kv_store_once_expire(pg, tx->now_us, ONCE_EXPIRE_MAX, info, &tx->count);
}

static KV_RC expire_once(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct once_tx tx = {.now_us = svc->env->realtime_us(svc->env->ctx)};
    KV_TRY(kv_pg_tx(pg, KV_TX_ONCE_EXPIRE, once_tx, &tx, info, NULL));
    *ret_more = tx.count == ONCE_EXPIRE_MAX;
    return KV_OK;
}

/* --- the table --------------------------------------------------------------------------------------------------- */

static const struct step {
    const char *name; /* a fixed word for the log */
    svc_janitor_fn *run;
    uint64_t period_ns;
} steps[] = {
    {"uses", svc_use_step, 5 * KV_S_NS}, /* before those that judge by them */
    {"lifetimes", svc_expire_step, 5 * KV_S_NS},
    {"idempotency", expire_once, 60 * KV_S_NS},
    {"metrics", svc_sample, 5 * KV_S_NS},
    {"holds", svc_holds_step, 1 * KV_S_NS}, /* before those that what they let go belongs to */
    {"erasure-groups", svc_erase_groups, 1 * KV_S_NS},
    {"erased-tenants", svc_erase_settle, 1 * KV_S_NS},
    {"cleaning", svc_clean_step, 1 * KV_S_NS},
    {"statements", svc_upgrade_step, 1 * KV_S_NS},
    {"operations", svc_operations_expire, 60 * KV_S_NS},
    {"usage", svc_usage_expire, 3600 * KV_S_NS},
};
#define STEPS (sizeof steps / sizeof steps[0])

struct step_state {
    uint64_t due_ns;
    enum kv_err last;
};

static void run_step(struct kv_svc *svc, const struct step *step, struct step_state *state)
{
    struct kv_errinfo info = {0};
    bool more = false;
    enum kv_err rc = step->run(svc, svc->janitor.pg, &info, &more);
    if (rc != KV_OK && rc != state->last) {
        kv_log(KV_LOG_WARN, "janitor", "step-failed", KV_FT("step", step->name), KV_FRC(rc), KV_FT("text", info.text));
    }
    state->last = rc;
    uint64_t pause = rc != KV_OK ? RETRY_NS : more ? 0 : step->period_ns;
    state->due_ns = kv_now_ns(svc->env) + pause;
}

/* Until `due_ns` or a signal; true when it was a signal. */
static bool await_work(struct kv_svc *svc, unsigned *seen, uint64_t due_ns)
{
    struct timespec until = kv_timespec_of(due_ns);
    pthread_mutex_lock(&svc->wake_mutex);
    while (svc->janitor_work == *seen && !atomic_load(&svc->stopping) &&
           pthread_cond_timedwait(&svc->janitor_wake, &svc->wake_mutex, &until) != ETIMEDOUT) {
    }
    bool signalled = svc->janitor_work != *seen;
    *seen = svc->janitor_work;
    pthread_mutex_unlock(&svc->wake_mutex);
    return signalled;
}

void svc_janitor_signal(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->wake_mutex);
    svc->janitor_work++;
    pthread_cond_signal(&svc->janitor_wake);
    pthread_mutex_unlock(&svc->wake_mutex);
}

/* Runs what is due, once each; returns when the next one is. */
static uint64_t run_due(struct kv_svc *svc, struct step_state *states)
{
    uint64_t next_ns = UINT64_MAX;
    for (size_t i = 0; i < STEPS; i++) {
        bool due = kv_now_ns(svc->env) >= states[i].due_ns;
        if (due && !atomic_load(&svc->stopping) && atomic_load(&svc->quarantine) == NULL) {
            run_step(svc, &steps[i], &states[i]);
        } else if (due) {
            states[i].due_ns = kv_now_ns(svc->env) + RETRY_NS;
        }
        next_ns = states[i].due_ns < next_ns ? states[i].due_ns : next_ns;
    }
    return next_ns;
}

/* What is in memory alone is lost with it. */
static void record_last_uses(struct kv_svc *svc)
{
    struct kv_errinfo info = {0};
    bool more = atomic_load(&svc->quarantine) == NULL;
    for (int rounds = 0; more && rounds < LAST_ROUNDS_MAX; rounds++) {
        more = false;
        KV_IGNORE(svc_use_step(svc, svc->janitor.pg, &info, &more), "without the database the log tells of transfers");
    }
}

void *svc_janitor_main(void *arg)
{
    struct kv_svc *svc = arg;
    struct step_state states[STEPS] = {0}; /* at the start everything is due: what a crash left behind goes on */
    unsigned seen = 0;
    while (!atomic_load(&svc->stopping)) {
        uint64_t next_ns = run_due(svc, states);
        if (await_work(svc, &seen, next_ns)) {
            for (size_t i = 0; i < STEPS; i++) {
                states[i].due_ns = 0;
            }
        }
    }
    record_last_uses(svc);
    return NULL;
}

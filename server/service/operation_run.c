/*
 * The executor of long-running operations: one thread, one piece of each open operation in turn, so that a long one
 * holds no short one up. Progress and position are durable after each piece; after a crash the next start goes on from
 * there. Must never end an operation twice, nor leave one that nobody runs.
 */
#include "server/service/operation_run.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define IDLE_NS (1 * KV_S_NS)
#define EXPIRE_MAX 1000

struct kind {
    const char *kind;
    svc_operation_piece *piece;
    bool local;                    /* about what the instance has that was asked */
    svc_operation_piece *call_off; /* what a cancel leaves to do; NULL: nothing */
};

static const struct kind kinds[] = {
    {"audit.verify", svc_run_audit_verify, false, NULL},
    {"erasure.prove", svc_run_erasure_prove, true, NULL},
    {"tier.drain", svc_run_drain, true, NULL},
    {"root.rotate", svc_run_root_rotate, false, svc_call_off_root},
    {"root.migrate", svc_run_root_migrate, false, svc_call_off_root},
    {SVC_KEY_ROTATE, svc_run_key_rotate, false, NULL},
};

static const struct kind *kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].kind, name) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}

void svc_operation_publish(struct kv_svc *svc, const struct kv_store_operation *row)
{
    struct kv_event event = {.type = KV_EVENT_OPERATION_STATE,
                             .tenant = row->tenant,
                             .subject = row->id,
                             .subject_prefix = "opr",
                             .name = row->kind,
                             .state = kv_operation_state_name(row->state)};
    svc_publish(svc, &event);
}

static uint64_t now_us(const struct kv_svc *svc)
{
    return svc->env->realtime_us(svc->env->ctx);
}

/* --- durable steps ----------------------------------------------------------------------------------------------- */

static KV_RC take_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    const struct svc_operation_run *run = ctx;
    return kv_store_operation_take(pg, &run->row.id, &run->svc->instance, info);
}

/* Whose instance has ended is taken over. What is about one instance's own memory ended with it. */
static KV_RC take(struct svc_operation_run *run, bool *ret_taken)
{
    *ret_taken = !kv_id_equal(&run->row.instance, &run->svc->instance);
    if (*ret_taken) {
        KV_TRY(kv_pg_tx(run->pg, KV_TX_OPERATION_TAKE, take_tx, run, &run->info, NULL));
        run->row.instance = run->svc->instance;
    }
    return KV_OK;
}

static KV_RC progress_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct svc_operation_run *run = ctx;
    return kv_store_operation_progress(pg, &run->row, kv_buf_bytes(&run->position), info);
}

static KV_RC progress(struct svc_operation_run *run)
{
    return kv_pg_tx(run->pg, KV_TX_OPERATION_PROGRESS, progress_tx, run, &run->info, NULL);
}

static KV_RC end_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct svc_operation_run *run = ctx;
    return kv_store_operation_end(pg, &run->row, info);
}

static KV_RC begin(struct svc_operation_run *run)
{
    if (run->row.state == KV_OPERATION_RUNNING) {
        return KV_OK;
    }
    run->row.state = KV_OPERATION_RUNNING;
    run->row.started_us = now_us(run->svc);
    KV_TRY(kv_pg_tx(run->pg, KV_TX_OPERATION_BEGIN, progress_tx, run, &run->info, NULL));
    svc_operation_publish(run->svc, &run->row);
    return KV_OK;
}

static KV_RC end(struct svc_operation_run *run, enum kv_operation_state state)
{
    run->row.state = state;
    run->row.ended_us = now_us(run->svc);
    run->row.expires_us = run->row.ended_us + run->svc->conf.operation_keep_us;
    KV_TRY(kv_pg_tx(run->pg, KV_TX_OPERATION_END, end_tx, run, &run->info, NULL));
    kv_log(state == KV_OPERATION_FAILED ? KV_LOG_WARN : KV_LOG_INFO, "operation", kv_operation_state_name(state),
           KV_FID("operation", "opr", &run->row.id), KV_FT("kind", run->row.kind));
    svc_operation_publish(run->svc, &run->row);
    return KV_OK;
}

static KV_RC fail(struct svc_operation_run *run, enum kv_err rc)
{
    snprintf(run->row.error_code, sizeof run->row.error_code, "%s", kv_err_name(rc));
    snprintf(run->row.error_text, sizeof run->row.error_text, "%.500s",
             run->info.code == rc ? run->info.text : "the server could not do it; its log says why");
    return end(run, KV_OPERATION_FAILED);
}

/* --- one piece of one operation ---------------------------------------------------------------------------------- */

static KV_RC load_position(struct svc_operation_run *run)
{
    enum kv_err rc = kv_store_operation_position(run->pg, &run->row.id, &run->info, &run->position);
    return rc == KV_E_MISSING ? KV_OK : rc;
}

/* What a cancel leaves to do; `done` when there is nothing more of it. */
static KV_RC call_off(struct svc_operation_run *run, const struct kind *kind)
{
    if (kind == NULL || kind->call_off == NULL) {
        run->done = true;
        return KV_OK;
    }
    KV_TRY(load_position(run));
    snprintf(run->row.phase, sizeof run->row.phase, "calling off");
    return kind->call_off(run);
}

static KV_RC run_piece(struct svc_operation_run *run)
{
    const struct kind *kind = kind_of(run->row.kind);
    bool was_anothers = !kv_id_is_zero(&run->row.instance), taken = false;
    KV_TRY(take(run, &taken));
    if (run->row.cancel_requested_us != 0) {
        KV_TRY(call_off(run, kind));
        if (run->done) {
            return end(run, KV_OPERATION_CANCELED);
        }
        if (!run->goes_on) {
            return progress(run);
        }
        kv_buf_reset(&run->position);
    }
    if (kind == NULL) {
        return fail(run, KV_E_UNSUPPORTED);
    }
    if (kind->local && taken && was_anothers) {
        return fail(run, kv_fail(&run->info, KV_E_MISSING, "the instance that was asked has ended"));
    }
    KV_TRY(begin(run));
    if (KV_FAULT("operation/begun")) {
        return KV_E_DB_UNAVAILABLE;
    }
    KV_TRY(load_position(run));
    enum kv_err rc = kind->piece(run);
    if (rc == KV_E_DB_UNAVAILABLE || rc == KV_E_BUSY) {
        return rc;
    }
    if (rc != KV_OK && rc != KV_E_TIMEOUT) {
        return fail(run, rc);
    }
    if (KV_FAULT("operation/piece")) {
        return KV_E_DB_UNAVAILABLE;
    }
    if (rc == KV_OK && run->done) {
        return end(run, KV_OPERATION_SUCCEEDED);
    }
    return progress(run);
}

static void run_done(struct svc_operation_run *run)
{
    kv_buf_done(&run->position);
    run->info = (struct kv_errinfo){0};
    run->done = run->goes_on = false;
}

/* A piece of each; *ret_open: how many there are. */
static KV_RC run_all(struct svc_operation_run *run, struct kv_store_operation *rows, size_t *ret_open)
{
    size_t max = (size_t)KV_MAX_OPERATIONS_OPEN;
    enum kv_err put_off = KV_OK;
    enum kv_err first = kv_store_operation_list_open(run->pg, &run->svc->instance, max, &run->info, rows, ret_open);
    for (size_t i = 0; first == KV_OK && i < *ret_open && !atomic_load(&run->svc->stopping); i++) {
        run->row = rows[i];
        kv_buf_init(&run->position, KV_OPERATION_POSITION_BYTES_MAX);
        enum kv_err rc = run_piece(run);
        if (rc != KV_OK && rc != KV_E_STALE) {
            kv_log(KV_LOG_WARN, "operation", "piece-failed", KV_FID("operation", "opr", &run->row.id), KV_FRC(rc),
                   KV_FT("text", run->info.text));
            first = rc == KV_E_DB_UNAVAILABLE ? rc : KV_OK; /* another failure is that one's alone */
            put_off = rc;
        }
        run_done(run);
    }
    return first != KV_OK ? first : put_off;
}

/* --- the thread -------------------------------------------------------------------------------------------------- */

static void await_work(struct kv_svc *svc, unsigned *seen)
{
    struct timespec until = kv_timespec_of(kv_now_ns(svc->env) + IDLE_NS);
    pthread_mutex_lock(&svc->wake_mutex);
    while (svc->operation_work == *seen && !atomic_load(&svc->stopping) &&
           pthread_cond_timedwait(&svc->operation_wake, &svc->wake_mutex, &until) != ETIMEDOUT) {
    }
    *seen = svc->operation_work;
    pthread_mutex_unlock(&svc->wake_mutex);
}

void svc_operations_signal(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->wake_mutex);
    svc->operation_work++;
    pthread_cond_signal(&svc->operation_wake);
    pthread_mutex_unlock(&svc->wake_mutex);
}

void *svc_operations_main(void *arg)
{
    struct kv_svc *svc = arg;
    struct kv_store_operation *rows = kv_alloc_array((size_t)KV_MAX_OPERATIONS_OPEN, sizeof *rows);
    struct svc_operation_run *run = kv_alloc(sizeof *run);
    unsigned seen = 0;
    while (rows != NULL && run != NULL && !atomic_load(&svc->stopping)) {
        size_t open = 0;
        *run = (struct svc_operation_run){.svc = svc, .pg = svc->operations.pg};
        enum kv_err rc = atomic_load(&svc->quarantine) == NULL ? run_all(run, rows, &open) : KV_OK;
        if (rc != KV_OK) {
            svc_sleep(svc, IDLE_NS);
        } else if (open == 0) {
            await_work(svc, &seen);
        }
    }
    kv_free(rows);
    kv_free(run);
    return NULL;
}

/* --- the janitor's step ------------------------------------------------------------------------------------------ */

struct expire_tx {
    uint64_t now_us, count;
};

static KV_RC expire_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct expire_tx *tx = ctx;
    return kv_store_operation_expire(pg, tx->now_us, EXPIRE_MAX, info, &tx->count);
}

KV_RC svc_operations_expire(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, bool *ret_more)
{
    struct expire_tx tx = {.now_us = now_us(svc)};
    KV_TRY(kv_pg_tx(pg, KV_TX_OPERATION_EXPIRE, expire_tx, &tx, info, NULL));
    *ret_more = tx.count == EXPIRE_MAX;
    return KV_OK;
}

/*
 * An anchor whose medium may hang: its calls are made by a thread of their own, and whoever asks waits for a bounded
 * time. A call that was given up goes on, and nothing else is begun before it has ended, so what is written stays in
 * order. Must never keep the caller longer than it agreed to, nor free what such a call still uses.
 */
#include "audit/anchor.h"

#include "dataplane/base/mem.h"

#include <pthread.h>
#include <time.h>

enum patient_job { JOB_NONE, JOB_READ, JOB_WRITE, JOB_STOP };

struct patient {
    struct kv_anchor base;
    struct kv_anchor_ops ops; /* named like the one behind it */
    struct kv_anchor *anchor; /* owned */
    uint64_t wait_ns;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t asked, answered;
    /* under the mutex */
    enum patient_job job;
    bool running;
    struct kv_anchor_record record;
    struct kv_errinfo info;
    enum kv_err rc;
};

static struct patient *patient_of(struct kv_anchor *base)
{
    return (struct patient *)base;
}

static enum kv_err run(struct patient *patient, enum patient_job job, struct kv_anchor_record *record,
                       struct kv_errinfo *info)
{
    return job == JOB_READ ? patient->anchor->ops->read(patient->anchor, info, record)
                           : patient->anchor->ops->write(patient->anchor, record, info);
}

static void *patient_main(void *arg)
{
    struct patient *patient = arg;
    pthread_mutex_lock(&patient->mutex);
    while (patient->job != JOB_STOP) {
        if (!patient->running) {
            pthread_cond_wait(&patient->asked, &patient->mutex);
            continue;
        }
        enum patient_job job = patient->job;
        struct kv_anchor_record record = patient->record;
        struct kv_errinfo info = {0};
        pthread_mutex_unlock(&patient->mutex);
        enum kv_err rc = run(patient, job, &record, &info);
        pthread_mutex_lock(&patient->mutex);
        patient->record = record;
        patient->info = info;
        patient->rc = rc;
        patient->running = false;
        pthread_cond_signal(&patient->answered);
    }
    pthread_mutex_unlock(&patient->mutex);
    return NULL;
}

static struct timespec deadline_of(const struct patient *patient)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + patient->wait_ns;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    return until;
}

/* Under the mutex: until nothing runs, or the time is over. */
static void await_answer(struct patient *patient)
{
    struct timespec until = deadline_of(patient);
    while (patient->running && pthread_cond_timedwait(&patient->answered, &patient->mutex, &until) == 0) {
    }
}

static enum kv_err ask(struct patient *patient, enum patient_job job, struct kv_anchor_record *record,
                       struct kv_errinfo *info)
{
    static const char hangs[] = "the anchor does not answer: its medium hangs, or is very slow";
    enum kv_err rc = KV_E_TIMEOUT;
    pthread_mutex_lock(&patient->mutex);
    if (!patient->running) { /* what was given up and has ended since is asked for anew */
        patient->job = job;
        patient->record = *record;
        patient->running = true;
        pthread_cond_signal(&patient->asked);
        await_answer(patient);
        if (!patient->running) {
            rc = patient->rc;
            *record = patient->record;
            if (info != NULL) {
                *info = patient->info;
            }
        }
    }
    pthread_mutex_unlock(&patient->mutex);
    return rc == KV_E_TIMEOUT ? kv_fail(info, rc, "%s", hangs) : rc;
}

static KV_RC patient_read(struct kv_anchor *base, struct kv_errinfo *info, struct kv_anchor_record *ret_record)
{
    struct kv_anchor_record record = {.log_size = 0};
    KV_TRY(ask(patient_of(base), JOB_READ, &record, info));
    *ret_record = record;
    return KV_OK;
}

static KV_RC patient_write(struct kv_anchor *base, const struct kv_anchor_record *record, struct kv_errinfo *info)
{
    struct kv_anchor_record copy = *record;
    return ask(patient_of(base), JOB_WRITE, &copy, info);
}

static void patient_free(struct patient *patient)
{
    pthread_mutex_destroy(&patient->mutex);
    pthread_cond_destroy(&patient->asked);
    pthread_cond_destroy(&patient->answered);
    kv_free(patient);
}

/* A call that still hangs keeps its thread and all of this: the process is about to end, and must not wait for it. */
static void patient_close(struct kv_anchor *base)
{
    struct patient *patient = patient_of(base);
    pthread_mutex_lock(&patient->mutex);
    await_answer(patient);
    bool hangs = patient->running;
    patient->job = JOB_STOP;
    pthread_cond_signal(&patient->asked);
    pthread_mutex_unlock(&patient->mutex);
    if (hangs) {
        pthread_detach(patient->thread);
        return;
    }
    pthread_join(patient->thread, NULL);
    patient->anchor->ops->close(patient->anchor);
    patient_free(patient);
}

KV_RC kv_anchor_patient(struct kv_anchor *anchor, uint64_t wait_ns, struct kv_anchor **ret_anchor)
{
    pthread_condattr_t monotonic;
    struct patient *patient = kv_alloc(sizeof *patient);
    if (patient == NULL) {
        return KV_E_NO_MEMORY;
    }
    patient->ops = (struct kv_anchor_ops){
        .name = anchor->ops->name, .read = patient_read, .write = patient_write, .close = patient_close};
    patient->base.ops = &patient->ops;
    patient->anchor = anchor;
    patient->wait_ns = wait_ns;
    pthread_mutex_init(&patient->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&patient->asked, NULL);
    pthread_cond_init(&patient->answered, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&patient->thread, NULL, patient_main, patient) != 0) {
        patient_free(patient);
        return KV_E_NO_MEMORY;
    }
    *ret_anchor = &patient->base;
    return KV_OK;
}

/*
 * The journal's thread: gathers what was appended into groups, makes them durable, tells the waiting. Must never hold
 * the mutex across a system call on a file, and never report a record durable before fdatasync returned for its group.
 */
#include "audit/journal_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/log.h"

#include <string.h>
#include <time.h>

#define SLICE_NS (UINT64_C(100) * KV_MS_NS)
#define TICK_NS KV_S_NS

/* Sleeps are cut into slices, because the journal's clock may be a simulator's and the condition's is the machine's. */
void kv_journal_cond_wait(struct kv_journal *journal, pthread_cond_t *cond, uint64_t deadline_ns)
{
    uint64_t now = kv_now_ns(journal->conf.env);
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    uint64_t slice = left < SLICE_NS ? left : SLICE_NS;
    struct timespec until;
    KV_ASSERT(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    uint64_t ns = (uint64_t)until.tv_nsec + slice;
    until.tv_sec += (time_t)(ns / KV_S_NS);
    until.tv_nsec = (long)(ns % KV_S_NS);
    (void)pthread_cond_timedwait(cond, &journal->mutex, &until);
}

/* Copies up to a group of records that are not durable yet behind the room for the header. The mutex is held. */
static size_t gather(struct kv_journal *journal)
{
    uint64_t waiting = journal->last_seq - journal->durable_seq;
    size_t count = waiting < KV_JOURNAL_GROUP_RECORDS_MAX ? (size_t)waiting : KV_JOURNAL_GROUP_RECORDS_MAX;
    uint8_t *target = journal->files.group + KV_JOURNAL_GROUP_HEADER_BYTES;
    for (size_t i = 0; i < count; i++) {
        uint64_t slot = (journal->durable_seq + 1 + i) % journal->capacity;
        memcpy(target + i * KV_JOURNAL_RECORD_BYTES, journal->ring + slot * KV_JOURNAL_RECORD_BYTES,
               KV_JOURNAL_RECORD_BYTES);
    }
    return count;
}

/* The mutex is held. */
static void note_result(struct kv_journal *journal, enum kv_err rc)
{
    bool failing = rc != KV_OK;
    if (failing && !journal->failing) {
        kv_log(KV_LOG_ERROR, "audit", "journal write failed; transfers are refused until one succeeds", KV_FRC(rc));
    } else if (!failing && journal->failing) {
        kv_log(KV_LOG_WARN, "audit", "journal writes again");
    }
    journal->failing = failing;
    journal->disk_bytes = kv_journal_files_bytes(&journal->files);
}

/* Called without the mutex; returns with it. True when files are as they were opened. */
static bool check_alive(struct kv_journal *journal)
{
    bool alive = kv_journal_files_alive(&journal->files);
    KV_ASSERT(pthread_mutex_lock(&journal->mutex) == 0);
    if (!alive && !journal->gone) {
        kv_log(KV_LOG_ERROR, "audit", "journal file deleted or replaced; transfers are refused until a restart");
        journal->gone = true;
    }
    return !journal->gone;
}

/* One group, or housekeeping when there is none. Called with the mutex, returns with it; it is free in between. */
static void work_once(struct kv_journal *journal, bool tick)
{
    uint64_t shipped = journal->shipped_seq;
    KV_ASSERT(pthread_mutex_unlock(&journal->mutex) == 0);
    if (!check_alive(journal)) {
        return;
    }
    KV_ASSERT(pthread_mutex_unlock(&journal->mutex) == 0);
    enum kv_err rc = kv_journal_files_turn(&journal->files, shipped, journal->switch_bytes);
    KV_ASSERT(pthread_mutex_lock(&journal->mutex) == 0);
    size_t count = rc == KV_OK ? gather(journal) : 0;
    /* After a failure only a write that succeeds shows that the journal works again. */
    bool persist = count > 0 || journal->failing || (tick && shipped > journal->files.shipped_on_disk);
    KV_ASSERT(pthread_mutex_unlock(&journal->mutex) == 0);
    if (rc == KV_OK && persist) {
        rc = kv_journal_files_write(&journal->files, count, shipped);
    }
    KV_ASSERT(pthread_mutex_lock(&journal->mutex) == 0);
    note_result(journal, rc);
    if (rc != KV_OK || count == 0) {
        return;
    }
    journal->durable_seq += count;
    KV_ASSERT(pthread_cond_broadcast(&journal->progress) == 0);
    void (*wake)(void *arg) = journal->wake;
    void *wake_arg = journal->wake_arg;
    journal->waking = true; /* set_wake waits for the end of it: what `arg` points to may go right after */
    KV_ASSERT(pthread_mutex_unlock(&journal->mutex) == 0);
    if (wake != NULL) {
        wake(wake_arg);
    }
    KV_ASSERT(pthread_mutex_lock(&journal->mutex) == 0);
    journal->waking = false;
    KV_ASSERT(pthread_cond_broadcast(&journal->progress) == 0);
}

/* Whether there is a reason not to sleep. The mutex is held. */
static bool has_work(const struct kv_journal *journal)
{
    return !journal->failing && !journal->gone && journal->last_seq > journal->durable_seq;
}

void *kv_journal_thread(void *arg)
{
    struct kv_journal *journal = arg;
    uint64_t tick_ns = kv_now_ns(journal->conf.env) + TICK_NS;
    KV_ASSERT(pthread_mutex_lock(&journal->mutex) == 0);
    while (!journal->stopping) {
        if (!has_work(journal)) {
            kv_journal_cond_wait(journal, &journal->work, tick_ns);
        }
        bool tick = kv_now_ns(journal->conf.env) >= tick_ns;
        bool retry = journal->failing && !journal->gone;
        if (has_work(journal) || tick || retry) {
            work_once(journal, tick);
        }
        if (tick) {
            tick_ns = kv_now_ns(journal->conf.env) + TICK_NS;
        }
    }
    /* The end: what is left is written if it can be; each round makes a whole group durable or is the last. */
    journal->failing = false;
    do {
        work_once(journal, true);
    } while (has_work(journal));
    KV_ASSERT(pthread_mutex_unlock(&journal->mutex) == 0);
    return NULL;
}

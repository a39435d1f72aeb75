/*
 * The journal's face: opening with recovery, the sink for the lane, the shipper's side. Must never wait in the sink,
 * and never forget a record that was durable and is not known to be shipped.
 */
#include "audit/journal.h"

#include "audit/journal_int.h"
#include "dataplane/base/check.h"
#include "dataplane/base/mem.h"

#include <string.h>
#include <time.h>

#define SWITCH_BYTES_MIN UINT64_C(65536)
#define SWITCH_BYTES_MAX UINT64_C(8388608)
/* Pages of small groups take more room than their records; this much more is the end. */
#define DISK_FACTOR UINT64_C(4)
#define DISK_SLACK_BYTES UINT64_C(1048576)

static void lock(struct kv_journal *journal)
{
    KV_ASSERT(pthread_mutex_lock(&journal->mutex) == 0);
}

static void unlock(struct kv_journal *journal)
{
    KV_ASSERT(pthread_mutex_unlock(&journal->mutex) == 0);
}

static uint64_t pending_count(const struct kv_journal *journal)
{
    return journal->last_seq - journal->shipped_seq;
}

/* The mutex is held. */
static bool lags(const struct kv_journal *journal)
{
    if (journal->conf.lag_max_ns == 0 || pending_count(journal) == 0) {
        return false;
    }
    uint64_t since = journal->appended_ns[(journal->shipped_seq + 1) % journal->capacity];
    uint64_t now = kv_now_ns(journal->conf.env);
    return now > since && now - since > journal->conf.lag_max_ns;
}

/* The mutex is held. */
static bool takes_records(const struct kv_journal *journal)
{
    uint64_t disk_max = journal->conf.bytes_max * DISK_FACTOR + DISK_SLACK_BYTES;
    return !journal->failing && !journal->gone && !journal->stopping &&
           (pending_count(journal) + 1) * KV_JOURNAL_RECORD_BYTES <= journal->conf.bytes_max &&
           journal->disk_bytes <= disk_max && !lags(journal);
}

/* The mutex is held. */
static void put_record(struct kv_journal *journal, const uint8_t *bytes)
{
    uint64_t slot = (journal->last_seq + 1) % journal->capacity;
    memcpy(journal->ring + slot * KV_JOURNAL_RECORD_BYTES, bytes, KV_JOURNAL_RECORD_BYTES);
    journal->appended_ns[slot] = kv_now_ns(journal->conf.env);
    journal->last_seq++;
}

static KV_RC append_locked(struct kv_journal *journal, struct kv_journal_record *record)
{
    uint8_t bytes[KV_JOURNAL_RECORD_BYTES];
    if (!takes_records(journal)) {
        journal->refused++;
        return KV_E_AUDIT_UNAVAILABLE;
    }
    record->seq = journal->last_seq + 1;
    kv_journal_record_encode(record, bytes);
    put_record(journal, bytes);
    journal->appended++;
    KV_ASSERT(pthread_cond_signal(&journal->work) == 0);
    return KV_OK;
}

static KV_RC sink_append(void *ctx, const struct kv_transfer_record *record, uint64_t *ret_seq)
{
    struct kv_journal *journal = ctx;
    struct kv_journal_record entry = {.record = *record};
    size_t ids = record->block_ids == NULL ? 0 : record->blocks;
    if (kv_merkle_root_of((const uint8_t *)record->block_ids, sizeof(struct kv_block_id), ids, &entry.block_root) !=
        KV_OK) {
        return KV_E_AUDIT_UNAVAILABLE;
    }
    lock(journal);
    enum kv_err rc = append_locked(journal, &entry);
    uint64_t seq = entry.seq - journal->opened_seq;
    unlock(journal);
    KV_TRY(rc);
    *ret_seq = seq;
    return KV_OK;
}

static uint64_t sink_durable(void *ctx)
{
    struct kv_journal *journal = ctx;
    lock(journal);
    uint64_t seq = journal->durable_seq - journal->opened_seq;
    unlock(journal);
    return seq;
}

static void sink_set_wake(void *ctx, void (*wake)(void *arg), void *arg)
{
    struct kv_journal *journal = ctx;
    lock(journal);
    while (journal->waking) { /* a wake is one write to an eventfd */
        KV_ASSERT(pthread_cond_wait(&journal->progress, &journal->mutex) == 0);
    }
    journal->wake = wake;
    journal->wake_arg = arg;
    unlock(journal);
}

static KV_RC replay_record(void *ctx, const uint8_t *bytes)
{
    struct kv_journal *journal = ctx;
    struct kv_journal_record record;
    KV_TRY(kv_journal_record_decode(bytes, &record));
    if (record.seq != journal->last_seq + 1) {
        return KV_E_CORRUPT;
    }
    put_record(journal, bytes);
    return KV_OK;
}

static KV_RC load_pending(struct kv_journal *journal, struct kv_errinfo *info)
{
    uint64_t last = kv_journal_files_end(&journal->files) - 1;
    uint64_t pending = last - journal->files.shipped_on_disk;
    uint64_t allowed = journal->conf.bytes_max / KV_JOURNAL_RECORD_BYTES;
    journal->capacity = (pending > allowed ? pending : allowed) + 1;
    journal->ring = kv_alloc_array((size_t)journal->capacity, KV_JOURNAL_RECORD_BYTES);
    journal->appended_ns = kv_alloc_array((size_t)journal->capacity, sizeof(*journal->appended_ns));
    if (journal->ring == NULL || journal->appended_ns == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory for the journal's queue");
    }
    journal->shipped_seq = journal->files.shipped_on_disk;
    journal->last_seq = journal->shipped_seq;
    enum kv_err rc = kv_journal_files_replay(&journal->files, replay_record, journal);
    if (rc == KV_OK && journal->last_seq != last) {
        rc = KV_E_CORRUPT;
    }
    if (rc != KV_OK) {
        return kv_fail(info, rc, "the journal's records do not read back; keep the folder for inquiry");
    }
    journal->opened_seq = last;
    journal->durable_seq = last;
    journal->disk_bytes = kv_journal_files_bytes(&journal->files);
    return KV_OK;
}

static KV_RC start_thread(struct kv_journal *journal, struct kv_errinfo *info)
{
    if (pthread_create(&journal->thread, NULL, kv_journal_thread, journal) != 0) {
        return kv_fail(info, KV_E_NO_MEMORY, "cannot start the journal's thread");
    }
    journal->thread_runs = true;
    return KV_OK;
}

static void init_locks(struct kv_journal *journal)
{
    pthread_condattr_t attributes;
    KV_ASSERT(pthread_condattr_init(&attributes) == 0);
    KV_ASSERT(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    KV_ASSERT(pthread_mutex_init(&journal->mutex, NULL) == 0);
    KV_ASSERT(pthread_cond_init(&journal->work, &attributes) == 0);
    KV_ASSERT(pthread_cond_init(&journal->progress, &attributes) == 0);
    KV_ASSERT(pthread_condattr_destroy(&attributes) == 0);
}

static uint64_t switch_bytes_for(uint64_t bytes_max)
{
    uint64_t bytes = bytes_max / 8;
    if (bytes < SWITCH_BYTES_MIN) {
        return SWITCH_BYTES_MIN;
    }
    return bytes > SWITCH_BYTES_MAX ? SWITCH_BYTES_MAX : bytes;
}

KV_RC kv_journal_open(const struct kv_journal_conf *conf, struct kv_errinfo *info, struct kv_journal **ret_journal)
{
    if (conf->bytes_max < KV_JOURNAL_RECORD_BYTES || conf->bytes_max > (uint64_t)KV_MAX_JOURNAL_BYTES) {
        return kv_fail(info, KV_E_CONFIG, "the journal's size must be between %u and %lld bytes",
                       KV_JOURNAL_RECORD_BYTES, (long long)KV_MAX_JOURNAL_BYTES);
    }
    struct kv_journal *journal = kv_alloc(sizeof(*journal));
    if (journal == NULL) {
        return kv_fail(info, KV_E_NO_MEMORY, "no memory");
    }
    init_locks(journal);
    journal->conf = *conf;
    journal->conf.folder = NULL; /* borrowed for the call only */
    journal->switch_bytes = switch_bytes_for(conf->bytes_max);
    journal->sink = (struct kv_audit_sink){
        .ctx = journal, .append = sink_append, .durable = sink_durable, .set_wake = sink_set_wake};
    journal->files = (struct kv_journal_files){.folder_fd = -1, .file = {{.fd = -1}, {.fd = -1}}};
    enum kv_err rc = kv_journal_files_open(conf->folder, journal->switch_bytes, info, &journal->files);
    if (rc == KV_OK) {
        rc = load_pending(journal, info);
    }
    if (rc == KV_OK) {
        rc = start_thread(journal, info);
    }
    if (rc != KV_OK) {
        kv_journal_close(journal);
        return rc;
    }
    *ret_journal = journal;
    return KV_OK;
}

void kv_journal_close(struct kv_journal *journal)
{
    if (journal == NULL) {
        return;
    }
    if (journal->thread_runs) {
        lock(journal);
        journal->stopping = true;
        KV_ASSERT(pthread_cond_broadcast(&journal->work) == 0);
        KV_ASSERT(pthread_cond_broadcast(&journal->progress) == 0);
        unlock(journal);
        KV_ASSERT(pthread_join(journal->thread, NULL) == 0);
    }
    kv_journal_files_close(&journal->files);
    KV_ASSERT(pthread_cond_destroy(&journal->work) == 0);
    KV_ASSERT(pthread_cond_destroy(&journal->progress) == 0);
    KV_ASSERT(pthread_mutex_destroy(&journal->mutex) == 0);
    kv_free(journal->ring);
    kv_free(journal->appended_ns);
    kv_free(journal);
}

const struct kv_audit_sink *kv_journal_sink(struct kv_journal *journal)
{
    return &journal->sink;
}

KV_RC kv_journal_read(struct kv_journal *journal, struct kv_journal_record *ret_records, size_t max, size_t *ret_count)
{
    lock(journal);
    uint64_t first = journal->shipped_seq + 1;
    uint64_t ready = journal->durable_seq - journal->shipped_seq;
    unlock(journal);
    size_t count = ready < max ? (size_t)ready : max;
    /* These slots stay as they are until the shipper itself, the caller, says that they are shipped. */
    for (size_t i = 0; i < count; i++) {
        uint64_t slot = (first + i) % journal->capacity;
        KV_TRY(kv_journal_record_decode(journal->ring + slot * KV_JOURNAL_RECORD_BYTES, &ret_records[i]));
    }
    *ret_count = count;
    return KV_OK;
}

KV_RC kv_journal_shipped(struct kv_journal *journal, uint64_t seq)
{
    lock(journal);
    bool known = seq <= journal->durable_seq;
    if (known && seq > journal->shipped_seq) {
        journal->shipped_seq = seq;
        KV_ASSERT(pthread_cond_broadcast(&journal->progress) == 0);
    }
    unlock(journal);
    return known ? KV_OK : KV_E_INVALID_REQUEST;
}

void kv_journal_wait(struct kv_journal *journal, uint64_t deadline_ns)
{
    lock(journal);
    while (journal->durable_seq == journal->shipped_seq && !journal->stopping &&
           kv_now_ns(journal->conf.env) < deadline_ns) {
        kv_journal_cond_wait(journal, &journal->progress, deadline_ns);
    }
    unlock(journal);
}

KV_RC kv_journal_drain(struct kv_journal *journal, uint64_t deadline_ns)
{
    lock(journal);
    uint64_t target = journal->last_seq;
    while (journal->shipped_seq < target && kv_now_ns(journal->conf.env) < deadline_ns) {
        kv_journal_cond_wait(journal, &journal->progress, deadline_ns);
    }
    bool done = journal->shipped_seq >= target;
    unlock(journal);
    return done ? KV_OK : KV_E_TIMEOUT;
}

void kv_journal_stats(struct kv_journal *journal, struct kv_journal_stats *ret_stats)
{
    lock(journal);
    uint64_t oldest_us = 0;
    if (pending_count(journal) > 0) {
        uint64_t since = journal->appended_ns[(journal->shipped_seq + 1) % journal->capacity];
        uint64_t now = kv_now_ns(journal->conf.env);
        oldest_us = now > since ? (now - since) / 1000 : 0;
    }
    *ret_stats = (struct kv_journal_stats){
        .records = journal->appended,
        .pending_bytes = pending_count(journal) * KV_JOURNAL_RECORD_BYTES,
        .oldest_pending_us = oldest_us,
        .refused = journal->refused,
        .last_seq = journal->last_seq,
        .ok = takes_records(journal),
    };
    unlock(journal);
}

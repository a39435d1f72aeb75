#include "tests/lib/fake_sink.h"

static enum kv_err append(void *ctx, const struct kv_transfer_record *record, uint64_t *ret_seq)
{
    struct kvt_sink *sink = ctx;
    pthread_mutex_lock(&sink->mutex);
    enum kv_err rc = sink->refuse ? KV_E_AUDIT_UNAVAILABLE : KV_OK;
    if (rc == KV_OK) {
        if (sink->seq < KVT_SINK_RECORDS) {
            sink->records[sink->seq] = *record;
            sink->records[sink->seq].block_ids = NULL;
            sink->first_id[sink->seq] = record->block_ids[0];
        }
        *ret_seq = ++sink->seq;
        sink->durable = sink->hold ? sink->durable : sink->seq;
    }
    pthread_mutex_unlock(&sink->mutex);
    return rc;
}

static uint64_t durable(void *ctx)
{
    struct kvt_sink *sink = ctx;
    pthread_mutex_lock(&sink->mutex);
    uint64_t seq = sink->durable;
    pthread_mutex_unlock(&sink->mutex);
    return seq;
}

static void set_wake(void *ctx, void (*wake)(void *arg), void *arg)
{
    struct kvt_sink *sink = ctx;
    pthread_mutex_lock(&sink->mutex);
    sink->wake = wake;
    sink->wake_arg = arg;
    pthread_mutex_unlock(&sink->mutex);
}

void kvt_sink_init(struct kvt_sink *sink)
{
    *sink = (struct kvt_sink){.sink = {.ctx = sink, .append = append, .durable = durable, .set_wake = set_wake}};
    pthread_mutex_init(&sink->mutex, NULL);
}

void kvt_sink_flush(struct kvt_sink *sink)
{
    pthread_mutex_lock(&sink->mutex);
    sink->durable = sink->seq;
    void (*wake)(void *arg) = sink->wake;
    void *arg = sink->wake_arg;
    pthread_mutex_unlock(&sink->mutex);
    if (wake != NULL) {
        wake(arg);
    }
}

void kvt_sink_hold(struct kvt_sink *sink, bool hold)
{
    pthread_mutex_lock(&sink->mutex);
    sink->hold = hold;
    pthread_mutex_unlock(&sink->mutex);
}

void kvt_sink_refuse(struct kvt_sink *sink, bool refuse)
{
    pthread_mutex_lock(&sink->mutex);
    sink->refuse = refuse;
    pthread_mutex_unlock(&sink->mutex);
}

unsigned kvt_sink_count(struct kvt_sink *sink, enum kv_record_kind kind)
{
    unsigned count = 0;
    pthread_mutex_lock(&sink->mutex);
    for (uint64_t i = 0; i < sink->seq && i < KVT_SINK_RECORDS; i++) {
        count += sink->records[i].kind == kind;
    }
    pthread_mutex_unlock(&sink->mutex);
    return count;
}

/*
 * An audit sink in memory: records are durable at once, or when the test says so, or refused. Thread: any.
 */
#ifndef KV_TESTS_FAKE_SINK_H
#define KV_TESTS_FAKE_SINK_H

#include "dataplane/base/audit_sink.h"

#include <pthread.h>

#define KVT_SINK_RECORDS 4096

struct kvt_sink {
    struct kv_audit_sink sink;
    pthread_mutex_t mutex;
    uint64_t seq, durable;
    bool refuse, hold; /* hold: nothing becomes durable until kvt_sink_flush */
    void (*wake)(void *arg);
    void *wake_arg;
    struct kv_transfer_record records[KVT_SINK_RECORDS]; /* the first ones; block_ids is NULL */
    struct kv_block_id first_id[KVT_SINK_RECORDS];
};

void kvt_sink_init(struct kvt_sink *sink);
void kvt_sink_flush(struct kvt_sink *sink);
void kvt_sink_hold(struct kvt_sink *sink, bool hold);
void kvt_sink_refuse(struct kvt_sink *sink, bool refuse);
unsigned kvt_sink_count(struct kvt_sink *sink, enum kv_record_kind kind);

#endif

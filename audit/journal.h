/*
 * The local, durable journal of transfer records: fills base/audit_sink.h. The lane appends to a bounded queue; the
 * journal's own thread writes groups with pwrite and fdatasync; a shipper (service) reads what is durable, puts it into
 * the database, and then marks it shipped. Survives kill -9: what was durable and not shipped is read again at the next
 * open. File format in FORMAT.md: groups of at most 64 KiB with length and CRC-32C, each on pages of its own; a torn
 * tail ends the journal there. Two files used in turn, so that shipped records are given back without a rewrite.
 * Liveness is checked by inode and device too: a file deleted underneath makes the sink refuse (KV_E_AUDIT_UNAVAILABLE)
 * until it is opened again.
 */
#ifndef KV_AUDIT_JOURNAL_H
#define KV_AUDIT_JOURNAL_H

#include "audit/event.h"
#include "dataplane/base/audit_sink.h"
#include "dataplane/base/env.h"

struct kv_journal;

struct kv_journal_record {
    uint64_t seq;                     /* contiguous for this journal, over restarts */
    struct kv_transfer_record record; /* block_ids is NULL */
    struct kv_hash block_root;        /* RFC 6962 root over the ids in the order given */
};

struct kv_journal_conf {
    const char *folder;  /* ours, 0700 */
    uint64_t bytes_max;  /* not yet shipped; over it the sink refuses */
    uint64_t lag_max_ns; /* age of the oldest not shipped; over it the sink refuses; 0: never */
    const struct kv_env *env;
};

KV_RC kv_journal_open(const struct kv_journal_conf *conf, struct kv_errinfo *info, struct kv_journal **ret_journal);
void kv_journal_close(struct kv_journal *journal);
const struct kv_audit_sink *kv_journal_sink(struct kv_journal *journal);

/* Durable and not yet shipped records from the oldest on, at most `max`. Thread: the shipper. */
KV_RC kv_journal_read(struct kv_journal *journal, struct kv_journal_record *ret_records, size_t max, size_t *ret_count);
/* Everything up to `seq` is in the database: room is given back. */
KV_RC kv_journal_shipped(struct kv_journal *journal, uint64_t seq);
/* Waits until something is durable and not shipped, or `deadline_ns`. */
void kv_journal_wait(struct kv_journal *journal, uint64_t deadline_ns);
/* All records appended before the call are durable and shipped, or the deadline passed (KV_E_TIMEOUT). */
KV_RC kv_journal_drain(struct kv_journal *journal, uint64_t deadline_ns);

struct kv_journal_stats {
    uint64_t records;           /* appended since the open */
    uint64_t pending_bytes;     /* of records not yet shipped */
    uint64_t oldest_pending_us; /* age of the oldest of them; 0: none */
    uint64_t refused;
    uint64_t
        last_seq; /* the highest number given out, over restarts; below what the database has seen: another journal */
    bool ok;      /* the sink would take a record now */
};
void kv_journal_stats(struct kv_journal *journal, struct kv_journal_stats *ret_stats);

#endif

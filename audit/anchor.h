/*
 * Anchors: what the cluster's root of erasure and the operator's log were, written down outside of the database, so
 * that a database that was put back together with its root is told from the current one. An anchor vouches for nothing
 * that whoever can write it wants to hide. Thread: one caller at a time.
 */
#ifndef KV_AUDIT_ANCHOR_H
#define KV_AUDIT_ANCHOR_H

#include "audit/merkle.h"

struct kv_anchor_record {
    struct kv_id cluster, root; /* the root in force */
    uint64_t log_size;          /* of the operator's log */
    struct kv_hash log_root;
    uint64_t written_us;
};

struct kv_anchor;

/* A kind of anchor. What is written replaces what was there. */
struct kv_anchor_ops {
    const char *name; /* "file" */
    /* The record written last. KV_E_MISSING: none yet. KV_E_CORRUPT: there is one, and it cannot be made out. */
    KV_RC (*read)(struct kv_anchor *anchor, struct kv_errinfo *info, struct kv_anchor_record *ret_record);
    /* Durable when it returns KV_OK. KV_E_STALE: the record there is of a longer log; nothing was written. */
    KV_RC (*write)(struct kv_anchor *anchor, const struct kv_anchor_record *record, struct kv_errinfo *info);
    void (*close)(struct kv_anchor *anchor);
};

struct kv_anchor {
    const struct kv_anchor_ops *ops;
};

#define KV_ANCHOR_FILE_BYTES 1536

/* A file that exists: empty, or with what was written before (FORMAT.md). It is opened for each call. `path` is copied.
 */
KV_RC kv_anchor_file_open(const char *path, struct kv_errinfo *info, struct kv_anchor **ret_anchor);
/* The same with a thread of its own: a call that has not ended after `wait_ns` is KV_E_TIMEOUT, and so is every other
 * one, at once, until it has. What it writes then is there, as if the answer had been lost. Takes `anchor`; on failure
 * it stays the caller's. */
KV_RC kv_anchor_patient(struct kv_anchor *anchor, uint64_t wait_ns, struct kv_anchor **ret_anchor);

#endif

/*
 * The contract of a tier below dram: nvme now, object later. A tier sees sealed bytes and nothing else; it may not
 * include crypto or keys, and a test says so.
 *
 * Rules: submit returns KV_OK or KV_E_BUSY (or says at once that it never
 * can: KV_E_NO_SPACE, KV_E_LIMIT); completion comes only from poll, never from inside submit. KV_E_BUSY also means that
 * records of drops are on their way and may make room: try again after poll, do not evict more. A put to a tier that is
 * down completes with KV_E_IO; the tier finds out by itself when it is up again. Thread: lane.
 */
#ifndef KV_TIER_H
#define KV_TIER_H

#include "dataplane/base/env.h"

struct kv_io;

struct kv_tier_key {
    struct kv_id scope;
    struct kv_block_id block_id;
};

enum kv_tier_op_kind { KV_TIER_PUT, KV_TIER_GET };

struct kv_tier_op {
    enum kv_tier_op_kind kind;
    struct kv_tier_key key;
    uint64_t where; /* PUT: filled in at completion; GET: from PUT or scan */
    uint8_t *data;  /* 4 KiB aligned, inside the dram arena; borrowed until done */
    uint64_t bytes; /* multiple of 4 KiB */
    bool promised;  /* PUT: was asked for as durable; never evicted for room */
    /* PUT completes when data and index record are on stable storage. Called from poll. KV_E_IO, KV_E_NO_SPACE; the
     * block is then not there. GET: KV_E_IO, KV_E_TRUNCATED, KV_E_MISSING (`where` is not this key's, or is dropped).
     * The op may be reused or freed inside. */
    void (*done)(struct kv_tier_op *op, enum kv_err rc);
    void *owner;
    struct kv_tier_op *next; /* private to the tier while it has the op */
};

struct kv_tier_stats {
    uint64_t capacity_bytes, used_bytes /* physical: slots in use or not yet reusable */, objects;
    uint64_t read_bytes, written_bytes, errors;
    bool up;
    const char *reason; /* static text when not up */
    struct kv_id place; /* by what its content is known, wherever it is mounted; zero: none */
};

/* What was dropped up to a moment, see `dropped`; zeroed by who asks first. */
struct kv_tier_mark {
    bool taken;
    uint64_t drops, setbacks;
};

struct kv_tier_conf {
    const char *path;     /* nvme: a folder of ours */
    uint64_t bytes;       /* physical cap of everything under it */
    uint64_t slab_bytes;  /* 0: chosen */
    uint64_t entries_max; /* blocks it can hold */
    struct kv_io *io;     /* borrowed */
    const struct kv_env *env;
};

/* A block that was here at start. */
typedef void kv_tier_scan_fn(void *ctx, const struct kv_tier_key *key, uint64_t where, uint64_t bytes, bool promised);

struct kv_tier;

struct kv_tier_ops {
    const char *name;
    enum kv_tier_id id;
    /* Recovers its own index; never truncates or formats what is there. KV_E_FOREIGN_FILE: something is there that is
     * not ours. */
    KV_RC (*open)(const struct kv_tier_conf *conf, struct kv_errinfo *info, struct kv_tier **ret_tier);
    void (*scan)(struct kv_tier *tier, kv_tier_scan_fn *fn, void *ctx); /* right after open */
    KV_RC (*submit)(struct kv_tier *tier, struct kv_tier_op *op);
    unsigned (*poll)(struct kv_tier *tier,
                     unsigned max); /* completions; also starts due flushes. Returns how much it did */
    uint64_t (*next_due_ns)(
        struct kv_tier *tier); /* monotonic; when poll has something to do without an event; UINT64_MAX */
    /* KV_E_MISSING: not there (any more). The block is gone for later starts as soon as the drop record is flushed; its
     * room is reused only after that. Must not be called while a GET of it runs. KV_E_BUSY: record queue is full, try
     * again after poll. */
    KV_RC (*drop)(struct kv_tier *tier, const struct kv_tier_key *key, uint64_t where);
    /* All that was dropped before the mark was taken, which the first call does, is durably so: no start finds it. It
     * becomes so by poll; while the tier is down it does not. */
    bool (*dropped)(const struct kv_tier *tier, struct kv_tier_mark *mark);
    void (*stats)(const struct kv_tier *tier, struct kv_tier_stats *ret_stats);
    KV_RC (*close)(struct kv_tier *tier); /* idle only: writes a checkpoint, frees */
};

struct kv_tier {
    const struct kv_tier_ops *ops;
};

extern const struct kv_tier_ops kv_tier_nvme;

#endif

/*
 * The audit log's rows. A transaction that changes something puts its entry into the outbox; one sequencer gives
 * entries their places. What a place holds never changes. Hashing and signing are not done here. Thread: the
 * connection's.
 *
 * The sequencer's transaction: kv_store_outbox_fetch → for each log of the rows, ids ascending: kv_store_log_lock,
 * kv_store_leaf_append, kv_store_tile_put, kv_store_log_set_head → kv_store_outbox_delete.
 */
#ifndef KV_STORE_AUDIT_H
#define KV_STORE_AUDIT_H

#include "server/store/page.h"
#include "server/store/pg.h"

#define KV_LOG_ORIGIN_SIZE 256
#define KV_LOG_REF_BYTES_MAX 64
#define KV_FRONTIER_BYTES_MAX 2048
#define KV_TILE_BYTES_MAX 8192 /* 256 hashes */
#define KV_OUTBOX_BATCH_MAX 1024

struct kv_store_log {
    struct kv_id id; /* a tenant's id; zero: the operator's log */
    char origin[KV_LOG_ORIGIN_SIZE];
    uint64_t size;
    uint8_t root[32];
    uint8_t frontier[KV_FRONTIER_BYTES_MAX];
    size_t frontier_len;
    uint64_t signed_size; /* of the last note; 0: none */
};

/* There is such a log from now on, empty at first (`empty_root` is its root then). KV_E_INVALID_STATE: it has another
 * origin. Write. */
KV_RC kv_store_log_ensure(struct kv_pg *pg, const struct kv_id *id, const char *origin, const uint8_t empty_root[32],
                          struct kv_errinfo *info);
KV_RC kv_store_log_get(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                       struct kv_store_log *ret_log); /* KV_E_NOT_FOUND */
/* FOR UPDATE. Write. */
KV_RC kv_store_log_lock(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info,
                        struct kv_store_log *ret_log);
/* Size, root and frontier of `log`; KV_E_STALE unless the size in the row is `seen_size`, and it must grow. Write. */
KV_RC kv_store_log_set_head(struct kv_pg *pg, const struct kv_store_log *log, uint64_t seen_size,
                            struct kv_errinfo *info);
/* The signed checkpoint of `size`. KV_E_STALE: a later one is there already, or the log is not that long. Write. */
KV_RC kv_store_log_set_note(struct kv_pg *pg, const struct kv_id *id, uint64_t size, struct kv_bytes note,
                            uint64_t at_us, struct kv_errinfo *info);
/* Appended to the caller's buffer. KV_E_MISSING: none yet. */
KV_RC kv_store_log_note(struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info, struct kv_buf *ret_note,
                        uint64_t *ret_size);
/* Logs that have grown since their last note, by id. */
KV_RC kv_store_log_list_unsigned(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_id *ret_ids,
                                 size_t *ret_count);

/* ---- outbox ---- */

/* `ref` (may be empty, at most KV_LOG_REF_BYTES_MAX) is what kv_store_leaf_find finds the place by later. The log need
 * not exist before the sequencer comes, but must then. Write. */
KV_RC kv_store_outbox_insert(struct kv_pg *pg, const struct kv_id *log, struct kv_bytes entry, struct kv_bytes ref,
                             uint64_t at_us, struct kv_errinfo *info);

struct kv_store_outbox_new {
    struct kv_id log;
    struct kv_bytes entry, ref; /* borrowed; ref may be empty */
    uint64_t at_us;
};
/* The same of many, in their order. Write. */
KV_RC kv_store_outbox_insert_many(struct kv_pg *pg, const struct kv_store_outbox_new *rows, size_t count,
                                  struct kv_errinfo *info);

struct kv_store_outbox_row {
    int64_t id;
    struct kv_id log;
    struct kv_bytes entry, ref; /* borrowed from the list */
    uint64_t created_us;
};
struct kv_store_outbox {
    struct kv_store_outbox_row *rows; /* by log, then in the order they were put in */
    size_t count;
    struct kv_buf bytes;
};
void kv_store_outbox_done(struct kv_store_outbox *outbox);
/* The oldest `max` (up to KV_OUTBOX_BATCH_MAX) rows, locked. Write. */
KV_RC kv_store_outbox_fetch(struct kv_pg *pg, size_t max, struct kv_errinfo *info, struct kv_store_outbox *ret_outbox);
/* KV_E_STALE unless all of them were still there. Write. */
KV_RC kv_store_outbox_delete(struct kv_pg *pg, const struct kv_store_outbox *outbox, struct kv_errinfo *info);
/* How many wait, and since when the oldest does (0: none). */
KV_RC kv_store_outbox_stats(struct kv_pg *pg, struct kv_errinfo *info, uint64_t *ret_count, uint64_t *ret_oldest_us);

/* ---- leaves and tiles ---- */

/* What leaves are found by; taken from the entry. */
struct kv_store_leaf_facts {
    uint64_t at_us;              /* 0: not known */
    char op[33], outcome[33];    /* "" when not known */
    struct kv_id actor, session; /* zero: none */
};
struct kv_store_leaf {
    struct kv_bytes entry, ref; /* ref may be empty */
    uint8_t hash[32];
    struct kv_store_leaf_facts facts;
};
/* Places first_idx, first_idx + 1, …; at most KV_OUTBOX_BATCH_MAX. KV_E_STALE when one of them is taken. Write. */
KV_RC kv_store_leaf_append(struct kv_pg *pg, const struct kv_id *log, uint64_t first_idx,
                           const struct kv_store_leaf *leaves, size_t count, struct kv_errinfo *info);
/* `ret_hashes` has room for 32 * count, at most 256. KV_E_MISSING unless all are there. */
KV_RC kv_store_leaf_hashes(struct kv_pg *pg, const struct kv_id *log, uint64_t first_idx, size_t count,
                           struct kv_errinfo *info, uint8_t *ret_hashes);
/* The lowest place with this ref. KV_E_MISSING: not sequenced yet, or never. */
KV_RC kv_store_leaf_find(struct kv_pg *pg, const struct kv_id *log, struct kv_bytes ref, struct kv_errinfo *info,
                         uint64_t *ret_idx);
/* Of `count` refs of `ref_len` bytes, one after the other, at most KV_OUTBOX_BATCH_MAX; KV_E_MISSING unless all have
 * one. */
struct kv_store_refs {
    const uint8_t *refs; /* borrowed */
    size_t ref_len, count;
};
KV_RC kv_store_leaves_find(struct kv_pg *pg, const struct kv_id *log, const struct kv_store_refs *refs,
                           struct kv_errinfo *info, uint64_t *ret_places);

struct kv_store_entry {
    uint64_t idx;
    uint8_t hash[32];      /* as stored */
    struct kv_bytes entry; /* borrowed from the list */
};
struct kv_store_entries {
    struct kv_store_entry *rows;
    size_t count;
    struct kv_buf bytes;
};
void kv_store_entries_done(struct kv_store_entries *entries);
/* From place `first` on, at most `max` (up to KV_OUTBOX_BATCH_MAX). */
KV_RC kv_store_leaf_entries(struct kv_pg *pg, const struct kv_id *log, uint64_t first, size_t max,
                            struct kv_errinfo *info, struct kv_store_entries *ret_entries);

/* A page of a log's leaves by their place; what is zero or NULL is not asked for. Reads page->limit, ascending,
 * has_after and `after` (a place); page->more is set. */
struct kv_store_leaf_filter {
    struct kv_id log;
    const char *op, *outcome;
    struct kv_id actor, session;
    uint64_t from_us, to_us; /* [from, to) */
};
struct kv_store_leaf_row {
    uint64_t idx;
    uint8_t hash[32];
    struct kv_store_leaf_facts facts;
    struct kv_bytes entry; /* borrowed from the list */
};
struct kv_store_leaf_page {
    struct kv_store_leaf_row *rows;
    size_t count;
    struct kv_buf bytes;
};
void kv_store_leaf_page_done(struct kv_store_leaf_page *page);
KV_RC kv_store_leaf_list(struct kv_pg *pg, const struct kv_store_leaf_filter *filter, struct kv_page *page,
                         uint64_t after, struct kv_errinfo *info, struct kv_store_leaf_page *ret_page);

/* Tile `n` of `level`: 1 to 256 hashes. Written again it may only grow: KV_E_STALE when what is there is no prefix of
 * it. Write. */
KV_RC kv_store_tile_put(struct kv_pg *pg, const struct kv_id *log, uint32_t level, uint64_t n, struct kv_bytes hashes,
                        struct kv_errinfo *info);
KV_RC kv_store_tile_get(struct kv_pg *pg, const struct kv_id *log, uint32_t level, uint64_t n, struct kv_errinfo *info,
                        uint8_t ret_hashes[KV_TILE_BYTES_MAX], size_t *ret_len); /* KV_E_MISSING */

/* ---- what of an instance's journal is in the outbox ---- */

/* The highest sequence number shipped (0: none), locked to the end of the transaction. Write. */
/* The same, only read; 0: nothing yet. */
KV_RC kv_store_journal_seq(struct kv_pg *pg, const struct kv_id *instance, struct kv_errinfo *info, uint64_t *ret_seq);
KV_RC kv_store_journal_lock(struct kv_pg *pg, const struct kv_id *instance, struct kv_errinfo *info, uint64_t *ret_seq);
/* From `seen` to `seq`, in the transaction that put the records of (seen, seq] into the outbox. KV_E_STALE. Write. */
KV_RC kv_store_journal_advance(struct kv_pg *pg, const struct kv_id *instance, uint64_t seen, uint64_t seq,
                               struct kv_errinfo *info);

#endif

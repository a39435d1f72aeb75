/*
 * The insides of the nvme tier, shared by its files: tier_nvme.c (contract), nvme_folder.c (what happens at start),
 * nvme_table.c (blocks and operations), nvme_flush.c (groups), nvme_ckpt.c (new generations).
 *
 * One machine makes records durable. Its steps are asynchronous, one at a time:
 *
 *          +--------------------------- group done or failed <-------------+
 *          v                                                               |
 *        IDLE --puts--> DATA_SYNC ----> LOG_WRITE ----> LOG_SYNC ----------+
 *          |  \---drops only----------------^
 *          v
 *     CKPT_WRITE -> CKPT_SYNC -> NEWLOG_WRITE -> NEWLOG_SYNC -> FOLDER_SYNC -> RENAMED_SYNC -> IDLE
 *          (any step that fails goes back to IDLE; the generation in use stays in use)
 *
 * A block is in the table with one of these states:
 *
 *     FREE -> PUTTING -> LIVE -> DROP_ASKED -> LEAVING -> FREE
 *                 |                     ^---------'  (its group failed)
 *                 +-> FREE   (data not written: nothing on disk names the slot)
 *                 +-> LIMBO -> FREE   (a record may or may not be on disk: the slot waits for the next generation)
 */
#ifndef KV_NVME_INT_H
#define KV_NVME_INT_H

#include "dataplane/base/sm.h"
#include "dataplane/io/io.h"
#include "dataplane/tier/nvme_load_int.h"
#include "dataplane/tier/slabs_int.h"

#define KV_NVME_GROUP_ENTRIES 1024u
#define KV_NVME_GROUP_BYTES (UINT64_C(64) << 20)
#define KV_NVME_GROUP_NS (5 * KV_MS_NS)
#define KV_NVME_JOBS 512u
#define KV_NVME_CHUNK_BYTES 262144u /* of a checkpoint, at a time */
#define KV_NVME_RETRY_NS KV_S_NS    /* between probes of a tier that is down */
#define KV_NVME_FAILURES_MAX 3u     /* in a row, then the tier is down */
#define KV_NVME_NONE UINT32_MAX

enum kv_nvme_block_state {
    KV_NVME_FREE,
    KV_NVME_PUTTING,
    KV_NVME_LIVE,
    KV_NVME_DROP_ASKED,
    KV_NVME_LEAVING,
    KV_NVME_LIMBO,
};

struct kv_nvme_block {
    struct kv_tier_key key;
    uint64_t offset; /* in the arena file */
    uint32_t pages;
    uint32_t next; /* in the one list that its state names */
    uint32_t tag;  /* counts the uses of this place, so that an old `where` is recognised */
    uint16_t reads;
    uint8_t state;
    bool promised;
};

struct kv_nvme_blocks {
    uint32_t head, tail, count;
};

/* One operation of the caller while the tier has it. */
struct kv_nvme_job {
    struct kv_io_request request;
    struct kv_nvme *tier;
    struct kv_tier_op *op;
    struct kv_nvme_job *next;
    uint32_t block;
    uint32_t epoch;
    enum kv_err rc;
};

struct kv_nvme_jobs {
    struct kv_nvme_job *head, *tail;
    unsigned count;
};

enum kv_nvme_flush {
    KV_NVME_IDLE,
    KV_NVME_DATA_SYNC,
    KV_NVME_LOG_WRITE,
    KV_NVME_LOG_SYNC,
    KV_NVME_CKPT_WRITE,
    KV_NVME_CKPT_SYNC,
    KV_NVME_NEWLOG_WRITE,
    KV_NVME_NEWLOG_SYNC,
    KV_NVME_FOLDER_SYNC,
    KV_NVME_RENAMED_SYNC,
};

/* A request of the tier's own. */
struct kv_nvme_step {
    struct kv_io_request request;
    bool wanted;   /* to be submitted */
    bool running;  /* io has it */
    bool finished; /* `rc` tells */
    enum kv_err rc;
};

struct kv_nvme {
    struct kv_tier base;
    const struct kv_env *env;
    struct kv_io *io;
    int folder_fd, lock_fd, arena_fd, log_fd;
    struct kv_nvme_superblock superblock;

    struct kv_slabs *slabs; /* offsets in there count from the first slab */
    struct kv_nvme_block *blocks;
    uint32_t blocks_size;   /* of the table */
    uint32_t blocks_max;    /* that may be in use for a new put; smaller only when more were found */
    uint32_t blocks_in_use; /* not FREE */
    uint32_t live;
    struct kv_nvme_blocks free, drops, leaving, limbo;
    uint64_t first_drop_ns;
    uint64_t drops_asked, drops_durable; /* in this order, but for those that a failure put back */
    uint64_t setbacks;                   /* how often one did */
    bool room_is_wanted;                 /* a put was refused while drops wait */

    struct kv_nvme_job *jobs;
    struct kv_nvme_jobs idle_jobs, waiting /* data written */, group, ended;
    uint64_t waiting_bytes, first_wait_ns;
    unsigned writes_running, reads_running;
    uint32_t epoch; /* counts failed flushes of the arena: a write that began before one is not trusted */

    struct kv_sm flush;
    struct kv_nvme_step step;
    uint64_t generation;
    uint64_t log_entries, log_entries_max;
    uint32_t log_seed;
    uint8_t *log_buf; /* one group */
    uint32_t log_buf_entries;
    bool log_bad; /* what follows its last entry is unknown: a new generation has to come before the next group */

    int ckpt_fd, newlog_fd;
    uint8_t *ckpt_buf;
    uint64_t ckpt_left, ckpt_at;
    uint32_t ckpt_next, ckpt_seed, newlog_seed;
    uint64_t rotate_after_ns; /* no new try before */
    bool rotate_asked;

    struct kv_nvme_step probe;
    uint8_t *probe_page;
    uint64_t probe_after_ns;
    unsigned failures; /* in a row */
    bool up;
    const char *reason;
    uint64_t read_bytes, written_bytes, errors;
};

extern const struct kv_sm_table kv_nvme_flush_table;

/* nvme_table.c */
void kv_nvme_jobs_push(struct kv_nvme_jobs *jobs, struct kv_nvme_job *job);
struct kv_nvme_job *kv_nvme_jobs_pop(struct kv_nvme_jobs *jobs);
void kv_nvme_blocks_push(struct kv_nvme *n, struct kv_nvme_blocks *list, uint32_t index);
uint32_t kv_nvme_blocks_pop(struct kv_nvme *n, struct kv_nvme_blocks *list);
KV_RC kv_nvme_table_new(struct kv_nvme *n, const struct kv_nvme_image *image);
void kv_nvme_table_free(struct kv_nvme *n);
/* A free block with a slot: PUTTING. KV_E_NO_SPACE, KV_E_LIMIT. */
KV_RC kv_nvme_block_take(struct kv_nvme *n, const struct kv_tier_op *op, uint32_t *ret_index);
/* Slot and place are free again. */
void kv_nvme_block_release(struct kv_nvme *n, uint32_t index);
uint64_t kv_nvme_block_where(const struct kv_nvme *n, uint32_t index);
/* KV_NVME_NONE: not a live block with this key. */
uint32_t kv_nvme_block_find(const struct kv_nvme *n, const struct kv_tier_key *key, uint64_t where);
void kv_nvme_block_entry(const struct kv_nvme *n, uint32_t index, enum kv_nvme_kind kind, uint8_t *target,
                         uint32_t seed);
void kv_nvme_job_end(struct kv_nvme *n, struct kv_nvme_job *job, enum kv_err rc);
/* Ends every put of the list. The slot is free at once, or in limbo when a record of it may be on disk. */
void kv_nvme_puts_fail(struct kv_nvme *n, struct kv_nvme_jobs *jobs, enum kv_err rc, bool limbo);

/* nvme_flush.c */
void kv_nvme_step_begin(struct kv_nvme *n, struct kv_nvme_step *step, const char *fault,
                        const struct kv_io_request *what);
/* Goes on with the machine and the probe as far as it gets without waiting. Returns how many steps it took. */
unsigned kv_nvme_advance(struct kv_nvme *n);
bool kv_nvme_flush_is_due(const struct kv_nvme *n, uint64_t now);
bool kv_nvme_needs_generation(const struct kv_nvme *n);
void kv_nvme_note_failure(struct kv_nvme *n, enum kv_err rc, const char *reason);
void kv_nvme_note_success(struct kv_nvme *n);
void kv_nvme_leaving_done(struct kv_nvme *n);
void kv_nvme_leaving_back(struct kv_nvme *n);

/* nvme_ckpt.c */
void kv_nvme_rotate_begin(struct kv_nvme *n);
void kv_nvme_rotate_go_on(struct kv_nvme *n, enum kv_err rc);
/* Runs io and machine until it is idle; with `rotate`, until a new generation is in use. For start and end, where
 * waiting is allowed. */
KV_RC kv_nvme_settle(struct kv_nvme *n, bool rotate, uint64_t timeout_ns);

/* nvme_folder.c */
/* Opens or creates what lies in the folder: descriptors, superblock and table. */
KV_RC kv_nvme_folder_open(struct kv_nvme *n, const struct kv_tier_conf *conf, struct kv_errinfo *info);
/* Opens a file of ours for writing from its beginning; KV_E_FOREIGN_FILE when something else has its name. */
KV_RC kv_nvme_file_create(int folder_fd, const char *name, int *ret_fd);
void kv_nvme_folder_tidy(const struct kv_nvme *n); /* removes what dead generations left */

/* nvme_size.c */
uint64_t kv_nvme_log_entries_max(uint64_t entries);
uint64_t kv_nvme_index_bytes(uint64_t entries); /* most that the index files take together */
uint64_t kv_nvme_wanted_entries(const struct kv_tier_conf *conf);
/* As many as fit under `bytes` beside an arena of this size; 0 when nothing does. */
uint64_t kv_nvme_entries_beside(uint64_t bytes, uint64_t arena_bytes, uint64_t wanted);
uint64_t kv_nvme_room_for_slabs(uint64_t bytes, uint64_t entries);
uint64_t kv_nvme_choose_slab_bytes(const struct kv_tier_conf *conf, uint64_t room);
/* The arena that fits into the room. 0: not even one slab. */
uint64_t kv_nvme_arena_bytes(uint64_t room, uint64_t slab_bytes);

#endif

/*
 * The inside of the engine, shared by its files. A lane owns everything here except what `shared` guards; only the
 * thread that polls touches it. Others push messages (struct message) into the inbox and wake the lane's io.
 *
 * The path of a transfer allocates nothing on the lane: an operation and its per-block state are allocated by the
 * thread that submits it, io records and index entries come from pools made at start.
 */
#ifndef KV_ENGINE_LANE_INT_H
#define KV_ENGINE_LANE_INT_H

#include "dataplane/base/metric.h"
#include "dataplane/base/sm.h"
#include "dataplane/engine/index_int.h"
#include "dataplane/engine/placement_int.h"
#include "dataplane/tier/tier_dram.h"

#include <pthread.h>

#define POOL_REGIONS_MAX 1024u /* KV_MAX_POOL_REGIONS, as a constant that sizes an array */
#define OP_WINDOW 32u          /* blocks of one operation that are under way at once */
#define LANE_IO_MAX 256u       /* reads and writes at a tier */
#define WRITE_DOWN_MAX 32u     /* of those, demotions */
#define POLL_SEAL_BYTES \
    (8u << 20)                  /* plaintext sealed and opened in one poll, so that completions are seen in between */
#define RETRY_NS (1 * KV_MS_NS) /* how soon to try again what a tier refused */
#define IDLE_NS (100 * KV_MS_NS)
#define STOP_NS (5 * KV_S_NS) /* how long a stop waits for the audit sink */
#define GET_ERRORS_MAX 2u     /* failed reads after which an nvme replica is given up */

struct lane;
struct op;

/* ---- messages and controls ---- */

enum message_kind { MESSAGE_TRANSFER, MESSAGE_CONTROL };

struct message {
    enum message_kind kind;
};

enum control_kind {
    CONTROL_LOOKUP,
    CONTROL_FENCE,
    CONTROL_DROP,
    CONTROL_DROPPED,
    CONTROL_SAMPLE,
    CONTROL_USAGE,
    CONTROL_BLOCKS,
    CONTROL_SCOPES,
    CONTROL_CLOSE_POOL,
    CONTROL_DRAIN,
    CONTROL_CLOSE_NVME,
    CONTROL_DRAIN_NVME,
    CONTROL_ASSIGN,
    CONTROL_TENANT,
};

#define SAMPLE_MAX 64u

/* A question to the lane. Lives on the asker's stack: the lane always answers, with KV_E_TIMEOUT at the deadline. */
struct control {
    struct message message;
    enum control_kind kind;
    struct link waiting; /* on lane.controls while it is not answered */
    uint64_t deadline_ns;
    const struct kv_id *scope;
    struct kv_pool *pool;
    enum kv_tier_id tier; /* KV_TIER_NONE: any */
    uint32_t count;
    const struct kv_block_id *block_ids;
    uint8_t *ret_tiers;
    struct kv_buf *ret_buf;
    uint32_t *ret_lens;
    struct kv_id *ret_scopes;
    struct kv_scope_usage *ret_usages; /* of ret_scopes; NULL: not asked for */
    size_t scopes_max;
    struct kv_scope_usage usage;
    struct kv_tier_mark mark; /* of what was dropped on nvme */
    const struct kv_id *tenant;
    uint64_t tenant_bytes[KV_ENGINE_TIERS];
    uint64_t blocks;                   /* out: how many */
    struct entry *sampled[SAMPLE_MAX]; /* pinned */
    bool read_asked[SAMPLE_MAX];
    uint32_t sampled_count;
    struct entry *cursor; /* list of blocks: the one that comes next, pinned; NULL: the first */
    uint32_t place;       /* drain of nvme: the entry that is looked at next */
    bool in_use;          /* and whether one before it could not go */
    bool closed;          /* close of nvme */
    bool begun;
    bool answered; /* manual_poll: the asker is the lane's thread */
    enum kv_err rc;
    struct kv_future *future; /* NULL with manual_poll */
};

/* ---- operations ---- */

/*
 *   QUEUED ──► RUNNING ──► RECORDING ──► DONE       offload: blocks, then the record
 *                 └────────────────────► DONE       restore: the record is awaited block by block, in RUNNING
 *   QUEUED ──────────────────────────► DONE         refused as a whole
 */
enum op_state { OP_QUEUED, OP_RUNNING, OP_RECORDING, OP_DONE, OP_STATES };

enum block_step {
    STEP_NEW,
    STEP_SEALED, /* offload: published; wants, or waits for, its nvme copy */
    STEP_HELD,   /* restore: entry pinned; wants its bytes in dram, then opens */
    STEP_ENDED,
};

struct op_block {
    struct entry *entry; /* pinned, or NULL */
    uint8_t step;
    bool asked;   /* began a put or get of its own */
    bool tainted; /* a replica did not verify */
    bool fresh;   /* stored by this operation */
    bool from_nvme;
};

struct op {
    struct message message;
    struct link in_lane;
    struct link registered; /* engine.operations; guarded by engine.mutex */
    bool cancel_asked;      /* guarded by engine.mutex */
    struct kv_transfer *transfer;
    struct kv_pool *pool; /* a reference of ours: pages stay mapped until the end */
    struct scope *scope;
    struct kv_scope_keys keys;
    bool keyed;
    struct kv_sm state;
    uint64_t serial, started_ns;
    bool cancelled, fenced;
    bool located; /* restore: the record was asked for */
    bool refused; /* ended as a whole, with rc */
    enum kv_err rc;
    uint64_t record_seq;
    uint32_t next; /* first block not begun */
    uint32_t active[OP_WINDOW], active_count;
    struct op_block *blocks;
    struct kv_block_id *recorded_ids;
};

/* ---- io at a tier ---- */

struct lane_io {
    struct kv_tier_op tier_op;
    uint64_t begun_ns;
    struct lane *lane;
    struct entry *entry;
    bool leaving; /* a demotion: frees the dram copy when done */
    struct lane_io *next_free;
};

/* ---- metrics ---- */

enum lane_io_op { LANE_READ, LANE_WRITE, LANE_IO_OPS };
enum lane_seal_op { LANE_SEAL, LANE_OPEN, LANE_SEAL_OPS };
/* What of a replica did not verify. */
enum lane_integrity { INTEGRITY_TAG, INTEGRITY_COMMITMENT, INTEGRITY_LAYOUT, INTEGRITY_LENGTH, INTEGRITY_KINDS };

struct lane_metrics {
    struct kv_metric *used[2], *capacity[2], *objects[2], *up[2]; /* dram, nvme */
    struct kv_metric *integrity[2][INTEGRITY_KINDS], *evictions[2], *inflight;
    struct kv_metric *batch[2]; /* direction */
    struct kv_metric *io_bytes[LANE_IO_OPS], *io_duration[LANE_IO_OPS];
    struct kv_metric *io_errors[LANE_IO_OPS][2]; /* the drive's, and of what it gave back */
    struct kv_metric *seal_bytes[LANE_SEAL_OPS], *seal_duration[LANE_SEAL_OPS];
    struct kv_metric *blocks[2][3][KV_BLOCK_FAILED + 1]; /* direction, tier, result; NULL where it cannot be */
    struct kv_metric *bytes[2], *duration[2];
};

/* ---- the lane ---- */

struct lane {
    struct kv_engine *engine;
    const struct kv_env *env;
    struct kv_keyring *keyring;
    const struct kv_audit_sink *sink;
    struct index *index;
    struct kv_dram *dram;
    struct kv_io *io;
    struct kv_tier *nvme; /* NULL: none */
    struct kv_sealer *sealer;
    void *staging;
    uint64_t staging_bytes;
    uint64_t slab_bytes;
    unsigned high_percent, low_percent;
    struct kv_segment segments[POOL_REGIONS_MAX];

    struct link operations; /* running, in turn */
    struct link controls;   /* not yet answered */
    uint32_t operations_running;
    uint64_t serial;
    uint64_t budget_bytes; /* left in this poll */
    bool stopping;
    uint64_t give_up_ns; /* stopping: what is not on record by then will not be waited for */
    bool retry_soon;     /* something waits for time and not for an event */
    unsigned progress;   /* what this poll did */

    struct lane_io *ios;
    struct lane_io *free_ios;
    unsigned ios_running, write_downs;
    uint64_t leaving_bytes;
    bool lowering;
    bool nvme_closed; /* nothing is written down on its own account */
    bool nvme_full;
    uint64_t nvme_full_ns;
    unsigned nvme_evict_batch;

    struct kv_engine_stats stats;
    struct lane_metrics metrics;
};

struct kv_engine {
    struct lane lane;
    struct kv_engine_conf conf;
    char *nvme_path;
    struct kv_queue *inbox;
    pthread_t thread;
    bool threaded;
    struct kv_future *ready; /* set by the thread when the lane is open */
    struct kv_errinfo *info; /* borrowed while starting */
    pthread_mutex_t mutex;   /* guards what follows, and op.registered, op.cancel_asked */
    bool open;               /* lane.io may be woken */
    bool cancel_pending;
    bool stop_asked;
    uint64_t last_turn_ns; /* of the lane; under the mutex */
    enum kv_err closed_rc; /* written by the thread, read after it was joined */
    uint32_t operations;   /* submitted and not yet ended */
    struct link registered;
    struct kv_engine_stats stats;
};

/* lane.c */
KV_RC kv_lane_open(struct lane *lane, const struct kv_engine_conf *conf, struct kv_errinfo *info);
KV_RC kv_lane_close(struct lane *lane); /* idle only; also half open */
unsigned kv_lane_poll(struct lane *lane);
void kv_lane_wait(struct lane *lane);
bool kv_lane_idle(const struct lane *lane);
bool kv_lane_gave_up(const struct lane *lane);

/* engine.c: what the lane needs from the shared side */
void kv_engine_wake(struct kv_engine *engine);
void kv_engine_forget(struct kv_engine *engine, struct op *op); /* the operation ended */
KV_RC kv_engine_ask(struct kv_engine *engine, struct control *control);
void kv_engine_take_cancels(struct kv_engine *engine, struct lane *lane);

/* op.c: what both kinds share */
void kv_op_begin(struct lane *lane, struct op *op);
void kv_op_advance(struct lane *lane, struct op *op); /* may end and free it */
void kv_op_free(struct op *op);
void kv_op_end_block(struct lane *lane, struct op *op, uint32_t i, enum kv_block_result result);
void kv_op_refuse(struct lane *lane, struct op *op, enum kv_err rc); /* every block not ended, and the whole */
bool kv_op_may_begin(struct lane *lane, struct op *op, enum kv_block_result *ret_result);
bool kv_op_past_deadline(const struct lane *lane, const struct op *op);
KV_RC kv_op_record(struct lane *lane, struct op *op, uint32_t blocks, enum kv_tier_id tier);
bool kv_op_recorded(const struct lane *lane, const struct op *op);
struct kv_sealed_context kv_op_context(const struct op *op, const struct kv_block_id *block_id);

/* op_offload.c, op_restore.c: one step; return true when the block ended */
bool kv_offload_step(struct lane *lane, struct op *op, uint32_t i);
bool kv_restore_step(struct lane *lane, struct op *op, uint32_t i);
bool kv_restore_locate(struct lane *lane, struct op *op);      /* false: refused */
bool kv_offload_blocks_done(struct lane *lane, struct op *op); /* asks for the record; false: nothing to wait for */
void kv_offload_undo(struct lane *lane, struct op *op);

/* op_control.c */
void kv_control_begin(struct lane *lane, struct control *control);
void kv_controls_advance(struct lane *lane);
void kv_controls_abort(struct lane *lane);

/* room.c: dram slots, demotion, reads and writes at nvme; graves.c: kill, unpin, graves */
/* KV_E_BUSY: room is coming, ask again. KV_E_NO_SPACE: none will. KV_E_LIMIT: larger than a slab. */
KV_RC kv_room_take(struct lane *lane, uint64_t bytes, uint8_t **ret_slot);
void kv_room_lower(struct lane *lane); /* background demotion */
/* KV_OK: under way (entry.writing / fetching). KV_E_BUSY: ask again. */
KV_RC kv_room_put(struct lane *lane, struct entry *entry, bool promised, bool leaving);
KV_RC kv_room_get(struct lane *lane, struct entry *entry);
/* The nvme replica goes; the entry stays with its dram copy. KV_E_LIMIT: no entry is free to bury it. */
KV_RC kv_room_forget_nvme(struct lane *lane, struct entry *entry);
bool kv_room_nvme_ready(const struct lane *lane);
/* The same, and a block that is nowhere else is gone. False: it is in use, or the tier does not let go of it. */
bool kv_room_drop_nvme(struct lane *lane, struct entry *entry);
void kv_room_free_slot(struct lane *lane, struct entry *entry);
void kv_room_kill(struct lane *lane, struct entry *entry);
void kv_room_graves(struct lane *lane);
void kv_room_unpin(struct lane *lane, struct entry *entry);

/* stats.c */
void kv_stats_register(struct lane_metrics *metrics);
void kv_stats_block(struct lane *lane, const struct op *op, enum kv_block_result result, uint8_t tier);
void kv_stats_operation(struct lane *lane, const struct op *op);
void kv_stats_publish(struct lane *lane);
void kv_stats_io(struct lane *lane, enum lane_io_op op, uint64_t bytes, uint64_t begun_ns, enum kv_err rc);
void kv_stats_seal(struct lane *lane, enum lane_seal_op op, uint64_t bytes, uint64_t begun_ns);
void kv_stats_integrity(struct lane *lane, enum kv_tier_id tier, enum kv_err cause);

#endif

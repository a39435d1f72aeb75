/*
 * The data plane's front door. One lane (a poll function and, in the server, the thread that calls it) owns the dram
 * arena, the colder tiers, the block index and every operation. Others speak to it through its inbox.
 *
 * Offload, per block:  QUEUED → KEYED (key borrowed under the lease) → STAGED (dram slot) → SEALED → PUBLISHED (index)
 *                      → WRITTEN (wait = durable: nvme put done) ; operation: → RECORDED (journal durable) → DONE
 * Restore, per block:  QUEUED → LOCATED → FETCHED (nvme get into a dram slot)
 *                      operation: RECORDED ; then per block: OPENED → DONE
 *
 * At any step: FENCED when the session was revoked, or failed with a cause. Every operation ends, with one result a
 * block.
 *
 * No plaintext outlives an operation; no byte reaches a page before all of its block is verified; a page that is not
 * restored is untouched. A replica that does not verify is quarantined (taken out of the index, its nvme room not
 * reused before the record is flushed) and the next one is tried; with none left the block is a miss.
 */
#ifndef KV_ENGINE_H
#define KV_ENGINE_H

#include "dataplane/base/audit_sink.h"
#include "dataplane/base/env.h"
#include "dataplane/base/queue.h"
#include "dataplane/crypto/sealed.h"
#include "dataplane/device/pool.h"
#include "dataplane/io/io.h"
#include "dataplane/keys/keyring.h"
#include "dataplane/tier/tier.h"

struct kv_engine_conf {
    uint64_t dram_bytes;
    uint64_t dram_slab_bytes; /* 0: 64 MiB, or a quarter of the arena when that is smaller */
    const char *nvme_path;    /* NULL or "": no nvme tier */
    uint64_t nvme_bytes;
    uint64_t blocks_max; /* index capacity; 0: from the arena sizes and a smallest block of 64 KiB, at least 65,536 */
    enum kv_io_kind io_kind;
    unsigned io_depth, io_threads;
    /* Of dram: cold blocks are written down above high until low. 0: 90 and 80. */
    unsigned watermark_high_percent, watermark_low_percent;
    uint64_t staging_bytes; /* largest block that can be opened; 0: the limit, or a slab */
    enum kv_cipher_backend cipher;
    struct kv_keyring *keyring;       /* borrowed */
    const struct kv_audit_sink *sink; /* borrowed; NULL: nothing is recorded (library tests) */
    const struct kv_env *env;         /* borrowed */
    bool manual_poll;                 /* tests and simulator: no thread; call kv_engine_poll */
};

struct kv_engine;

/* Puts the engine's metric families there, all zero. Start does it, too; a server calls it before it can be scraped.
 * Thread: before others start. */
void kv_engine_metrics_init(void);

KV_RC kv_engine_start(const struct kv_engine_conf *conf, struct kv_errinfo *info, struct kv_engine **ret_engine);
/* Fences everything, waits for what runs, flushes, writes the checkpoint, frees. */
KV_RC kv_engine_stop(struct kv_engine *engine);
unsigned kv_engine_poll(struct kv_engine *engine); /* manual_poll only */

enum kv_transfer_kind { KV_TRANSFER_OFFLOAD, KV_TRANSFER_RESTORE };
enum kv_transfer_wait { KV_WAIT_DRAM, KV_WAIT_DURABLE };

/* What a transfer's tenant and session may keep, from their policy. 0: no limit. Bytes are sealed ones. What does not
 * fit ends as DENIED; a block that does not fit in dram goes straight to nvme where that is allowed and has room. The
 * limits on tiers hold for what the lane moves by itself, too, until a transfer brings newer ones. */
#define KV_ENGINE_TIERS 3 /* indexed by enum kv_tier_id: dram, nvme */
struct kv_transfer_limits {
    uint64_t version; /* counts up when they change */
    uint64_t tenant_bytes[KV_ENGINE_TIERS], session_tier_bytes[KV_ENGINE_TIERS];
    uint64_t session_bytes, session_blocks; /* each block counted once */
};

struct kv_transfer {
    /* in; arrays are borrowed until `future` is set */
    enum kv_transfer_kind kind;
    enum kv_transfer_wait wait;
    struct kv_id op, tenant, scope;
    struct kv_pool *pool; /* borrowed: the caller holds a reference */
    uint32_t count;
    const struct kv_block_id *block_ids;
    const uint32_t *slots;
    uint32_t tiers_allowed; /* mask of 1 << kv_tier_id, from the policy */
    struct kv_transfer_limits limits;
    bool has_policy; /* for its record, see audit_sink.h */
    uint64_t policy_versions[2];
    uint64_t deadline_ns; /* blocks not begun by then end as TIMEOUT; those begun are finished */
    uint8_t trace[16];    /* W3C trace id of the request, for exemplars; zero: none */
    /* out */
    enum kv_block_result *results; /* count of them, the caller's memory */
    uint8_t *tiers;                /* count: kv_tier_id a block was put on or came from */
    uint32_t done_blocks;          /* stored or present, or restored */
    uint32_t leading_blocks;       /* restored from the first on without a gap */
    uint32_t over_quota;           /* of the blocks that ended as DENIED, those that a limit refused */
    uint64_t done_bytes;
    uint64_t duration_ns;
    struct kv_future *future; /* the caller's; set when nothing of this operation runs any more */
};

/* KV_E_BUSY: the inbox is full; nothing was taken. Thread: any. */
KV_RC kv_engine_submit(struct kv_engine *engine, struct kv_transfer *transfer);
/* Blocks not yet begun end as TIMEOUT; the future tells when nothing runs any more (hold until done). Thread: any. */
void kv_engine_cancel(struct kv_engine *engine, const struct kv_id *op);

/* Which blocks are here: tiers[i] is the mask of 1 << kv_tier_id. Waits for the lane, microseconds. Thread: any. */
KV_RC kv_engine_lookup(struct kv_engine *engine, const struct kv_id *scope, uint32_t count,
                       const struct kv_block_id *block_ids, uint8_t *ret_tiers);

/* Revocation: queued blocks of the scope end as ERASED, running ones finish, later ones are refused, for good.
 * Returns when no operation uses the scope any more, or KV_E_TIMEOUT. Idempotent. */
KV_RC kv_engine_fence(struct kv_engine *engine, const struct kv_id *scope, uint64_t deadline_ns);
/* Cleaning after an erasure: frees every replica. */
KV_RC kv_engine_drop_scope(struct kv_engine *engine, const struct kv_id *scope, uint64_t *ret_blocks);
/* What was dropped before is so durably: no later start finds it. KV_E_TIMEOUT: not yet, the tier is down perhaps. */
KV_RC kv_engine_dropped(struct kv_engine *engine, uint64_t deadline_ns);

/* Up to `max` headers of the scope's replicas, for the positive control of an erasure. Each header is appended to
 * `ret_headers`, its length to lens[]. KV_TIER_NONE: from anywhere; KV_TIER_DRAM: blocks with a copy there;
 * KV_TIER_NVME: blocks that are only there. Reads nvme where there is no dram copy. */
KV_RC kv_engine_sample(struct kv_engine *engine, const struct kv_id *scope, enum kv_tier_id tier, uint32_t max,
                       struct kv_buf *ret_headers, uint32_t *ret_lens, uint32_t *ret_count);

struct kv_scope_usage {
    uint64_t blocks, dram_blocks, nvme_blocks, dram_bytes, nvme_bytes, plaintext_bytes;
};
KV_RC kv_engine_scope_usage(struct kv_engine *engine, const struct kv_id *scope, struct kv_scope_usage *ret_usage);
/* The sum over `count` scopes, at most KV_ENGINE_SCOPES_ASKED: the lane stands still meanwhile. */
#define KV_ENGINE_SCOPES_ASKED 4096u
KV_RC kv_engine_scopes_usage(struct kv_engine *engine, const struct kv_id *scopes, uint32_t count,
                             struct kv_scope_usage *ret_usage);
/* The scope's block ids, sorted, into a buffer of 32-byte ids (the certificate commits to them). KV_E_LIMIT when it is
 * too small. */
KV_RC kv_engine_scope_blocks(struct kv_engine *engine, const struct kv_id *scope, struct kv_buf *ret_ids);
/* Scopes that have blocks here; at start the server drops those that are erased or unknown. */
KV_RC kv_engine_scopes(struct kv_engine *engine, struct kv_id *ret_scopes, size_t max, size_t *ret_count);
/* The same with what each has; `ret_usages` has room for `max`, too. */
KV_RC kv_engine_usages(struct kv_engine *engine, struct kv_id *ret_scopes, struct kv_scope_usage *ret_usages,
                       size_t max, size_t *ret_count);

/* After a start: whose blocks these are, so that they count for their tenant. A transfer says it by itself. KV_E_LIMIT.
 */
KV_RC kv_engine_assign(struct kv_engine *engine, const struct kv_id *scope, const struct kv_id *tenant);
/* What counts against the tenant's limits now, sealed bytes by tier. */
KV_RC kv_engine_tenant_bytes(struct kv_engine *engine, const struct kv_id *tenant, uint64_t ret_bytes[KV_ENGINE_TIERS]);

/* No operation uses the pool any more when it returns; new ones are refused. KV_E_TIMEOUT leaves it refusing. */
KV_RC kv_engine_close_pool(struct kv_engine *engine, struct kv_pool *pool, uint64_t deadline_ns);

/* Writes every dram block down and frees the dram copies. KV_E_NO_SPACE when nvme cannot take them: those stay. */
KV_RC kv_engine_drain_dram(struct kv_engine *engine, uint64_t deadline_ns, uint64_t *ret_blocks);

/* While it is closed nothing is written down to nvme on its own account: what is only in dram stays there, or goes
 * under pressure. What nvme has is read as before, and an operation that was begun may still put blocks there. */
KV_RC kv_engine_close_nvme(struct kv_engine *engine, bool closed);
/* Forgets every block on nvme, promised ones too; of one that is in dram as well the dram copy stays. KV_OK when there
 * was none left. KV_E_TIMEOUT: some are, because they are in use or the time was too short; ask again. */
KV_RC kv_engine_drain_nvme(struct kv_engine *engine, uint64_t deadline_ns, uint64_t *ret_blocks);

struct kv_engine_stats {
    struct kv_tier_stats dram, nvme;
    uint64_t offered, stored, present, skipped, dropped; /* offered = stored + present + skipped + dropped */
    uint64_t restored, restore_missed, quarantined, evicted, demoted, promoted;
    uint64_t operations, operations_running;
    uint64_t block_bytes_max; /* the largest block that fits in dram and in the staging memory */
    const char *io_name, *cipher_name;
};
/* When the lane was last seen at work (kv_now_ns); it turns at least every second even when there is nothing to do. */
uint64_t kv_engine_last_turn_ns(struct kv_engine *engine);
void kv_engine_stats(struct kv_engine *engine, struct kv_engine_stats *ret_stats); /* any thread, slightly behind */

#endif

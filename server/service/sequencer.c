/*
 * Gives audit entries their places. Transfer records come from the local journal, entries of changes from the outbox
 * that the changing transaction filled; both become leaves of the tenant's tree, and each tree that grew gets a signed
 * head. Must never sign a head that does not follow from what is stored: the root is computed from the stored frontier
 * each time.
 */
#include "server/service/svc_int.h"
#include "server/service/svc_metrics.h"

#include "dataplane/base/fault.h"
#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "dataplane/base/mem.h"
#include "server/store/store_usage.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define SHIP_MAX 256
#define SIGN_MAX 64
#define TILE_HASHES 256
#define HOUR_US UINT64_C(3600000000)
#define PLACE_TRIES 64 /* of KV_OUTBOX_BATCH_MAX entries each */
#define IDLE_NS (200 * KV_MS_NS)

void svc_ref(enum svc_ref kind, const struct kv_id *id, uint8_t ret_ref[SVC_REF_BYTES])
{
    ret_ref[0] = (uint8_t)kind;
    memcpy(ret_ref + 1, id->b, sizeof id->b);
}

KV_RC svc_audit_entry(const struct kv_env *env, struct kv_pg *pg, const struct kv_audit_event *event,
                      struct kv_bytes ref, struct kv_errinfo *info)
{
    struct kv_audit_event stamped = *event;
    stamped.realtime_us = stamped.realtime_us != 0 ? stamped.realtime_us : env->realtime_us(env->ctx);
    struct kv_buf line;
    kv_buf_init(&line, (size_t)KV_MAX_AUDIT_ENTRY_BYTES);
    enum kv_err rc = kv_audit_encode(&stamped, &line);
    if (rc == KV_OK) {
        rc = kv_store_outbox_insert(pg, &event->tenant, kv_buf_bytes(&line), ref, stamped.realtime_us, info);
    }
    kv_buf_done(&line);
    return rc;
}

KV_RC svc_audit(struct kv_svc *svc, struct kv_pg *pg, const struct kv_audit_event *event, struct kv_bytes ref,
                struct kv_errinfo *info)
{
    return svc_audit_entry(svc->env, pg, event, ref, info);
}

/* --- journal to outbox ------------------------------------------------------------------------------------------- */

struct ship_tx {
    struct kv_svc *svc;
    const struct kv_journal_record *records;
    size_t count;
    struct kv_store_usage_hour hours[SHIP_MAX]; /* what the records sum up to */
    size_t hour_count;
};

static struct kv_store_moved *hour_of(struct ship_tx *tx, const struct kv_transfer_record *record)
{
    uint64_t hour_us = record->realtime_us - record->realtime_us % HOUR_US;
    for (size_t i = 0; i < tx->hour_count; i++) {
        if (tx->hours[i].hour_us == hour_us && kv_id_equal(&tx->hours[i].tenant, &record->tenant)) {
            return &tx->hours[i].moved;
        }
    }
    struct kv_store_usage_hour *fresh = &tx->hours[tx->hour_count++];
    *fresh = (struct kv_store_usage_hour){.tenant = record->tenant, .hour_us = hour_us};
    return &fresh->moved;
}

static void sum_up(struct ship_tx *tx, const struct kv_transfer_record *record)
{
    if (record->outcome != KV_OK || (record->kind != KV_RECORD_OFFLOAD && record->kind != KV_RECORD_RESTORE)) {
        return;
    }
    struct kv_store_moved *moved = hour_of(tx, record);
    bool offload = record->kind == KV_RECORD_OFFLOAD;
    *(offload ? &moved->offloaded_blocks : &moved->restored_blocks) += record->blocks;
    *(offload ? &moved->offloaded_bytes : &moved->restored_bytes) += record->bytes;
}

static const char *tier_name(enum kv_tier_id tier)
{
    static const char *const names[] = {"none", "dram", "nvme", "object"};
    return names[tier];
}

static KV_RC ship_record(struct kv_svc *svc, struct kv_pg *pg, const struct kv_journal_record *record,
                         struct kv_errinfo *info)
{
    static const enum kv_audit_op ops[] = {[KV_RECORD_OFFLOAD] = KV_AUDIT_OFFLOAD,
                                           [KV_RECORD_RESTORE] = KV_AUDIT_RESTORE,
                                           [KV_RECORD_INTEGRITY] = KV_AUDIT_INTEGRITY,
                                           [KV_RECORD_DROP] = KV_AUDIT_INTEGRITY};
    struct kv_audit_event event = {
        .op = ops[record->record.kind],
        .realtime_us = record->record.realtime_us,
        .tenant = record->record.tenant,
        .session = record->record.scope,
        .actor_role = "system",
        .subject = record->record.op,
        .subject_prefix = "opr",
        .has_transfer = true,
        .instance_seq = record->seq,
        .blocks = record->record.blocks,
        .bytes = record->record.bytes,
        .duration_us = record->record.duration_us,
        .tier = tier_name(record->record.tier),
        .block_root = record->block_root,
        .has_policy = record->record.has_policy,
        .policy_versions = {record->record.policy_versions[0], record->record.policy_versions[1]},
        .outcome = kv_err_name(record->record.outcome)};
    return svc_audit(svc, pg, &event, KV_BYTES(NULL, 0), info);
}

static KV_RC ship_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct ship_tx *tx = ctx;
    uint64_t seen = 0;
    KV_TRY(kv_store_journal_lock(pg, &tx->svc->instance, info, &seen));
    uint64_t last = seen;
    tx->hour_count = 0;
    for (size_t i = 0; i < tx->count; i++) {
        if (tx->records[i].seq > seen) { /* a record read again after a crash is in there already */
            KV_TRY(ship_record(tx->svc, pg, &tx->records[i], info));
            sum_up(tx, &tx->records[i].record);
            last = tx->records[i].seq;
        }
    }
    if (last == seen) {
        return KV_OK;
    }
    KV_TRY(kv_store_usage_add(pg, tx->hours, tx->hour_count, info));
    return kv_store_journal_advance(pg, &tx->svc->instance, seen, last, info);
}

static KV_RC ship_journal(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, size_t *ret_done)
{
    struct kv_journal_record *records KV_CLEANUP(kv_freep) = kv_alloc_array(SHIP_MAX, sizeof *records);
    struct ship_tx *tx KV_CLEANUP(kv_freep) = kv_alloc(sizeof *tx);
    if (records == NULL || tx == NULL) {
        return KV_E_NO_MEMORY;
    }
    tx->svc = svc;
    tx->records = records;
    KV_TRY(kv_journal_read(svc->journal, records, SHIP_MAX, &tx->count));
    if (tx->count == 0) {
        return KV_OK;
    }
    KV_TRY(kv_pg_tx(pg, KV_TX_SHIP_JOURNAL, ship_tx, tx, info, NULL));
    *ret_done += tx->count;
    return kv_journal_shipped(svc->journal, records[tx->count - 1].seq);
}

/* --- outbox to leaves -------------------------------------------------------------------------------------------- */

struct tile_ctx {
    struct kv_pg *pg;
    const struct kv_id *log;
    struct kv_errinfo *info;
};

/* Subtrees of 256, 65,536, … leaves are kept in tiles of 256, so that a proof reads a few rows whatever the tree's
 * size. */
static KV_RC keep_tile(void *ctx, unsigned level, uint64_t index, const struct kv_hash *hash)
{
    struct tile_ctx *tile = ctx;
    if (level == 0 || level % 8 != 0) {
        return KV_OK;
    }
    uint8_t hashes[KV_TILE_BYTES_MAX];
    size_t len = 0;
    uint64_t n = index / TILE_HASHES;
    if (index % TILE_HASHES != 0) {
        KV_TRY(kv_store_tile_get(tile->pg, tile->log, level / 8, n, tile->info, hashes, &len));
    }
    if (len != index % TILE_HASHES * sizeof hash->b) {
        return kv_fail(tile->info, KV_E_CORRUPT, "a tile of the audit log does not have the size that the tree says");
    }
    memcpy(hashes + len, hash->b, sizeof hash->b);
    return kv_store_tile_put(tile->pg, tile->log, level / 8, n, KV_BYTES(hashes, len + sizeof hash->b), tile->info);
}

static void log_origin(const struct kv_svc *svc, const struct kv_id *log, char origin[KV_LOG_ORIGIN_SIZE])
{
    char text[KV_ID_TEXT_SIZE];
    kv_id_text("t", log, text);
    snprintf(origin, KV_LOG_ORIGIN_SIZE, "%s/%s", svc->log_prefix, kv_id_is_zero(log) ? "ops" : text);
}

/* What people search by is a copy beside the entry: one that cannot be read is in the log all the same. */
static void fill_leaf_facts(const struct kv_store_outbox_row *row, struct kv_store_leaf_facts *facts)
{
    struct kv_audit_facts read = {0};
    KV_IGNORE(kv_audit_facts(row->entry, &read), "it stands without them");
    *facts = (struct kv_store_leaf_facts){.at_us = row->created_us, .actor = read.actor, .session = read.session};
    snprintf(facts->op, sizeof facts->op, "%s", read.op);
    snprintf(facts->outcome, sizeof facts->outcome, "%s", read.outcome);
}

/* All rows of one log: leaves, tiles, head. */
static KV_RC integrate_log(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_outbox_row *rows, size_t count,
                           struct kv_errinfo *info)
{
    struct kv_hash empty;
    char origin[KV_LOG_ORIGIN_SIZE];
    log_origin(svc, &rows[0].log, origin);
    KV_TRY(kv_merkle_empty(&empty));
    KV_TRY(kv_store_log_ensure(pg, &rows[0].log, origin, empty.b, info));
    struct kv_store_log *log KV_CLEANUP(kv_freep) = kv_alloc(sizeof *log);
    struct kv_store_leaf *leaves KV_CLEANUP(kv_freep) = kv_alloc_array(count, sizeof *leaves);
    if (log == NULL || leaves == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_log_lock(pg, &rows[0].log, info, log));
    uint64_t seen = log->size;
    struct kv_frontier frontier;
    KV_TRY(kv_frontier_decode(log->size, KV_BYTES(log->frontier, log->frontier_len), &frontier));
    struct tile_ctx tile = {.pg = pg, .log = &rows[0].log, .info = info};
    for (size_t i = 0; i < count; i++) {
        struct kv_hash hash;
        KV_TRY(kv_merkle_leaf(rows[i].entry, &hash));
        KV_TRY(kv_frontier_append(&frontier, &hash, keep_tile, &tile));
        leaves[i] = (struct kv_store_leaf){.entry = rows[i].entry, .ref = rows[i].ref};
        memcpy(leaves[i].hash, hash.b, sizeof hash.b);
        fill_leaf_facts(&rows[i], &leaves[i].facts);
    }
    KV_TRY(kv_store_leaf_append(pg, &rows[0].log, seen, leaves, count, info));
    struct kv_hash root;
    KV_TRY(kv_frontier_root(&frontier, &root));
    log->size = frontier.size;
    log->frontier_len = kv_frontier_encode(&frontier, log->frontier);
    memcpy(log->root, root.b, sizeof root.b);
    return kv_store_log_set_head(pg, log, seen, info);
}

struct integrate_tx {
    struct kv_svc *svc;
    size_t done;
};

static KV_RC integrate_rows(struct kv_svc *svc, struct kv_pg *pg, const struct kv_store_outbox *outbox,
                            struct kv_errinfo *info)
{
    for (size_t first = 0; first < outbox->count;) {
        size_t end = first;
        while (end < outbox->count && kv_id_equal(&outbox->rows[end].log, &outbox->rows[first].log)) {
            end++;
        }
        KV_TRY(integrate_log(svc, pg, &outbox->rows[first], end - first, info));
        first = end;
    }
    return outbox->count == 0 ? KV_OK : kv_store_outbox_delete(pg, outbox, info);
}

static KV_RC integrate_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct integrate_tx *tx = ctx;
    struct kv_store_outbox outbox = {0};
    KV_TRY(kv_store_outbox_fetch(pg, KV_OUTBOX_BATCH_MAX, info, &outbox));
    enum kv_err rc = integrate_rows(tx->svc, pg, &outbox, info);
    tx->done = outbox.count;
    kv_store_outbox_done(&outbox);
    return rc;
}

/* --- signed heads ------------------------------------------------------------------------------------------------ */

struct sign_tx {
    struct kv_svc *svc;
    const struct kv_id *logs; /* by id: the order of locks */
    size_t count;
};

static KV_RC sign_log(struct kv_svc *svc, struct kv_pg *pg, const struct kv_id *id, struct kv_errinfo *info)
{
    struct kv_store_log *log KV_CLEANUP(kv_freep) = kv_alloc(sizeof *log);
    if (log == NULL) {
        return KV_E_NO_MEMORY;
    }
    KV_TRY(kv_store_log_lock(pg, id, info, log));
    if (log->size == log->signed_size) {
        return KV_OK;
    }
    struct kv_frontier frontier;
    struct kv_checkpoint checkpoint = {.size = log->size};
    snprintf(checkpoint.origin, sizeof checkpoint.origin, "%s", log->origin);
    KV_TRY(kv_frontier_decode(log->size, KV_BYTES(log->frontier, log->frontier_len), &frontier));
    KV_TRY(kv_frontier_root(&frontier, &checkpoint.root));
    if (memcmp(checkpoint.root.b, log->root, sizeof log->root) != 0 || log->size < log->signed_size) {
        return kv_fail(info, KV_E_CORRUPT, "the stored head of an audit log does not follow from its frontier");
    }
    struct kv_buf note;
    kv_buf_init(&note, 16384);
    enum kv_err rc = kv_checkpoint_sign(&checkpoint, svc->log_key, &note);
    if (rc == KV_OK) {
        rc = kv_store_log_set_note(pg, id, log->size, kv_buf_bytes(&note), svc->env->realtime_us(svc->env->ctx), info);
    }
    kv_buf_done(&note);
    return rc;
}

static KV_RC sign_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct sign_tx *tx = ctx;
    for (size_t i = 0; i < tx->count; i++) {
        KV_TRY(sign_log(tx->svc, pg, &tx->logs[i], info));
    }
    return KV_OK;
}

static KV_RC sign_heads(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_id logs[SIGN_MAX];
    size_t count = 0;
    KV_TRY(kv_store_log_list_unsigned(pg, SIGN_MAX, info, logs, &count));
    struct sign_tx tx = {.svc = svc, .logs = logs, .count = count};
    enum kv_err rc = count == 0 ? KV_OK : kv_pg_tx(pg, KV_TX_SIGN_HEAD, sign_tx, &tx, info, NULL);
    if (rc != KV_E_CORRUPT || count == 1) {
        return rc;
    }
    enum kv_err worst = KV_OK; /* a log that is damaged keeps no other one from its head */
    for (size_t i = 0; i < count; i++) {
        tx = (struct sign_tx){.svc = svc, .logs = &logs[i], .count = 1};
        rc = kv_pg_tx(pg, KV_TX_SIGN_HEAD, sign_tx, &tx, info, NULL);
        worst = rc != KV_OK ? rc : worst;
        if (rc != KV_OK && rc != KV_E_CORRUPT) {
            break;
        }
    }
    return worst;
}

static KV_RC sequence_locked(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, size_t *ret_done)
{
    KV_TRY(ship_journal(svc, pg, info, ret_done));
    struct integrate_tx tx = {.svc = svc};
    KV_TRY(kv_pg_tx(pg, KV_TX_INTEGRATE, integrate_tx, &tx, info, NULL));
    *ret_done += tx.done;
    svc_metrics_audit(tx.done, false, 0);
    KV_TRY(sign_heads(svc, pg, info));
    svc_metrics_audit(0, true, svc->env->realtime_us(svc->env->ctx));
    return KV_OK;
}

KV_RC svc_sequence(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info, size_t *ret_done)
{
    size_t done = 0;
    if (atomic_load(&svc->quarantine) != NULL) { /* nothing is signed in quarantine */
        return kv_fail(info, KV_E_QUARANTINED, "nothing is signed while quarantined");
    }
    pthread_mutex_lock(&svc->sequencer_mutex);
    enum kv_err rc = sequence_locked(svc, pg, info, &done);
    pthread_mutex_unlock(&svc->sequencer_mutex);
    if (rc == KV_OK && ret_done != NULL) {
        *ret_done = done;
    }
    return rc;
}

KV_RC svc_place_all(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct integrate_tx tx = {.svc = svc, .done = KV_OUTBOX_BATCH_MAX};
    enum kv_err rc = KV_OK;
    pthread_mutex_lock(&svc->sequencer_mutex);
    for (int tries = 0; tries < PLACE_TRIES && tx.done == KV_OUTBOX_BATCH_MAX && rc == KV_OK; tries++) {
        rc = kv_pg_tx(pg, KV_TX_INTEGRATE, integrate_tx, &tx, info, NULL);
        svc_metrics_audit(rc == KV_OK ? tx.done : 0, false, 0);
    }
    pthread_mutex_unlock(&svc->sequencer_mutex);
    return rc;
}

void *svc_sequencer_main(void *arg)
{
    struct kv_svc *svc = arg;
    enum kv_err last = KV_OK;
    while (!atomic_load(&svc->sequencer_stop)) {
        struct kv_errinfo info = {0};
        size_t done = 0;
        enum kv_err rc = svc_sequence(svc, svc->sequencer.pg, &info, &done);
        if (rc != KV_OK && rc != last) {
            kv_log(KV_LOG_WARN, "sequencer", "failed", KV_FRC(rc), KV_FT("text", info.text));
        }
        last = rc;
        if (rc != KV_OK || done == 0) {
            kv_journal_wait(svc->journal, kv_now_ns(svc->env) + IDLE_NS);
        }
        if (rc != KV_OK && !atomic_load(&svc->sequencer_stop)) {
            struct timespec pause = {.tv_nsec =
                                         IDLE_NS}; /* what waits in the journal would end the wait above at once */
            nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

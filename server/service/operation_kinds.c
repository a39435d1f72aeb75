/*
 * The kinds of long-running operations, a piece at a time. Each says in its position all that the next piece needs.
 */
#include "server/service/operation_run.h"

#include "dataplane/base/id.h"
#include "dataplane/base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- audit.verify: every leaf of a range from its entry, the root against the signed head ------------------------- */

#define VERIFY_BATCHES 8

struct verify {
    struct svc_operation_run *run;
    uint64_t from, to;
    uint64_t size; /* of the head, and its root: what was signed when the operation began */
    struct kv_hash root;
    struct kv_frontier frontier; /* of what was recomputed so far */
    uint64_t bad;                /* a place whose entry or hash is not what it was; UINT64_MAX: none so far */
    bool gap;                    /* that place is empty */
};

/* Ours, written by svc_operation.c. */
static KV_RC read_params(struct verify *verify)
{
    char root[KV_SHA256_HEX_SIZE];
    if (sscanf(verify->run->row.params,
               "{\"from\":%" SCNu64 ",\"root\":\"%64[0-9a-f]\",\"size\":%" SCNu64 ",\"to\":%" SCNu64 "}", &verify->from,
               root, &verify->size, &verify->to) != 4) {
        return kv_fail(&verify->run->info, KV_E_CORRUPT, "the operation's parameters are not ones of this kind");
    }
    return kv_hex_decode(root, verify->root.b, sizeof verify->root.b);
}

/* "<size> <frontier in hex>" */
static KV_RC read_position(struct verify *verify)
{
    const struct kv_buf *position = &verify->run->position;
    uint8_t frontier[KV_FRONTIER_BYTES_MAX];
    if (position->len == 0) {
        return svc_log_frontier(verify->run->pg, &verify->run->row.tenant, verify->from, &verify->run->info,
                                &verify->frontier);
    }
    char *hex = NULL;
    uint64_t size = strtoull((const char *)position->data, &hex, 10);
    size_t len = *hex == ' ' ? strlen(hex + 1) / 2 : sizeof frontier + 1;
    if (len > sizeof frontier || kv_hex_decode(hex + 1, frontier, len) != KV_OK) {
        return kv_fail(&verify->run->info, KV_E_CORRUPT, "the operation's position is not one of this kind");
    }
    return kv_frontier_decode(size, KV_BYTES(frontier, len), &verify->frontier);
}

static KV_RC write_position(struct verify *verify)
{
    uint8_t frontier[KV_FRONTIER_BYTES_MAX];
    char hex[2 * KV_FRONTIER_BYTES_MAX + 1];
    size_t len = kv_frontier_encode(&verify->frontier, frontier);
    kv_hex_encode(frontier, len, hex);
    kv_buf_reset(&verify->run->position);
    kv_buf_printf(&verify->run->position, "%" PRIu64 " ", verify->frontier.size);
    kv_buf_text(&verify->run->position, hex);
    return kv_buf_check(&verify->run->position);
}

static KV_RC verify_entries(struct verify *verify, const struct kv_store_entries *entries)
{
    for (size_t i = 0; i < entries->count && verify->frontier.size < verify->to; i++) {
        struct kv_hash hash;
        KV_TRY(kv_merkle_leaf(entries->rows[i].entry, &hash));
        verify->gap = entries->rows[i].idx != verify->frontier.size;
        if (verify->gap || memcmp(hash.b, entries->rows[i].hash, sizeof hash.b) != 0) {
            verify->bad = verify->frontier.size;
            return KV_OK;
        }
        KV_TRY(kv_frontier_append(&verify->frontier, &hash, NULL, NULL));
    }
    return KV_OK;
}

static KV_RC verify_batch(struct verify *verify)
{
    struct kv_store_entries entries = {0};
    struct svc_operation_run *run = verify->run;
    KV_TRY(kv_store_leaf_entries(run->pg, &run->row.tenant, verify->frontier.size, KV_OUTBOX_BATCH_MAX, &run->info,
                                 &entries));
    bool none = entries.count == 0;
    enum kv_err rc = verify_entries(verify, &entries);
    kv_store_entries_done(&entries);
    if (none) {
        verify->bad = verify->frontier.size;
        verify->gap = true;
    }
    return rc;
}

/* The entries up to `to` are the ones that the signed root was made of. What is stored of the tree before the range
 * went into this root, and what is stored of it behind goes into the proof: neither is trusted. */
static KV_RC matches_head(struct verify *verify, bool *ret_matches)
{
    struct svc_operation_run *run = verify->run;
    struct kv_hash root, proof[KV_MERKLE_DEPTH_MAX];
    size_t count = 0;
    KV_TRY(kv_frontier_root(&verify->frontier, &root));
    KV_TRY(svc_consistency_proof(run->pg, &run->row.tenant, verify->to, verify->size, &run->info, proof, &count));
    *ret_matches = kv_merkle_verify_consistency(verify->to, verify->size, &root, &verify->root, proof, count) == KV_OK;
    return KV_OK;
}

static KV_RC finish_verify(struct verify *verify)
{
    struct svc_operation_run *run = verify->run;
    char hex[KV_SHA256_HEX_SIZE], place[64] = "";
    bool whole = verify->bad == UINT64_MAX, same = false;
    if (whole) {
        KV_TRY(matches_head(verify, &same));
    }
    kv_hex_encode(verify->root.b, sizeof verify->root.b, hex);
    if (!whole) {
        snprintf(place, sizeof place, ",\"%s\":%" PRIu64, verify->gap ? "gap" : "first_bad", verify->bad);
    }
    snprintf(run->row.response, sizeof run->row.response,
             "{\"checked\":%" PRIu64 "%s,\"from\":%" PRIu64 ",\"ok\":%s,\"root\":\"%s\",\"root_matches\":%s,"
             "\"size\":%" PRIu64 ",\"to\":%" PRIu64 "}",
             verify->frontier.size - verify->from, place, verify->from, same ? "true" : "false", hex,
             same ? "true" : "false", verify->size, verify->to);
    run->done = true;
    return KV_OK;
}

KV_RC svc_run_audit_verify(struct svc_operation_run *run)
{
    struct verify *verify KV_CLEANUP(kv_freep) = kv_alloc(sizeof *verify);
    if (verify == NULL) {
        return KV_E_NO_MEMORY;
    }
    *verify = (struct verify){.run = run, .bad = UINT64_MAX};
    KV_TRY(read_params(verify));
    KV_TRY(read_position(verify));
    for (unsigned i = 0; i < VERIFY_BATCHES && verify->frontier.size < verify->to && verify->bad == UINT64_MAX; i++) {
        KV_TRY(verify_batch(verify));
    }
    snprintf(run->row.phase, sizeof run->row.phase, "recomputing");
    snprintf(run->row.unit, sizeof run->row.unit, "entries");
    run->row.done_units = verify->frontier.size - verify->from;
    run->row.total_units = verify->to - verify->from;
    if (verify->bad != UINT64_MAX || verify->frontier.size >= verify->to) {
        return finish_verify(verify);
    }
    return write_position(verify);
}

/* --- tier.drain: memory is written down and freed; nvme is forgotten
 * ---------------------------------------------------------------- */

#define DRAIN_PIECE_NS (1 * KV_S_NS)

static KV_RC drain_dram(struct svc_operation_run *run)
{
    uint64_t blocks = 0;
    enum kv_err rc = kv_engine_drain_dram(run->svc->engine, kv_now_ns(run->svc->env) + DRAIN_PIECE_NS, &blocks);
    run->row.done_units += blocks;
    if (rc == KV_E_NO_SPACE) {
        return kv_fail(&run->info, rc, "not everything could be written down: there is no other tier with room for it");
    }
    return rc;
}

/* Blocks can be computed again, so they are not carried elsewhere; nothing new comes meanwhile, nor afterwards until
 * somebody lets the tier take blocks again. After a crash the state is set once more, and what is left goes. */
static KV_RC drain_nvme(struct svc_operation_run *run)
{
    uint64_t blocks = 0;
    struct kv_engine_stats stats;
    KV_TRY(svc_tier_set_draining(run->svc, KV_TIER_NVME, true));
    enum kv_err rc = kv_engine_drain_nvme(run->svc->engine, kv_now_ns(run->svc->env) + DRAIN_PIECE_NS, &blocks);
    kv_engine_stats(run->svc->engine, &stats);
    run->row.done_units += blocks;
    run->row.total_units = run->row.done_units + stats.nvme.objects;
    return rc;
}

KV_RC svc_run_drain(struct svc_operation_run *run)
{
    bool dram = strstr(run->row.params, "\"dram\"") != NULL;
    snprintf(run->row.phase, sizeof run->row.phase, "draining");
    snprintf(run->row.unit, sizeof run->row.unit, "blocks");
    KV_TRY(dram ? drain_dram(run) : drain_nvme(run));
    snprintf(run->row.response, sizeof run->row.response, "{\"blocks\":%" PRIu64 ",\"tier\":\"%s\"}",
             run->row.done_units, dram ? "dram" : "nvme");
    run->done = true;
    return KV_OK;
}

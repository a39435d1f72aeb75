/*
 * What the lane counts: one struct for the API, a fixed set of series for Prometheus. All series exist from the start.
 */
#include "dataplane/engine/lane_int.h"

#include <stdio.h>

static const char *const tier_names[3] = {"none", "dram", "nvme"};
static const char *const directions[2] = {"offload", "restore"};

struct result_name {
    enum kv_block_result result;
    const char *name;
    bool offload, restore, on_tier;
};

static const struct result_name results[] = {
    {KV_BLOCK_STORED, "stored", true, false, true},
    {KV_BLOCK_PRESENT, "present", true, false, true},
    {KV_BLOCK_RESTORED, "restored", false, true, true},
    {KV_BLOCK_MISSING, "missing", false, true, false},
    {KV_BLOCK_QUARANTINED, "quarantined", false, true, false},
    {KV_BLOCK_ERASED, "erased", true, true, false},
    {KV_BLOCK_DENIED, "denied", true, true, false},
    {KV_BLOCK_BUSY, "busy", true, true, false},
    {KV_BLOCK_TIMEOUT, "timeout", true, true, false},
    {KV_BLOCK_FAILED, "failed", true, true, false},
};

static void register_blocks(struct lane_metrics *metrics, unsigned direction, const struct result_name *result)
{
    unsigned first = result->on_tier ? 1 : 0;
    unsigned last = result->on_tier ? 2 : 0;
    for (unsigned tier = first; tier <= last; tier++) {
        char labels[96];
        (void)snprintf(labels, sizeof labels, "direction=\"%s\",tier=\"%s\",result=\"%s\"", directions[direction],
                       tier_names[tier], result->name);
        metrics->blocks[direction][tier][result->result] = kv_metric_counter(
            "kvrun_transfer_blocks_total", "Blocks offered or asked for, by what became of them", labels);
    }
}

#define COUNT_OF(array) (unsigned)(sizeof(array) / sizeof(array)[0])

static const double seconds_bounds[] = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05,
                                        .1,    .25,    .5,    1,    2.5,   5,    10,  30};

static void register_directions(struct lane_metrics *metrics)
{
    static const double blocks[] = {1, 4, 16, 64, 256, 1024, 4096};
    for (unsigned d = 0; d < 2; d++) {
        char labels[48];
        (void)snprintf(labels, sizeof labels, "direction=\"%s\"", directions[d]);
        metrics->bytes[d] =
            kv_metric_counter("kvrun_transfer_bytes_total", "Plaintext bytes of blocks transferred", labels);
        metrics->duration[d] =
            kv_metric_histogram("kvrun_transfer_duration_seconds", "Time from begin to end of a transfer", labels,
                                seconds_bounds, COUNT_OF(seconds_bounds));
        metrics->batch[d] = kv_metric_histogram("kvrun_transfer_batch_blocks", "Blocks of one transfer", labels, blocks,
                                                COUNT_OF(blocks));
        for (unsigned i = 0; i < COUNT_OF(results); i++) {
            if (d == 0 ? results[i].offload : results[i].restore) {
                register_blocks(metrics, d, &results[i]);
            }
        }
    }
    metrics->inflight =
        kv_metric_gauge("kvrun_transfers_inflight", "Transfers that a lane has taken and not ended", "lane=\"0\"");
}

static void register_io(struct lane_metrics *metrics)
{
    static const char *const ops[LANE_IO_OPS] = {"read", "write"};
    static const char *const classes[2] = {"io", "integrity"};
    for (unsigned op = 0; op < LANE_IO_OPS; op++) {
        char labels[64];
        (void)snprintf(labels, sizeof labels, "tier=\"nvme\",op=\"%s\"", ops[op]);
        metrics->io_bytes[op] =
            kv_metric_counter("kvrun_tier_io_bytes_total", "Sealed bytes moved to or from a tier", labels);
        metrics->io_duration[op] =
            kv_metric_histogram("kvrun_tier_io_duration_seconds", "Time of one read or write of a block at a tier",
                                labels, seconds_bounds, COUNT_OF(seconds_bounds));
        for (unsigned c = 0; c < 2; c++) {
            (void)snprintf(labels, sizeof labels, "tier=\"nvme\",op=\"%s\",class=\"%s\"", ops[op], classes[c]);
            metrics->io_errors[op][c] =
                kv_metric_counter("kvrun_tier_io_errors_total", "Reads and writes at a tier that failed", labels);
        }
    }
}

static void register_seal(struct lane_metrics *metrics)
{
    static const char *const ops[LANE_SEAL_OPS] = {"seal", "open"};
    for (unsigned op = 0; op < LANE_SEAL_OPS; op++) {
        char labels[48];
        (void)snprintf(labels, sizeof labels, "op=\"%s\",device=\"host\"", ops[op]);
        metrics->seal_bytes[op] =
            kv_metric_counter("kvrun_seal_bytes_total", "Plaintext bytes sealed or opened", labels);
        metrics->seal_duration[op] =
            kv_metric_histogram("kvrun_seal_duration_seconds", "Time to seal or open one block, with its copy", labels,
                                seconds_bounds, COUNT_OF(seconds_bounds));
    }
}

static void register_tier(struct lane_metrics *metrics, unsigned t)
{
    static const char *const kinds[INTEGRITY_KINDS] = {"tag", "commitment", "layout", "length"};
    char labels[64];
    for (unsigned kind = 0; kind < INTEGRITY_KINDS; kind++) {
        (void)snprintf(labels, sizeof labels, "tier=\"%s\",kind=\"%s\"", tier_names[t + 1], kinds[kind]);
        metrics->integrity[t][kind] = kv_metric_counter("kvrun_integrity_failures_total",
                                                        "Replicas that did not verify and were quarantined", labels);
    }
    (void)snprintf(labels, sizeof labels, "tier=\"%s\",reason=\"capacity\"", tier_names[t + 1]);
    metrics->evictions[t] =
        kv_metric_counter("kvrun_tier_evictions_total", "Blocks forgotten to make room on a tier", labels);
    (void)snprintf(labels, sizeof labels, "tier=\"%s\"", tier_names[t + 1]);
    metrics->used[t] = kv_metric_gauge("kvrun_tier_used_bytes", "Physical bytes in use on a tier", labels);
    metrics->capacity[t] = kv_metric_gauge("kvrun_tier_capacity_bytes", "Physical bytes a tier may use", labels);
    metrics->objects[t] = kv_metric_gauge("kvrun_tier_objects", "Sealed blocks on a tier", labels);
    metrics->up[t] =
        kv_metric_gauge("kvrun_tier_up", "1 while a tier takes blocks; a tier that is not configured is 0", labels);
}

void kv_stats_register(struct lane_metrics *metrics)
{
    register_directions(metrics);
    register_io(metrics);
    register_seal(metrics);
    for (unsigned t = 0; t < 2; t++) {
        register_tier(metrics, t);
    }
}

void kv_engine_metrics_init(void)
{
    struct lane_metrics metrics; /* the registry gives the same series to whoever asks again */
    kv_stats_register(&metrics);
}

static void count_offload(struct kv_engine_stats *stats, enum kv_block_result result)
{
    switch (result) {
    case KV_BLOCK_STORED:
        stats->stored++;
        break;
    case KV_BLOCK_PRESENT:
        stats->present++;
        break;
    case KV_BLOCK_DENIED:
    case KV_BLOCK_ERASED:
        stats->skipped++; /* a rule said no */
        break;
    default:
        stats->dropped++; /* wanted, and did not work out */
        break;
    }
}

void kv_stats_block(struct lane *lane, const struct op *op, enum kv_block_result result, uint8_t tier)
{
    unsigned direction = op->transfer->kind == KV_TRANSFER_OFFLOAD ? 0 : 1;
    if (direction == 0) {
        count_offload(&lane->stats, result);
    } else if (result == KV_BLOCK_RESTORED) {
        lane->stats.restored++;
    } else {
        lane->stats.restore_missed++;
    }
    struct kv_metric *metric = tier <= KV_TIER_NVME ? lane->metrics.blocks[direction][tier][result] : NULL;
    if (metric != NULL) {
        kv_metric_add(metric, 1);
    }
}

void kv_stats_operation(struct lane *lane, const struct op *op)
{
    unsigned direction = op->transfer->kind == KV_TRANSFER_OFFLOAD ? 0 : 1;
    kv_metric_add(lane->metrics.bytes[direction], op->transfer->done_bytes);
    kv_metric_observe_traced(lane->metrics.duration[direction], (double)op->transfer->duration_ns / 1e9,
                             op->transfer->trace, lane->env->realtime_us(lane->env->ctx));
    kv_metric_observe(lane->metrics.batch[direction], op->transfer->count);
}

static double seconds_since(const struct lane *lane, uint64_t begun_ns)
{
    return (double)(kv_now_ns(lane->env) - begun_ns) / 1e9;
}

void kv_stats_io(struct lane *lane, enum lane_io_op op, uint64_t bytes, uint64_t begun_ns, enum kv_err rc)
{
    if (rc != KV_OK) {
        kv_metric_add(lane->metrics.io_errors[op][kv_err_class_of(rc) == KV_CLASS_INTEGRITY ? 1 : 0], 1);
        return;
    }
    kv_metric_add(lane->metrics.io_bytes[op], bytes);
    kv_metric_observe(lane->metrics.io_duration[op], seconds_since(lane, begun_ns));
}

void kv_stats_seal(struct lane *lane, enum lane_seal_op op, uint64_t bytes, uint64_t begun_ns)
{
    kv_metric_add(lane->metrics.seal_bytes[op], bytes);
    kv_metric_observe(lane->metrics.seal_duration[op], seconds_since(lane, begun_ns));
}

void kv_stats_integrity(struct lane *lane, enum kv_tier_id tier, enum kv_err cause)
{
    enum lane_integrity kind = cause == KV_E_WRONG_KEY   ? INTEGRITY_COMMITMENT
                               : cause == KV_E_TRUNCATED ? INTEGRITY_LENGTH
                               : cause == KV_E_TAMPERED  ? INTEGRITY_TAG
                                                         : INTEGRITY_LAYOUT;
    kv_metric_add(lane->metrics.integrity[tier == KV_TIER_DRAM ? 0 : 1][kind], 1);
}

static void set_gauges(struct lane *lane, unsigned t, const struct kv_tier_stats *stats)
{
    kv_metric_set(lane->metrics.used[t], (double)stats->used_bytes);
    kv_metric_set(lane->metrics.capacity[t], (double)stats->capacity_bytes);
    kv_metric_set(lane->metrics.objects[t], (double)stats->objects);
    kv_metric_set(lane->metrics.up[t], stats->up ? 1 : 0);
}

void kv_stats_publish(struct lane *lane)
{
    struct kv_dram_stats dram;
    kv_dram_stats(lane->dram, &dram);
    lane->stats.dram = (struct kv_tier_stats){
        .capacity_bytes = dram.capacity_bytes, .used_bytes = dram.used_bytes, .objects = dram.slots_used, .up = true};
    lane->stats.nvme = (struct kv_tier_stats){.reason = "not configured"};
    if (lane->nvme != NULL) {
        lane->nvme->ops->stats(lane->nvme, &lane->stats.nvme);
    }
    lane->stats.operations_running = lane->operations_running;
    lane->stats.io_name = lane->io->ops->name;
    lane->stats.block_bytes_max = lane->staging_bytes;
    lane->stats.cipher_name = kv_sealer_backend(lane->sealer);
    set_gauges(lane, 0, &lane->stats.dram);
    set_gauges(lane, 1, &lane->stats.nvme);
    kv_metric_set(lane->metrics.inflight, lane->operations_running);
    pthread_mutex_lock(&lane->engine->mutex);
    lane->engine->stats = lane->stats;
    pthread_mutex_unlock(&lane->engine->mutex);
}

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

static void register_directions(struct lane_metrics *metrics)
{
    static const double bounds[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30};
    for (unsigned d = 0; d < 2; d++) {
        char labels[48];
        (void)snprintf(labels, sizeof labels, "direction=\"%s\"", directions[d]);
        metrics->bytes[d] =
            kv_metric_counter("kvrun_transfer_bytes_total", "Plaintext bytes of blocks transferred", labels);
        metrics->duration[d] =
            kv_metric_histogram("kvrun_transfer_duration_seconds", "Time from begin to end of a transfer", labels,
                                bounds, sizeof bounds / sizeof bounds[0]);
        for (unsigned i = 0; i < sizeof results / sizeof results[0]; i++) {
            if (d == 0 ? results[i].offload : results[i].restore) {
                register_blocks(metrics, d, &results[i]);
            }
        }
    }
}

void kv_stats_register(struct lane_metrics *metrics)
{
    register_directions(metrics);
    for (unsigned t = 0; t < 2; t++) {
        char labels[32];
        (void)snprintf(labels, sizeof labels, "tier=\"%s\"", tier_names[t + 1]);
        metrics->used[t] = kv_metric_gauge("kvrun_tier_used_bytes", "Physical bytes in use on a tier", labels);
        metrics->capacity[t] = kv_metric_gauge("kvrun_tier_capacity_bytes", "Physical bytes a tier may use", labels);
        metrics->objects[t] = kv_metric_gauge("kvrun_tier_objects", "Sealed blocks on a tier", labels);
        metrics->integrity[t] = kv_metric_counter("kvrun_integrity_failures_total",
                                                  "Replicas that did not verify and were quarantined", labels);
        metrics->evictions[t] =
            kv_metric_counter("kvrun_tier_evictions_total", "Blocks forgotten to make room on a tier", labels);
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
    kv_metric_observe(lane->metrics.duration[direction], (double)op->transfer->duration_ns / 1e9);
}

static void set_gauges(struct lane *lane, unsigned t, const struct kv_tier_stats *stats)
{
    kv_metric_set(lane->metrics.used[t], (double)stats->used_bytes);
    kv_metric_set(lane->metrics.capacity[t], (double)stats->capacity_bytes);
    kv_metric_set(lane->metrics.objects[t], (double)stats->objects);
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
    pthread_mutex_lock(&lane->engine->mutex);
    lane->engine->stats = lane->stats;
    pthread_mutex_unlock(&lane->engine->mutex);
}

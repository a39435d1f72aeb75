/*
 * What the service adds to the metrics: erasures, the audit's lag, the lease, and counts of what should never happen.
 * Must never ask the database: a scrape shows what is in memory.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/check.h"
#include "dataplane/base/metric.h"

static const double erasure_bounds[] = {.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600};

static struct {
    struct kv_metric *certified, *quarantined, *duration, *open, *lag, *pending_bytes, *lease, *bugs, *peers;
} metrics;

static void refresh(void *ctx)
{
    const struct kv_svc *svc = ctx;
    struct kv_journal_stats journal;
    kv_journal_stats(svc->journal, &journal);
    uint64_t now_us = svc->env->realtime_us(svc->env->ctx);
    bool behind = journal.oldest_pending_us != 0 && now_us > journal.oldest_pending_us;
    kv_metric_set(metrics.lag, behind ? (double)(now_us - journal.oldest_pending_us) / 1e6 : 0);
    kv_metric_set(metrics.pending_bytes, (double)journal.pending_bytes);
    kv_metric_set(metrics.lease, kv_keyring_lease_valid(svc->keyring) ? 1 : 0);
    kv_metric_set(metrics.open, (double)atomic_load(&svc->erasures_open));
    kv_metric_set(metrics.bugs, (double)kv_bug_count());
    kv_metric_set(metrics.peers, (double)kv_peer_count());
}

void kv_svc_metrics_init(void)
{
    kv_engine_metrics_init();
    const char *erasures = "Erasures that ended, by how";
    metrics.certified = kv_metric_counter("kvrun_erasures_total", erasures, "outcome=\"certified\"");
    metrics.quarantined = kv_metric_counter("kvrun_erasures_total", erasures, "outcome=\"quarantined\"");
    metrics.duration = kv_metric_histogram("kvrun_erasure_duration_seconds", "From the request to the certificate",
                                           NULL, erasure_bounds, sizeof erasure_bounds / sizeof erasure_bounds[0]);
    metrics.open = kv_metric_gauge("kvrun_erasures_open", "Erasures on their way, as the eraser saw last", NULL);
    metrics.lag = kv_metric_gauge("kvrun_audit_lag_seconds",
                                  "Age of the oldest transfer record that is not in the database", NULL);
    metrics.pending_bytes =
        kv_metric_gauge("kvrun_audit_journal_bytes", "Transfer records that are not in the database", NULL);
    metrics.lease = kv_metric_gauge("kvrun_lease_valid", "1 while this instance may use keys", NULL);
    metrics.bugs = kv_metric_gauge("kvrun_should_never_happen", "Contained mistakes since the start, by whose they are",
                                   "whose=\"ours\"");
    metrics.peers = kv_metric_gauge("kvrun_should_never_happen",
                                    "Contained mistakes since the start, by whose they are", "whose=\"peers\"");
}

void svc_metrics_start(struct kv_svc *svc)
{
    kv_svc_metrics_init();
    kv_metric_on_print(refresh, svc);
}

void svc_metrics_stop(struct kv_svc *svc)
{
    kv_metric_off_print(svc);
}

void svc_metrics_certified(uint64_t duration_us)
{
    kv_metric_add(metrics.certified, 1);
    kv_metric_observe(metrics.duration, (double)duration_us / 1e6);
}

void svc_metrics_quarantined(void)
{
    kv_metric_add(metrics.quarantined, 1);
}

/*
 * What connections and transactions count. Names of transactions are the rows of tx.def. Must never have a label from
 * SQL, a value or an error text.
 */
#include "dataplane/base/metric.h"
#include "server/store/pg_int.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const char *const states[KV_PG_STATES] = {
    [KV_PG_NONE] = "", [KV_PG_DOWN] = "down", [KV_PG_IDLE] = "idle", [KV_PG_BUSY] = "busy"};
static const char *const outcomes[KV_PG_OUTCOMES] = {"commit", "retry", "conflict", "error"};
static const char *const reasons[] = {"idle", "session", "rollback", "refused", "protocol", "statement"};

static struct kv_metric *connections_in(enum kv_pg_counted state)
{
    char labels[32];
    snprintf(labels, sizeof labels, "state=\"%s\"", states[state]);
    return kv_metric_gauge("kvrun_db_connections", "Connections to the database", labels);
}

static struct kv_metric *reconnects_for(const char *reason)
{
    char labels[32];
    snprintf(labels, sizeof labels, "reason=\"%s\"", reason);
    return kv_metric_counter("kvrun_db_reconnects_total", "Connections to the database that were lost and opened anew",
                             labels);
}

static struct kv_metric *transactions(enum kv_tx what, enum kv_pg_outcome outcome)
{
    char labels[96];
    snprintf(labels, sizeof labels, "name=\"%s\",outcome=\"%s\"", kv_tx_name(what), outcomes[outcome]);
    return kv_metric_counter("kvrun_db_transactions_total", "Transactions, and tries that PostgreSQL asked for",
                             labels);
}

static struct kv_metric *duration(void)
{
    static const double bounds[] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10};
    return kv_metric_histogram("kvrun_db_transaction_duration_seconds", "Time of a transaction with all its tries",
                               NULL, bounds, sizeof bounds / sizeof bounds[0]);
}

void kv_pg_metrics_init(void)
{
    for (int state = KV_PG_DOWN; state < KV_PG_STATES; state++) {
        connections_in((enum kv_pg_counted)state);
    }
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        reconnects_for(reasons[i]);
    }
    for (int what = 0; what < KV_TXS; what++) {
        for (int outcome = 0; outcome < KV_PG_OUTCOMES; outcome++) {
            transactions((enum kv_tx)what, (enum kv_pg_outcome)outcome);
        }
    }
    duration();
}

void kv_pg_count_state(struct kv_pg *pg, enum kv_pg_counted state)
{
    if (pg->counted == state) {
        return;
    }
    if (pg->counted != KV_PG_NONE) {
        kv_metric_change(connections_in(pg->counted), -1);
    }
    if (state != KV_PG_NONE) {
        kv_metric_change(connections_in(state), 1);
    }
    pg->counted = state;
}

void kv_pg_count_loss(const char *why)
{
    const char *reason = "statement"; /* a statement's or a transaction's name: too many for a label */
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        reason = strcmp(why, reasons[i]) == 0 ? reasons[i] : reason;
    }
    kv_metric_add(reconnects_for(reason), 1);
}

void kv_pg_count_tx(enum kv_tx what, enum kv_pg_outcome outcome, uint64_t n)
{
    kv_metric_add(transactions(what, outcome), n);
}

void kv_pg_time_tx(uint64_t took_ns)
{
    kv_metric_observe(duration(), (double)took_ns / 1e9);
}

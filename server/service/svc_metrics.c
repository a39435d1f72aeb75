/*
 * See svc_metrics.h. Must never ask the database, and never take a label's value from a request.
 */
#include "server/service/svc_metrics.h"

#include "dataplane/base/check.h"
#include "dataplane/base/metric.h"
#include "dataplane/base/metric_top.h"
#include "dataplane/crypto/heap.h"
#include "dataplane/crypto/secret.h"
#include "policies/policy.h"
#include "server/store/store_census.h"

#include <stdio.h>
#include <string.h>

#define COUNT_OF(array) (unsigned)(sizeof(array) / sizeof(array)[0])

static const double erasure_bounds[] = {.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600};
static const char *const erasure_scopes[] = {"session", "label", "idle", "tenant"};
static const char *const auth_failures[SVC_AUTH_FAILURES] = {
    [SVC_AUTH_MISSING] = "missing", [SVC_AUTH_MALFORMED] = "malformed", [SVC_AUTH_UNKNOWN] = "unknown",
    [SVC_AUTH_REVOKED] = "revoked", [SVC_AUTH_EXPIRED] = "expired",     [SVC_AUTH_ADDRESS] = "address",
    [SVC_AUTH_ROLE] = "role"};
static const char *const engine_kinds[] = {"other", "vllm", "sglang", "llamacpp"};
/* Keys; OpenSSL's heap; blocks and nodes that are open. */
enum { SECRET_PARTS = 3 };
static const char *const secret_parts[SECRET_PARTS] = {"keys", "openssl", "plaintext"};
static const char *const once_outcomes[SVC_ONCE_OUTCOMES] = {"replay", "conflict", "mismatch"};

/* Stages of an erasure: from the state before to the state that ends it. */
enum { STAGE_FENCE, STAGE_REKEY, STAGE_DESTROY, STAGE_VERIFY, STAGE_CERTIFY, STAGE_TOTAL, STAGES };
static const struct {
    const char *name;
    enum kv_erasure_state from, to;
} stages[STAGES] = {
    [STAGE_FENCE] = {"fence", KV_ERASURE_REQUESTED, KV_ERASURE_FENCED},
    [STAGE_REKEY] = {"rekey", KV_ERASURE_FENCED, KV_ERASURE_REKEYED},
    [STAGE_DESTROY] = {"destroy", KV_ERASURE_REKEYED, KV_ERASURE_DESTROYED},
    [STAGE_VERIFY] = {"verify", KV_ERASURE_DESTROYED, KV_ERASURE_VERIFIED},
    [STAGE_CERTIFY] = {"certify", KV_ERASURE_VERIFIED, KV_ERASURE_CERTIFIED},
    [STAGE_TOTAL] = {"total", KV_ERASURE_REQUESTED, KV_ERASURE_CERTIFIED},
};

static const struct kv_top_column tenant_columns[SVC_TENANT_COLUMNS] = {
    [SVC_TENANT_DRAM_BYTES] = {"kvrun_tenant_used_bytes", "Sealed bytes of a tenant on a tier", KV_GAUGE,
                               "tier=\"dram\""},
    [SVC_TENANT_NVME_BYTES] = {"kvrun_tenant_used_bytes", "Sealed bytes of a tenant on a tier", KV_GAUGE,
                               "tier=\"nvme\""},
    [SVC_TENANT_SESSIONS] = {"kvrun_tenant_sessions", "Active sessions of a tenant", KV_GAUGE, ""},
    [SVC_TENANT_LOOKUPS] = {"kvrun_tenant_lookups_total", "Lookups of a tenant", KV_COUNTER, ""},
    [SVC_TENANT_LOOKUP_TOKENS] = {"kvrun_tenant_lookup_tokens_total", "Tokens a tenant's lookups asked for", KV_COUNTER,
                                  ""},
    [SVC_TENANT_HIT_TOKENS_DRAM] = {"kvrun_tenant_lookup_hit_tokens_total",
                                    "Leading tokens that a tenant's lookups found", KV_COUNTER, "tier=\"dram\""},
    [SVC_TENANT_HIT_TOKENS_NVME] = {"kvrun_tenant_lookup_hit_tokens_total",
                                    "Leading tokens that a tenant's lookups found", KV_COUNTER, "tier=\"nvme\""},
    [SVC_TENANT_SAVED_TOKENS] = {"kvrun_tenant_prefill_saved_tokens_total",
                                 "Tokens of a tenant that were restored and need no prefill", KV_COUNTER, ""},
    [SVC_TENANT_OFFLOAD_BYTES] = {"kvrun_tenant_transfer_bytes_total", "Plaintext bytes of a tenant's transfers",
                                  KV_COUNTER, "direction=\"offload\""},
    [SVC_TENANT_RESTORE_BYTES] = {"kvrun_tenant_transfer_bytes_total", "Plaintext bytes of a tenant's transfers",
                                  KV_COUNTER, "direction=\"restore\""},
    [SVC_TENANT_ERASURES] = {"kvrun_tenant_erasures_total", "Erasures of a tenant's sessions that were certified",
                             KV_COUNTER, ""},
};

static struct {
    struct kv_metric *certified[COUNT_OF(erasure_scopes)], *quarantined[COUNT_OF(erasure_scopes)], *canceled;
    struct kv_metric *standby_late;
    struct kv_metric *certificates;
    struct kv_metric *stages[STAGES], *open[KV_CENSUS_ERASURE_STATES], *oldest, *backlog[2];
    struct kv_metric *tenants[KV_CENSUS_TENANT_STATES], *sessions[KV_CENSUS_SESSION_STATES], *expiring, *operators_end;
    struct kv_metric *lag, *pending_bytes, *audit_records, *transfer_records, *refused_records, *checkpoint;
    struct kv_metric *lease, *bugs, *peers, *engines, *pools, *expiries[COUNT_OF(engine_kinds)], *open_sessions;
    struct kv_metric *secret_used[SECRET_PARTS], *secret_limit[SECRET_PARTS], *openssl_locked, *openssl_refusals;
    struct kv_metric *auth[SVC_AUTH_FAILURES], *once[SVC_ONCE_OUTCOMES];
    _Atomic(struct kv_metric *) decisions[KV_POLICY_ACTIONS][KV_POLICY_REASONS + 1]; /* 0: allowed */
    struct kv_metric *lookups, *lookup_tokens, *hit_tokens[2], *saved_tokens;
    uint64_t records_seen, refused_seen; /* under the registry's print lock */
} metrics;

/* --- what is read when somebody scrapes -------------------------------------------------------------------------- */

static void refresh_journal(const struct kv_svc *svc)
{
    struct kv_journal_stats journal;
    kv_journal_stats(svc->journal, &journal);
    uint64_t now_us = svc->env->realtime_us(svc->env->ctx);
    bool behind = journal.oldest_pending_us != 0 && now_us > journal.oldest_pending_us;
    kv_metric_set(metrics.lag, behind ? (double)(now_us - journal.oldest_pending_us) / 1e6 : 0);
    kv_metric_set(metrics.pending_bytes, (double)journal.pending_bytes);
    kv_metric_add(metrics.transfer_records, journal.records - metrics.records_seen);
    kv_metric_add(metrics.refused_records, journal.refused - metrics.refused_seen);
    metrics.records_seen = journal.records;
    metrics.refused_seen = journal.refused;
}

static void refresh_secrets(void)
{
    struct kv_crypto_heap_stats heap;
    kv_crypto_heap_stats(&heap);
    kv_metric_set(metrics.secret_used[0], (double)(kv_secret_arena_used() * kv_secret_slot_bytes()));
    kv_metric_set(metrics.secret_limit[0], (double)(kv_secret_arena_capacity() * kv_secret_slot_bytes()));
    kv_metric_set(metrics.secret_used[1], (double)heap.used_bytes);
    kv_metric_set(metrics.secret_limit[1], (double)KV_MAX_CRYPTO_HEAP_BYTES);
    kv_metric_set(metrics.secret_used[2], (double)kv_locked_used());
    kv_metric_set(metrics.secret_limit[2], (double)KV_MAX_PLAINTEXT_BYTES);
    kv_metric_set(metrics.openssl_locked, heap.filled_bytes == 0 || heap.locked_bytes == heap.filled_bytes ? 1 : 0);
    kv_metric_set_total(metrics.openssl_refusals, (double)heap.refusals);
}

static void refresh(void *ctx)
{
    struct kv_svc *svc = ctx;
    refresh_journal(svc);
    refresh_secrets();
    kv_metric_set(metrics.lease, kv_keyring_lease_valid(svc->keyring) ? 1 : 0);
    kv_metric_set(metrics.bugs, (double)kv_bug_count());
    kv_metric_set(metrics.peers, (double)kv_peer_count());
    pthread_mutex_lock(&svc->registry_mutex);
    size_t engines = svc->engines.count, pools = svc->pools.count, sessions = svc->sessions.count;
    pthread_mutex_unlock(&svc->registry_mutex);
    kv_metric_set(metrics.engines, (double)engines);
    kv_metric_set(metrics.pools, (double)pools);
    kv_metric_set(metrics.open_sessions, (double)sessions);
}

/* --- registration ------------------------------------------------------------------------------------------------ */

static struct kv_metric *counter_of(const char *name, const char *help, const char *label, const char *value)
{
    char labels[96];
    snprintf(labels, sizeof labels, "%s=\"%s\"", label, value);
    return kv_metric_counter(name, help, labels);
}

static struct kv_metric *gauge_of(const char *name, const char *help, const char *label, const char *value)
{
    char labels[96];
    snprintf(labels, sizeof labels, "%s=\"%s\"", label, value);
    return kv_metric_gauge(name, help, labels);
}

static struct kv_metric *stage_series(unsigned stage)
{
    char labels[32];
    snprintf(labels, sizeof labels, "stage=\"%s\"", stages[stage].name);
    return kv_metric_histogram("kvrun_erasure_duration_seconds", "Time of each stage of certified erasures, and of all",
                               labels, erasure_bounds, COUNT_OF(erasure_bounds));
}

static struct kv_metric *ends_series(const char *scope, const char *outcome)
{
    char labels[64];
    snprintf(labels, sizeof labels, "scope=\"%s\",outcome=\"%s\"", scope, outcome);
    return kv_metric_counter("kvrun_erasures_total",
                             "Erasures of sessions that ended, and deletions of tenants that were called back, by what"
                             " the request meant and how it ended",
                             labels);
}

static void register_erasures(void)
{
    for (unsigned i = 0; i < COUNT_OF(erasure_scopes); i++) {
        metrics.certified[i] = ends_series(erasure_scopes[i], "certified");
        metrics.quarantined[i] = ends_series(erasure_scopes[i], "quarantined");
    }
    metrics.canceled = ends_series("tenant", "canceled");
    metrics.standby_late =
        kv_metric_counter("kvrun_erasure_standby_late_total",
                          "Roots destroyed before every standby of the database was known to have the re-key", NULL);
    for (unsigned i = 0; i < STAGES; i++) {
        metrics.stages[i] = stage_series(i);
    }
    for (unsigned i = 0; i < KV_CENSUS_ERASURE_STATES; i++) {
        metrics.open[i] = gauge_of("kvrun_erasures_open", "Erasures of this cluster on their way, counted now and then",
                                   "state", kv_census_erasure_states[i]);
    }
    metrics.oldest = kv_metric_gauge("kvrun_erasure_oldest_open_seconds",
                                     "Age of the oldest erasure that is on its way; 0 when there is none", NULL);
    metrics.backlog[0] = gauge_of("kvrun_erasure_gc_backlog_bytes",
                                  "Sealed bytes of erased sessions not yet given back", "tier", "dram");
    metrics.backlog[1] = gauge_of("kvrun_erasure_gc_backlog_bytes",
                                  "Sealed bytes of erased sessions not yet given back", "tier", "nvme");
    metrics.certificates = counter_of("kvrun_certificates_total", "Certificates issued here", "assurance", "E2");
}

static void register_population(void)
{
    for (unsigned i = 0; i < KV_CENSUS_TENANT_STATES; i++) {
        metrics.tenants[i] = gauge_of("kvrun_tenants", "Tenants of this cluster, counted now and then", "state",
                                      kv_census_tenant_states[i]);
    }
    for (unsigned i = 0; i < KV_CENSUS_SESSION_STATES; i++) {
        metrics.sessions[i] = gauge_of("kvrun_sessions", "Sessions of this cluster, counted now and then", "state",
                                       kv_census_session_states[i]);
    }
    metrics.open_sessions = kv_metric_gauge("kvrun_sessions_known", "Sessions this instance has in memory", NULL);
    metrics.expiring =
        gauge_of("kvrun_api_keys_expiring", "API keys in use that end within the window", "window", "7d");
    metrics.operators_end =
        kv_metric_gauge("kvrun_operator_keys_end_timestamp_seconds",
                        "When the last operator key that nobody revoked ends; 0: not counted yet", NULL);
    metrics.engines = kv_metric_gauge("kvrun_engines", "Engines registered at this instance", NULL);
    metrics.pools = kv_metric_gauge("kvrun_pools", "Pools of pages registered at this instance", NULL);
    for (unsigned i = 0; i < COUNT_OF(engine_kinds); i++) {
        metrics.expiries[i] = counter_of("kvrun_engine_lease_expiries_total", "Engines that stopped sending heartbeats",
                                         "kind", engine_kinds[i]);
    }
}

static void register_audit(void)
{
    const char *records = "Records of the audit, by where they are: transfers in the journal, entries in a log";
    metrics.lag = kv_metric_gauge("kvrun_audit_lag_seconds",
                                  "Age of the oldest transfer record that is not in the database", NULL);
    metrics.pending_bytes =
        kv_metric_gauge("kvrun_audit_journal_bytes", "Transfer records that are not in the database", NULL);
    metrics.transfer_records = counter_of("kvrun_audit_records_total", records, "log", "journal");
    metrics.audit_records = counter_of("kvrun_audit_records_total", records, "log", "entries");
    metrics.refused_records =
        kv_metric_counter("kvrun_audit_refusals_total", "Transfer records that the journal did not take", NULL);
    metrics.checkpoint =
        kv_metric_gauge("kvrun_audit_checkpoint_timestamp_seconds",
                        "When every log that grew had a signed head last; 0: not since the start", NULL);
}

static void register_access(void)
{
    for (unsigned i = 0; i < SVC_AUTH_FAILURES; i++) {
        char labels[64];
        snprintf(labels, sizeof labels, "reason=\"%s\",method=\"token\"", auth_failures[i]);
        metrics.auth[i] =
            kv_metric_counter("kvrun_auth_failures_total", "Requests whose caller was not let in", labels);
    }
    for (unsigned i = 0; i < SVC_ONCE_OUTCOMES; i++) {
        metrics.once[i] = counter_of("kvrun_idempotent_replays_total", "Requests whose Idempotency-Key was seen before",
                                     "outcome", once_outcomes[i]);
    }
}

static void register_lookups(void)
{
    const char *help = "Leading tokens that lookups found, by the tier they are on";
    metrics.lookups = kv_metric_counter("kvrun_lookups_total", "Lookups answered", NULL);
    metrics.lookup_tokens = kv_metric_counter("kvrun_lookup_tokens_total", "Tokens that lookups asked for", NULL);
    metrics.hit_tokens[0] = counter_of("kvrun_lookup_hit_tokens_total", help, "tier", "dram");
    metrics.hit_tokens[1] = counter_of("kvrun_lookup_hit_tokens_total", help, "tier", "nvme");
    metrics.saved_tokens =
        kv_metric_counter("kvrun_prefill_saved_tokens_total", "Tokens that were restored and need no prefill", NULL);
}

static void register_secrets(void)
{
    for (unsigned i = 0; i < SECRET_PARTS; i++) {
        metrics.secret_used[i] =
            gauge_of("kvrun_secret_memory_used_bytes", "Locked memory in use, by what for", "part", secret_parts[i]);
        metrics.secret_limit[i] =
            gauge_of("kvrun_secret_memory_limit_bytes", "And how much there may be", "part", secret_parts[i]);
    }
    metrics.openssl_locked =
        kv_metric_gauge("kvrun_secret_memory_openssl_locked", "1 while all memory that OpenSSL got is locked", NULL);
    metrics.openssl_refusals = kv_metric_total("kvrun_secret_memory_refusals_total",
                                               "Allocations of OpenSSL that its limit did not let be", NULL);
}

static struct kv_metric *decisions(const char *action, bool allowed, const char *reason)
{
    char labels[128];
    snprintf(labels, sizeof labels, "action=\"%s\",decision=\"%s\",reason=\"%s\"", action, allowed ? "allow" : "deny",
             allowed ? "" : reason);
    return kv_metric_counter("kvrun_policy_decisions_total", "What policies said to what was asked", labels);
}

static void register_decisions(void)
{
    for (unsigned action = 0; action < KV_POLICY_ACTIONS; action++) {
        const char *name = kv_policy_action_name((enum kv_policy_action)action);
        decisions(name, true, "");
        for (unsigned reason = 0; reason < KV_POLICY_REASONS; reason++) {
            decisions(name, false, kv_policy_reason_name(1u << reason));
        }
    }
}

static void register_all(void)
{
    const char *contained = "Contained mistakes since the start, by whose they are";
    kv_engine_metrics_init();
    kv_pg_metrics_init();
    register_erasures();
    register_population();
    register_audit();
    register_access();
    register_lookups();
    register_decisions();
    register_secrets();
    metrics.lease = kv_metric_gauge("kvrun_lease_valid", "1 while this instance may use keys", NULL);
    metrics.bugs = gauge_of("kvrun_should_never_happen", contained, "whose", "ours");
    metrics.peers = gauge_of("kvrun_should_never_happen", contained, "whose", "peers");
}

/* Once: the threads of a service that runs already use what is registered. */
void kv_svc_metrics_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_all);
}

KV_RC svc_metrics_start(struct kv_svc *svc)
{
    kv_svc_metrics_init();
    metrics.records_seen = metrics.refused_seen = 0;
    KV_TRY(kv_top_new(svc->conf.tenant_labels, tenant_columns, SVC_TENANT_COLUMNS, &svc->top));
    kv_metric_on_print(refresh, svc);
    return KV_OK;
}

void svc_metrics_stop(struct kv_svc *svc)
{
    kv_metric_off_print(svc);
}

void svc_metrics_free(struct kv_svc *svc)
{
    kv_top_free(svc->top);
    svc->top = NULL;
}

/* --- erasures ---------------------------------------------------------------------------------------------------- */

static unsigned scope_of(const struct kv_store_erasure *job)
{
    for (unsigned i = 1; i < COUNT_OF(erasure_scopes); i++) {
        if (strcmp(job->scope, erasure_scopes[i]) == 0) {
            return i;
        }
    }
    return 0;
}

void svc_metrics_certified(struct kv_svc *svc, const struct kv_store_erasure *job, uint64_t now_us)
{
    kv_metric_add(metrics.certified[scope_of(job)], 1);
    kv_metric_add(metrics.certificates, 1);
    kv_top_add(svc->top, &job->tenant, SVC_TENANT_ERASURES, 1);
    for (unsigned i = 0; i < STAGES; i++) {
        /* What waited for a hold to end began then. */
        bool waited = job->unblocked_us != 0 && stages[i].from == KV_ERASURE_REQUESTED;
        uint64_t from = waited ? job->unblocked_us : job->at_us[stages[i].from];
        uint64_t to = stages[i].to == KV_ERASURE_CERTIFIED ? now_us : job->at_us[stages[i].to];
        if (from != 0 && to >= from) { /* clocks of several instances may differ */
            kv_metric_observe(metrics.stages[i], (double)(to - from) / 1e6);
        }
    }
}

void svc_metrics_quarantined(const struct kv_store_erasure *job)
{
    kv_metric_add(metrics.quarantined[scope_of(job)], 1);
}

void svc_metrics_canceled(void)
{
    kv_metric_add(metrics.canceled, 1);
}

void svc_metrics_standby_late(void)
{
    kv_metric_add(metrics.standby_late, 1);
}

/* --- access ------------------------------------------------------------------------------------------------------ */

void svc_metrics_auth_failure(enum svc_auth_failure reason)
{
    kv_metric_add(metrics.auth[reason], 1);
}

void kv_svc_count_role_refused(void)
{
    svc_metrics_auth_failure(SVC_AUTH_ROLE);
}

void svc_metrics_once(enum svc_once_outcome outcome)
{
    kv_metric_add(metrics.once[outcome], 1);
}

void svc_metrics_decision(enum kv_policy_action action, uint32_t reasons)
{
    unsigned index = reasons == 0 ? 0 : 1 + (unsigned)__builtin_ctz(reasons);
    /* Found once for each: registering is a search under a lock. A series never moves. Acquire and release, since what
     * the pointer leads to was written by whoever registered it. */
    struct kv_metric *metric = atomic_load_explicit(&metrics.decisions[action][index], memory_order_acquire);
    if (metric == NULL) {
        metric = decisions(kv_policy_action_name(action), reasons == 0, kv_policy_reason_name(reasons));
        atomic_store_explicit(&metrics.decisions[action][index], metric, memory_order_release);
    }
    kv_metric_add(metric, 1);
}

/* --- the data plane's calls -------------------------------------------------------------------------------------- */

void svc_metrics_lookup(struct kv_svc *svc, const struct kv_id *tenant, uint64_t tokens, const struct kv_blocks_in *in,
                        const struct kv_blocks_out *out)
{
    uint64_t hits[2] = {0};
    for (uint32_t i = 0; i < out->leading_blocks; i++) {
        hits[(out->tiers[i] & 1u << KV_TIER_DRAM) != 0 ? 0 : 1] += tokens; /* read from the warmest */
    }
    kv_metric_add(metrics.lookups, 1);
    kv_metric_add(metrics.lookup_tokens, in->count * tokens);
    kv_metric_add(metrics.hit_tokens[0], hits[0]);
    kv_metric_add(metrics.hit_tokens[1], hits[1]);
    kv_top_add(svc->top, tenant, SVC_TENANT_LOOKUPS, 1);
    kv_top_add(svc->top, tenant, SVC_TENANT_LOOKUP_TOKENS, in->count * tokens);
    kv_top_add(svc->top, tenant, SVC_TENANT_HIT_TOKENS_DRAM, hits[0]);
    kv_top_add(svc->top, tenant, SVC_TENANT_HIT_TOKENS_NVME, hits[1]);
}

void svc_metrics_transfer(struct kv_svc *svc, const struct kv_id *tenant, uint64_t tokens,
                          const struct kv_transfer *transfer)
{
    bool offload = transfer->kind == KV_TRANSFER_OFFLOAD;
    kv_top_add(svc->top, tenant, offload ? SVC_TENANT_OFFLOAD_BYTES : SVC_TENANT_RESTORE_BYTES, transfer->done_bytes);
    if (!offload) {
        kv_metric_add(metrics.saved_tokens, transfer->leading_blocks * tokens);
        kv_top_add(svc->top, tenant, SVC_TENANT_SAVED_TOKENS, transfer->leading_blocks * tokens);
    }
}

void svc_metrics_engine_lost(const char *kind)
{
    unsigned known = 0; /* the word comes from the engine */
    for (unsigned i = 1; i < COUNT_OF(engine_kinds); i++) {
        known = strcmp(kind, engine_kinds[i]) == 0 ? i : known;
    }
    kv_metric_add(metrics.expiries[known], 1);
}

void svc_metrics_audit(uint64_t entries, bool signed_head, uint64_t now_us)
{
    kv_metric_add(metrics.audit_records, entries);
    if (signed_head) {
        kv_metric_set(metrics.checkpoint, (double)(now_us / 1000) / 1e3);
    }
}

/* --- what was counted -------------------------------------------------------------------------------------------- */

void svc_metrics_census(const struct kv_store_census *census, uint64_t now_us)
{
    for (unsigned i = 0; i < KV_CENSUS_TENANT_STATES; i++) {
        kv_metric_set(metrics.tenants[i], (double)census->tenants[i]);
    }
    for (unsigned i = 0; i < KV_CENSUS_SESSION_STATES; i++) {
        kv_metric_set(metrics.sessions[i], (double)census->sessions[i]);
    }
    for (unsigned i = 0; i < KV_CENSUS_ERASURE_STATES; i++) {
        kv_metric_set(metrics.open[i], (double)census->erasures[i]);
    }
    bool late = census->oldest_erasure_us != 0 && now_us > census->oldest_erasure_us;
    kv_metric_set(metrics.oldest, late ? (double)(now_us - census->oldest_erasure_us) / 1e6 : 0);
    kv_metric_set(metrics.expiring, (double)census->keys_expiring);
    kv_metric_set(metrics.operators_end, (double)census->operators_end_us / 1e6);
}

void svc_metrics_backlog(uint64_t dram_bytes, uint64_t nvme_bytes)
{
    kv_metric_set(metrics.backlog[0], (double)dram_bytes);
    kv_metric_set(metrics.backlog[1], (double)nvme_bytes);
}

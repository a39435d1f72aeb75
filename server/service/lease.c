/*
 * The instance's lease and other clocks: renews the lease at a third of its time, applies revocations before a renewal
 * counts, ends engines whose own lease ran out, and keeps what the probes show. Keys can be used only until the
 * deadline computed here: CLOCK_BOOTTIME when the renewal was sent, plus the lease, minus a margin.
 */
#include "server/service/svc_int.h"

#include "dataplane/base/log.h"
#include "server/store/store_change.h"

#include <errno.h>
#include <string.h>

#define INSTANCES_MAX 16
#define REVOCATIONS_AT_ONCE 64
#define FENCE_WAIT_NS (2 * KV_S_NS)
#define TICK_NS (250 * KV_MS_NS)
#define DOUBTS_MAX 16

static uint64_t boottime(const struct kv_svc *svc)
{
    return svc->env->boottime_ns(svc->env->ctx);
}

static void set_deadline(struct kv_svc *svc, uint64_t sent_ns)
{
    uint64_t margin = svc->conf.lease_ns / 10;
    kv_keyring_set_lease(svc->keyring, sent_ns + svc->conf.lease_ns - margin);
    if (atomic_load(&svc->quarantine) != NULL) { /* asked afterwards: one that begins meanwhile is not overwritten */
        kv_keyring_set_lease(svc->keyring, 0);
    }
}

struct lease_tx {
    struct kv_svc *svc;
    bool join;
    struct kv_store_instance seen; /* not for a join */
    struct kv_store_instance row;
    int64_t change_seq;
};

static KV_RC lease_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct lease_tx *tx = ctx;
    uint32_t lease_ms = (uint32_t)(tx->svc->conf.lease_ns / KV_MS_NS);
    KV_TRY(kv_store_change_seq(pg, info, &tx->change_seq));
    if (tx->join) {
        /* Nothing is open here yet, so every revocation up to the head is applied already. */
        int64_t head = 0;
        KV_TRY(kv_store_revocation_head(pg, info, &head));
        KV_TRY(kv_store_instance_join(pg, &tx->svc->instance, lease_ms, info, &tx->row));
        tx->row.acked_seq = head;
        return KV_OK;
    }
    return kv_store_instance_renew(pg, &tx->seen, lease_ms, info, &tx->row);
}

/* With a root that only this machine has, another live instance would serve sessions that this one erases. */
static KV_RC refuse_second(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_instance live[INSTANCES_MAX];
    size_t count = 0;
    KV_TRY(kv_store_instances_live(pg, INSTANCES_MAX, info, live, &count));
    for (size_t i = 0; i < count; i++) {
        if (memcmp(live[i].id.b, svc->instance.b, sizeof svc->instance.b) != 0) {
            return kv_fail(info, KV_E_INVALID_STATE,
                           "another kvrun instance holds a lease on this database; with root.provider %s there may be "
                           "one: stop it, or wait "
                           "for its lease to end",
                           svc->roe->ops->name);
        }
    }
    return KV_OK;
}

KV_RC svc_lease_join(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    KV_TRY(refuse_second(svc, pg, info));
    uint64_t sent = boottime(svc);
    struct lease_tx tx = {.svc = svc, .join = true};
    KV_TRY(kv_pg_tx(pg, KV_TX_LEASE_JOIN, lease_tx, &tx, info, NULL));
    svc->lease_row = tx.row;
    svc->change_seq = tx.change_seq;
    atomic_store(&svc->lease_turn_ns, kv_now_ns(svc->env));
    atomic_store(&svc->db_ok, true);
    atomic_store(&svc->lease_ok, true);
    set_deadline(svc, sent);
    return KV_OK;
}

/* Revocations up to the head are applied here: after that a renewal may promise it. */
static KV_RC apply_revocations(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_revocation list[REVOCATIONS_AT_ONCE];
    size_t count = 0;
    do {
        KV_TRY(kv_store_revocations_since(pg, svc->lease_row.acked_seq, REVOCATIONS_AT_ONCE, info, list, &count));
        for (size_t i = 0; i < count; i++) {
            struct kv_id none = {0};
            enum kv_err rc =
                svc_session_revoke(svc, &list[i].tenant, &list[i].session, &none, kv_now_ns(svc->env) + FENCE_WAIT_NS);
            if (rc != KV_OK) {
                return kv_fail(info, rc, "%s; no renewal before", svc_revoke_text(rc));
            }
            svc->lease_row.acked_seq = list[i].seq;
        }
    } while (count == REVOCATIONS_AT_ONCE);
    return KV_OK;
}

/* A renewal whose commit was never answered may have counted, so the counter may be ahead of what was seen by one for
 * each of those (`doubts`), and by no more. A clone that renewed in just that time is found out at its own next
 * renewal, or at ours after that. */
static KV_RC renew_row(struct kv_svc *svc, unsigned *doubts, struct lease_tx *tx, struct kv_errinfo *info)
{
    enum kv_err rc = KV_E_STALE;
    bool in_doubt = false;
    for (unsigned ahead = 0; rc == KV_E_STALE && !in_doubt && ahead <= *doubts; ahead++) {
        tx->seen = svc->lease_row;
        tx->seen.lease_ctr += ahead;
        rc = kv_pg_tx(svc->lease.pg, KV_TX_LEASE_RENEW, lease_tx, tx, info, &in_doubt);
    }
    if (rc == KV_OK) {
        *doubts = 0;
    } else if (in_doubt && *doubts < DOUBTS_MAX) {
        (*doubts)++;
    }
    return rc;
}

/* With or without a listener: no change stays unseen for longer than a renewal takes to come. */
static void see_changes(struct kv_svc *svc, int64_t seq)
{
    if (seq != svc->change_seq) {
        svc->change_seq = seq;
        svc_changed(svc);
    }
}

static KV_RC renew(struct kv_svc *svc, unsigned *doubts, struct kv_errinfo *info)
{
    struct kv_pg *pg = svc->lease.pg;
    KV_TRY(apply_revocations(svc, pg, info));
    kv_ktree_root(svc->tree,
                  &svc->lease_row.acked_root); /* a purged tree goes on acknowledging the last root it used */
    uint64_t sent = boottime(svc);
    struct lease_tx tx = {.svc = svc};
    enum kv_err rc = renew_row(svc, doubts, &tx, info);
    if (rc == KV_OK) {
        svc->lease_row = tx.row;
        see_changes(svc, tx.change_seq);
        set_deadline(svc, sent);
    } else if (rc == KV_E_STALE) {
        svc_quarantine(svc,
                       "this instance's lease is not as it left it: its state folder was copied and is in use, or the "
                       "database was put back to an older state; stop the copy and start again");
    }
    return rc;
}

/* What a device does by itself, as far as those who watch want to know it. */
static void watch_tiers(struct kv_svc *svc)
{
    struct kv_engine_stats stats;
    kv_engine_stats(svc->engine, &stats);
    bool up = stats.nvme.up || stats.nvme.capacity_bytes == 0;
    if (up != svc->nvme_up) {
        svc->nvme_up = up;
        svc_publish(svc, &(struct kv_event){.type = KV_EVENT_TIER_STATE, .name = "nvme", .state = up ? "up" : "down"});
    }
}

static void tick(struct kv_svc *svc, enum kv_err rc, const struct kv_errinfo *info)
{
    bool db_ok = rc != KV_E_DB_UNAVAILABLE;
    bool lease_ok = kv_keyring_lease_valid(svc->keyring);
    if (db_ok != atomic_load(&svc->db_ok)) {
        kv_log(db_ok ? KV_LOG_INFO : KV_LOG_WARN, "lease", db_ok ? "database-back" : "database-lost",
               KV_FT("text", info->text));
    }
    if (lease_ok != atomic_load(&svc->lease_ok)) {
        kv_log(lease_ok ? KV_LOG_INFO : KV_LOG_WARN, "lease", lease_ok ? "lease-renewed" : "lease-expired", KV_FRC(rc),
               KV_FT("text", info->text));
    }
    atomic_store(&svc->db_ok, db_ok);
    bool lost = atomic_exchange(&svc->lease_ok, lease_ok) && !lease_ok;
    if (!lease_ok) {
        kv_keyring_wipe(svc->keyring);
    }
    if (lost) {
        kv_ktree_purge(svc->tree); /* the root is unwrapped again when it is needed */
    }
    svc_engines_expire(svc);
    watch_tiers(svc);
}

/* Until the next tick, or the end. A stop that has begun is not the end: running requests still need their keys. */
static bool sleep_tick(struct kv_svc *svc)
{
    struct timespec until = kv_timespec_of(kv_now_ns(svc->env) + TICK_NS);
    pthread_mutex_lock(&svc->wake_mutex);
    while (!atomic_load(&svc->lease_stop) &&
           pthread_cond_timedwait(&svc->stopping_wake, &svc->wake_mutex, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&svc->wake_mutex);
    return atomic_load(&svc->lease_stop);
}

void *svc_lease_main(void *arg)
{
    struct kv_svc *svc = arg;
    uint64_t next_ns = 0;
    unsigned doubts = 0;
    enum kv_err rc = KV_OK;
    struct kv_errinfo info = {0};
    while (!sleep_tick(svc)) {
        atomic_store(&svc->lease_turn_ns, kv_now_ns(svc->env));
        if (boottime(svc) >= next_ns) {
            info = (struct kv_errinfo){0};
            rc = renew(svc, &doubts, &info);
            next_ns = boottime(svc) + (rc == KV_OK ? svc->conf.lease_ns / 3 : TICK_NS);
        }
        tick(svc, rc, &info);
    }
    return NULL;
}

/* --- the end ----------------------------------------------------------------------------------------------------- */

void svc_lease_stop(struct kv_svc *svc)
{
    pthread_mutex_lock(&svc->wake_mutex);
    atomic_store(&svc->lease_stop, true);
    pthread_cond_broadcast(&svc->stopping_wake);
    pthread_mutex_unlock(&svc->wake_mutex);
    if (svc->lease.started) {
        pthread_join(svc->lease.thread, NULL);
        svc->lease.started = false;
    }
}

static KV_RC leave_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct kv_svc *svc = ctx;
    return kv_store_instance_leave(pg, &svc->instance, svc->lease_row.incarnation, info);
}

void svc_lease_leave(struct kv_svc *svc)
{
    struct kv_errinfo info = {0};
    if (svc->lease.pg != NULL) {
        KV_IGNORE(kv_pg_tx(svc->lease.pg, KV_TX_LEASE_LEAVE, leave_tx, svc, &info, NULL),
                  "an unreachable database lets the lease run out");
        kv_pg_close(svc->lease.pg);
        svc->lease.pg = NULL;
    }
}

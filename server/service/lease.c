/*
 * The instance's lease and other clocks: renews the lease at a third of its time, applies revocations before a renewal
 * counts, ends engines whose own lease ran out, and keeps what the probes show. Keys can be used only until the
 * deadline computed here: CLOCK_BOOTTIME when the renewal was sent, plus the lease, minus a margin.
 */
#include "server/service/erase_request.h"
#include "server/service/svc_int.h"

#include "dataplane/base/id.h"
#include "dataplane/base/log.h"
#include "server/store/store_change.h"
#include "server/store/store_upgrade.h"

#include <errno.h>
#include <string.h>

#define REVOCATIONS_AT_ONCE 64
#define FENCE_WAIT_NS (2 * KV_S_NS)
#define TICK_NS (250 * KV_MS_NS)
#define DOUBTS_MAX 16
#define RENEW_TRIES 4

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

static void wipe(struct kv_svc *svc)
{
    kv_keyring_set_lease(svc->keyring, 0);
    kv_keyring_wipe(svc->keyring);
    kv_ktree_purge(svc->tree); /* the root is unwrapped again when it is needed */
}

/* --- joining ----------------------------------------------------------------------------------------------------- */

struct join_tx {
    struct kv_svc *svc;
    struct kv_store_join join;
    struct kv_store_instance row;
    int64_t change_seq;
    bool first; /* nothing is open yet, so every revocation up to the head is applied already */
};

static KV_RC join_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct join_tx *tx = ctx;
    KV_TRY(kv_store_change_seq(pg, info, &tx->change_seq));
    if (tx->first) {
        KV_TRY(kv_store_revocation_head(pg, info, &tx->join.acked_seq));
    }
    KV_TRY(kv_store_instance_join(pg, &tx->join, info, &tx->row));
    return tx->svc->roe->ops->shared ? KV_OK : kv_store_instances_end_others(pg, &tx->svc->instance, info);
}

/* A new incarnation waits for the transactions of the one before; of a process that is gone or stopped they are ended.
 */
static KV_RC join(struct kv_svc *svc, struct kv_pg *pg, int64_t acked_seq, bool first, struct kv_errinfo *info)
{
    struct join_tx tx = {
        .svc = svc,
        .join = {.id = svc->instance, .lease_ms = (uint32_t)(svc->conf.lease_ns / KV_MS_NS), .acked_seq = acked_seq},
        .first = first};
    memcpy(tx.join.keys_sha256, svc->keys_sha256, sizeof tx.join.keys_sha256);
    enum kv_err rc = kv_pg_tx(pg, KV_TX_LEASE_JOIN, join_tx, &tx, info, NULL);
    if (rc == KV_E_BUSY) {
        uint32_t ended = 0;
        KV_TRY(kv_store_instance_evict(pg, info, &ended));
        rc = kv_pg_tx(pg, KV_TX_LEASE_JOIN, join_tx, &tx, info, NULL);
    }
    KV_TRY(rc);
    svc->lease_row = tx.row;
    svc->change_seq = tx.change_seq;
    svc->token.instance = svc->instance;
    atomic_store(&svc->token.incarnation, tx.row.incarnation);
    return KV_OK;
}

/* With a root that only this machine has, another live instance would serve sessions that this one erases; with keys of
 * its own it would sign what nobody can check who trusts the other's. */
static KV_RC check_others(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_instance live[SVC_INSTANCES_MAX];
    size_t count = 0;
    KV_TRY(kv_store_instances_live(pg, SVC_INSTANCES_MAX, info, live, &count));
    for (size_t i = 0; i < count; i++) {
        if (memcmp(live[i].id.b, svc->instance.b, sizeof svc->instance.b) == 0) {
            continue;
        }
        if (!svc->roe->ops->shared) {
            return kv_fail(info, KV_E_INVALID_STATE,
                           "another kvrun instance holds a lease on this database; with root.provider %s there may be "
                           "one: stop it, wait for its lease to end, or use a root.provider that instances share",
                           svc->roe->ops->name);
        }
        if (memcmp(live[i].keys_sha256, svc->keys_sha256, sizeof svc->keys_sha256) != 0) {
            return kv_fail(info, KV_E_INVALID_STATE,
                           "another kvrun instance of this database signs with other keys: copy sign-certificate.key "
                           "and sign-log.key from its state folder into this one's");
        }
    }
    return count < SVC_INSTANCES_MAX ? KV_OK
                                     : kv_fail(info, KV_E_LIMIT,
                                               "this database has %d instances, which is as many as "
                                               "there may be; stop one",
                                               SVC_INSTANCES_MAX);
}

KV_RC svc_lease_join(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    KV_TRY(check_others(svc, pg, info));
    uint64_t sent = boottime(svc);
    KV_TRY(join(svc, pg, 0, true, info));
    KV_TRY(svc_peers_look(svc, pg, info));
    atomic_store(&svc->lease_turn_ns, kv_now_ns(svc->env));
    atomic_store(&svc->db_ok, true);
    atomic_store(&svc->lease_ok, true);
    set_deadline(svc, sent);
    return KV_OK;
}

/* --- renewing ---------------------------------------------------------------------------------------------------- */

/* Revocations up to the head are applied here: after that a renewal may promise it. */
static KV_RC apply_revocations(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_revocation list[REVOCATIONS_AT_ONCE];
    size_t count = 0;
    do {
        KV_TRY(kv_store_revocations_since(pg, svc->lease_row.acked_seq, REVOCATIONS_AT_ONCE, info, list, &count));
        for (size_t i = 0; i < count; i++) {
            KV_TRY(svc_revoke(svc, pg, &list[i], kv_now_ns(svc->env) + FENCE_WAIT_NS, info));
            KV_TRY(svc_erase_report(svc, pg, &list[i], info));
            svc->lease_row.acked_seq = list[i].seq;
        }
    } while (count == REVOCATIONS_AT_ONCE);
    return KV_OK;
}

struct renew_tx {
    const struct kv_store_instance *seen;
    struct kv_store_instance row;
    int64_t change_seq;
    bool any; /* renewed even with a revocation that is not applied yet */
    bool behind;
};

static KV_RC renew_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct renew_tx *tx = ctx;
    int64_t head = 0;
    KV_TRY(kv_store_change_seq(pg, info, &tx->change_seq));
    KV_TRY(kv_store_revocation_head(pg, info, &head));
    tx->behind = !tx->any && head > tx->seen->acked_seq;
    if (tx->behind) {
        return kv_fail(info, KV_E_BUSY, "a session was revoked meanwhile; no renewal before that is applied");
    }
    return kv_store_instance_renew(pg, tx->seen, info, &tx->row);
}

/* A renewal whose commit was never answered may have counted, so the counter may be ahead of what was seen by one for
 * each of those (`doubts`), and by no more. A clone that renewed in just that time is found out at its own next
 * renewal, or at ours after that. */
static KV_RC renew_row(struct kv_svc *svc, unsigned *doubts, struct renew_tx *tx, struct kv_errinfo *info)
{
    enum kv_err rc = KV_E_STALE;
    bool in_doubt = false;
    for (unsigned ahead = 0; rc == KV_E_STALE && !in_doubt && ahead <= *doubts; ahead++) {
        struct kv_store_instance seen = svc->lease_row;
        seen.lease_ctr += ahead;
        tx->seen = &seen;
        rc = kv_pg_tx(svc->lease.pg, KV_TX_LEASE_RENEW, renew_tx, tx, info, &in_doubt);
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

static KV_RC clone_tx(struct kv_pg *pg, void *ctx, struct kv_errinfo *info)
{
    struct kv_svc *svc = ctx;
    return kv_store_instance_mark_cloned(pg, &svc->instance, svc->lease_row.incarnation, info);
}

/* The row was not hit. Either somebody else waited for this lease to end and counted it as over, while this process was
 * stopped or cut off: it wipes and begins anew. Or somebody else goes by this identity: this process is the one that
 * gives way, and has the other one wipe what both may have open. */
static KV_RC renewal_lost(struct kv_svc *svc, struct kv_pg *pg, struct kv_errinfo *info)
{
    struct kv_store_instance row;
    KV_TRY(kv_store_instance_get(pg, &svc->instance, info, &row));
    if (row.incarnation == svc->lease_row.incarnation && row.expired_us != 0) {
        kv_log(KV_LOG_WARN, "lease", "lease-was-over", KV_FU("incarnation", (uint64_t)row.incarnation));
        wipe(svc);
        KV_TRY(join(svc, pg, svc->lease_row.acked_seq, false, info));
        return KV_E_BUSY; /* the next renewal acknowledges what is open now: nothing */
    }
    svc->lease_lost = true;
    svc_quarantine(svc, "this instance's lease is not as it left it: its state folder was copied and is in use, or the "
                        "database was put back to an older state; stop the copy and start again");
    KV_TRY(kv_pg_tx(pg, KV_TX_LEASE_CLONE, clone_tx, svc, info, NULL));
    return KV_E_STALE;
}

static void renewed(struct kv_svc *svc, const struct renew_tx *tx, uint64_t sent_ns)
{
    if (tx->row.incarnation != svc->lease_row.incarnation) {
        kv_log(KV_LOG_WARN, "lease", "clone-found-out", KV_FU("incarnation", (uint64_t)tx->row.incarnation));
        wipe(svc);
    }
    svc->lease_row = tx->row;
    atomic_store(&svc->token.incarnation, tx->row.incarnation);
    see_changes(svc, tx->change_seq);
    set_deadline(svc, sent_ns);
}

static KV_RC renew_once(struct kv_svc *svc, struct kv_pg *pg, unsigned *doubts, bool last, bool *ret_behind,
                        struct kv_errinfo *info)
{
    struct renew_tx tx = {.any = last};
    struct kv_id root = {0};
    KV_TRY(apply_revocations(svc, pg, info));
    KV_TRY(svc_root_follow(svc, pg, info, &root));
    if (!kv_id_is_zero(&root)) {
        svc->lease_row.acked_root = root;
    }
    uint64_t sent = boottime(svc);
    enum kv_err rc = renew_row(svc, doubts, &tx, info);
    *ret_behind = tx.behind;
    if (rc == KV_OK) {
        renewed(svc, &tx, sent);
    }
    return rc == KV_E_STALE ? renewal_lost(svc, pg, info) : rc;
}

static KV_RC renew(struct kv_svc *svc, unsigned *doubts, struct kv_errinfo *info)
{
    struct kv_pg *pg = svc->lease.pg;
    bool behind = true;
    enum kv_err rc = KV_E_BUSY;
    if (svc->lease_lost) {
        return kv_fail(info, KV_E_STALE, "another process has this instance's place");
    }
    if (!kv_keyring_lease_valid(svc->keyring)) {
        wipe(svc); /* before anything else: others may have counted on it that nothing is used after the end */
    }
    for (int tries = 1; behind && tries <= RENEW_TRIES; tries++) {
        behind = false;
        /* The last try renews with what is applied: a stream of revocations must not end the lease. */
        rc = renew_once(svc, pg, doubts, tries == RENEW_TRIES, &behind, info);
    }
    return rc == KV_OK ? svc_peers_look(svc, pg, info) : rc;
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
        kv_ktree_purge(svc->tree);
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
    KV_TRY(kv_store_folder_leave(pg, &svc->instance, info));
    return kv_store_instance_leave(pg, &svc->instance, svc->lease_row.incarnation, info);
}

void svc_lease_leave(struct kv_svc *svc)
{
    struct kv_errinfo info = {0};
    if (svc->lease.pg != NULL) {
        kv_pg_set_token(svc->lease.pg, NULL);
        KV_IGNORE(kv_pg_tx(svc->lease.pg, KV_TX_LEASE_LEAVE, leave_tx, svc, &info, NULL),
                  "an unreachable database lets the lease run out");
        kv_pg_close(svc->lease.pg);
        svc->lease.pg = NULL;
    }
}
